"""glabench: benchmark, correctness gate and report for gated linear attention kernels."""

from importlib.util import find_spec
from pathlib import Path


def _version() -> str:
    """That of the kernels: one file says it for both. It is read, for to import them would import torch."""
    found = find_spec("gla_kernels")
    if found is None or found.origin is None:
        raise ImportError("glabench measures gla_kernels, which are not installed: pip install gla-kernels")
    return Path(found.origin).with_name("version.py").read_text(encoding="utf-8").split('"')[-2]


__version__ = _version()

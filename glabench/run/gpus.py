"""Which GPUs processes see: ``--gpus`` gives each that times cases one of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from glabench.errors import UserError
from glabench.hardware import nvml


def choose(wanted: str, names: Sequence[str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES is for each worker: "all", or the numbers of ``wanted`` ("0,1,3").

    ``names`` are those of the machine's GPUs in the order of nvidia-smi. Where CUDA_VISIBLE_DEVICES is set, numbers
    count what it lists, as everywhere in CUDA.

    Raises:
        UserError: a number that is none, is not there or is there twice, or GPUs of different models.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [str(index) for index in range(len(names))] if listed is None else [v.strip() for v in listed.split(",")]
    indices = (
        list(range(len(visible))) if wanted.strip() == "all" else [_index(one, wanted) for one in wanted.split(",")]
    )
    for index in indices:
        if index >= len(visible):
            raise UserError(f"--gpus {wanted}: there is no GPU {index}, only 0 to {len(visible) - 1}")
    if len(set(indices)) < len(indices):
        raise UserError(f"--gpus {wanted}: a GPU is given twice, and no two timed cases may share one")
    chosen = tuple(visible[index] for index in indices)
    models = {names[int(one)] for one in chosen if one.isdigit() and int(one) < len(names)}
    if len(models) > 1:
        raise UserError(f"--gpus {wanted}: {' and '.join(sorted(models))} differ; a sweep is of one model of GPU")
    return chosen


def _index(text: str, wanted: str) -> int:
    if not text.strip().isdecimal():
        raise UserError(f"--gpus {wanted}: expected all, or numbers such as 0,1, got {text.strip()!r}")
    return int(text)


def tell_of(gpus: Sequence[str]) -> None:
    """Let this process name the first of these GPUs, not the machine's: files and rows of workers that died have its
    name, and there may be others."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    nvml.handle.cache_clear()


def only_this(gpu: str | None) -> dict[str, str | None]:
    """The environment of a worker that sees this GPU alone; of one that sees what this process sees for None."""
    return {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}


def taken() -> str:
    """What CUDA_VISIBLE_DEVICES is for the GPU that CUDA takes where nobody says which. A process opens every GPU that
    it sees, whether it uses it or not."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def counted_as_by_nvml() -> dict[str, str | None]:
    """The environment in which CUDA counts GPUs as NVML and nvidia-smi do, unless CUDA_DEVICE_ORDER is set: this
    process says by NVML which GPU it is that another one measures."""
    return {"CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"}

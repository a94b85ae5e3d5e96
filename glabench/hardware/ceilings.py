"""What a GPU can do at best: the floor under every time in a report. Importing it imports no torch.

Ceilings are measured once on a GPU and kept in the user's cache; measured ones of some GPUs come with the package, and
a datasheet speaks for the others. `python -m glabench.hardware.ceilings` measures and prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from glabench.errors import UserError
from glabench.hardware import nvml
from glabench.hardware.bandwidth import copy_bytes_per_s
from glabench.hardware.datasheet import Datasheet, datasheet_for, find_datasheet
from glabench.hardware.environment import cache_folder, name_in_use, package_version, require_cuda, slug

SHIPPED = Path(__file__).parent / "measured"
METHOD = 1  # raise it when something is measured in another way: what was kept is then measured anew
UNMEASURED = ("l2_read_bytes_per_s", "exps_per_s", "launch_gap_s", "launch_host_s")  # may be None


@dataclass(frozen=True)
class Ceilings:
    """Rates are in bytes, dense FLOP or results a second. What a datasheet does not say is None."""

    device: str
    source: str  # "measured" or "datasheet"
    conditions: dict[str, float | str] | None  # of a measurement: versions, clocks, power, temperature, date
    url: str | None  # of a datasheet
    hbm_copy_bytes_per_s: float  # bytes read plus bytes written
    hbm_read_bytes_per_s: float
    l2_read_bytes_per_s: float | None
    l2_bytes: int
    bf16_flops: float  # tensor cores
    fp16_flops: float
    tf32_flops: float
    fp32_flops: float  # CUDA cores
    exps_per_s: float | None
    launch_gap_s: float | None  # what a kernel of nothing takes of the GPU in a long queue of them
    launch_host_s: float | None  # what a launch takes of Python

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Raises ValueError for what `to_dict` does not give: other keys, a rate that is no positive number."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(names):
            raise ValueError(f"expected the keys {', '.join(names)}")
        for name in names[4:]:
            _check(name, values[name])
        if values["source"] not in ("measured", "datasheet"):
            raise ValueError(f"source is {values['source']!r}, not 'measured' or 'datasheet'")
        for name, kind in (("device", str), ("conditions", dict | None), ("url", str | None)):
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} is {values[name]!r}")
        return cls(**values)

    @classmethod
    def from_datasheet(cls, sheet: Datasheet) -> Self:
        """The maker's figures; memory is read as fast as it is copied."""
        return cls(
            device=sheet.name,
            source="datasheet",
            conditions=None,
            url=sheet.sources["bf16_flops"],
            hbm_copy_bytes_per_s=sheet.hbm_bytes_per_s,
            hbm_read_bytes_per_s=sheet.hbm_bytes_per_s,
            l2_read_bytes_per_s=None,
            l2_bytes=sheet.l2_bytes,
            bf16_flops=sheet.bf16_flops,
            fp16_flops=sheet.fp16_flops,
            tf32_flops=sheet.tf32_flops,
            fp32_flops=sheet.fp32_flops,
            exps_per_s=sheet.exps_per_s,
            launch_gap_s=None,
            launch_host_s=None,
        )


def _check(name: str, value: Any) -> None:
    if value is None and name in UNMEASURED:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}, not a positive number")


def measure() -> Ceilings:
    """The ceilings of the current CUDA device: some seconds of work on it, and some GiB of its memory meanwhile.

    Raises UserError without a usable GPU.
    """
    require_cuda("ceilings are measured on one")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise UserError("ceilings are measured by compiled kernels: unset TRITON_INTERPRET")
    import torch

    from glabench.hardware import rates

    watch = rates.Stopwatch()
    rates.wake()
    values = {
        "hbm_copy_bytes_per_s": copy_bytes_per_s(),
        "hbm_read_bytes_per_s": rates.hbm_read_bytes_per_s(watch),
        "l2_read_bytes_per_s": rates.l2_read_bytes_per_s(watch),
        "bf16_flops": rates.product_flops(watch, torch.bfloat16),
        "fp16_flops": rates.product_flops(watch, torch.float16),
        "tf32_flops": rates.product_flops(watch, torch.float32, "tf32"),
        "fp32_flops": rates.product_flops(watch, torch.float32),
        "exps_per_s": rates.exps_per_s(watch),
    }
    gap_s, host_s = rates.launch_seconds(watch)
    torch.cuda.empty_cache()  # the memory of the next case is its own
    return Ceilings(
        device=name_in_use(),
        source="measured",
        conditions=conditions(watch.uuid, watch.readings) | {"samples": rates.SAMPLES},
        url=None,
        l2_bytes=watch.l2_bytes,
        launch_gap_s=gap_s,
        launch_host_s=host_s,
        **values,
    )


def conditions(uuid: str, readings: list[nvml.Clocks]) -> dict[str, float | str]:
    """What a measurement holds for: date, versions, power limit (W); of the readings under load the mean clock (MHz)
    and power (W), the highest temperature (degrees C) and what throttled. Without what NVML does not tell."""
    info = nvml.gpu_info(uuid)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "driver": info.driver if info is not None else None,
        "torch": package_version("torch"),
        "triton": package_version("triton"),
        "power_limit_w": nvml.power_limit_w(uuid),
        **(nvml.summarise(readings) or {}),
    }
    facts["throttle"] = ", ".join(facts.get("throttle") or []) or None
    return {name: value for name, value in facts.items() if value is not None}


def kept(facts: Mapping[str, Any]) -> Ceilings:
    """The ceilings of this machine's GPU: those in the user's cache, or measured now and kept there.

    facts: the environment of a row made here, as `hardware.environment.environment` gives it. Another memory size,
    driver or torch has ceilings of its own. Call it before a case takes its memory. Raises UserError as `measure` does.
    """
    path = kept_path(facts)
    found = _load(path, "measured anew")
    if found is not None and (found.device, found.source) != (facts["device"], "measured"):
        warnings.warn(f"{path}: of another GPU ({found.device}, {found.source}); measured anew", stacklevel=2)
        found = None
    if found is None:
        found = measure()
        try:
            write(path, found)
        except OSError as error:
            warnings.warn(f"{path}: ceilings cannot be kept: {error.strerror}", stacklevel=2)
    return found


def kept_path(facts: Mapping[str, Any]) -> Path:
    """Where the ceilings of the GPU in ``facts`` are kept: "ceilings" in the cache's folder."""
    holds_for = [METHOD, *(facts.get(name) for name in ("device", "memory_bytes", "driver", "torch"))]
    key = hashlib.sha256(json.dumps(holds_for).encode()).hexdigest()[:8]
    return cache_folder() / "ceilings" / f"{slug(str(facts['device']))}-{key}.json"


def ceilings_of(name: str) -> Ceilings:
    """The ceilings of a GPU that need not be here, by its own name ("NVIDIA H200") or its short one ("H200"): measured
    ones if the package has them, else its datasheet's. Raises UserError for a GPU that neither describes."""
    loaded = (_load(path, "it came with the package") for path in sorted(SHIPPED.glob("*.json")))
    shipped = [one for one in loaded if one is not None]
    sheet = find_datasheet(name)
    for one in shipped:
        if slug(one.device) == slug(name) or (sheet is not None and find_datasheet(one.device) is sheet):
            return one
    return Ceilings.from_datasheet(datasheet_for(name))


def _load(path: Path, remedy: str) -> Ceilings | None:
    """The ceilings in a file; None without the file, or with a warning when it holds something else."""
    try:
        return Ceilings.from_dict(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{path}: no ceilings: {error}; ignored, {remedy}", stacklevel=3)
        return None


def write(path: Path, ceilings: Ceilings) -> None:
    """Write the file whole or not at all; others may write it at the same time. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with open(handle, "w") as file:
            file.write(json.dumps(ceilings.to_dict(), indent=1) + "\n")
        os.chmod(part, 0o644)  # what mkstemp makes is nobody else's to read
        os.replace(part, path)
    except OSError:
        os.unlink(part)
        raise


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the JSON, or write it to a file."""
    parser = argparse.ArgumentParser(
        prog="python -m glabench.hardware.ceilings", description="Measure what this GPU can do at best."
    )
    parser.add_argument("--out", type=Path, help="file to write, instead of printing")
    options = parser.parse_args(arguments)
    try:
        found = measure()
        if options.out is None:
            print(json.dumps(found.to_dict(), indent=1))
        else:
            write(options.out, found)
            print(options.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

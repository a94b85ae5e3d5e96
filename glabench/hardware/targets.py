"""What kernels are compiled for: an architecture, or a GPU by its name."""

from __future__ import annotations

import re

from glabench.errors import UserError, did_you_mean
from glabench.hardware.occupancy import SMS

GPUS = {
    "A100": 80, "A10": 86, "A40": 86, "L4": 89, "L40": 89, "L40S": 89, "H100": 90, "H200": 90, "GH200": 90, "B200": 100,
    "B300": 103,
}  # fmt: skip


def capability_of(target: str) -> int:
    """90 of "sm_90" and of "H100", in whatever case. UserError for what is neither."""
    architectures = {f"sm_{capability}": capability for capability in SMS}
    known = architectures | {name.lower(): capability for name, capability in GPUS.items()}
    found = known.get(target.lower())
    if found is not None:
        return found
    names = [*architectures, *GPUS]
    # another architecture is no misspelling: sm_75 is not to be sm_87
    other = re.fullmatch(r"sm_\d{2,3}a?", target)
    hint = f" (one of: {', '.join(names)})" if other else did_you_mean(target, names)
    raise UserError(f"--target {target}: unknown architecture{hint}")


__all__ = ["GPUS", "capability_of"]

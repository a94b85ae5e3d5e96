"""The sweep of `glabench compare`: one shape and its systems, made from the command line as a file would say it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glabench.errors import UserError, did_you_mean
from glabench.spec.catalog import CATALOG, ON_CPU, RIVALS
from glabench.spec.settings import Device
from glabench.spec.shape import name_of, sizes
from glabench.spec.source import Loc, Source
from glabench.spec.sweep import Sweep, valid

NAME = "compare"
MODES = ("fwd", "bwd", "fwdbwd", "step")
OWN, OWN_STEP = "gla", "gla_recurrent"
# Few samples: an answer is wanted at once, and rows say how sure they are. On a CPU six, below which no interval is.
SETTINGS: dict[Device, dict[str, float]] = {
    "cuda": {"min_time_s": 0.1, "max_time_s": 0.3, "max_wall_s": 1.5},
    "cpu": {"min_samples": 6, "min_time_s": 0.05, "max_time_s": 0.3},
}
LIMIT_S: dict[Device, float] = {"cuda": 600.0, "cpu": 60.0}


class _Options(Source):
    """What options gave, instead of a file: a mistake names its option."""

    def error(self, loc: Loc, message: str) -> UserError:
        return UserError(re.sub(r"^(\w+):", lambda field: f"--{field[1].replace('_', '-')}:", message))


def systems(against: Sequence[str], modes: Sequence[str], gated: bool, device: Device) -> list[str]:
    """Who is measured in these modes, ours first: the rivals named, "all" for every operator of the catalog, or where
    none is named those for this kind of device. UserError for a mode or a system that does not exist, and for a named
    one that has none of the modes."""
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"--mode {mode}: expected {', '.join(MODES)}{did_you_mean(mode, MODES)}")
    operators = [name for name, info in CATALOG.items() if info.family != "model"]
    for name in against if list(against) != ["all"] else ():
        if name not in operators:
            raise UserError(f"--against {name}: expected systems, or all{did_you_mean(name, operators)}")
        if not _offered(name, modes):
            raise UserError(f"--against {name}: has no mode {' or '.join(modes)}")
    steps = [OWN_STEP, "fla_recurrent"] if "step" in modes else []
    usual = [*steps, *(RIVALS if gated else ("fla_linear", *RIVALS[1:])), *(ON_CPU if device == "cpu" else ())]
    named = (operators if list(against) == ["all"] else against) or usual
    return [name for name in dict.fromkeys([OWN, *steps[:1], *named]) if _offered(name, modes)]


def _offered(system: str, modes: Sequence[str]) -> list[str]:
    return [mode for mode in modes if mode in CATALOG[system].modes]


def sweep(
    shape: str, wanted: Sequence[str], modes: Sequence[str], attention: str, device: Device, **fields: Any
) -> Sweep:
    """The sweep of ``wanted`` systems, each in those of the modes that it has, at a shape "B,T,H,K,V".

    attention: how it divides the width into heads, "usual" or "same". fields: further fields of a case, by name.
    UserError as for a sweep file, and for a shape that is none.
    """
    at = dict(zip("BTHKV", sizes(shape), strict=True))
    data = {
        "title": f"{name_of(shape)} beside its rivals",
        "attention": attention,
        "limit_s": LIMIT_S[device],
        "settings": SETTINGS[device],
        "defaults": {**at, **fields},
        "cases": [{"system": name, "mode": _offered(name, modes)} for name in wanted],
    }
    return valid(_Options(Path(NAME), data, {}))

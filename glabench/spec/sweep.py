"""Sweep files: what to run, one YAML file a question. Found by name or path, validated whole before anything runs.

The keys of a file are the fields of ``SweepFile`` below; ``sweeps/`` has examples. A block maps fields of a case to
values or lists of values. ``axes`` is one block whose lists multiply; ``cases`` is a list of further blocks. A section
under ``devices`` replaces the keys that it gives when the sweep runs on that kind of device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glabench.errors import UserError, dangling, did_you_mean
from glabench.spec.settings import Device, Settings
from glabench.spec.source import Loc, Source, read_yaml

Block = dict[str, Any]


class HeadDim(BaseModel):
    """Attention of the same width in heads of this dimension."""

    model_config = ConfigDict(strict=True, extra="forbid")
    head_dim: Annotated[int, Field(gt=0)]


# How an attention baseline divides the width H*V into heads. "same": H heads of dimension V, as the GLA it stands
# beside; "usual": heads of 64, as in the papers, where 64 divides the width, else "same".
Attention = Literal["usual", "same"] | HeadDim


class Section(BaseModel):
    """What may be said for every device, or again for one kind of device."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tokens: Annotated[int, Field(gt=0)] | None = None  # B*T held constant: B = tokens / T
    attention: Attention = "usual"
    defaults: Block = {}
    axes: Block | None = None
    cases: Annotated[list[Block], Field(min_length=1)] | None = None
    exclude: list[Block] = []
    # On a CPU, which cases of our Triton kernels are cross-compiled besides being checked: those that match one of
    # these. Not given: all of them. Compiling takes seconds a case, checking a fraction of that.
    compile: list[Block] | None = None
    # A case that takes longer is killed: status "timeout".
    limit_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 600.0
    settings: dict[str, int | float] = {}  # of glabench.spec.settings.Settings, by name


class SweepFile(Section):
    """The whole of a sweep file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] | None = None  # default: the file's name
    title: Annotated[str, Field(min_length=1)]
    question: str = ""  # what the sweep answers
    devices: dict[Device, Section] = {}


@dataclass(frozen=True)
class Sweep:
    """A valid sweep file."""

    name: str
    title: str
    question: str
    source: Source
    file: SweepFile

    def section(self, device: Device) -> Section:
        """What holds on this kind of device."""
        own = self.file.devices.get(device)
        if own is None:
            return self.file
        return self.file.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

    def loc(self, device: Device, key: str) -> Loc:
        """Where the file gives ``key`` for this kind of device."""
        own = self.file.devices.get(device)
        return ("devices", device, key) if own is not None and key in own.model_fields_set else (key,)

    def settings(self, device: Device) -> Settings:
        return Settings.from_dict({**Settings.for_device(device).to_dict(), **self.section(device).settings})


# What each kind of mistake that pydantic finds expected, in the words of a sweep file.
_EXPECTED = {
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "greater_than": "a number > 0",
    "finite_number": "a number > 0",
    "too_short": "at least one entry",
    "string_too_short": "a text",
    "string_pattern_mismatch": "letters, digits, '_', '-' and '.'",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def load(path: Path) -> Sweep:
    """Read and validate one sweep file; UserError with file, line and what was expected otherwise."""
    return valid(read_yaml(path))


def valid(source: Source) -> Sweep:
    """The sweep that a source describes, which is called as its file if it has no name of its own. UserError as
    ``load``."""
    if not isinstance(source.data, dict):
        raise source.error((), f"expected a mapping with a title and axes or cases, got {_shown(source.data)}")
    try:
        file = SweepFile.model_validate(source.data)
    except ValidationError as error:
        raise _first_error(source, error) from None
    for device in ("cpu", "cuda"):
        _check_settings(source, ("devices", device), file.devices.get(device))
    _check_settings(source, (), file)
    return Sweep(file.name or source.path.stem, file.title, file.question, source, file)


def _first_error(source: Source, error: ValidationError) -> UserError:
    """The first thing that pydantic found, by line; a missing key comes last, for it may only be misspelt."""
    found = [(item["type"] == "missing", _one_error(source, dict(item))) for item in error.errors()]
    return min(found, key=lambda pair: (pair[0], _line(pair[1])))[1]


def _line(error: UserError) -> int:
    place = re.search(r":(\d+): ", str(error))
    return int(place[1]) if place else 0


def _one_error(source: Source, item: dict[str, Any]) -> UserError:
    loc: Loc = tuple(item["loc"])
    kind, value = item["type"], item["input"]
    model: type[BaseModel] = Section if loc[0] == "devices" and len(loc) > 2 else SweepFile
    if loc[-1] == "[key]":
        return source.unknown_key(loc[:-1], ("cpu", "cuda"))
    if "attention" in loc[:3]:
        where = loc[: loc.index("attention") + 1]
        expected = "usual, same or {head_dim: an integer > 0}"
        return source.error(where, f"attention: expected {expected}, got {_shown(_value_at(source.data, where))}")
    if kind == "extra_forbidden":
        return source.unknown_key(loc, tuple(model.model_fields))
    if kind == "missing":
        return source.error(loc[:-1], f"missing key {loc[-1]!r}")
    label = ".".join(str(part) for part in loc if part not in ("int", "float"))
    if loc[-1] in ("int", "float"):  # either would do
        kind = "float_type"
    expected = _EXPECTED.get(kind, item["msg"])
    return source.error(loc, f"{label}: expected {expected}, got {_shown(value)}")


def _value_at(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_settings(source: Source, loc: Loc, section: Section | None) -> None:
    known = {f.name: getattr(Settings(), f.name) for f in dataclass_fields(Settings)}
    names = tuple(name for name, value in known.items() if isinstance(value, (int, float)))
    for name, value in (section.settings if section else {}).items():
        here = (*loc, "settings", name)
        if name not in names:
            raise source.error(here, f"unknown setting {name!r}{did_you_mean(name, names)}")
        if not 0 < value < math.inf or (isinstance(known[name], int) and not isinstance(value, int)):
            kind = "an integer" if isinstance(known[name], int) else "a number"
            raise source.error(here, f"settings.{name}: expected {kind} > 0, got {value}")


def folders() -> list[Path]:
    """Where sweeps are looked for by name: ./sweeps, then ours, in the installed package or beside it in a clone."""
    here, package = Path("sweeps"), Path(__file__).resolve().parents[1]
    ours = next((folder for folder in (package / "sweeps", package.parent / "sweeps") if folder.is_dir()), None)
    found = [here] if here.is_dir() else []
    if ours is not None and (not found or not ours.samefile(here)):
        found.append(ours)
    return found


def available() -> dict[str, Path]:
    """The sweeps that can be run by name, sorted; the first folder wins."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find(name: str) -> Path:
    """The file of a sweep given by name or path; UserError with the nearest name when there is none."""
    path = Path(name)
    by_name = available()
    if not name.strip():
        raise UserError(f"expected a sweep file or a name, got {name!r}{did_you_mean(name, by_name)}")
    if name in by_name and not path.is_file():
        return by_name[name]
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{name}: is a directory, expected a sweep file or a name{did_you_mean(name, by_name)}")
    if (why := dangling(path)) is not None:
        raise UserError(f"{name}: {why}")
    if path.suffix in (".yaml", ".yml") or path.parent != Path("."):
        beside = [item.name for item in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise UserError(f"{name}: no such sweep file{did_you_mean(path.name, beside or by_name)}")
    raise UserError(f"{name}: no such sweep{did_you_mean(name, by_name)}")

"""What the fields of a case may be in a sweep file, and how a block of fields is read.

A block is a mapping from a field (or several, joined by commas: coupled axes) to a value or a list of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from glabench.errors import did_you_mean
from glabench.spec.case import Dtype, Execution, Mode, Model
from glabench.spec.catalog import CATALOG
from glabench.spec.lengths import EXPECTED, text_of
from glabench.spec.shape import TOO_LARGE
from glabench.spec.source import Loc, Source

SIZE = "an integer > 0 and < 2^31"
PositiveInt = Annotated[int, Field(gt=0, lt=TOO_LARGE)]
ChunkSize = Literal[16, 32, 64, 128, 256]


def _known_system(name: str) -> str:
    if name not in CATALOG:
        raise ValueError(f"unknown system {name!r}")
    return name


class CaseValues(BaseModel):
    """The fields of a case that a sweep file sets. The description of each is what an error message expects."""

    model_config = ConfigDict(strict=True, extra="forbid")

    system: Annotated[str, AfterValidator(_known_system)] = Field(description="the name of a system")
    B: PositiveInt = Field(description=SIZE)
    T: PositiveInt = Field(description=SIZE)
    H: PositiveInt = Field(description=SIZE)
    K: PositiveInt = Field(description=SIZE)
    V: PositiveInt = Field(description=SIZE)
    dtype: Dtype = Field(description="bf16, fp16 or fp32")
    mode: Mode = Field(description="fwd, bwd, fwdbwd, step or train")
    chunk: ChunkSize | None = Field(description="16, 32, 64, 128, 256 or null")
    sub_chunk: ChunkSize | None = Field(description="16, 32, 64, 128, 256 or null")
    materialize: bool | None = Field(description="true, false or null")
    gate_strength: Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)] | None = Field(
        description="a number >= 0 and <= 1e30, or null for no gate at all"
    )
    initial_state: bool = Field(description="true or false")
    value_gate: bool = Field(description="true or false")
    gate_dtype: Dtype | None = Field(description="bf16, fp16, fp32 or null for that of q")
    lengths: Annotated[str | None, BeforeValidator(text_of)] = Field(description=EXPECTED)
    model: Model | None = Field(description="340m, 1.3b, tiny or null")
    execution: Execution | None = Field(description="compiled, graph or null for eager")
    recompute: bool | None = Field(description="true, or false or null for what the system does by itself")
    qk_heads: PositiveInt | None = Field(description=f"{SIZE}, or null for the H of v")
    seed: Annotated[int, Field(ge=0, le=2**62)] = Field(description="an integer >= 0 and <= 2^62")


FIELDS: tuple[str, ...] = tuple(CaseValues.model_fields)
NAMES: dict[str, tuple[str, ...]] = {
    "system": tuple(CATALOG),
    "dtype": ("bf16", "fp16", "fp32"),
    "gate_dtype": ("bf16", "fp16", "fp32"),
    "mode": ("fwd", "bwd", "fwdbwd", "step", "train"),
    "model": ("340m", "1.3b", "tiny"),
    "execution": ("compiled", "graph"),
}


def _adapter(info: FieldInfo) -> TypeAdapter[Any]:
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return TypeAdapter(annotation, config=ConfigDict(strict=True))


_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: _adapter(info) for name, info in CaseValues.model_fields.items()}


@dataclass(frozen=True)
class Axis:
    """One or several coupled fields, and the values that they take together."""

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    loc: Loc

    @property
    def varies(self) -> bool:
        return len(self.values) > 1


def read_block(source: Source, block: dict[str, Any], loc: Loc) -> list[Axis]:
    """The axes of a block, in the order of the file; UserError for an unknown field, a wrong value or an empty axis."""
    axes: list[Axis] = []
    taken: set[str] = set()
    for key, given in block.items():
        here = (*loc, key)
        names = tuple(name.strip() for name in key.split(","))
        for name in names:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS)
                raise source.error(here, f"unknown field {name!r}{hint}")
            if name in taken:
                raise source.error(here, f"{name!r} is given twice, on its own and in a coupled axis")
            taken.add(name)
        axes.append(Axis(names, _values(source, names, given, here), here))
    return axes


def read_fixed(source: Source, block: dict[str, Any], loc: Loc) -> dict[str, Any]:
    """A block in which every field has one value (``defaults``)."""
    fixed: dict[str, Any] = {}
    for axis in read_block(source, block, loc):
        given = block[axis.loc[-1]]  # type: ignore[index]  # the last part of its loc is the block's key
        if isinstance(given, list) and not _is_one(axis.names, given):
            raise source.error(axis.loc, f"{axis.loc[-1]}: expected one value, got a list; lists belong under axes")
        fixed[axis.names[0]] = axis.values[0][0]
    return fixed


def read_match(source: Source, block: dict[str, Any], loc: Loc) -> dict[str, tuple[Any, ...]]:
    """A block that picks cases (``exclude``, ``compile``): field to the values that match."""
    if not block:
        raise source.error(loc, "an empty match, expected fields and their values, such as {system: gla}")
    match: dict[str, tuple[Any, ...]] = {}
    for axis in read_block(source, block, loc):
        if len(axis.names) > 1:
            raise source.error(axis.loc, f"{axis.loc[-1]!r}: fields are matched one by one, not coupled")
        match[axis.names[0]] = tuple(value[0] for value in axis.values)
    return match


def _values(source: Source, names: tuple[str, ...], given: Any, loc: Loc) -> tuple[tuple[Any, ...], ...]:
    label = ",".join(names)
    if isinstance(given, list) and not given:
        raise source.error(loc, f"empty axis {label!r}, expected at least one value")
    if len(names) == 1:
        if not isinstance(given, list) or _is_one(names, given):
            return ((_value(source, names[0], given, loc),),)
        return tuple((_value(source, names[0], value, (*loc, i)),) for i, value in enumerate(given))
    rows: list[tuple[Any, ...]] = []
    for i, row in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(row, list) or len(row) != len(names):
            raise source.error((*loc, i), f"{label}: expected a list of lists of {len(names)} values, got {row!r}")
        rows.append(
            tuple(_value(source, name, v, (*loc, i, j)) for j, (name, v) in enumerate(zip(names, row, strict=True)))
        )
    return tuple(rows)


def _is_one(names: tuple[str, ...], given: list[Any]) -> bool:
    """Whether a list is one value, and not several: the lengths of packed sequences."""
    return names == ("lengths",) and all(type(one) is int for one in given)


def _value(source: Source, name: str, value: Any, loc: Loc) -> Any:
    try:
        return _ADAPTERS[name].validate_python(value)
    except ValidationError:
        if name == "system":
            raise source.error(loc, f"unknown system {value!r}{did_you_mean(value, CATALOG)}") from None
        hint = did_you_mean(value, NAMES[name]) if name in NAMES and isinstance(value, str) else ""
        expected = CaseValues.model_fields[name].description
        shown = "null" if value is None else repr(value)
        raise source.error(loc, f"{name}: expected {expected}, got {shown}{hint}") from None

"""What the fields of a case may be in a sweep file, and how a block of fields is read.

A block is a mapping from a field (or several, joined by commas: coupled axes) to a value or a list of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo

from glabench.errors import did_you_mean
from glabench.spec.axes import AXES, SIZE, TYPES, Dtype
from glabench.spec.case import Mode
from glabench.spec.catalog import CATALOG
from glabench.spec.shape import TOO_LARGE
from glabench.spec.source import Loc, Source

PositiveInt = Annotated[int, Field(gt=0, lt=TOO_LARGE)]
ChunkSize = Literal[16, 32, 64, 128, 256]


def _known_system(name: str) -> str:
    if name not in CATALOG:
        raise ValueError(f"unknown system {name!r}")
    return name


class _Values(BaseModel):
    """The fields of a case that a sweep file sets, but for later axes. The description of each is what an error message
    expects."""

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
    seed: Annotated[int, Field(ge=0, le=2**62)] = Field(description="an integer >= 0 and <= 2^62")


def _type_of(name: str) -> Any:
    """The type of an axis with what is asked of its values."""
    axis, kind = AXES[name], TYPES[name]
    if axis.between is not None:
        low, high = axis.between
        (number,) = set(get_args(kind)) - {type(None)}
        return Annotated[number, Field(gt=low, lt=high)] | None
    return kind if axis.read is None else Annotated[kind, BeforeValidator(axis.read)]


_LATER: dict[str, Any] = {name: (_type_of(name), Field(description=axis.expected)) for name, axis in AXES.items()}
CaseValues: type[BaseModel] = create_model("CaseValues", __base__=_Values, **_LATER)
FIELDS: tuple[str, ...] = tuple(CaseValues.model_fields)


def _names(kind: Any) -> tuple[str, ...]:
    """The values of a type that has a few names; none of another."""
    if get_origin(kind) is Literal:
        return tuple(value for value in get_args(kind) if isinstance(value, str))
    return tuple(name for arm in get_args(kind) for name in _names(arm))


_NAMED = {name: _names(info.annotation) for name, info in CaseValues.model_fields.items()}
NAMES: dict[str, tuple[str, ...]] = {"system": tuple(CATALOG)} | {name: of for name, of in _NAMED.items() if of}


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
    alone = AXES.get(names[0]) if len(names) == 1 else None
    return alone is not None and alone.listed and all(type(one) is int for one in given)


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

"""From a sweep to its cases: lists multiply, fields that a system has no use for become None, duplicates go."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from glabench.errors import UserError
from glabench.spec import lengths
from glabench.spec.axes import AXES, GATES, Misfit, other_gates
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG, SCHEDULE
from glabench.spec.models import CONFIGS
from glabench.spec.settings import Device
from glabench.spec.source import Loc, Source
from glabench.spec.sweep import Attention, HeadDim, Section, Sweep
from glabench.spec.values import Axis, read_block, read_fixed, read_match

Match = dict[str, tuple[Any, ...]]

REQUIRED = ("system", "T", "H", "K", "V")  # T may follow from lengths, and the rest from a model
OF_MODEL = ("H", "K", "V")
USUAL_HEAD_DIM = 64

# What completes a schedule of which only a part is given: the values that gla_kernels.Schedule takes by default.
DEFAULT_CHUNK = 64
DEFAULT_SUB_CHUNK = 64  # at most the chunk
DEFAULT_MATERIALIZE = True
# Where a system reads no gates.
UNGATED = {"gate_strength": None} | {name: AXES[name].default for name in GATES}

MAX_CASES = 100_000  # weeks of a GPU


@dataclass(frozen=True)
class Plan:
    """The cases of a sweep on one kind of device, in the order in which they run."""

    cases: tuple[Case, ...]
    compiled: frozenset[str]  # ids of the cases that are cross-compiled when they run on a CPU


@dataclass(frozen=True)
class _Block:
    """A block of the file with what else holds for it."""

    axes: list[Axis]
    loc: Loc
    tokens: int | None
    attention: Attention


def expand(sweep: Sweep, device: Device) -> Plan:
    """The cases of the sweep on this device; UserError with file and line for what cannot be a case, or no case at all.

    An axis system x mode may hold pairs that the system does not offer: they stay cases, whose rows will say
    "unsupported". Values that do not fit each other, as a sub_chunk that does not divide its chunk, are dropped when
    both are lists, and an error otherwise.
    """
    source, section = sweep.source, sweep.section(device)
    defaults = read_fixed(source, section.defaults, sweep.loc(device, "defaults"))
    exclude = _matches(source, section.exclude, sweep.loc(device, "exclude"))
    compiled = None if section.compile is None else _matches(source, section.compile, sweep.loc(device, "compile"))
    cases: dict[str, Case] = {}
    for block in _blocks(sweep, section, device):
        for case in _cases(source, block, defaults):
            if not any(_fits(case, match) for match in exclude):
                cases.setdefault(case.id, case)
    if not cases:
        raise source.error((), f"the sweep expands to no case on {device}: everything is excluded or does not fit")
    picked = (c.id for c in cases.values() if compiled is None or any(_fits(c, match) for match in compiled))
    return Plan(tuple(cases.values()), frozenset(picked))


def check(sweep: Sweep) -> None:
    """Raise what ``expand`` would raise on any device, so that a mistake shows on the first machine the file meets."""
    expand(sweep, "cpu")
    expand(sweep, "cuda")


def _matches(source: Source, blocks: list[dict[str, Any]], loc: Loc) -> list[Match]:
    return [read_match(source, block, (*loc, i)) for i, block in enumerate(blocks)]


def _fits(case: Case, match: Match) -> bool:
    return all(getattr(case, name) in values for name, values in match.items())


def _blocks(sweep: Sweep, section: Section, device: Device) -> list[_Block]:
    """The axes, then the explicit cases; each case may have its own ``tokens`` and ``attention``."""
    found = _all_blocks(sweep, section, device)
    count = sum(math.prod(len(axis.values) for axis in block.axes) for block in found)
    if count > MAX_CASES:
        raise sweep.source.error(found[0].loc, f"{count} cases before anything is excluded, at most {MAX_CASES}")
    return found


def _all_blocks(sweep: Sweep, section: Section, device: Device) -> list[_Block]:
    found: list[_Block] = []
    if section.axes is not None:
        loc = sweep.loc(device, "axes")
        if not section.axes:
            raise sweep.source.error(loc, "empty axes, expected at least one field")
        axes = read_block(sweep.source, section.axes, loc)
        found.append(_Block(axes, loc, section.tokens, section.attention))
    for i, case in enumerate(section.cases or []):
        loc = (*sweep.loc(device, "cases"), i)
        found.append(_case_block(sweep.source, section, case, loc))
    if not found:
        raise sweep.source.error((), f"nothing to run on {device}, expected axes or cases")
    return found


def _case_block(source: Source, section: Section, case: dict[str, Any], loc: Loc) -> _Block:
    own = {key: case[key] for key in ("tokens", "attention") if key in case}
    try:
        parsed = Section.model_validate(own)
    except ValueError:
        key = next(iter(own)) if len(own) == 1 else "tokens or attention"
        expected = "an integer > 0 for tokens; usual, same or {head_dim: an integer > 0} for attention"
        raise source.error((*loc, key), f"{key}: expected {expected}, got {own}") from None
    rest = {key: value for key, value in case.items() if key not in own}
    return _Block(
        axes=read_block(source, rest, loc),
        loc=loc,
        tokens=parsed.tokens if "tokens" in own else section.tokens,
        attention=parsed.attention if "attention" in own else section.attention,
    )


def _cases(source: Source, block: _Block, defaults: dict[str, Any]) -> list[Case]:
    _check_complete(source, block, defaults)
    varied = {name for axis in block.axes if axis.varies and len(axis.names) == 1 for name in axis.names}
    made: list[Case] = []
    for combination in itertools.product(*(axis.values for axis in block.axes)):
        values = dict(defaults)
        for axis, chosen in zip(block.axes, combination, strict=True):
            values.update(zip(axis.names, chosen, strict=True))
        values = _sized(source, block, fitted(values))
        misfit = _misfit(values)
        if misfit is None:
            made.append(_case(source, block, values))
            continue
        names, wrong = misfit
        if len(varied & set(names)) < 2:
            raise source.error(_loc_of(block, *names), wrong)
    return made


def _check_complete(source: Source, block: _Block, defaults: dict[str, Any]) -> None:
    given = {name for axis in block.axes for name in axis.names} | set(defaults)
    follow = [*["T"] * ("lengths" in given), *OF_MODEL * ("model" in given)]
    missing = [name for name in REQUIRED if name not in given and name not in follow]
    if missing:
        raise source.error(
            block.loc, f"missing {', '.join(missing)}: every case needs {', '.join(REQUIRED)} and B or tokens"
        )
    if block.tokens is None and "B" not in given:
        raise source.error(block.loc, "missing B: every case needs B, or tokens (B*T) to derive it from")
    if block.tokens is not None and "B" in given:
        raise source.error(
            _loc_of(block, "B"), f"B is given and so is tokens: {block.tokens}, which derives B as tokens / T"
        )


def _loc_of(block: _Block, *names: str) -> Loc:
    """Where the block gives the first of these fields, else the block."""
    return next((axis.loc for name in names for axis in block.axes if name in axis.names), block.loc)


def fitted(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a case with a schedule that is whole, or None where the system has no use for it, and without gates
    where it reads none.

    A system that uses all three of a schedule and is given none of them runs its own default schedule.
    """
    info = CATALOG[values["system"]]
    uses = info.axes
    schedule: dict[str, Any] = {name: values.get(name) if name in uses else None for name in SCHEDULE}
    if uses and (len(uses) < len(SCHEDULE) or any(value is not None for value in schedule.values())):
        if schedule["chunk"] is None:
            schedule["chunk"] = DEFAULT_CHUNK
        if "sub_chunk" in uses and schedule["sub_chunk"] is None:
            schedule["sub_chunk"] = min(DEFAULT_SUB_CHUNK, schedule["chunk"])
        if "materialize" in uses and schedule["materialize"] is None:
            schedule["materialize"] = DEFAULT_MATERIALIZE
    said = {**values, **schedule, **({} if info.gated else UNGATED)}
    return said | {name: axis.fit(said) for name, axis in AXES.items() if axis.fit is not None}


def gates_of(dtype: str, gate_dtype: str | None) -> str | None:
    """The dtype of gates of a shape on the command line, as a case has it; UserError for one that does not go with
    the inputs' dtype."""
    values = {"dtype": dtype, "gate_dtype": gate_dtype}
    own = AXES["gate_dtype"]
    assert own.fit is not None
    values["gate_dtype"] = own.fit(values)
    if (wrong := other_gates(values)) is not None:
        raise UserError(f"--gate-dtype {wrong[1].removeprefix('gate_dtype ')}")
    return values["gate_dtype"]


def _misfit(values: dict[str, Any]) -> Misfit | None:
    chunk, sub_chunk = values["chunk"], values["sub_chunk"]
    if sub_chunk is not None and chunk % sub_chunk != 0:
        return ("sub_chunk", "chunk"), f"sub_chunk {sub_chunk} does not divide chunk {chunk}"
    found = (axis.misfit(values) for axis in AXES.values() if axis.misfit is not None)
    return next((misfit for misfit in found if misfit is not None), None)


def _sized(source: Source, block: _Block, values: dict[str, Any]) -> dict[str, Any]:
    """The values with T, which may follow from lengths, B, which may follow from tokens, and H, K and V, which may
    follow from a model."""
    values = _modelled(source, block, values)
    if "T" not in values:
        text = values.get("lengths")
        listed = None if text is None else lengths.total(text)
        if listed is None:
            raise source.error(
                _loc_of(block, "lengths"), f"missing T: lengths {text or 'null'} have no sum of their own"
            )
        values = {**values, "T": listed}
    if block.tokens is None:
        return values
    if block.tokens % values["T"]:
        raise source.error(_loc_of(block, "T"), f"T {values['T']} does not divide tokens {block.tokens}")
    return {**values, "B": block.tokens // values["T"]}


def _modelled(source: Source, block: _Block, values: dict[str, Any]) -> dict[str, Any]:
    """The values with the heads of their model."""
    model = values.get("model")
    if model is None:
        lacking = [name for name in OF_MODEL if name not in values]
        if lacking:
            raise source.error(_loc_of(block, "model"), f"missing {', '.join(lacking)}: there is no model to size them")
        return values
    sizes = dict(zip(OF_MODEL, CONFIGS[model].heads, strict=True))
    for name, size in sizes.items():
        if values.get(name, size) != size:
            said = f"{name} {values[name]}: expected nothing, or {size} as model {model} has it"
            raise source.error(_loc_of(block, name), said)
    return {**values, **sizes}


def _case(source: Source, block: _Block, values: dict[str, Any]) -> Case:
    info = CATALOG[values["system"]]
    if info.operator == "attention":
        heads, dim = _attention(source, block, values["H"] * values["V"], values)
        values.update(attn_heads=heads, attn_dim=dim, initial_state=False)
    if info.operator == "ssm":
        values["initial_state"] = False
    return Case(**values)


def _attention(source: Source, block: _Block, width: int, values: dict[str, Any]) -> tuple[int, int]:
    """Heads and head dimension of an attention baseline of this width."""
    choice = block.attention
    if choice == "same" or (choice == "usual" and width % USUAL_HEAD_DIM):
        return values["H"], values["V"]
    dim = choice.head_dim if isinstance(choice, HeadDim) else USUAL_HEAD_DIM
    if width % dim:
        raise source.error(block.loc, f"attention: head_dim {dim} does not divide the width H*V = {width}")
    return width // dim, dim

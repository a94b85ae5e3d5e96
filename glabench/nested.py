"""What the nested parts of a row may hold, so that whoever reads a row can compute with what is in it.

Keys that are not named here may hold anything: a row of another version knows more. A named key may be missing, or
null, unless it has no default here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from glabench.spec.axes import TYPES

# Beyond this nothing was counted or measured, and sums of squares leave the range of a float.
MOST = 10**30

Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Size = Annotated[int, Field(gt=0, le=MOST)]
Milliseconds = Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]
Times = Annotated[list[Milliseconds], Field(min_length=1)]
Mapping = dict[str, Any]


class Part(BaseModel):
    """Nothing is converted: a text of digits is no number."""

    model_config = ConfigDict(strict=True, extra="allow")


def _held(kind: Any) -> Any:
    """What a row may hold of an axis of that type, whatever values another version gives it."""
    arms = set(get_args(kind) or (kind,)) - {type(None)}
    known = {bool: bool, int: Size, float: Amount}
    return next((held for one, held in known.items() if one in arms), str) | None


def _with_axes(model: type[Part]) -> type[Part]:
    """With the later axes of a case as fields."""
    later: dict[str, Any] = {name: (_held(kind), None) for name, kind in TYPES.items()}
    return create_model(model.__name__, __base__=model, __module__=model.__module__, **later)


@_with_axes
class CaseValues(Part):
    system: str
    dtype: str
    mode: str
    B: Size
    T: Size
    H: Size
    K: Size
    V: Size
    chunk: Size | None = None
    sub_chunk: Size | None = None
    attn_heads: Size | None = None
    attn_dim: Size | None = None
    materialize: bool | None = None
    initial_state: bool | None = None
    gate_strength: Amount | None = None
    seed: Count | None = None


class Output(Part):
    """Errors are not finite where the output is not."""

    error: float | None = None
    baseline: float | None = None
    tolerance: float | None = None
    block_error: float | None = None
    block_baseline: float | None = None
    block_tolerance: float | None = None
    nonfinite: Count | None = None


class Accuracy(Part):
    passed: bool | None = None
    deterministic: bool | None = None
    timed_calls: str | None = None
    where: str | None = None
    reference: str | None = None
    pairs: Count | None = None
    factor: Amount | None = None
    shape: dict[str, Size] | None = None
    outputs: dict[str, Output] | None = None


class ForwardParts(Part):
    inter_ms: list[Number] | None = None
    intra_ms: Times | None = None
    refused: str | None = None


class Eager(Part):
    host_ms: Times | None = None
    wall_ms: Times | None = None


class Training(Part):
    parameters: Count | None = None
    loss_first: Number | None = None
    loss_last: Number | None = None
    kernel_ms: dict[str, Amount] | None = None


class Time(Part):
    clock: str
    samples_ms: Times
    dropped: Count | None = None
    warmup: Count | None = None
    stopped: str | None = None
    launch_bound: bool | None = None
    host_ms: Amount | None = None  # of schemas 1 to 4
    eager: Eager | None = None
    parts: ForwardParts | None = None
    tuned: dict[str, str] | None = None
    steps: Count | None = None
    training: Training | None = None


class Memory(Part):
    peak_bytes: Count | None = None
    inputs_bytes: Count | None = None
    beyond_inputs_bytes: Count | None = None
    kept_bytes: Count | None = None
    refused: str | None = None


class Compiled(Part):
    kernel: str | None = None
    arch: str | None = None
    error: str | None = None
    tensor_core: str | None = None
    limited_by: str | None = None
    registers: Count | None = None
    spill_bytes: Count | None = None
    shared_bytes: Count | None = None
    num_warps: Count | None = None
    num_stages: Count | None = None
    programs_per_sm: Count | None = None
    launches: Count | None = None
    constexprs: Mapping | None = None
    instructions: Mapping | None = None
    compile_s: Amount | None = None


class Work(Part):
    flops: Amount | None = None
    hbm_bytes: Amount | None = None


class Clocks(Part):
    sm_mhz: Amount
    sm_mhz_min: Amount | None = None
    sm_mhz_max: Amount | None = None
    sm_mhz_counted: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Number | None = None
    throttle: list[str] | None = None


class Kernel(Part):
    name: str
    step: str | None = None
    direction: str | None = None
    work: Mapping | None = None
    counters: Mapping | None = None
    samples_ms: Times | None = None
    predicted_ms: Amount | None = None
    count: Count | None = None
    compiled: Compiled | None = None


class Target(Part):
    name: str | None = None
    here: bool | None = None


class Profile(Part):
    target: Target | None = None
    ceilings: Mapping | None = None
    ncu: Mapping | None = None
    parts: Mapping | None = None
    energy: Mapping | None = None
    memory: Mapping | None = None
    samples_ms: Times | None = None
    span_ms: Times | None = None
    kernels: list[Kernel] | None = None
    trace: str | None = None
    notes: list[str] | None = None


class Environment(Part):
    """Of one value each, but for the settings."""

    __pydantic_extra__: dict[str, str | int | float | bool | None]
    device: str | None = None
    kind: str | None = None
    device_slug: str | None = None
    fingerprint: str | None = None
    lacks: str | None = None
    omp_num_threads: str | None = None
    settings: str | None = None
    settings_given: dict[str, Amount] | None = None
    copy_bytes_per_s: Positive | None = None
    limit_s: Positive | None = None


class Spent(Part):
    part: str
    began: Amount
    seconds: dict[str, Amount]


class Parts(Part):
    """By the fields of a row, whose comments in `glabench.store` say what each is."""

    case: CaseValues | None = None
    accuracy: Accuracy | None = None
    time: Time | None = None
    memory: Memory | None = None
    compiled: list[Compiled] | None = None
    work: Work | None = None
    clocks: Clocks | None = None
    profile: Profile | None = None
    environment: Environment | None = None
    deaths: list[str] | None = None
    spent: list[Spent] | None = None
    wall_s: Amount | None = None


def fault(values: dict[str, Any]) -> str | None:
    """What is wrong first with the nested parts of a row, given by the fields' names, or None:
    "time.samples_ms.3: expected greater than or equal to 1e-09, got 0.0"."""
    try:
        Parts.model_validate({name: values[name] for name in Parts.model_fields if name in values})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *above, last = (str(key) for key in first["loc"])
        if first["type"] == "missing":
            return f"{'.'.join(above)}: has no {last}"
        said = re.sub(r"^Input should be |^List should have ", "expected ", first["msg"])
        said = re.sub(r"a valid dictionary.*", "a mapping", said).removesuffix(" after validation, not 0")
        return f"{'.'.join([*above, last])}: {said}, got {first['input']!r:.60}"
    return None

"""The judge of the kernel tests: the float64 recurrence, with a tolerance from a same-dtype PyTorch form. And tables
of tuned plans to choose from."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import Entry, Machine, Plan, Schedule, Workload, default_config, reference, refresh
from gla_kernels.chunk import hopper
from gla_kernels.chunk.problem import Problem
from gla_kernels.launch import Launch, execute
from gla_kernels.ops import prepared
from gla_kernels.ops.signature import forget
from gla_kernels.plan import files
from gla_kernels.schedule import Direction

FACTOR = 4.0  # a kernel may be this many times as far from float64 as the same-dtype PyTorch form
# What rounding alone allows, relative to the output's norm, in the type that everything is summed in (float32): the
# exponents are sums of up to a few hundred gates, each with its rounding error.
FLOOR = 128 * torch.finfo(torch.float32).eps
NAMES = ("o", "final_state", "dq", "dk", "dv", "dg", "d_initial", "dgv")


@dataclass
class Inputs:
    """q, k, g [B, T, H, K]; v, do, gv [B, T, H, V]; states [B, H, K, V] float32 or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor | None
    initial_state: torch.Tensor | None
    do: torch.Tensor
    d_final: torch.Tensor | None
    gv: torch.Tensor | None = None

    def cast(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if x is None else x.to(dtype) for x in vars(self).values()))  # type: ignore[arg-type]


Form = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
Outputs = dict[str, torch.Tensor]


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def make_inputs(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, gates: str | float | None, states: bool = True,
    seed: int = 0, gate_dtype: torch.dtype | None = None, value_gates: str | float | None = None,
) -> Inputs:  # fmt: skip
    """Random inputs. gates: a strength m for m*logsigmoid(N(0, 1)), "resets" for weak gates with one in eight -1e4,
    "infinite" for one in eight -inf, "closed" for -1e4 everywhere, None for no gates; value_gates: those of the other
    side."""
    B, T, H, K, V = shape
    torch.manual_seed(seed)
    q, k, v, do = (torch.randn(B, T, H, d, device=device()).to(dtype) for d in (K, K, V, V))
    g = make_gates((B, T, H, K), gates, gate_dtype or dtype)
    s, ds = (torch.randn(B, H, K, V, device=device()) if states else None for _ in range(2))
    return Inputs(q, k, v, g, s, do, ds, make_gates((B, T, H, V), value_gates, gate_dtype or dtype))


def make_gates(shape: tuple[int, int, int, int], gates: str | float | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Gates of one side: see `make_inputs`."""
    if gates is None:
        return None
    g = torch.nn.functional.logsigmoid(torch.randn(shape, device=device()))
    if gates in ("resets", "infinite"):
        g = torch.where(torch.rand_like(g) < 0.125, -1e4 if gates == "resets" else -math.inf, g / 16)
    elif gates == "closed":
        g = torch.full_like(g, -1e4)
    else:
        g = g * float(gates)
    return g.to(dtype)


def run(form: Form, x: Inputs) -> Outputs:
    """Outputs and all gradients of ``form(q, k, v, g, initial_state)``, or with gv as a sixth if there is one."""
    given = [None if t is None else t.detach().requires_grad_() for t in (x.q, x.k, x.v, x.g, x.initial_state, x.gv)]
    o, final = form(*given[: 5 if x.gv is None else 6])
    ends, ups = [o], [x.do.to(o.dtype)]
    if x.d_final is not None:
        assert final is not None
        ends, ups = [o, final], [ups[0], x.d_final.to(final.dtype)]
    leaves = [t for t in given if t is not None]
    grads = iter(torch.autograd.grad(ends, leaves, ups))
    found = (
        o.detach(),
        None if final is None else final.detach(),
        *(None if t is None else next(grads) for t in given),
    )
    return {name: t for name, t in zip(NAMES, found, strict=True) if t is not None}


def norm(x: torch.Tensor) -> float:
    return x.double().norm().item()


def compare(form: Form, x: Inputs, taken: Callable[[Form], Form] = lambda reference: reference) -> None:
    """Assert that every output and gradient is finite and as near to float64 as the same-dtype form, times FACTOR.
    taken: how the references are, which know of whole sequences only."""
    recurrent = taken(lambda q, k, v, g, s, gv=None: reference.recurrent(q, k, v, g, None, s, gv))
    chunkwise = taken(lambda q, k, v, g, s, gv=None: reference.chunkwise(q, k, v, g, None, s, gv=gv))
    right, plain = run(recurrent, x.cast(torch.float64)), run(chunkwise, x)
    found = run(form, x)
    for name, out in found.items():
        assert torch.isfinite(out).all(), f"{name} has values that are not finite"
        size = norm(right[name])
        if name == "dg":  # a difference of running sums of q*dq and k*dk: it cannot be nearer than these are rounded
            size += norm(x.q.double() * right["dq"])
        if name == "dgv":  # the same of o*do and v*dv
            size += norm(x.do.double() * right["o"])
        allowed = FACTOR * norm(plain[name] - right[name]) + FLOOR * size
        error = norm(out.double() - right[name])
        assert error <= allowed, f"{name}: off by {error:.3e}, allowed {allowed:.3e}, norm {norm(right[name]):.3e}"


@pytest.fixture(autouse=True)
def no_call_is_known() -> Iterator[None]:
    """Host code is recorded at a signature's first call, and tests patch what it reads."""
    forget()
    yield
    forget()


@pytest.fixture
def judge() -> Callable[..., None]:
    return compare


@pytest.fixture
def same_sums() -> Callable[[torch.Tensor, torch.Tensor], bool]:
    """Whether two results are the same sums: bit for bit in the interpreter; on a GPU lanes that hold a state the other
    way about add up in another order."""
    if device() == "cpu":
        return torch.equal
    return lambda found, right: norm(found.double() - right.double()) <= 2**-21 * norm(right)


@pytest.fixture
def inputs() -> Callable[..., Inputs]:
    return make_inputs


# powers of two that a row block may decay by: see gates.row_block_limit
LIMITS = [
    (dtype, limit, over)
    for dtype, limit in ((torch.float32, 48), (torch.float16, 208), (torch.bfloat16, 208))
    for over in (-1, 1)
]


@pytest.fixture(params=LIMITS, ids=str)
def at_the_limit(request: pytest.FixtureRequest) -> Inputs:
    """Rows of which every 64 decay by a power of two less than where a row block is cut, or more; q and k are large
    besides."""
    dtype, limit, over = request.param
    x, decay = make_inputs((1, 100, 1, 64, 64), dtype, 1.0), (limit + over) / 64
    return replace(x, q=x.q * 2**10, k=x.k * 2**-10, g=torch.full_like(x.k, -decay * math.log(2)))


@pytest.fixture
def outputs_of() -> Callable[[Form, Inputs], Outputs]:
    return run


# --- Tuned plans ------------------------------------------------------------------------------------------------------

H200 = Machine(90, "NVIDIA H200", 150 * 2**30)


def make_entry(
    B: int = 4, T: int = 2048, H: int = 16, plan: Schedule | None = None, direction: Direction = "fwd", **asked: Any
) -> Entry:
    """A tuned plan of K = V = 128 unless ``asked`` says otherwise; ``plan``: its schedule."""
    work = Workload(direction, B, T, H, **{"K": 128, "V": 128, **asked})
    schedule = plan or work.schedule or Schedule()
    return Entry(work, Plan(schedule, default_config(work.K, work.V, work.operand_bytes, schedule)), 0.25)


@pytest.fixture
def entry() -> Callable[..., Entry]:
    return make_entry


@pytest.fixture
def machine() -> Machine:
    return H200


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty user cache, whose folder this is, and no shipped tables but those put into ``shipped`` beside it."""
    (tmp_path / "shipped").mkdir()
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    refresh()
    yield tmp_path / "cache"
    refresh()


@cache
def _beside(name: str) -> ModuleType:
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def packed() -> ModuleType:
    """Packed sequences: see packed_sequences.py."""
    return _beside("packed_sequences")


@pytest.fixture(scope="session")
def fake_cuda() -> ModuleType:
    """A stand-in for CUDA's driver: see its file."""
    return _beside("fake_cuda")


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls make their launches one by one, by `record.execute`, on a GPU as in the interpreter."""
    monkeypatch.setattr(prepared, "listened_to", lambda: True)


@dataclass(frozen=True)
class Place:
    """Where kernels in Gluon run, and by what."""

    device: str
    run: Callable[[Launch], None]


@pytest.fixture(scope="session", params=["cuda" if torch.cuda.is_available() else "cpu"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param, execute if request.param == "cuda" else _beside("gluon_on_cpu").run)


@pytest.fixture(scope="session")
def chunks(place: Place) -> Callable[..., Any]:
    """`chunks_alone.Chunks` where kernels run."""
    return partial(_beside("chunks_alone").Chunks, device=place.device)


@pytest.fixture
def launch(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[Launch], None]:
    """Runs any launch; on a CPU, too, plans are served by Hopper's own kernels."""
    if place.device == "cuda":
        return execute
    original = Problem.on_hopper

    def serves(self: Problem, tile: Any) -> bool:
        elsewhere = replace(self, q=self.q.to("meta")) if self.q.device.type == "cpu" else self
        return original(elsewhere, tile)

    monkeypatch.setattr(Problem, "on_hopper", serves)
    own = {getattr(hopper, name) for name in hopper.__all__}
    return lambda one: (place.run if one.kernel in own else execute)(one)

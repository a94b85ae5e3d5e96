"""The counts of a launch against what its programs really do, operation by operation, in Triton's interpreter."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from gla_kernels import KernelConfig, Launch, Plan, Schedule, Tile, chunk, recurrent
from gla_kernels.cost.work import Traffic, work_of
from gla_kernels.launch import execute, interpreting
from gla_kernels.plan.apply import problem_of
from gla_kernels.schedule import padded

if not interpreting():
    pytest.skip("counts what Triton's interpreter does; kernels are compiled here", allow_module_level=True)

BUILDER = interpreter.interpreter_builder
PRODUCTS = {"TF32": 1, "TF32x3": 3, "IEEE": 1}


@dataclass
class Counted:
    """What one launch did. Tiles that one program loads more than once between two stores count once, and so do
    exponentials and sums that it takes again, but not in another iteration of a loop: the compiler merges them (see
    test_the_compiler_merges_what_counts_once)."""

    regions: dict[str, tuple[int, int, int]]  # first and last address, bytes of an element
    requested: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    touched: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    flops: int = 0
    exps: int = 0
    vector: int = 0
    window: set[Any] = field(default_factory=set)
    products: dict[int, Any] = field(default_factory=dict)  # by id, kept alive
    rows: dict[int, Any] = field(default_factory=dict)  # rows that exponentials were taken of, as well
    negating: bool = False

    def move(self, kind: str, pointers: np.ndarray, mask: np.ndarray) -> None:
        moved = pointers[mask.astype(bool)].tolist()
        if moved and self.new(kind, pointers, mask):
            name, size = next((n, s) for n, (first, last, s) in self.regions.items() if first <= moved[0] < last)
            self.requested[name] += len(moved) * size
            self.touched[kind][name].update(moved)

    def new(self, kind: str, *tiles: np.ndarray) -> bool:
        """Whether this has not been done in the window. Rows are always new, and so are tiles of zeros: these are equal
        without being the same."""
        if tiles[0].ndim < 2 or min(tiles[0].shape) < 2 or not all(tile.any() for tile in tiles):
            return True
        key = (kind, *(np.ascontiguousarray(tile).tobytes() for tile in tiles))
        known = key in self.window
        self.window.add(key)
        return not known

    def tile(self, kind: str, *tiles: np.ndarray) -> None:
        """An operation on a tile of float32."""
        one = tiles[0]
        if one.dtype == np.float32 and one.ndim == 2 and min(one.shape) > 1 and self.new(kind, *tiles):
            self.vector += one.size

    def traffic(self) -> dict[str, Traffic]:
        """As Work.traffic."""
        sizes = {name: size for name, (_, _, size) in self.regions.items()}
        read, written = self.touched["load"], self.touched["store"]
        return {
            name: Traffic(len(read[name]) * sizes[name], len(written[name]) * sizes[name], total)
            for name, total in self.requested.items()
        }


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a launch and says what it did."""

    def run(launch: Launch) -> Counted:
        tensors = {name[2:]: x for name, x in launch.args.items() if isinstance(x, torch.Tensor)}
        found = Counted({n: (x.data_ptr(), x.data_ptr() + x.nbytes, x.element_size()) for n, x in tensors.items()})
        with monkeypatch.context() as patch:
            listen(patch, found)
            execute(launch)
        return found

    return run


def _moved(pointers: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pointers and mask of a load or store; a tensor descriptor's mask is no tensor of the interpreter's, and its tiles
    have a sequence as well."""
    return pointers.data.squeeze(), (mask if isinstance(mask, np.ndarray) else mask.data).squeeze()


def listen(patch: pytest.MonkeyPatch, found: Counted) -> None:
    """Have the interpreter's builder tell ``found`` what kernels do."""

    def wrap(name: str, told: Any) -> None:
        original = getattr(BUILDER, name)

        @wraps(original)
        def wrapped(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            told(result, *args)
            return result

        patch.setattr(BUILDER, name, wrapped, raising=False)

    def load(_: Any, pointers: Any, mask: Any, *rest: Any) -> None:
        found.move("load", *_moved(pointers, mask))

    def store(_: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> None:
        found.move("store", *_moved(pointers, mask))
        found.window = {key for key in found.window if key[0] != "load"}

    def dot(result: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> None:
        found.products[id(result)] = result
        found.flops += PRODUCTS[precision.name] * 2 * a.data.shape[0] * a.data.shape[1] * b.data.shape[1]

    def exponential(_: Any, x: Any) -> None:
        if x.data.ndim < 2 or min(x.data.shape) < 2:  # rows: the same where they are one value
            found.exps += x.data.size if ("exp", id(x)) not in found.window else 0
            found.window.add(("exp", id(x)))
            found.rows[id(x)] = x
        else:
            found.exps += x.data.size if found.new("exp", x.data) else 0

    def arithmetic(kind: str) -> Any:
        def told(_: Any, x: Any, y: Any) -> None:
            of_product = kind == "create_fadd" and (id(x) in found.products or id(y) in found.products)
            if not of_product and not found.negating:
                found.tile(kind, *np.broadcast_arrays(x.data, y.data))

        return told

    def minus(x: Any, original: Any = interpreter.interpreter_semantic.minus) -> Any:
        found.negating = True
        result = original(x)
        found.negating = False
        return result

    patch.setattr(interpreter.interpreter_semantic, "minus", minus, raising=False)

    wrap("create_masked_load", load)
    wrap("create_masked_store", store)
    wrap("create_dot", dot)
    wrap("create_exp", exponential)
    wrap("create_exp2", exponential)
    for kind in ("create_fadd", "create_fsub", "create_fmul", "create_maxnumf", "create_minnumf"):
        wrap(kind, arithmetic(kind))
    wrap("create_get_program_id", lambda *_: found.window.clear())

    def iterations(*args: Any) -> Any:
        if sys._getframe(1).f_globals is vars(interpreter) and sys._getframe(1).f_code.co_name != "_new_range":
            return range(*args)  # of the interpreter's own
        return each(*args)

    def each(*args: Any) -> Iterator[int]:
        for i in range(*args):
            found.window.clear()
            yield i
        found.window.clear()

    for module in (
        interpreter,
        recurrent,
        *(m for n, m in sys.modules.items() if n.startswith(("gla_kernels.chunk.", "gla_kernels.tiles."))),
    ):
        patch.setattr(module, "range", iterations, raising=False)
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):

        def apply(self: Any, tensors: Any, kind: Any = kind, original: Any = kind.apply_impl) -> Any:
            found.tile(f"{kind.__name__} {self.axis} {getattr(self, 'reverse', None)}", tensors[0].handle.data)
            return original(self, tensors)

        patch.setattr(kind, "apply_impl", apply)


@dataclass(frozen=True)
class Call:
    """One call, small."""

    schedule: Schedule = Schedule(32, 16)  # noqa: RUF009 (frozen)
    block_t: int = 16
    T: int = 57  # not of whole row blocks, let alone chunks
    B: int = 1
    H: int = 1
    K: int = 24
    V: int = 20
    tile: int = 16  # the head dimensions are cut into tiles of this
    dtype: torch.dtype = torch.float32
    gate_dtype: torch.dtype | None = None
    gated: bool = True
    states: bool = True
    walks: bool = False  # whether the forward pass is one walk
    whole: bool = False  # but for the states pass
    descriptors: bool = False

    def plan(self) -> Plan:
        k, v = padded(self.K), padded(self.V)
        both = Tile(self.tile, self.tile, descriptors=self.descriptors)
        whole = replace(both, block_k=k, block_v=v)
        walk = replace(both, block_k=k) if self.walks else None
        tiles = (both, *4 * (whole if self.whole else both,))
        return Plan(self.schedule, KernelConfig(self.block_t, *tiles, walk=walk))

    def tensors(self) -> dict[str, Any]:
        B, H = self.B, self.H
        q, k = (torch.randn(B, self.T, H, self.K).to(self.dtype) for _ in range(2))
        v, do = (torch.randn(B, self.T, H, self.V).to(self.dtype) for _ in range(2))
        g = -0.1 * torch.rand(B, self.T, H, self.K) if self.gated else None
        states = [torch.randn(B, H, self.K, self.V) if self.states else None for _ in range(3)]
        return {
            "q": q, "k": k, "v": v, "g": None if g is None else g.to(self.gate_dtype or self.dtype), "do": do,
            "initial": states[0], "final": states[1], "d_final": states[2],
        }  # fmt: skip

    def launches(self, direction: str) -> list[Launch]:
        x = self.tensors()
        found: list[Launch] = []
        problem = problem_of(x["q"], x["k"], x["v"], x["g"], 0.5, x["initial"], self.plan())
        if direction == "fwd":
            chunk.forward(problem, self.states, found.append)
        else:
            chunk.backward(problem, x["do"], x["d_final"], found.append)
        return found


CALLS = {
    "default": Call(),
    "no-gates": Call(gated=False),
    "no-states": Call(states=False),
    "single": Call(Schedule(16, 16), T=41),
    "single-no-gates": Call(Schedule(16, 16), T=41, gated=False, states=False),
    "full-bf16": Call(Schedule(64, 32), dtype=torch.bfloat16, T=123, tile=32),
    "walk": Call(Schedule(32, 16, False), T=137),
    "walk-no-gates": Call(Schedule(32, 16, False), T=153, gated=False, tile=32),
    "walk-single-no-states": Call(Schedule(32, 32, False), block_t=32, T=139, states=False),
    "walk-full-bf16": Call(Schedule(32, 32, False), dtype=torch.bfloat16, tile=32),
    "walk-no-gates-bf16": Call(Schedule(32, 16, False), gated=False, dtype=torch.bfloat16, tile=32),
    "gates-fp32": Call(dtype=torch.float16, gate_dtype=torch.float32, tile=32),
    "descriptors": Call(K=32, V=64, descriptors=True),
    "descriptors-segments-bf16": Call(
        Schedule(32, 16, True, 2), T=137, K=32, V=32, dtype=torch.bfloat16, descriptors=True
    ),
    "descriptors-of-some": Call(Schedule(16, 16), T=41, K=24, V=32, descriptors=True),
    "one-walk": Call(Schedule(16, 16), gated=False, walks=True),
    "one-walk-segments-bf16": Call(
        Schedule(32, 32, True, 2),
        32,
        T=153,
        K=32,
        V=32,
        dtype=torch.bfloat16,
        gated=False,
        walks=True,
        descriptors=True,
    ),
    "one-walk-no-states": Call(Schedule(32, 32, False), 32, T=153, gated=False, states=False, walks=True),
    "whole-tiles": Call(Schedule(32, 16), B=2, H=3, T=32, K=16, V=16),
    "segments": Call(Schedule(32, 16, True, 2), T=137),
    "segments-no-gates-no-states": Call(Schedule(16, 16, True, 3), T=121, gated=False, states=False),
    "segments-walk": Call(Schedule(32, 16, False, 1), T=121, tile=32),
    "one-chunk": Call(Schedule(64, 16, False), T=50, states=False),
    "whole-heads": Call(whole=True),
    "fp16": Call(Schedule(64, 16), T=123, dtype=torch.float16),
    "two-tokens": Call(T=2, V=100, tile=32),
}


def agree(found: Counted, launch: Launch) -> None:
    work = work_of(launch)
    assert work.traffic == found.traffic()
    assert sum(work.tensor_flops.values()) == found.flops
    assert work.exps == found.exps
    assert work.vector_flops == found.vector


# What two of the others have, each by itself.
TOGETHER = (
    "no-states", "single", "walk-no-gates", "walk-full-bf16", "walk-no-gates-bf16", "descriptors-of-some",
    "one-walk-no-states", "segments-no-gates-no-states", "segments-walk", "fp16", "full-bf16", "one-walk", "segments",
    "walk-single-no-states",
)  # fmt: skip


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.exhaustive(name=TOGETHER)
@pytest.mark.parametrize("name", CALLS)
def test_counts_are_what_programs_do(count: Any, monkeypatch: pytest.MonkeyPatch, name: str, direction: str) -> None:
    monkeypatch.setattr(chunk.parted, "SEGMENT_ROWS", 64)  # several segments of several chunks
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 2)
    launches = CALLS[name].launches(direction)
    assert launches
    for launch in launches:
        agree(count(launch), launch)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("states", [True, False])
def test_counts_of_recurrent_kernels(count: Any, monkeypatch: pytest.MonkeyPatch, gated: bool, states: bool) -> None:
    monkeypatch.setattr(recurrent, "STATE_ELEMENTS", 16 * 32)  # several tiles of K and of V
    x = Call(B=2, T=5, V=40, gated=gated, states=states, dtype=torch.bfloat16).tensors()
    inputs = (x["q"], x["k"], x["v"], x["g"], 0.5, x["initial"])
    launches: list[Launch] = []
    recurrent.forward(*inputs, states, launches.append)
    recurrent.backward(*inputs, x["do"], x["final"], x["d_final"], launches.append)
    if states:
        q, k, v = (x[name][:, 0].contiguous() for name in "qkv")
        g = x["g"][:, 0].contiguous() if gated else None
        recurrent.step(q, k, v, g, x["initial"], 0.5, launches.append)
    for launch in launches:
        agree(count(launch), launch)


# --- The compiler's part ----------------------------------------------------------------------------------------------

COMPILE = """
import json, math, re
from gla_kernels import KernelConfig, Plan, Schedule, Tile, Workload
from gla_kernels.plan.apply import launches_of
from gla_kernels.cost.work import work_of
from glabench.hardware.lowered import lowered

plan = Plan(Schedule(16), KernelConfig(16, *5 * (Tile(32, 32),)))
found = {}
for step, launch in launches_of(Workload("bwd", 1, 16, 1, 32, 32, "fp32"), plan).items():
    code = lowered(launch, 90)
    code = re.sub(r"(?ms)^    \\} else \\{.*?^    \\}", "", code)  # the path of row blocks that are not mild
    sizes = {
        kind: [[int(n) for n in re.findall(r"(\\d+)x", shape)] for shape in re.findall(pattern, code)]
        for kind, pattern in (
            ("loads", r"tt\\.load .* : tensor<([\\dx]+)!tt\\.ptr"), ("exps", r"math\\.exp2 .* : tensor<([\\dx]+)f32>")
        )
    }
    work = work_of(launch)
    loaded = sum(one.requested - one.write for name, one in work.traffic.items() if name != "h")  # rows, not tiles
    found[step] = [sizes, loaded // 4, work.exps]
print(json.dumps(found))
"""


def test_the_compiler_merges_what_counts_once(compiling_process: Any) -> None:
    """Of one row block and one program: each load and each exponential of the compiled code runs once."""
    found = json.loads(compiling_process("-c", COMPILE))
    assert set(found) == {"states", "grad_states", "grad_qk", "grad_v"}
    for step, (sizes, loaded, exps) in found.items():
        shifted = 32 if step == "states" else 0  # gates.decay_to_end leaves the first row out
        assert sum(rows * columns for rows, columns in (x for x in sizes["loads"] if len(x) == 2)) == loaded + shifted
        assert sum(math.prod(size) for size in sizes["exps"]) == exps

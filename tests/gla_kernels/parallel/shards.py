"""What ranks of a group compute, for tests: calls on tensors that all ranks draw alike, of which each has its tokens.

`run` starts a process for each rank, which leave what each found in a file. They talk by gloo, or where there are GPUs
by NCCL.
"""

from __future__ import annotations

import datetime
import importlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

TOKENS = {2: (20, 14), 3: (18, 6, 10), 4: (18, 6, 0, 10)}  # of each rank, by how many ranks there are
T = 34
DIES = "a rank that dies"
CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class Case:
    """A call. gates: the strength of g, or "none"; lengths: of packed sequences; group: heads of v that share one of
    q."""

    name: str
    gates: Any = 1.0
    simple: bool = False
    gv: bool = False
    dtype: torch.dtype = torch.float32
    lengths: tuple[int, ...] | None = None
    v_first: bool = False
    states: bool = True
    every: int | None = None  # chunks of a segment
    recompute: bool | None = None
    sizes: tuple[int, int, int, int] = (1, 1, 16, 16)  # B, H, K, V
    group: int = 1

    @cached_property
    def whole(self) -> dict[str, Tensor | None]:
        """The tensors of the whole sequence, and the gradients of the results."""
        torch.manual_seed(0)
        with torch.device("cpu"):
            return self._drawn()

    def _drawn(self) -> dict[str, Tensor | None]:
        B, H, K, V = self.sizes
        n = len(self.lengths) if self.lengths else B
        of_q = H // self.group
        g = F.logsigmoid(torch.randn(B, T, *((H,) if self.simple else (of_q, K))))
        closed = torch.rand_like(g) < 0.02
        x: dict[str, Tensor | None] = {
            "q": torch.randn(B, T, of_q, K), "k": torch.randn(B, T, of_q, K), "v": torch.randn(B, T, H, V),
            "g": None if self.gates == "none" else (g * self.gates).masked_fill(closed & (self.gates > 4), -1e4),
            "gv": F.logsigmoid(torch.randn(B, T, H, V)) if self.gv else None, "do": torch.randn(B, T, H, V),
        }  # fmt: skip
        x = {name: None if y is None else y.to(self.dtype) for name, y in x.items()}
        shape = (n, H, V, K) if self.v_first else (n, H, K, V)
        states = [torch.randn(shape) if self.states else None for _ in range(2)]
        return x | {"initial_state": states[0], "d_final": states[1], "cu_seqlens": self._ends()}

    def _ends(self) -> Tensor | None:
        return None if self.lengths is None else torch.tensor([0, *accumulate(self.lengths)])


# Of four ranks: one sequence goes from the first to the last, and some are empty; or each ends where a rank does.
THROUGH, EXACT = (0, 8, 0, 1, 6, 12, 0, 0, 7), (0, 8, 10, 0, 6, 10, 0)
assert sum(THROUGH) == sum(EXACT) == T
CASES = (
    Case("gates", sizes=(2, 1, 16, 32)),
    Case("no gates, bfloat16", gates="none", dtype=torch.bfloat16),
    Case("strong gates, segments", gates=30.0, every=1),
    Case("segments, made again, states [V, K]", every=1, recompute=True, v_first=True, sizes=(1, 1, 16, 32)),
    Case("value gates, states [V, K]", gv=True, v_first=True, sizes=(1, 1, 16, 32)),
    Case("one gate a head, states [V, K]", simple=True, v_first=True, sizes=(1, 2, 16, 32)),
    Case("packed", lengths=THROUGH, sizes=(1, 2, 16, 32)),
    Case("packed, exact, states [V, K]", lengths=EXACT, v_first=True, sizes=(1, 1, 16, 32)),
    Case("packed, value gates, no states", lengths=THROUGH, gv=True, states=False),
    Case("packed, one gate a head", lengths=THROUGH, simple=True),
    Case("packed, heads that share queries", lengths=THROUGH, sizes=(1, 4, 16, 16), group=2),
)
GIVEN = ("q", "k", "v", "g", "gv", "initial_state")


def device_of(rank: int) -> torch.device:
    """A GPU of the rank's own, or the CPU."""
    return torch.device("cuda", rank) if dist.get_backend() == "nccl" else torch.device("cpu")


def tokens_of(rank: int, ranks: int) -> slice:
    """The rank's tokens."""
    first = sum(TOKENS[ranks][:rank])
    return slice(first, first + TOKENS[ranks][rank])


def own_of(case: Case, rank: int, ranks: int) -> dict[str, Any]:
    """The rank's part of a case's tensors, and all of what is not of tokens."""
    given = {
        name: x if x is None or name in ("initial_state", "d_final", "cu_seqlens") else x[:, tokens_of(rank, ranks)]
        for name, x in case.whole.items()
    }
    return {name: None if x is None else x.to(device_of(rank), copy=True) for name, x in given.items()}


def found_by(case: Case, rank: int, ranks: int) -> dict[str, Tensor | None]:
    """o, the final state, and the gradients, of this rank's tokens."""
    from gla_kernels import Schedule, parallel

    own = own_of(case, rank, ranks)
    leaves = {name: own[name].requires_grad_() for name in GIVEN if own[name] is not None}
    q, k, v, g, gv, initial = (leaves.get(name) for name in GIVEN)
    how: dict[str, Any] = {
        "schedule": Schedule(chunk=16, sub_chunk=16, states_every=case.every),
        "cu_seqlens": own["cu_seqlens"], "state_v_first": case.v_first,
    }  # fmt: skip
    call: Callable[..., Any] = parallel.simple_gla if case.simple else parallel.gla
    more = {} if case.simple else {"gv": gv, "recompute": case.recompute}
    o, final = call(q, k, v, g, None, initial, case.states, **how, **more)
    assert (final is None) == (not case.states)
    outputs, gradients = [o], [own["do"]]
    if final is not None:
        outputs, gradients = [o, final], [own["do"], own["d_final"]]
    grads = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    results = {"o": o.detach(), "final_state": None if final is None else final.detach()}
    return results | dict(zip(leaves, grads, strict=True))


def _work(rank: int, ranks: int, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=20 if what == DIES else 300)
    meet = Path(folder, f"store-{what}").as_uri()
    how: dict[str, Any] = {"backend": "gloo"}
    if CUDA:
        torch.cuda.set_device(rank)
        how = {"backend": "nccl", "device_id": torch.device("cuda", rank)}
    dist.init_process_group(**how, init_method=meet, rank=rank, world_size=ranks, timeout=patience)
    torch.set_default_device(device_of(rank))
    found: dict[str, Any] = {}
    for name, work in ({DIES: _dies} if what == DIES else WORKS[ranks]).items():
        try:
            found[name] = on_cpu(work(rank, ranks))
        except Exception:  # whatever it was, the test that started this process shows it
            found[name] = traceback.format_exc()
    torch.save(found, os.path.join(folder, f"{what}-{rank}.pt"))
    if what != DIES:
        dist.barrier()
        dist.destroy_process_group()


def on_cpu(found: Any) -> Any:
    return tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, found)


def _each_case(rank: int, ranks: int) -> dict[str, Any]:
    return {case.name: found_by(case, rank, ranks) for case in (CASES if ranks > 2 else CASES[:1])}


def _twice(rank: int, ranks: int) -> bool:
    one, other = (found_by(CASES[0], rank, ranks) for _ in range(2))
    return all(torch.equal(x, other[name]) for name, x in one.items() if x is not None)  # type: ignore[arg-type]


def _without_history(rank: int, ranks: int) -> bool:
    """Whether a call that nobody differentiates gives the same bits, and no history."""
    from gla_kernels import parallel

    own = [own_of(CASES[0], rank, ranks)[name] for name in "qkvg"]
    o, state = parallel.gla(*own)
    with_history, _ = parallel.gla(own[0].clone().requires_grad_(), *own[1:])
    return not o.requires_grad and state is None and torch.equal(o, with_history.detach())


def _layer(rank: int, ranks: int) -> Any:
    """y and the weights' gradients of the layer."""
    device, mine = device_of(rank), tokens_of(rank, ranks)
    layer, x, dy = (y.to(device) for y in layer_and_input())
    y, _ = layer(x[:, mine], group=dist.group.WORLD)
    y.backward(dy[:, mine])
    return y.detach(), {name: p.grad for name, p in layer.named_parameters()}


def layer_and_input() -> Any:
    """On the CPU: the layer, x and y's gradient."""
    from gla_kernels.nn import GatedLinearAttention

    torch.manual_seed(1)
    with torch.device("cpu"):
        return GatedLinearAttention(hidden_size=32, num_heads=2), torch.randn(1, T, 32), torch.randn(1, T, 32)


def _on_a_mesh(rank: int, ranks: int) -> Any:
    """o and q's gradient, gathered, of tensors on a mesh, whose shards are not all of one length."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from gla_kernels import parallel

    device, whole = device_of(rank), CASES[0].whole
    mesh, x = init_device_mesh(device.type, (ranks,)), {name: whole[name].to(device) for name in ("do", *"qkvg")}  # type: ignore[union-attr]
    given: list[Any] = [distribute_tensor(x[name], mesh, [Shard(1)]).requires_grad_() for name in "qkvg"]
    o: Any = parallel.gla(*given)[0]
    o.backward(distribute_tensor(x["do"], mesh, [Shard(1)]))
    return o.full_tensor().detach(), given[0].grad.full_tensor()


def _changed(rank: int, ranks: int) -> list[str]:
    """What PyTorch says of an input that was changed in place, and of a second backward pass; of the latter's gradient,
    where the graph was to be kept, whether it is the first one's."""
    from gla_kernels import parallel

    said = []
    for forms in ({}, {"gv": torch.zeros(1, 8, 1, 16)}):
        x = torch.ones(1, 8, 1, 16, requires_grad=True)
        k = torch.ones(1, 8, 1, 16)
        o, _ = parallel.gla(x, k, k, None, **forms)  # type: ignore[arg-type]
        (one,) = torch.autograd.grad(o.sum(), x, retain_graph=not forms)
        if not forms:
            (two,) = torch.autograd.grad(o.sum(), x, retain_graph=True)
            said.append("the same" if torch.equal(one, two) else "another")
            k.add_(1)
        try:
            torch.autograd.grad(o.sum(), x)
        except RuntimeError as error:
            said.append(str(error))
    return said


def _compiled(rank: int, ranks: int) -> bool:
    """Whether a compiled function has the same results and gradients."""
    from gla_kernels import parallel

    own = [own_of(CASES[0], rank, ranks)[name].requires_grad_() for name in "qkvg"]

    def both(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        simple, _ = parallel.simple_gla(q, k, v, g.sum(-1))
        return parallel.gla(q, k, v, g)[0] * 2 + simple

    results = []
    for call in (both, torch.compile(both, backend="eager")):
        o = call(*own)
        results.append([o.detach(), *torch.autograd.grad(o.sum(), own)])
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def _unlike(rank: int, ranks: int) -> str:
    """What a group says whose ranks disagree about the heads."""
    from gla_kernels import parallel

    x = torch.ones(1, 8, 1 + (rank == ranks - 1), 16)
    try:
        parallel.gla(x, x, x, None)
    except ValueError as error:
        return str(error)
    return "nothing"


def _dies(rank: int, ranks: int) -> str:
    """What the others say where a rank is gone in the middle."""
    from gla_kernels import parallel

    x = torch.ones(1, 8, 1, 16)
    parallel.gla(x, x, x, None)
    if rank == ranks - 1:
        os._exit(0)
    try:
        parallel.gla(x, x, x, None)[0].cpu()  # a GPU says it when it is waited for
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _exchanges(rank: int, ranks: int) -> tuple[bool, list[int]]:
    """On GPUs: whether ranks exchange by themselves; and which of some messages, in a row and from a graph, on two
    streams, have another bit than by `torch.distributed`."""
    from gla_kernels.parallel.peers import exchange_for
    from gla_kernels.parallel.ranks import Ranks

    group = Ranks.of(None)
    torch.manual_seed(2)  # the same sizes on all ranks
    sizes = [int(n) for n in torch.randint(1, 600_000, (50,), device="cpu")]
    torch.manual_seed(rank)
    xs = [torch.randint(2**31, (n,), dtype=torch.int32).view(torch.float32) for n in [*sizes, 1, 270_336]]
    xs += [torch.full((1,), rank, dtype=torch.int64)]
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    streams[1].wait_stream(streams[0])
    found = []
    for i, x in enumerate(xs):
        with torch.cuda.stream(streams[i % 7 == 3]):
            found.append(group.gathered(x))
    torch.cuda.synchronize()
    bad = [i for i, (x, y) in enumerate(zip(xs, found, strict=True)) if not _same(y, group.all_gathered(x))]

    x, graph = torch.zeros(100_000), torch.cuda.CUDAGraph()
    group.gathered(x)
    with torch.cuda.graph(graph):
        y = group.gathered(x)
    for i in range(3):
        x.copy_(torch.randn(100_000) + i)
        graph.replay()
        bad += [] if _same(y, group.all_gathered(x)) else [len(xs) + i]
    return exchange_for(group.group, rank, ranks, x) is not None, bad


def _same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


# Two ranks take less from one another, and more take longer to start: all cases are of three, one of which has others
# on both sides, and again of four, one of which has no tokens; all else of two.
OF_TWO: dict[str, Callable[[int, int], Any]] = {
    "twice": _twice, "without history": _without_history, "layer": _layer, "mesh": _on_a_mesh, "changed": _changed,
    "compiled": _compiled,
}  # fmt: skip
WORKS: dict[int, dict[str, Callable[[int, int], Any]]] = {
    2: {"cases": _each_case, "unlike": _unlike} | OF_TWO, 3: {"cases": _each_case, "unlike": _unlike},
    4: {"cases": _each_case, "unlike": _unlike},
}  # fmt: skip
if CUDA:
    WORKS = {ranks: works | {"exchanges": _exchanges} for ranks, works in WORKS.items()}


def _start(*given: Any) -> None:
    """In the fork, which has imported what takes longer than the work. CUDA does not go on in one."""
    if CUDA:
        os.execv(sys.executable, [sys.executable, __file__, *map(str, given)])
    _work(*given)


def run(ranks: int, folder: Path, what: str) -> list[Any]:
    """What each rank found by `WORKS`, or where one dies; a traceback where it failed, and None for a rank that is
    gone."""
    for name in ("torch._dynamo", "torch.distributed.tensor"):
        importlib.import_module(name)  # once for all forks
    given = [(rank, ranks, str(folder), what) for rank in range(ranks)]
    processes = [multiprocessing.get_context("fork").Process(target=_start, args=one) for one in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(280)
        process.kill()
    files = [folder / f"{what}-{rank}.pt" for rank in range(ranks)]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

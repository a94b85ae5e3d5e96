"""A sequence over the ranks of a group, against the float64 recurrence on all of it. Ranks are processes of this
machine, each with a GPU, or on the CPU with the interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gla_kernels import parallel, reference

from .shards import CASES, DIES, GIVEN, Case, layer_and_input, run

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch has no distributed package here")
# Of norms. In bfloat16 the interpreter cuts operands off where a GPU rounds them.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_ranks_find_what_one_would(ranks: int, tmp_path: Path) -> None:
    """All of it in one test, as the processes take longer to start than to compute."""
    enough(ranks)
    found = run(ranks, tmp_path, "all")
    failed = [text for rank in found for name, text in rank.items() if isinstance(text, str) and name != "unlike"]
    assert failed == []
    of = {name: [rank[name] for rank in found] for name in found[0]}
    for case in CASES:
        if case.name in of["cases"][0]:
            judge(case, [rank[case.name] for rank in of["cases"]])
    assert all("the same call on all ranks, got H" in said for said in of["unlike"])
    if ranks == 2:
        judge_all_else(of)
    if torch.cuda.is_available():
        reached = all(torch.cuda.can_device_access_peer(0, other) for other in range(1, ranks))
        assert of["exchanges"] == [(reached, [])] * ranks


def judge_all_else(of: dict[str, list[Any]]) -> None:
    assert all(of["twice"]), "two runs are not the same bits"
    assert all(of["without history"]), "without a history the bits are others, or there is one"
    assert all(of["compiled"]), "a compiled call has other results"
    for kept, in_place, second in of["changed"]:
        assert kept == "the same"
        assert "modified by an inplace operation" in in_place
        assert "backward through the graph a second time" in second
    judge_layer(of["layer"])
    judge_mesh(of["mesh"])


def enough(ranks: int) -> None:
    """Skips where some GPUs are there, but not one for each rank."""
    if torch.cuda.is_available() and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, or none")


def judge(case: Case, ranks: list[dict[str, Tensor]]) -> None:
    """o and gradients of tokens one rank after another; states and their gradients summed over ranks."""
    for name, right in judged(case).items():
        parts = [rank[name] for rank in ranks]
        of_states = name in ("final_state", "initial_state")
        whole = torch.stack(parts).sum(0) if of_states else torch.cat(parts, 1)
        assert whole.dtype == (torch.float32 if of_states else case.dtype)
        assert (whole.double() - right).norm() <= ROUNDING[case.dtype] * right.norm(), (case.name, name)


def judged(case: Case) -> dict[str, Tensor]:
    """The results and gradients of the whole sequence in float64."""
    x = {name: None if y is None else y.double() for name, y in case.whole.items() if name != "cu_seqlens"}
    leaves = {name: x[name].requires_grad_() for name in GIVEN if x[name] is not None}  # type: ignore[union-attr]
    q, k, v, g, gv, initial = (leaves.get(name) for name in GIVEN)
    assert q is not None
    assert k is not None
    q, k = (y.repeat_interleave(case.group, 2) for y in (q, k))
    if g is not None:
        g = g[..., None].expand(q.shape) if case.simple else g.repeat_interleave(case.group, 2)
    if initial is not None and case.v_first:
        initial = initial.mT
    o, final = reference.recurrent(q, k, v, g, None, initial, gv=gv, cu_seqlens=case.whole["cu_seqlens"])  # type: ignore[arg-type]
    outputs, gradients = [o], [x["do"]]
    if case.states:
        final = final.mT if case.v_first else final
        outputs, gradients = [o, final], [x["do"], x["d_final"]]
    grads = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    return (
        {"o": o.detach()}
        | ({"final_state": final.detach()} if case.states else {})
        | dict(zip(leaves, grads, strict=True))
    )


def judge_layer(results: list[Any]) -> None:
    """The gradients of its weights add up over the group."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    layer, x, dy = (y.to(place) for y in layer_and_input())
    y, _ = layer(x)
    y.backward(dy)
    y, layer = y.cpu(), layer.cpu()  # with its gradients
    assert torch.allclose(torch.cat([own for own, _ in results], 1), y, atol=1e-5)
    for name, p in layer.named_parameters():
        assert torch.allclose(sum(grads[name] for _, grads in results), p.grad, rtol=1e-4, atol=1e-4), name


def judge_mesh(results: list[Any]) -> None:
    right = judged(replace(CASES[0], states=False))
    for o, dq in results:
        assert (o.double() - right["o"]).norm() <= 1e-5 * right["o"].norm()
        assert (dq.double() - right["q"]).norm() <= 1e-5 * right["q"].norm()


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path: Path) -> None:
    enough(2)
    *others, gone = run(2, tmp_path, DIES)
    assert gone is None
    assert all("Error" in rank[DIES].partition(":")[0] for rank in others)


def test_without_a_group() -> None:
    x = torch.ones(1, 4, 1, 16)
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match=r"group: expected torch.distributed to be initialized"):
        parallel.gla(x, x, x, None)

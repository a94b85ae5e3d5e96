"""Calls that are made again on a GPU: at other addresses, in other threads, in graphs, and where somebody listens."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gla_kernels import Schedule, gla, gla_recurrent, simple_gla
from gla_kernels.ops import signature

pytestmark = pytest.mark.gpu

OFTEN = 40  # repetitions, of which some are fired as graphs
THREADS = 4


def simple_gla_by_head(q: Any, k: Any, v: Any, g: Any, *more: Any) -> Any:
    return simple_gla(q, k, v, g[..., 0], *more)


CALLS: dict[str, Callable[..., Any]] = {
    "gla": gla,
    "gla without states": lambda *given: gla(*given, schedule=Schedule(64, 64, materialize=False)),
    "gla with gates on the value side": lambda q, k, v, g, *more: gla(q, k, v, g, *more, gv=g),
    "gla_recurrent": gla_recurrent,
    "simple_gla": simple_gla_by_head,
}
EVERY = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def drawn(T: int = 300, D: int = 128, device: str = "cuda") -> list[torch.Tensor]:
    """q, k, v and g."""
    q, k, v, g = (torch.randn(2, T, 2, D, device=device, dtype=torch.bfloat16) for _ in range(4))
    return [q, k, v, -g.abs()]


def both(call: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """o, the final state and the gradients of all that is given."""
    leaves = [x.detach().requires_grad_() for x in given]
    o, final = call(*leaves, None, None, True)
    return [o.detach(), final.detach(), *torch.autograd.grad(o.float().sum() + final.sum(), leaves)]


def equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@EVERY
def test_a_call_is_the_same_however_often_it_is_made(call: Any) -> None:
    """At the same addresses, and with others between them."""
    given, other = drawn(), drawn()
    want, want_other = both(call, given), both(call, other)
    moved = []
    for i in range(OFTEN):
        assert equal(both(call, given), want), i
        if i % 3 == 0:
            moved.append(torch.empty(1000 * (i + 1), device="cuda"))  # so that results lie elsewhere
            assert equal(both(call, other), want_other), i


def test_calls_after_the_first_are_right_at_other_addresses(inputs: Any, judge: Any) -> None:
    """New tensors of the same shapes; then some that do not begin at a multiple of 16 bytes."""
    for _ in range(3):
        given = inputs((2, 300, 2, 128, 128), torch.bfloat16, 1.0)
        judge(lambda q, k, v, g, s: gla(q, k, v, g, None, s, True), given)
    for _ in range(2):
        x = inputs((2, 300, 2, 64, 64), torch.bfloat16, 1.0)
        q, k, v, g = (torch.cat([y.new_zeros(1), y.flatten()])[1:].view(y.shape) for y in (x.q, x.k, x.v, x.g))
        whole, _ = gla(x.q, x.k, x.v, x.g, schedule=Schedule(64))
        torch.testing.assert_close(gla(q, k, v, g, schedule=Schedule(64))[0], whole, rtol=2e-2, atol=2e-2)


@EVERY
@pytest.mark.parametrize("known", [True, False])
def test_threads_with_a_stream_each_compute_what_one_does(call: Any, known: bool) -> None:
    """known: whether the call was made before, or is prepared and compiled by all of them at once."""
    given = [drawn() for _ in range(THREADS)]
    if known:
        both(call, given[0])
    torch.cuda.synchronize()
    found: list[list[list[torch.Tensor]]] = [[] for _ in range(THREADS)]
    failed: list[BaseException] = []
    begin = Barrier(THREADS)

    def work(number: int) -> None:
        try:
            begin.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(OFTEN):
                    one = both(call, given[number])
                    if i % 8 == 0:
                        found[number].append(one)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for number, many in enumerate(found):
        want = both(call, given[number])
        assert len(many) == OFTEN // 8
        assert all(equal(one, want) for one in many), number


@EVERY
def test_a_graph_that_is_kept_replays_among_eager_calls(call: Any) -> None:
    given = drawn()
    for _ in range(OFTEN):
        both(call, given)
    graph, static = torch.cuda.CUDAGraph(), [x.clone().requires_grad_() for x in given]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(call, static)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        found = both(call, static)
    for _ in range(5):
        new = drawn()
        want = both(call, new)
        with torch.no_grad():
            for x, y in zip(static, new, strict=True):
                x.copy_(y)
        for _ in range(OFTEN // 4):
            both(call, given)
        graph.replay()
        assert equal(found, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@EVERY
def test_a_call_on_another_gpu_than_the_current_one(call: Any) -> None:
    given = drawn(device="cuda:1")
    with torch.cuda.device(1):
        want = both(call, given)
    for _ in range(OFTEN):
        assert torch.cuda.current_device() == 0
        assert equal(both(call, given), want)
    assert equal([x.cpu() for x in both(call, [x.to("cuda:0") for x in given])], [x.cpu() for x in want])


def test_who_listens_to_triton_hears_every_launch() -> None:
    """Before and after, too, the bits are the same."""
    import triton

    hook = triton.knobs.runtime.launch_enter_hook
    given, heard = drawn(), list[str]()
    want = both(gla, given)

    def listen(metadata: Any) -> None:
        heard.append(metadata.get()["name"])

    hook.add(listen)
    try:
        assert equal(both(gla, given), want)
    finally:
        hook.remove(listen)
    torch.cuda.synchronize()
    (known,) = signature._known.values()
    programs = [known._forward.program, *(ready.program for ready in known._backward.values())]
    assert heard == [launch.name for program in programs for launch in program.launches] != []
    count = len(heard)
    assert equal(both(gla, given), want)
    assert len(heard) == count


@EVERY
def test_fake_tensors_of_a_gpu_leave_it_as_it_is(call: Any) -> None:
    """Backward passes too, and a real call of the same shapes afterwards."""
    with FakeTensorMode():
        assert [x.device.type for x in both(call, drawn())] == ["cuda"] * 6
    given = drawn()
    want = both(call, given)
    with FakeTensorMode():
        both(call, drawn())
    assert equal(both(call, given), want)
    torch.cuda.synchronize()

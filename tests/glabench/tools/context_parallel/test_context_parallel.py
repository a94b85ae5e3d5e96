"""The program of one sequence over several GPUs: its rows and tables, what is wrong or fails, and one run on a CPU."""

from __future__ import annotations

import importlib
import io
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from gla_kernels.parallel.ranks import Ranks
from glabench.hardware.environment import detect_device
from glabench.tools.context_parallel import __main__ as program
from glabench.tools.context_parallel import check, exchange, measured, processes, tokens, work
from glabench.tools.context_parallel.processes import Ended, Failure
from glabench.tools.context_parallel.question import Question, Shape
from glabench.tools.context_parallel.table import figures, show
from glabench.tools.rows import WIDTH, Row

QUESTION = Question(Shape(1, 40, 1, 16, 16), 2, ("fwd", "fwdbwd"), "fp32", "cpu", samples=1, calls=1, warm_up=1)
WIDE = {"COLUMNS": "200"}
WAYS = ("--exchange", "all-gather,ring")


@pytest.mark.exhaustive  # ranks as users start them are below, and what they compute in tests/gla_kernels/parallel
def test_two_ranks_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program from its options to its table. Where kernels are interpreted ranks are forks of this process, which
    has imported all that they need; the next test but one has them start as users do."""
    if not torch.cuda.is_available():
        fork = multiprocessing.get_context("fork")
        monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    out = tmp_path / "new" / "parallel.rows"
    done = CliRunner().invoke(program.app, ["--tiny", "--ranks", "2", "--mode", "fwdbwd", *WAYS, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 ranks: ok" in done.stderr
    assert CliRunner().invoke(program.app, ["--read", str(out)]).stdout == done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["exchange"] for row in rows] == [["all-gather"], ["ring"]]
    for row in rows:
        _is_of_two_ranks(row)
    assert rows[0]["alone_ms"] == rows[1]["alone_ms"]


def _is_of_two_ranks(row: Row) -> None:
    assert (row["kind"], row["ranks"], row["status"], row["reason"]) == ("context parallel", 2, "ok", None)
    assert [row[axis] for axis in "BTHKV"] == [1, 40, 1, 16, 16]
    assert {"commit", "torch", "triton", "device"} <= set(row["environment"])
    assert set(row["check"]) == {"1.0", "0.01"}
    for found in row["check"].values():
        assert set(found["scores"]) == {"o", "final_state", "dq", "dk", "dv", "dg", "dinitial_state"}
        assert 0 < max(found["apart"].values()) < 1e-5
    assert 0 < row["apart"] < 1e-4
    (forward, backward), other = row["message_bytes"]
    assert [forward, backward] == other
    assert row["sent_bytes"] == forward + backward
    with_messages, without = (max(sample for (sample,) in row[key]) for key in ("ms", "alone_ms"))
    assert row["exposed"] == pytest.approx(1 - without / with_messages)
    assert row["times_one_gpu"] is None


def test_one_rank_is_the_plain_operator() -> None:
    question, said = replace(QUESTION, ranks=1), list[Any]()
    work.timed(question, 0, said.append)
    rows = [measured.time_row(question, mode, Ended([said], None)) for mode in question.modes]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    for row in rows:
        assert max(max(found["apart"].values()) for found in row["check"].values()) == 0
        assert figures(row, rows)["times_one_gpu"] == 1
        assert figures(row, rows)["exposed"] is None
        assert figures(row, rows)["sent_bytes"] == 0


def test_a_rank_that_fails_ends_the_others_and_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    fails = importlib.import_module("ranks_that_fail").last_is_out_of_memory
    began = time.monotonic()
    ended = processes.run(fails, QUESTION, patience=250)
    assert time.monotonic() - began < 200  # it did not wait for the group's patience
    assert ended.found == [[{"rank": 0}], [{"rank": 1}]]
    row = measured.time_row(QUESTION, "fwd", ended)
    assert row["status"] == "oom"
    assert row["reason"] == "rank 1: out of memory: 4.00 GiB more were needed of 2.00 GiB"
    assert not program.sound(row)


def test_messages_go_round_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks, as two are the same any way round; threads, whose group is their number."""
    post = {ends: Queue[Tensor]() for ends in product(range(3), repeat=2)}

    def sent_and_received(both: list[Any]) -> list[Any]:
        (_, out, following, rank), (_, into, preceding, _) = both
        post[rank, following].put(out.clone())
        return [SimpleNamespace(wait=lambda: into.copy_(post[preceding, rank].get(timeout=30)))]

    fake = SimpleNamespace(
        isend=None, irecv=None, P2POp=lambda *of: of, get_global_rank=lambda group, rank: rank,
        batch_isend_irecv=sent_and_received,
    )  # fmt: skip
    monkeypatch.setattr(exchange, "dist", fake)
    xs = [torch.arange(7.0) + 10 * rank for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda rank: exchange.ring(Ranks(rank, rank, 3), xs[rank]), range(3)))
    assert all(torch.equal(one, torch.stack(xs)) for one in found)


def failed(at: float, reason: str) -> Any:
    return [{"failed": {"status": "error", "reason": reason, "at": at}}]


@pytest.mark.parametrize(
    ("codes", "said", "reason"),
    [
        ([1, 1], [failed(2.0, "misses another"), failed(1.0, "is wrong")], "rank 1: is wrong"),
        ([1, -11], [failed(2.0, "misses another"), []], "rank 1 was ended by SIGSEGV"),
        ([3, None], [[{"check": {}}], []], "rank 0 ended with exit code 3"),
        ([None, 0], [[], []], "ranks did not end within 9 s"),
    ],
)
def test_which_rank_failed_first(codes: list[int | None], said: list[Any], reason: str) -> None:
    assert processes._failure(codes, said, 9.0) == Failure("error", reason)


def test_all_ranks_draw_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "DRAWN", 16)
    whole = tokens.drawn(replace(QUESTION, ranks=1), 0, 40)
    parts = [tokens.drawn(replace(QUESTION, ranks=3), rank, 40) for rank in range(3)]
    for name, x in whole.tensors():
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1), x)
    assert not torch.equal(whole.q[:, :16], whole.q[:, 16:32])


def test_ranks_that_are_wrong_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose o forgets the state before it, and one of which gradients alone are wrong."""
    one = replace(QUESTION, ranks=1)
    gla: Callable[..., Any] = tokens.operator(one)

    def forgets(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Any, state: Tensor, final: bool) -> Any:
        return gla(q, k, v, g, scale, state * 0.9, final)

    def stops(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Any, state: Tensor, final: bool) -> Any:
        return gla(q, k, v + 0.1 * (v.detach() - v), g, scale, state, final)

    monkeypatch.setattr(check, "operator", lambda question: forgets)
    assert "gates x1.0: " in (check.wrong(check.checked(one, 0), gradients=False) or "")
    monkeypatch.setattr(check, "operator", lambda question: stops)
    found = check.checked(one, 0)
    assert check.wrong(found, gradients=False) is None
    why = check.wrong(found, gradients=True) or ""
    assert "dv is off by" in why
    said: list[Any] = [{"check": found, "wrong": {"fwd": None, "fwdbwd": why}, "device": "CPU"}]
    row = measured.time_row(one, "fwdbwd", Ended([said], None))
    assert (row["status"], row["reason"]) == ("wrong", why)
    assert "ms" not in row


def test_the_worst_run_of_tokens_counts() -> None:
    right = torch.ones(1, 600, 2, 8)
    x = right.clone()
    assert check.worst_run(x, right) == 0
    x[:, 576 + 8] = 1.5
    assert float(check.worst_run(x, right)) == pytest.approx(0.5 / 24**0.5)
    x[:, 3] = math.nan
    assert check.worst_run(x, right).isnan()


def timed(mode: str, same: bool = True, slower: float = 0.0, apart: float | None = 0.002) -> dict[str, Any]:
    """What a rank reports of a mode."""
    samples = [{"ms": 6.0 + slower, "wall_ms": 6.5}, {"ms": 8.0, "wall_ms": 8.5}]
    alone = [{"ms": 5.4, "wall_ms": 6.0}, {"ms": 7.2, "wall_ms": 7.5}]
    found: dict[str, Any] = {"mode": mode, "way": None, "apart": apart, "same_bits": same, "exchange": ["direct"]}
    found |= {"samples": samples, "alone": alone}
    return found | {"message_bytes": [2**20, 2**19], "peak_bytes": 3 * 2**30}


CHECK = {"check": {}, "wrong": {"fwdbwd": None}, "device": "GPU"}


def row_of(ranks: int, *found: dict[str, Any], failure: Failure | None = None) -> Row:
    question = replace(QUESTION, ranks=ranks, device="cuda", shape=Shape(1, 65536, 16, 128, 128))
    row = measured.time_row(question, "fwdbwd", Ended([[CHECK, one] for one in found], failure))
    return row | {"environment": {"device": "GPU"}}


def shown(rows: list[Row]) -> str:
    out = io.StringIO()
    show(rows, [], Console(file=out, width=WIDTH))
    return out.getvalue()


def test_the_slowest_rank_counts() -> None:
    one = row_of(1, timed("fwdbwd", slower=8.0))
    two = row_of(2, timed("fwdbwd"), timed("fwdbwd", slower=1.0))
    found = figures(two, [one, two])
    assert found["ms"].median == 7.5  # of (7, 8)
    assert found["times_one_gpu"] == pytest.approx(11.0 / 7.5)
    assert found["exposed"] == pytest.approx(1 - 6.3 / 7.5)
    assert found["sent_bytes"] == 1.5 * 2**20
    assert figures(two, [two])["times_one_gpu"] is None
    assert figures(two, [one | {"devices": ["another GPU"]}, two])["times_one_gpu"] is None
    text = shown([one, two])
    for cell in ("1,65536,16,128,128", "direct", "7.500", "1.47x", "16.0%", "1.5", "3.00", "yes, 2e-03 apart"):
        assert cell in text


def test_what_is_no_time_is_said() -> None:
    differs = row_of(2, timed("fwdbwd"), timed("fwdbwd", same=False))
    assert differs["status"] == "wrong"
    far, nan, alone = (row_of(2, timed("fwdbwd", apart=x), timed("fwdbwd")) for x in (0.2, math.nan, None))
    assert (far["status"], nan["status"], alone["status"]) == ("wrong", "wrong", "ok")
    assert "2.00e-01 from one GPU's results, 0.02 is allowed" in shown([far])
    assert "yes, at 2048 tokens" in shown([alone])
    gone = row_of(2, timed("fwdbwd"), timed("fwd"), failure=Failure("error", "rank 1 was ended by SIGKILL"))
    assert (gone["status"], gone["reason"]) == ("error", "rank 1 was ended by SIGKILL")
    text = shown([differs, gone])
    assert "2 ranks: two runs of the same inputs differ" in text
    assert "2 ranks: rank 1 was ended by SIGKILL" in text
    assert not program.sound(gone)


def test_what_does_not_fit_on_one_gpu_runs_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that holds 100 tokens."""

    def run(work: Any, question: Question) -> Ended:
        lengths = [question.shape.T] if question.ranks > 1 else [question.shape.T * 2**n for n in range(3)]
        fit = [T for T in lengths if T // question.ranks <= 100]
        found = [{"T": T, "device": "GPU", "peak_bytes": T * 2**20, "finite": True} for T in fit]
        full = Failure("oom", "rank 0: out of memory") if len(fit) < len(lengths) else None
        return Ended([found] * question.ranks, full)

    monkeypatch.setattr(measured, "run", run)
    rows = [row | {"environment": {"device": "GPU"}} for row in measured.memory(QUESTION)]
    assert [(row["T"], row["ranks"], row["status"]) for row in rows] == [
        (40, 1, "ok"), (80, 1, "ok"), (160, 1, "oom"), (160, 2, "ok"),
    ]  # fmt: skip
    assert all(program.sound(row) for row in rows)
    text = shown(rows)
    assert "1,160,1,16,16" in text
    assert "out of memory" in text
    assert not program.sound(rows[2] | {"ranks": 2})


@pytest.mark.skipif(detect_device() == "cuda", reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    done = CliRunner().invoke(program.app, [], env=WIDE)
    assert done.exit_code == 2
    assert "only --tiny needs none" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ranks", "2,none"], "expected numbers above 0, got '2,none'"),
        (["--ranks", "8"], "8 ranks want a GPU each, and there are 4"),
        (["--shapes", "1,2,3,4"], "expected B,T,H,K,V, five numbers above 0, got '1,2,3,4'"),
        (["--shapes", "1,3,1,16,16"], "expected 4 tokens or more, one for each rank, got '1,3,1,16,16'"),
        (["--shapes", " "], "expected a shape, got none"),
        (["--mode", "bwd"], "did you mean 'fwdbwd'"),
        (["--dtype", "bf8"], "did you mean 'bf16'"),
        (["--samples", "0"], "--samples"),
        (["--tiny", "--memory"], "a CPU's memory is not asked for"),
        (["--exchange", "rings"], "did you mean 'ring'"),
        (["--tiny", "--exchange", "direct"], "CPUs exchange nothing directly"),
    ],
)
def test_bad_input_is_told(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "available", lambda device: 4)
    done = CliRunner().invoke(program.app, arguments, env=WIDE)
    assert done.exit_code == 2
    assert says in done.output

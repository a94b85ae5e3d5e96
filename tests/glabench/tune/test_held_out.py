"""What plans cost at shapes that are held out of what was tuned, from records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gla_kernels import Machine, Plan, Workload
from gla_kernels.plan import choose
from gla_kernels.plan.choose import by_model
from gla_kernels.plan.table import header_of
from glabench.errors import UserError
from glabench.tune.candidate import candidates_of
from glabench.tune.held_out import held_out, main
from glabench.tuning_store import Finalist, Trial, Tuning, to_json

HERE = Workload("fwd", 4, 2048, 16, 64, 64, "fp16")
SAME_CLASS, OTHER_CLASS = replace(HERE, T=2000), replace(HERE, B=6)
GOOD = by_model(HERE, 90)
TILES = {step: replace(tile, max_registers=200) for step, tile in GOOD.config.tiles().items()}
SLOW = replace(GOOD, config=replace(GOOD.config, **TILES))  # type: ignore[arg-type]  # fields of a KernelConfig


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cost model expects the same of all plans."""
    monkeypatch.setattr(choose, "predicted_ms", lambda work, plan, capability: 1.0)
    choose._predicted.cache_clear()
    yield
    choose._predicted.cache_clear()


def tuned(work: Workload, plan: Plan, measured: dict[Plan, float], **header: object) -> Tuning:
    """One that the plan won. measured: ms of each pass of plans; header: what of it is otherwise."""
    header = asdict(header_of(Machine(90, "NVIDIA H200", 2**37))) | header
    trials = tuple(
        Trial(one.to_dict(), predicted_ms=1.0, status="ok", samples_ms=(ms,) * 3)
        for which, ms in measured.items()
        for one in candidates_of(work, which, 90)
    )
    finalist = Finalist(plan.to_dict(), "candidate", "search", "ok", None, (1.0,) * 3)
    started = "2026-11-22T12:00:00+00:00"
    return Tuning(
        work.to_dict(), "model", None, 100, trials, (finalist,), 0, "", {}, started, 1.0, header=header, times=()
    )


@pytest.mark.usefixtures("alike")
def test_a_shape_is_held_out_with_its_class() -> None:
    both = {GOOD: 1.0, SLOW: 2.0}
    found = held_out([tuned(HERE, GOOD, both), tuned(SAME_CLASS, GOOD, both), tuned(OTHER_CLASS, SLOW, both)])
    assert [(one.work, one.ratio) for one in found] == [(HERE, 2.0), (SAME_CLASS, 2.0), (OTHER_CLASS, 0.5)]
    assert found[0].origin.startswith("tuned at B=6 T=2048 H=16, nearby")


def test_alone_a_shape_is_left_to_the_cost_model() -> None:
    (found,) = held_out([tuned(HERE, SLOW, {GOOD: 1.0, SLOW: 2.0})])
    assert (found.ratio, found.origin) == (0.5, "by the cost model")


@pytest.mark.usefixtures("alike")
def test_others_are_looked_up_with_all_that_was_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of their class, too; and what was timed in turns says more than sums of kernels."""
    known, judged = tuned(SAME_CLASS, GOOD, {GOOD: 1.0}), tuned(HERE, SLOW, {GOOD: 1.0, SLOW: 2.0})
    (found,) = held_out([known], [judged])
    assert (found.work, found.ratio) == (HERE, 0.5)
    in_turns = Finalist(GOOD.to_dict(), "incumbent", "shipped", "ok", None, (1.2,) * 3)
    (found,) = held_out([known], [replace(judged, finalists=(*judged.finalists, in_turns))])
    assert found.ratio == pytest.approx(1.2)
    paths = tmp_path / "known.jsonl", tmp_path / "judged.jsonl"
    for path, one in zip(paths, (known, judged), strict=True):
        path.write_text(to_json(one) + "\n")
    main([str(paths[0]), "--at", str(paths[1])])
    assert capsys.readouterr().out.startswith("0.500  B=4 T=2048 H=16 K=64 V=64 fp16 fwd: tuned at B=4 T=2000 H=16")


@pytest.mark.usefixtures("alike")
def test_a_plan_that_was_not_measured_has_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tunings = [tuned(HERE, GOOD, {GOOD: 1.0}), tuned(OTHER_CLASS, SLOW, {GOOD: 1.0, SLOW: 2.0})]
    assert math.isnan(held_out(tunings)[0].ratio)
    path = tmp_path / "tune-made-up.jsonl"
    path.write_text("".join(to_json(one) + "\n" for one in tunings))
    main([str(path)])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("0.500  B=6 T=2048 H=16 K=64 V=64 fp16 fwd: tuned at B=4 T=2048 H=16, nearby")
    assert said[1:] == [
        "geometric mean 0.500, worst 0.500, of 1 held out",
        "1 more chose a plan of which a pass was not measured",
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [replace(tuned(HERE, GOOD, {GOOD: 1.0}), winner=None)], "found 0 such"),
        (lambda: [tuned(HERE, GOOD, {}), tuned(OTHER_CLASS, GOOD, {}, device="other")], "found 2 such"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(make: Callable[[], list[Tuning]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        held_out(make())

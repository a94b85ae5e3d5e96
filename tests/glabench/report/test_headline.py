"""Findings by hand: what the headline says of rows whose times are known."""

from __future__ import annotations

from dataclasses import replace

from glabench.analysis.compare import answers
from glabench.analysis.frame import frame
from glabench.report import shapes
from glabench.report.headline import findings
from glabench.spec.case import Case
from glabench.store import Row

BYTES_PER_S = 4e12


def row(system: str, T: int, over_floor: float, gate: float | None = 1.0) -> Row:
    """A forward case that takes so many times the floor, on a device that copies 4 TB/s."""
    case = Case(system, 1, T, 4, 128, 256, mode="fwd", gate_strength=gate)
    nbytes = 4 * T * 1000
    ms = over_floor * nbytes / BYTES_PER_S * 1000
    environment = {"device": "GPU", "kind": "cuda", "copy_bytes_per_s": BYTES_PER_S}
    time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 6, "dropped": 0}
    return Row(
        case.id,
        "test",
        case.to_dict(),
        "ok",
        time=time,
        work={"flops": 1, "hbm_bytes": nbytes},
        environment=environment,
    )


def floor(rows: list[Row]) -> tuple[str, str]:
    found = next(f for f in findings(frame(rows), "GPU") if "HBM floor" in f.lead)
    return found.figure, found.sentence


def test_the_floor_compares_only_what_ran_at_the_same_shapes() -> None:
    rows = [
        row("gla", 1024, 4.0),
        row("gla", 2048, 9.0),
        row("gla_recurrent", 1024, 8.0),
        row("gla_recurrent", 2048, 18),
    ]
    rows.append(row("fla", 1024, 2.0))  # nearest of all, but at one shape only
    figure, sentence = floor(rows)
    assert figure == "6.00×"  # sqrt(4 * 9)
    assert "2 questions: GLA, default schedule 6.00×, GLA recurrent 12.0×" in sentence
    assert "FLA" not in sentence
    said = shapes.nearest_in_words(shapes.nearest_to_floor(answers(frame(rows))))
    assert said.endswith("forward, 2 questions: GLA, default schedule 6.00×.")


def test_the_floor_leaves_ungated_questions_out() -> None:
    figure, _ = floor([row("gla", 1024, 4.0), row("gla", 1024, 2.0, gate=None)])
    assert figure == "4.00×"


def test_an_eager_call_is_told_beside_its_kernels_and_ranked_by_itself() -> None:
    def called(row: Row, wall_over: float) -> Row:
        assert row.time
        walls = [wall_over * ms for ms in row.time["samples_ms"]]
        return replace(row, time=row.time | {"eager": {"host_ms": walls, "wall_ms": walls}})

    # By kernels ours is twice as fast as FLA, but eager calls of ours wait for Python.
    rows = [called(row("gla", 1024, 2.0), 4.0), called(row("fla", 1024, 4.0), 1.5)]
    found = findings(frame(rows), "GPU")
    ranked = [f.lead for f in found if "fastest of" in f.lead]
    assert ranked == [
        "questions where GLA (ours) is the fastest of 2 systems, by kernels",
        "questions where FLA chunk_gla is the fastest of 2 systems, by eager calls",
    ]
    (beside,) = [f for f in found if f.lead.startswith("its kernels' time")]
    assert beside.figure == "4.00×"
    assert "an eager call of GLA, default schedule, forward" in beside.lead
    assert beside.sentence == "Geometric mean over 1 question; FLA chunk_gla 1.50×."


def test_what_does_less_is_no_system_that_another_is_ahead_of() -> None:
    """Nor is it named as the nearest to a floor, for it has fewer bytes to move."""
    rows = [row("gla", 1024, 4.0), row("fla", 1024, 8.0), row("simple_gla", 1024, 2.0), row("retention", 1024, 1.0)]
    first = next(f for f in findings(frame(rows), "GPU") if "fastest of" in f.lead)
    assert (first.figure, first.lead) == (
        "1 of 1",
        "questions where GLA (ours) is the fastest of 2 systems, by kernels",
    )
    said = shapes.nearest_in_words(shapes.nearest_to_floor(answers(frame(rows))))
    assert said.endswith("forward, 1 question: GLA, default schedule 4.00×.")

"""Schedules of one system beside each other, by hand: when they are what rows are about, and which is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glabench.analysis.frame import frame
from glabench.analysis.schedules import Schedules, Spot, schedules
from glabench.spec.case import Case
from glabench.store import Row

AT: dict[str, Any] = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "mode": "fwd"}


def row(system: str, ms: float, **case: Any) -> Row:
    asked = Case(system, **{**AT, **case})
    time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms * 0.999] * 4 + [ms] + [ms * 1.001] * 4}
    environment = {"device": "GPU", "kind": "cuda"}
    return Row(asked.id, "test", asked.to_dict(), "ok", time=time, environment=environment)


def sized(ms: float, chunk: int, sub_chunk: int, kept: bool = True, **case: Any) -> Row:
    return row("gla", ms, chunk=chunk, sub_chunk=sub_chunk, materialize=kept, **case)


def compared(rows: Sequence[Row]) -> Schedules:
    (found,) = schedules(frame(rows))
    return found


def at(found: Schedules, chunk: int, sub_chunk: int, kept: bool | None = True, mode: str = "fwd") -> Spot:
    wanted = (chunk, sub_chunk, kept, mode)
    (spot,) = (s for s in found.spots if (s.chunk, s.sub_chunk, s.states, s.at["mode"]) == wanted)
    return spot


CHUNKS = [sized(4.0, 16, 16), sized(1.0, 64, 64), sized(2.0, 16, 16, False), sized(3.0, 64, 64, False)]


def test_the_fastest_is_the_baseline_of_its_mode_and_the_best_that_of_states_kept_or_not() -> None:
    found = compared([*CHUNKS, *(sized(ms, 64, 64, kept, mode="bwd") for ms, kept in ((6.0, True), (5.0, False)))])
    assert (found.device, found.system, found.crossed) == ("GPU", "gla", False)
    first = at(found, 64, 64)
    assert all(spot.base is first.entry for spot in found.spots if spot.at["mode"] == "fwd")
    assert (first.fastest, first.best) == (1, 1)
    assert (at(found, 16, 16).fastest, at(found, 16, 16).best) == (0, 0)
    assert (at(found, 16, 16, False).fastest, at(found, 16, 16, False).best) == (0, 1)
    back = at(found, 64, 64, False, "bwd")
    assert (back.fastest, back.best) == (1, 0)  # alone among those without states
    assert at(found, 64, 64, True, "bwd").base is back.entry


def test_what_noise_alone_parts_ties() -> None:
    found = compared([*CHUNKS, sized(1.001, 128, 64)])
    assert [(spot.fastest, spot.best) for spot in (at(found, 64, 64), at(found, 128, 64))] == [(2, 2)] * 2
    assert at(found, 64, 64, False).fastest == 0


def test_where_sub_chunks_vary_apart_the_best_is_that_of_a_chunk() -> None:
    found = compared(
        [sized(3.0, 16, 16), sized(2.0, 64, 16), sized(1.0, 64, 64), sized(1.5, 128, 16), sized(1.6, 128, 64)]
    )
    assert found.crossed
    assert [at(found, *sizes).best for sizes in ((16, 16), (64, 16), (64, 64), (128, 16), (128, 64))] == [0, 0, 1, 1, 0]
    assert [spot.fastest for spot in found.spots].count(1) == 1


def test_what_a_system_chooses_itself_stands_beside_the_fastest_that_was_asked_for() -> None:
    found = compared([*CHUNKS, row("gla", 0.5)])
    own = at(found, 0, 0, None)
    assert own.base is at(found, 64, 64).entry
    assert (own.fastest, own.best) == (0, 0)


def test_what_failed_is_there_and_leads_nothing() -> None:
    lost = replace(CHUNKS[1], status="oom", reason="no memory", time=None)
    found = compared([CHUNKS[0], lost, *CHUNKS[2:]])
    spot = at(found, 64, 64)
    assert not spot.entry.timed
    assert (spot.fastest, spot.best) == (0, 0)
    assert spot.base is at(found, 16, 16, False).entry
    assert compared([replace(one, status="oom", time=None) for one in CHUNKS]).spots[0].base is None


def test_rows_that_are_mostly_about_something_else_have_no_schedules_to_compare() -> None:
    rivals = [row(name, 2.0, B=b) for name in ("fla", "helion") for b in (4, 8)]
    assert not schedules(frame([*CHUNKS[:3], *rivals]))
    assert schedules(frame([*CHUNKS, *rivals[:3]]))
    assert not schedules(frame([CHUNKS[0], sized(1.0, 64, 64, B=8)]))  # one schedule a question


def test_systems_with_sizes_of_their_own_are_not_mixed() -> None:
    plain = [row("chunkwise_torch", 9.0, chunk=chunk) for chunk in (16, 64)]
    assert {spot.at["system"] for spot in compared([*CHUNKS, *plain]).spots} == {"gla"}

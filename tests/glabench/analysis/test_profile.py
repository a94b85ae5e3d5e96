"""Profiles: what bounds a kernel, what could be won, how kernels add up, and what explains their traffic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis import profile, traffic
from glabench.analysis.bounds import bounds
from glabench.analysis.load import Profiled, located, profiles
from glabench.analysis.profile import Call, calls
from glabench.analysis.traffic import Traffic
from glabench.errors import UserError
from glabench.spec.work import floor_ms, operator_work
from glabench.store import Row, to_json

MakeProfile = Callable[..., Row]
MIB = 2**20
CEILINGS = {
    "hbm_copy_bytes_per_s": 4e12, "hbm_read_bytes_per_s": 5e12, "l2_read_bytes_per_s": 1e13, "l2_bytes": 50 * MIB,
    "bf16_flops": 8e14, "tf32_flops": 4e14, "fp32_flops": 5e13, "exps_per_s": 4e12, "launch_gap_s": 2e-6,
}  # fmt: skip
WORK = {
    "tensor_flops": {"bf16": 8e11, "tf32": 4e11, "fp32": 1e10}, "vector_flops": 4e10, "exps": 8e9,
    "read_bytes": 4e9, "write_bytes": 2e9, "requested_bytes": 9e9, "hbm_read_bytes": 4e9, "hbm_write_bytes": 2e9,
}  # fmt: skip


def only(row: Row) -> Call:
    (call,) = calls([Profiled(row, Path("rows-traces"))])
    return call


def changed(row: Row, **parts: Any) -> Row:
    assert row.profile is not None
    return replace(row, profile={**row.profile, **parts})


def kernel(name: str, samples: list[float] | None, **known: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("step", "direction", "work", "predicted_ms", "compiled", "counters"))
    return {"name": name, "count": 1, "samples_ms": samples, **empty, **known}


def test_bounds_are_work_over_rate() -> None:
    # 2e9 read and written at the speed of a copy, 2e9 more at that of reading
    assert bounds(WORK, CEILINGS, count=3) == pytest.approx(
        {"hbm": 1.0 + 0.4, "l2": 0.9, "tensor": 1.0 + 1.0, "cuda": 1.0, "exps": 2.0, "launch": 0.006}
    )


def test_a_kernel_that_only_reads_is_bound_by_reading() -> None:
    reads = {**WORK, "hbm_write_bytes": 0}
    assert bounds(reads, CEILINGS)["hbm"] == pytest.approx(0.8)
    unknown = {**CEILINGS, "hbm_read_bytes_per_s": None, "l2_read_bytes_per_s": None}
    assert bounds(reads, unknown)["hbm"] == pytest.approx(1.0)
    assert "l2" not in bounds(reads, unknown)


def test_what_is_not_known_bounds_nothing(make_profile: MakeProfile) -> None:
    assert bounds({}, CEILINGS) == {"launch": pytest.approx(0.002)}
    assert bounds(WORK, {}) == {}
    foreign = only(changed(make_profile(), kernels=[kernel("elementwise_kernel<4>", [1.0, 2.0, 3.0])])).kernels[0]
    assert (foreign.binding, foreign.ms, foreign.key) == (None, 2.0, "other")
    assert math.isnan(foreign.slack_ms)


def test_slack_is_what_the_busiest_resource_leaves(make_profile: MakeProfile) -> None:
    ours = kernel("output_kernel", [3.0, 5.0, 4.0], step="output", direction="fwd", work=WORK)
    fast = kernel("states_kernel", [1.0], step="states", direction="fwd", work=WORK)
    call = only(changed(make_profile(), kernels=[ours, fast], ceilings=CEILINGS))
    assert call.kernels[0].binding in ("tensor", "exps")  # both need 2 ms
    assert [k.bound_ms for k in call.kernels] == [2.0, 2.0]
    assert [k.slack_ms for k in call.kernels] == [2.0, 0.0]  # none below its bound
    assert [k.share for k in call.kernels] == [0.8, 0.2]
    (part,) = call.parts
    assert part.next is call.kernels[0]
    assert part.gain == pytest.approx(2.0 / 5.0)


def test_rates_and_intensity(make_profile: MakeProfile) -> None:
    ours = kernel("output_kernel", [2.0], step="output", direction="fwd", work=WORK)
    one = only(changed(make_profile(), kernels=[ours], ceilings=CEILINGS)).kernels[0]
    flops = 8e11 + 4e11 + 1e10 + 4e10
    assert one.flops_per_s == pytest.approx(flops / 2e-3)
    assert one.bytes_per_s == pytest.approx(6e9 / 2e-3)
    assert one.intensity == pytest.approx(flops / 6e9)
    assert one.l2_intensity == pytest.approx(flops / 9e9)


def test_directions_have_floors_of_their_own(make_profile: MakeProfile) -> None:
    call = only(make_profile("fwdbwd"))
    assert [part.direction for part in call.parts] == ["fwd", "bwd"]
    copy = call.ceilings["hbm_copy_bytes_per_s"]
    for part in call.parts:
        compulsory = operator_work({**call.case, "mode": part.direction})["hbm_bytes"]
        assert part.floor_ms == pytest.approx(floor_ms(compulsory, copy))
        assert all(k.direction == part.direction for k in part.kernels)
    assert call.floor_ms == pytest.approx(sum(part.floor_ms for part in call.parts))
    assert sum(part.ms for part in call.parts) == pytest.approx(call.kernels_ms)


def test_kernels_of_no_known_direction_are_in_the_sum_and_in_no_part(make_profile: MakeProfile) -> None:
    row = make_profile("fwdbwd")
    assert row.profile is not None
    fill = kernel("Memset (Device)", [0.5] * 15)
    call = only(changed(row, kernels=[*row.profile["kernels"], fill]))
    assert [part.direction for part in call.parts] == ["fwd", "bwd"]
    assert call.kernels_ms == pytest.approx(sum(part.ms for part in call.parts) + 0.5)
    alone = only(changed(make_profile("fwd"), kernels=[fill]))
    assert [part.direction for part in alone.parts] == ["fwd"]


def test_kernels_and_gaps_add_up(make_profile: MakeProfile) -> None:
    first, second = kernel("a", [1.0, 1.2, 1.4]), kernel("b", [2.0, 2.0, 2.0])
    call = only(changed(make_profile(), kernels=[first, second], span_ms=[3.1, 3.4, 3.9], samples_ms=[4.0, 4.0]))
    assert call.kernels_ms == pytest.approx(3.2)
    assert call.gaps_ms == pytest.approx(0.2)  # the median of 0.1, 0.2 and 0.5
    assert call.covered == pytest.approx(0.8)
    overlapping = only(changed(make_profile(), kernels=[first, second], span_ms=[2.0, 2.0, 2.0]))
    assert overlapping.gaps_ms == 0


def test_predictions_stand_for_times_only_where_nothing_was_measured(make_profile: MakeProfile) -> None:
    guessed = only(make_profile(measured=False))
    assert guessed.predicted
    assert all(k.ms == k.predicted_ms > 0 for k in guessed.kernels)
    assert math.isnan(guessed.covered)
    assert guessed.parts[0].next is not None
    seen = only(make_profile())
    assert not seen.predicted
    assert all(k.ms != k.predicted_ms for k in seen.kernels)
    assert seen.group != guessed.group
    lost = only(changed(make_profile(), kernels=[kernel("a", [1.0]), kernel("b", None, predicted_ms=7.0)]))
    assert [k.ms for k in lost.kernels][:1] == [1.0]
    assert math.isnan(lost.kernels[1].ms)  # a prediction is no measurement


def test_an_empty_profile_is_a_call_without_kernels(make_profile: MakeProfile) -> None:
    row = make_profile()
    assert row.profile is not None
    call = only(replace(row, profile=dict.fromkeys(row.profile)))
    assert (call.kernels, call.parts, call.target) == ((), (), "NVIDIA H200")
    assert all(math.isnan(x) for x in (call.kernels_ms, call.gaps_ms, call.ms, call.floor_ms, call.covered))


def test_lengths_and_chunk_sizes_go_up_where_they_were_written(make_profile: MakeProfile) -> None:
    sizes: list[dict[str, int]] = [
        {"H": 8, "T": 4096}, {"T": 2048, "chunk": 256}, {"H": 8, "T": 1024}, {"T": 2048, "chunk": 16},
    ]  # fmt: skip
    found = profile.calls([Profiled(make_profile(**one), Path()) for one in sizes])
    assert [(call.row.case["H"], call.row.case["T"], call.row.case["chunk"]) for call in found] == [
        (8, 1024, 64), (8, 4096, 64), (16, 2048, 16), (16, 2048, 256),
    ]  # fmt: skip


def test_the_table_has_a_line_a_kernel(profile_rows: list[Row]) -> None:
    found = calls(Profiled(row, Path()) for row in profile_rows)
    table = profile.table(found)
    assert len(table) == sum(len(call.kernels) for call in found)
    assert (table["slack_ms"] <= table["ms"]).all()
    assert set(table.loc[table["predicted"], "samples"]) == {0}


def counted(make_profile: MakeProfile, read: float, write: float, **work: float) -> Traffic:
    """A kernel that has to read 100 MiB and write 100 MiB, and what ncu counted of it, in MiB."""
    expected = {"read_bytes": 100, "write_bytes": 100, "requested_bytes": 200, "hbm_read_bytes": 100,
                "hbm_write_bytes": 100} | work  # fmt: skip
    seen = {"hbm_read_bytes": read * MIB, "hbm_write_bytes": write * MIB, "l2_hit_share": 0.5}
    done = {name: size * MIB for name, size in expected.items()}
    one = kernel("output_kernel", [1.0], step="output", work=done, counters=seen)
    (found,) = traffic.traffic([only(changed(make_profile(), kernels=[one], ceilings=CEILINGS))])
    return found


@pytest.mark.parametrize(
    ("read", "write", "work", "expected"),
    [
        (101, 99, {}, [("within", 0)]),
        (100, 90, {}, [("within", 0), ("writes_in_l2", 10)]),
        (100, 60, {}, [("writes_in_l2", 40)]),
        (100, 20, {}, [("writes_lost", 80)]),  # L2 holds 50
        (100, 140, {}, [("writes_more", 40)]),
        (160, 100, {"requested_bytes": 400}, [("reads_missed", 60)]),
        (160, 100, {}, [("reads_more", 60)]),
        (110, 100, {"requested_bytes": 400, "hbm_read_bytes": 300}, [("reads_in_l2", 190)]),
        (50, 100, {}, [("reads_lost", 50)]),
        (100, 100, {"requested_bytes": 400}, [("within", 0), ("rereads", 200)]),
    ],
)
def test_what_explains_a_difference(
    make_profile: MakeProfile, read: float, write: float, work: dict[str, float], expected: list[tuple[str, float]]
) -> None:
    found = counted(make_profile, read, write, **work).explained()
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    assert [size / MIB for _, size in found] == pytest.approx([size for _, size in expected])


@pytest.mark.parametrize(
    ("read", "write", "expected"),
    [
        (100, 140, [("writes_spilled", 40)]),
        (160, 140, [("writes_spilled", 40), ("reads_spilled", 60)]),
        (100, 60, [("writes_in_l2", 40)]),
    ],
)
def test_spilled_registers_explain_what_is_moved_beyond(
    make_profile: MakeProfile, read: float, write: float, expected: list[tuple[str, float]]
) -> None:
    found = counted(make_profile, read, write, requested_bytes=400)
    spilling = replace(found, kernel=replace(found.kernel, compiled={"spill_bytes": 384}))
    assert [(kind, size / MIB) for kind, size in spilling.explained() if kind != "rereads"] == expected
    assert not any("spilled" in kind for kind, _ in found.explained())


def test_counters_are_of_one_launch(make_profile: MakeProfile) -> None:
    once = counted(make_profile, 100, 100)
    twice = replace(once, kernel=replace(once.kernel, count=2))
    assert twice.read + twice.write == 2 * (once.read + once.write)


def test_without_counters_nothing_is_explained(make_profile: MakeProfile) -> None:
    found = traffic.traffic([only(make_profile())])
    assert found
    assert all(math.isnan(one.difference) and one.explained() == [] for one in found)


def test_the_latest_profile_of_each_case_counts_with_its_traces(tmp_path: Path, make_profile: MakeProfile) -> None:
    old, new = make_profile(trace="t.json.gz"), make_profile(trace="t.json.gz", started="2026-11-22T09:00:00+00:00")
    guess = make_profile(measured=False)
    assert guess.profile is not None
    other = changed(guess, target={**guess.profile["target"], "name": "NVIDIA A100"})
    (tmp_path / "a.jsonl").write_text("".join(f"{to_json(row)}\n" for row in (old, guess, other)))
    (tmp_path / "b.jsonl").write_text(f"{to_json(new)}\n")
    found = profiles(located([tmp_path]))
    assert sorted(call.target for call in calls(found)) == ["NVIDIA A100", "NVIDIA H200", "NVIDIA H200"]
    (measured,) = (call for call in calls(found) if not call.predicted)
    assert (measured.row, measured.trace) == (new, tmp_path / "b-traces" / "t.json.gz")


def test_a_trace_is_looked_for_in_one_folder(make_profile: MakeProfile) -> None:
    assert only(make_profile(trace="../../secrets.json.gz")).trace == Path("rows-traces/secrets.json.gz")


def test_profiles_and_measured_rows_are_not_mixed(tmp_path: Path, make_row: Any, make_profile: MakeProfile) -> None:
    timed, failed = make_row("gla", [1.0]), make_row("fla", status="oom", reason="too large")
    (tmp_path / "a.jsonl").write_text(f"{to_json(make_profile())}\n")
    (tmp_path / "b.jsonl").write_text(f"{to_json(failed)}\n")
    assert len(profiles(located([tmp_path]))) == 2  # a failure can be of either kind
    (tmp_path / "b.jsonl").write_text(f"{to_json(timed)}\n")
    with pytest.raises(UserError, match=r"a\.jsonl holds profiles and .*b\.jsonl measured rows; render them apart"):
        profiles(located([tmp_path]))
    assert profiles(located([tmp_path / "b.jsonl"])) == []

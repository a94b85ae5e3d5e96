"""What a launch does, counted, and how long the cost model expects it to take."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from gla_kernels import KernelConfig, Plan, Schedule, Tile, Workload, chunk, default_config
from gla_kernels.cost import model
from gla_kernels.cost.work import work_of
from gla_kernels.plan.apply import all_launches, launches_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.space import schedules
from gla_kernels.tiles import operands

B, T, H, K, V = 2, 1024, 3, 128, 256
FWD = Workload("fwd", B, T, H, K, V)
BWD = replace(FWD, direction="bwd")


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Launches as on a GPU: the interpreter's products are all in float32."""
    monkeypatch.setattr(operands, "interpreting", lambda: False)


def plan(schedule: Schedule, block_t: int = 64, states: Tile = Tile(64, 64)) -> Plan:  # noqa: B008 (frozen)
    """Tiles that divide K and V, so that counts can be done by hand."""
    whole_k, whole_v = Tile(K, 64), Tile(64, V)
    return Plan(schedule, KernelConfig(block_t, states, whole_k, states, whole_v, whole_k))


def test_states_are_one_product_a_row_block():
    work = work_of(launches_of(FWD, plan(Schedule(64)))["states"])
    assert work.programs == B * H * 2 * 4  # tiles of 64 of K and of V
    assert work.blocks == T / 64
    gates = 4 * 2 * B * H * T * (64 + 16) * K  # their sums up to rows and over all, for each tile of values
    assert work.tensor_flops == {"bf16": 2 * B * H * T * K * V + gates, "tf32": 0, "fp32": 0}
    states, halves = B * H * (T // 64) * K * V * 2, B * H * (T // 64) * K * 4  # bf16, float32
    assert work.write_bytes == states + halves


def test_scores_and_their_sums_come_once_for_each_tile_of_values():
    work = work_of(launches_of(FWD, plan(Schedule(64)))["output"])
    assert work.programs == B * H * (T // 64) * 4
    tiles, rows = 4, B * H * T
    assert work.tensor_flops["tf32"] == tiles * rows * 2 * 64 * K  # scores on the diagonal are tf32
    assert work.tensor_flops["bf16"] == rows * 2 * (2 * 64 * V + K * V + tiles * 64 * K)  # scores as two halves; gates
    assert work.write_bytes == rows * V * 2
    assert (work.blocks, work.pairs) == (1, 0)


def test_pairs_of_row_blocks_are_counted_in_a_chunk_of_several():
    for materialize in (True, False):
        found = launches_of(FWD, plan(Schedule(256, 64, materialize)))
        work = work_of(found["output"])  # a program a row block, at most the fourth of its chunk
        assert (work.programs, work.blocks, work.pairs) == (B * H * (T // 64) * 4, 1, 3)
        assert work_of(found["states"]).blocks == T // 64
    work = work_of(launches_of(BWD, plan(Schedule(256, 64)))["grad_qk"])  # a program a chunk, for dq and for dk
    assert (work.programs, work.blocks, work.pairs) == (B * H * (T // 256) * 2, 4, 2 * 6)


def test_a_launch_over_a_slice_counts_that_slice(monkeypatch):
    monkeypatch.setattr(chunk.parted, "room_for", lambda *_: 2**40)
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 1)
    long = replace(BWD, T=2 * T + 100)
    for schedule in (Schedule(64), Schedule(256, 64)):
        whole = {launch.step: work_of(launch) for launch in all_launches(long, plan(schedule))}
        part = all_launches(long, plan(replace(schedule, materialize=False)))[2:]  # of slices
        for step in whole:
            slices = [work_of(launch) for launch in part if launch.step == step]
            assert len(slices) == 3
            assert sum(one.exps for one in slices) == whole[step].exps
            assert sum(one.vector_flops for one in slices) >= whole[step].vector_flops  # each has a state to start from
            assert sum(one.tensor_flops["bf16"] for one in slices) == whole[step].tensor_flops["bf16"]


def test_without_a_gate_there_are_no_exponentials():
    for work in (FWD, BWD):
        for launch in launches_of(replace(work, gated=False), plan(Schedule(128, 64))).values():
            assert work_of(launch).exps == 0


@pytest.mark.parametrize("work", [FWD, BWD], ids=["fwd", "bwd"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_launch_has_a_time(work: Workload, dtype: str):
    work = replace(work, T=4 * T, dtype=dtype)
    for schedule, capability in product(schedules(work), (80, 90, 999)):
        found = Plan(schedule, default_config(K, V, work.operand_bytes, schedule, 80))
        for launch in launches_of(work, found).values():
            assert 0 < model.predict_ms(launch, capability) < 1e3


def test_more_work_takes_longer():
    for step in ("states", "output"):
        times = [
            model.predict_ms(launches_of(replace(FWD, B=size), plan(Schedule(64)))[step], 90) for size in (8, 32, 128)
        ]
        assert times == sorted(times)
        assert times[-1] > 2 * times[0]


@pytest.mark.parametrize(
    ("sms", "blocks"),
    [
        (98, 32),  # each program on an SM of its own: the longest decides
        (97, 32),  # the last one, a short one, follows another short one
        (1, 49 * 38),
    ],
)
def test_the_longest_program_decides_where_a_segment_is_cut_short(sms: int, blocks: int):
    short = Workload("fwd", 7, 38 * 64 - 19, 7, 128, 128)  # 49 sequences of 32 chunks and of 6
    tiles = default_config(128, 128, 2, Schedule(64, states_every=32))
    found = all_launches(short, Plan(Schedule(64, states_every=32), with_walks(tiles, short)))
    work = work_of(next(launch for launch in found if launch.step == "walk"))
    assert (work.programs, work.tiles, work.segments, work.blocks, work.last_blocks) == (98, 1, 2, 32, 6)
    assert model._fullest(work, sms) == pytest.approx(blocks / (49 * 38))


@pytest.mark.parametrize(
    ("heads", "tiles", "blocks"),
    [
        (2, 1, 5),  # 4 and 1 at once, 4 after the 1, 1 after the 4
        (3, 1, 9),  # then a 4 begins at 5
        (1, 2, 5),  # 4 and 4, then 1 and 1
    ],
)
def test_programs_start_in_order_where_an_sm_is_free(heads: int, tiles: int, blocks: int):
    assert model._blocks_in_turn(heads, tiles, segments=2, each=4, last=1, sms=2) == blocks


def test_a_file_of_another_version_is_refused(tmp_path, monkeypatch):
    values = json.loads(model.FILE.read_text())
    path = tmp_path / "model.json"
    path.write_text(json.dumps(values | {"base": values["base"][1:]}))
    monkeypatch.setattr(model, "FILE", path)
    with pytest.raises(ValueError, match="of another version of the model"):
        model._fitted.__wrapped__()

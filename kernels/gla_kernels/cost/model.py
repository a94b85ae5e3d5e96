"""A cost model: about how long a launch takes, from its arguments alone, before anything is compiled.

For each pass, in two factors. The first is a sum of what the work would take at the rates that the GPU was seen to
reach: products, exponentials and bytes of the SM with most work, the programs that it starts, the bytes that all SMs
wait for together, and the chain of row blocks that a program goes through one after another, wave by wave. The second
corrects it for how the kernel is tiled (warps, stages, registers wanted):

    ms = (base features . base costs) * exp(effect features . effects)

Costs and effects are in ``model.json``, fitted to the trials of tuning records by ``glabench.tune.calibrate``. Good to
some 20 % within a pass: enough to say what to try first, and to choose between schedules where nothing was tuned.
"""

from __future__ import annotations

import json
import math
from functools import cache, lru_cache
from heapq import heapreplace
from pathlib import Path
from typing import Any

from ..launch import Launch
from ..schedule import MAX_REGISTERS
from .work import Work, residents, work_of

FILE = Path(__file__).with_name("model.json")

# Streaming multiprocessors, by compute capability: A100, RTX 3090, RTX 4090, H100 and H200 (SXM), B200, RTX 5090.
SMS = {80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 170}
DEFAULT_SMS = 108
MOST_ROUNDS = 20  # of programs on an SM, beyond which segments that end early change little
FP32_PRODUCTS = 16  # tf32 products that one in full float32, without tensor cores, takes as long as

BASE = (
    "fixed", "dots", "wide_dots", "exps", "loaded", "stored", "blocks", "pairs", "live_blocks", "live_pairs", "started",
    "hbm",
)  # fmt: skip
LIVE_KNOTS = (32, 64, 96, 128, 192, 256)  # float32 numbers a thread: where the effect of more of them may bend
EFFECTS = (
    "one", "warps_8", "stages_2", "stages_3", "rows_16", "rows_32", "single", "full",
    *(f"live_{knot}" for knot in LIVE_KNOTS), "log2_block_k", "log2_block_v",
    "warps_8_rows_16", "warps_8_rows_32", "stages_2_single", "stages_4", "descriptors", "limited", "hopper",
)  # fmt: skip


def predict_ms(launch: Launch, capability: int) -> float:
    """Expected time of a launch of a chunkwise kernel in ms, on a GPU of that compute capability (90 for 9.0)."""
    costs = _fitted().get(launch.step)
    if costs is None:
        return _unmeasured_ms(launch, capability)
    base, effects = features(launch, capability)
    ms = sum(x * cost for x, cost in zip(base, costs["base"], strict=True))
    return max(ms, 1e-4) * math.exp(sum(x * effect for x, effect in zip(effects, costs["effects"], strict=True)))


def _unmeasured_ms(launch: Launch, capability: int) -> float:
    """ms of a kernel that no tuning has measured, most of them without a tile to choose: a launch, and its bytes at an
    H200's rate for each SM."""
    return 0.004 + 0.032 * work_of(launch).requested_bytes / SMS.get(capability, DEFAULT_SMS) / 1e6


def features(launch: Launch, capability: int) -> tuple[list[float], list[float]]:
    """(base, effect) features of a launch, as BASE and EFFECTS name them. Work is in millions on the fullest SM."""
    work, sms = work_of(launch), SMS.get(capability, DEFAULT_SMS)
    live = work.live / (32 * launch.num_warps)  # a thread
    return _base(work, live, launch.num_warps, sms), _effects(launch, live)


def _base(work: Work, live: float, num_warps: int, sms: int) -> list[float]:
    flops, written = work.tensor_flops, work.write_bytes
    wide = flops["tf32"] + FP32_PRODUCTS * flops["fp32"]
    fullest = _fullest(work, sms)
    counts = (flops["bf16"], wide, work.exps, work.requested_bytes - written, written)
    waves = max(1.0, work.programs / (sms * residents(work, num_warps))) / 1e3
    chain = [waves * work.blocks, waves * work.pairs, waves * work.blocks * live, waves * work.pairs * live]
    started, hbm = math.ceil(work.programs / sms) / 1e3, (work.read_bytes + written) / sms / 1e6
    return [1.0, *(count * fullest / 1e6 for count in counts), *chain, started, hbm]


def _fullest(work: Work, sms: int) -> float:
    """The share of all work that the SM with most of it does."""
    each, last = work.blocks, work.last_blocks
    if each == last or work.programs > MOST_ROUNDS * sms:
        return math.ceil(work.programs / sms) / max(1, work.programs)
    heads = work.programs // (work.tiles * work.segments)
    whole = heads * work.tiles * (each * (work.segments - 1) + last)
    return _blocks_in_turn(heads, work.tiles, work.segments, each, last, sms) / whole


@lru_cache(maxsize=4096)
def _blocks_in_turn(heads: int, tiles: int, segments: int, each: int, last: int, sms: int) -> int:
    """Row blocks until all are done, where programs start in the grid's order, each on the SM that is free first."""
    busy = [0] * sms
    sequence = [each] * (tiles * (segments - 1)) + [last] * tiles
    for _ in range(heads):
        for blocks in sequence:
            heapreplace(busy, busy[0] + blocks)
    return max(busy)


def _effects(launch: Launch, live: float) -> list[float]:
    flags = launch.constexprs
    single = flags.get("CHUNK", rows := flags["BT"]) == rows and bool(flags.get("SINGLE", True))
    warps_8, stages_2 = launch.num_warps == 8, launch.num_stages == 2
    values = [
        1, warps_8, stages_2, launch.num_stages == 3, rows == 16, rows == 32, single, flags.get("FULL", False),
        *(max(0.0, math.log2(max(live, 1.0) / knot)) for knot in LIVE_KNOTS),
        math.log2(flags["BK"]), math.log2(flags["BV"]),
        warps_8 and rows == 16, warps_8 and rows == 32, stages_2 and single, launch.num_stages == 4,
        bool(launch.blocks), launch.max_registers < MAX_REGISTERS, launch.in_gluon,
    ]  # fmt: skip
    return [float(value) for value in values]


@cache
def _fitted() -> dict[str, Any]:
    """Costs and effects by pass. Raises ValueError when the file was fitted to other features."""
    values = json.loads(FILE.read_text())
    if (tuple(values["base"]), tuple(values["effects"])) != (BASE, EFFECTS):
        raise ValueError(f"{FILE.name} is of another version of the model; `python -m glabench.tune.calibrate` fits it")
    passes: dict[str, Any] = values["passes"]
    return passes

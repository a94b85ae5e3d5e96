"""Whether a plan can run: `why_not`, the one answer for callers, tables, tuners and the choice of plans."""

from __future__ import annotations

from ..schedule import (
    BLOCK_TS,
    CHUNKS,
    DEFAULT_SHARED_BYTES,
    DESCRIPTOR_CAPABILITY,
    HOPPER,
    LEAST_REGISTERS,
    MAX_REGISTERS,
    MIN_TILE,
    SAFE_COLUMNS,
    SHARED_BYTES,
    WALKED_K,
    WALKS,
    WGMMA_ROWS,
    WIDE_K,
    Plan,
    Tile,
    Workload,
    in_turn,
    padded,
)

HOPPER_PASSES = ("grad_qk", "walk", "grad_walk")  # with a kernel for it, of gated bf16 and chunks of one block of 64
MAX_STAGES = 8
MAX_WARPS = 32


def why_not(
    plan: Plan, work: Workload | None = None, capability: int | None = None, step: str | None = None
) -> str | None:
    """Why a GPU of that compute capability cannot run the plan for the workload, or a single pass of it (``step``);
    None where it can, as far as that is certain before anything is compiled.

    Without a workload: why Triton would compile the plan's tiles for none. The compiler has the last word on shared
    memory; registers, spills and occupancy rank candidates but veto none. Where the workload leaves the schedule open,
    chunks of twice its rows and more count as too long.
    """
    if step is None and (reason := _unsound(plan)) is not None:
        return reason
    if work is None or capability is None:
        return None
    if step is not None:
        return _of_pass(step, plan, work, capability)
    if work.schedule is None and plan.schedule.chunk >= 2 * work.T and plan.schedule.chunk > CHUNKS[0]:
        return f"chunk={plan.schedule.chunk} is too long for T={work.T}"
    for step in plan.steps(work):
        if (reason := _of_pass(step, plan, work, capability)) is not None:
            return f"{step} cannot run for K={work.K}, V={work.V}: {reason}"
    return None


def _unsound(plan: Plan) -> str | None:
    """Why no workload can run the plan."""
    if not plan.config.whole:
        return f"expected block_t and the sizes of tiles to be integers > 0, got {plan.config.numbers}"
    for tile in plan.config.tiles().values():
        for name, size in (("block_k", tile.block_k), ("block_v", tile.block_v), ("num_warps", tile.num_warps)):
            if size & (size - 1):
                return f"{name}={size} is no power of two"
        if tile.num_warps > MAX_WARPS or tile.num_stages > MAX_STAGES:
            return f"num_warps={tile.num_warps} or num_stages={tile.num_stages} is too large"
        if not LEAST_REGISTERS <= tile.max_registers <= MAX_REGISTERS:
            return f"max_registers={tile.max_registers} is not from {LEAST_REGISTERS} to {MAX_REGISTERS}"
    if plan.config.block_t not in BLOCK_TS:
        return f"block_t={plan.config.block_t} is none of {', '.join(map(str, BLOCK_TS))}"
    return _undivided(plan)


def _undivided(plan: Plan) -> str | None:
    rows, block_t = plan.schedule.rows, plan.config.block_t
    return f"block_t={block_t} does not divide sub_chunk={rows}" if rows % block_t else None


def _of_pass(step: str, plan: Plan, work: Workload, capability: int) -> str | None:
    """Why a pass of a sound plan cannot run."""
    tile = getattr(plan.config, step)
    unfit = _unfit_to_walk(step, tile, plan, work) if step in WALKS else None
    if unfit:
        return unfit
    if tile.descriptors and capability < DESCRIPTOR_CAPABILITY:
        return f"tensor descriptors need compute capability {DESCRIPTOR_CAPABILITY}"
    if (undivided := _undivided(plan)) is not None:
        return undivided
    unfit = _unfit_for_hopper(step, plan, work, capability) if tile.hopper else None
    if unfit:
        return unfit
    for name, size, dim in (("block_k", tile.block_k, work.K), ("block_v", tile.block_v, work.V)):
        if size > padded(dim):
            return f"{name}={size} is more than the head dimension, padded to {padded(dim)}"
        if size < MIN_TILE:
            return f"{name}={size}: a tensor-core product needs {MIN_TILE}"
    broken = _miscompiled(step, plan, work, capability)
    if broken:
        return broken
    need, limit = shared_bytes(step, plan, work), SHARED_BYTES.get(capability, DEFAULT_SHARED_BYTES)
    if need > limit:
        return f"needs at least {-(-need // 1024)} KiB of shared memory, a program has {limit // 1024}"
    return None


def _unfit_for_hopper(step: str, plan: Plan, work: Workload, capability: int) -> str | None:
    """Why Hopper's own kernel cannot serve. Without gates the portable one does, where there is one."""
    if capability != HOPPER:
        return f"a kernel of Hopper's own needs compute capability {HOPPER}"
    if step not in HOPPER_PASSES or not hopper_takes(step, getattr(plan.config, step)):
        return (
            f"Hopper's own kernels are of {', '.join(HOPPER_PASSES)}, with tiles of 64 by 64 (walks by 128, too), "
            "4 warps and tensor descriptors"
        )
    if not plan.schedule.chunk == plan.config.block_t == WGMMA_ROWS:
        return f"Hopper's own kernels are of chunks of one row block of {WGMMA_ROWS}"
    if work.dtype != "bf16" or work.K % WGMMA_ROWS or work.V % WGMMA_ROWS:
        return f"Hopper's own kernels are of bf16 and head dimensions that {WGMMA_ROWS} divides"
    return None


def _unfit_to_walk(step: str, tile: Tile | None, plan: Plan, work: Workload) -> str | None:
    """Why no fused scan can serve."""
    if tile is None:
        return f"{step}: the plan has no such walk"
    if work.gated != tile.hopper or (step == "grad_walk" and not work.gated):
        return "a fused scan is Hopper's own with gates, and portable and forward without"
    if plan.schedule.chunk != plan.config.block_t:
        return "a fused scan is of chunks of one row block"
    wide = tile.hopper and work.K == WIDE_K
    if wide and not (plan.schedule.materialize or in_turn(plan.schedule, work.B * work.H, work.V)):
        return f"a fused scan of K={WIDE_K} is of states that are materialized, or of slices that take turns"
    too_wide = work.K > WALKED_K and not wide
    if too_wide or (tile.hopper and work.V % tile.block_v) or (not tile.hopper and tile.block_k < work.K):
        return f"a fused scan has K of up to {WALKED_K} on chip, or on Hopper {WIDE_K}, and Hopper's whole tiles of V"
    return None


def _miscompiled(step: str, plan: Plan, work: Workload, capability: int) -> str | None:
    """Why the compiler gets a pass wrong, as it is known to on an H100 or H200: programs with several products of 64
    rows and 32 columns read and write outside their shared memory (ptxas 12.8, which comes with Triton 3.6 and 3.7;
    issue 11366 of triton-lang/triton, and measured here in grad_qk).

    Right where measured: the passes over time; float32; and chunks of one row block, in float16, and in the passes
    whose programs keep a tile of V while they go through tiles of K.
    """
    tile, block_t = getattr(plan.config, step), plan.config.block_t
    if capability != 90 or work.dtype == "fp32" or "states" in step or block_t < WGMMA_ROWS:
        return None
    by_rows = step in ("output", "grad_v") and tile.block_v >= SAFE_COLUMNS
    if plan.schedule.chunk == block_t == WGMMA_ROWS and (by_rows or work.dtype == "fp16"):
        return None
    if min(tile.block_k, tile.block_v) < SAFE_COLUMNS:
        return f"ptxas 12.8 miscompiles tiles of less than {SAFE_COLUMNS} columns in row blocks of {WGMMA_ROWS} or more"
    return None


def shared_bytes(step: str, plan: Plan, work: Workload) -> int:
    """The least shared memory that a pass takes, in bytes: a lower bound, known before compiling.

    The largest right operand of its products lies in shared memory as a whole: the state's tile, or a block of rows.
    """
    tile, block_t = getattr(plan.config, step), plan.config.block_t
    if step in ("states", "grad_states"):
        return block_t * tile.block_v * work.operand_bytes
    return tile.block_k * tile.block_v * work.operand_bytes


def hopper_takes(step: str, tile: Tile) -> bool:
    """Whether Hopper's own kernel of a pass takes such a tile. A walk has all of K, 64 features at a time."""
    if (tile.block_k, tile.num_warps, tile.descriptors) != (64, 4, True):
        return False
    if step in WALKS:
        return tile.block_v in (64, 128) and (tile.num_stages, tile.max_registers) == (2, MAX_REGISTERS)
    return tile.block_v == 64

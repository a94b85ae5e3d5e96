"""How many programs an SM holds at once, and what keeps it from holding more: arithmetic, no GPU."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32  # threads
REGISTERS = 64 * 1024  # 32-bit registers an SM has, on every GPU below
REGISTER_UNIT = 256  # registers are handed to a warp in multiples of this
WARP_UNIT = 4  # an SM has four parts, each with a quarter of the registers
SHARED_UNIT = 128  # bytes; shared memory is handed to a program in multiples of this
SHARED_RESERVED = 1024  # bytes that the system takes of each program's shared memory
TENSOR_COLUMNS = 512  # columns of tensor memory that an SM has, where it has any


@dataclass(frozen=True)
class SM:
    """What one streaming multiprocessor holds."""

    warps: int
    programs: int
    shared_bytes: int


# By compute capability: CUDA C++ Programming Guide, "technical specifications per compute capability".
SMS = {
    80: SM(64, 32, 164 * 1024),
    86: SM(48, 16, 100 * 1024),
    87: SM(48, 16, 164 * 1024),
    89: SM(48, 24, 100 * 1024),
    90: SM(64, 32, 228 * 1024),
    100: SM(64, 32, 228 * 1024),
    103: SM(64, 32, 228 * 1024),
    120: SM(48, 24, 100 * 1024),
}


def occupancy(
    capability: int, registers: int, shared_bytes: int, num_warps: int, tensor_columns: int = 0
) -> tuple[int, str] | None:
    """(programs an SM holds, what limits them) for a kernel; None for a GPU that is not in the list.

    registers: of a thread; shared_bytes: of a program; tensor_columns: of tensor memory, of a program. The limit is
    "registers", "shared memory", "warps", "programs" or "tensor memory": the first of these where several tie. 0
    programs: the kernel cannot run.
    """
    sm = SMS.get(capability)
    if sm is None:
        return None
    warp_registers = _up(registers * WARP, REGISTER_UNIT)
    limits = {
        "registers": _up_to(REGISTERS // WARP_UNIT, warp_registers, sm.warps) * WARP_UNIT // num_warps,
        "shared memory": sm.shared_bytes // _up(shared_bytes + SHARED_RESERVED, SHARED_UNIT),
        "warps": sm.warps // num_warps,
        "programs": sm.programs,
    }
    if tensor_columns:
        limits["tensor memory"] = TENSOR_COLUMNS // tensor_columns
    what = min(limits, key=lambda name: limits[name])
    return limits[what], what


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _up_to(room: int, size: int, most: int) -> int:
    """How often a size fits into the room; ``most`` when it is nothing."""
    return room // size if size else most

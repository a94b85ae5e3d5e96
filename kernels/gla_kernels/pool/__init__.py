"""Decoding with states in a pool: steps that write states (step.py), steps that replay what was kept (replay.py), and
states that come and go (move.py)."""

from .move import read, write
from .replay import Slots, fold, replay, rows_of_tail
from .states import sizes_of, tiles_of
from .step import COUNTS, gates_of, step

__all__ = [
    "COUNTS",
    "Slots",
    "fold",
    "gates_of",
    "read",
    "replay",
    "rows_of_tail",
    "sizes_of",
    "step",
    "tiles_of",
    "write",
]

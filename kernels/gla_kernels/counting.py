"""What counts of a launch are made of: its sizes, and sums over what its programs do. `counts` fills them."""

from __future__ import annotations

import math

from .launch import Launch

ROWS_OF_K = frozenset(("q", "k", "g", "dq", "dk", "dg", "qdq"))  # [B, T, H, K]
ROWS_OF_V = frozenset(("v", "o", "do", "dv"))  # [B, T, H, V]; all other tensors hold states, [.., K, V]


class Sizes:
    """Sizes of a launch: of its problem, of its tiles, and how many row blocks and segments a sequence has.

    A recurrent kernel's row blocks are single tokens.
    """

    def __init__(self, launch: Launch) -> None:
        c, args = launch.constexprs, launch.args
        self.constexprs = c
        self.K, self.V, self.BK, self.BV = int(c["K"]), int(c["V"]), int(c["BK"]), int(c["BV"])
        self.BT: int = c.get("BT", 1)
        self.T: int = args.get("T", 1)
        self.chunk: int = args.get("chunk", self.BT)
        self.segments: int = args.get("n_seg", 1)
        self.blocks = -(-self.T // self.BT)
        self.in_k, self.in_v = -(-self.K // self.BK), -(-self.V // self.BV)  # tiles along K and along V
        self.tiles = self.in_k * self.in_v
        self.programs = math.prod(launch.grid)
        # rows that the longest program goes through: a program has a segment, or walks over them all
        by_segment = "seg_chunks" in args
        self.longest = min(self.T, args["seg_chunks"] * self.chunk) if by_segment else self.T
        self.heads = self.programs // (self.tiles * (self.segments if by_segment else 1))  # of all sequences
        self.gated: bool = c["GATED"]
        self.walk: bool = c.get("WALK", False)
        self.single: bool = c.get("SINGLE", True)
        self.wide: bool = c.get("FULL", False) and self.gated  # products between row blocks take float32 operands
        self.exact: bool = self.walk and c.get("PRECISION") == "tf32"  # see tiles.dot_state

        # elements of a tile of keys, of values, of scores, of a state
        self.keys, self.values = self.BT * self.BK, self.BT * self.BV
        self.scores, self.state = self.BT * self.BT, self.BK * self.BV

    def pairs(self, rows: int) -> int:
        """Pairs of different row blocks of the same chunk, in that many rows from the start of a chunk."""
        full, rest = divmod(rows, self.chunk)
        blocks, left = self.chunk // self.BT, -(-rest // self.BT)
        return (full * blocks * (blocks - 1) + left * (left - 1)) // 2

    def later_rows(self) -> int:
        """Rows of the later block, summed over all pairs of a sequence: only its last block may be short."""
        rest = self.T % self.chunk
        left = -(-rest // self.BT)
        return self.pairs(self.T) * self.BT - max(0, left - 1) * (left * self.BT - rest)


class Count:
    """Sums over a head. ``read`` and ``written``: elements, by tensor, of all programs; ``again``: what of ``read`` the
    same program loads twice in a row. The rest is of one tile of K and V: ``products`` and ``wide_products``, FLOP of
    products of operands of the launch's type and of float32; ``exps``, exponentials; ``vector``, float32 operations."""

    def __init__(self, sizes: Sizes) -> None:
        self.s = sizes
        self.read: dict[str, int] = {}
        self.again: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.products = 0
        self.wide_products = 0
        self.exps = 0
        self.vector = 0

    def load(self, rows: int, *names: str, again: bool = False) -> None:
        """Load rows of tensors: programs of different tiles of V all load whole rows of K, and the reverse."""
        s = self.s
        for name in names:
            if rows and (name != "g" or s.gated):
                elements = rows * (s.K * s.in_v if name in ROWS_OF_K else s.V * s.in_k)
                self.read[name] = self.read.get(name, 0) + elements
                if again:
                    self.again[name] = self.again.get(name, 0) + elements

    def load_states(self, count: int, name: str) -> None:
        """Load states, each program its tile."""
        if count:
            self.read[name] = self.read.get(name, 0) + count * self.s.K * self.s.V

    def store(self, rows: int, *names: str) -> None:
        """Store rows of tensors, each program its tile."""
        for name in names if rows else ():
            self.written[name] = rows * (self.s.K if name in ROWS_OF_K else self.s.V)

    def store_states(self, count: int, name: str) -> None:
        """Store states, each program its tile."""
        if count:
            self.written[name] = count * self.s.K * self.s.V

    def dot(self, times: int, multiplied: int, wide: bool = False) -> None:
        """Products of tiles, each of so many multiplications; ``wide``: of float32 operands whatever the launch's."""
        if wide:
            self.wide_products += 2 * times * multiplied
        else:
            self.products += 2 * times * multiplied

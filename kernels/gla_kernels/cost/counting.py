"""What counts of a launch are made of: its sizes, and sums over what its programs do. `counts` fills them."""

from __future__ import annotations

import math

import torch
import triton.language as tl

from ..launch import Launch
from ..tiles.descriptors import ROWS_OF_K, ROWS_OF_V

HALVES, GAMMA = "h", "gamma"  # [B*H, n_blocks, K] and [B*H, segments, K]; all other tensors hold states, [.., K, V]

# a program goes through all tiles of K
STRONG = frozenset(("output_strong", "grad_v_strong", "grad_qk_strong", "prepare_strong"))
PREPARE = ("prepare", "prepare_strong")  # programs have no tiles
LOOPS_OVER_K = frozenset(("output", "grad_v", "walk", "grad_walk", "output_strong", "grad_v_strong", *PREPARE))
LOOPS_OVER_V = frozenset(("grad_qk", "grad_qk_strong", *PREPARE))  # and of these, of V


class Sizes:
    """Sizes of a launch: of its problem, of its tiles, and of the slice of every sequence that it works on: its rows
    (``T``), row blocks, chunks and segments.

    A recurrent kernel's row blocks are single tokens.
    """

    def __init__(self, launch: Launch) -> None:
        c, args = launch.constexprs, launch.args
        self.constexprs = c
        self.K, self.V, self.BK, self.BV = int(c["K"]), int(c["V"]), int(c["BK"]), int(c["BV"])
        self.BT: int = c.get("BT", 1)
        self.chunk: int = c.get("CHUNK", args.get("chunk", self.BT))
        self.segments: int = args.get("n_seg", 1)
        self.every: int = args.get("every_rows", self.BT)  # rows from one stored state to the next
        self.leads_along = launch.step == "grad_qk" and "p_few" in args  # a state over runs of chunks: Hopper's own
        first, room, slices = _slice(args, self.BT, self.chunk)
        self.T = max(0, min(args.get("T", 1) - first, room))
        self.blocks, self.chunks = -(-self.T // self.BT), -(-self.T // self.chunk)
        self.in_k, self.in_v = -(-self.K // self.BK), -(-self.V // self.BV)  # tiles along K and along V
        # of them, each in a program of its own
        self.over_k = 1 if launch.step in LOOPS_OVER_K else self.in_k
        self.over_v = 1 if launch.step in LOOPS_OVER_V else self.in_v // c.get("RUN", 1)  # tiles of V a program
        self.tiles = self.over_k * self.over_v
        self.programs = math.prod(launch.grid)
        self.heads = self.programs // (self.tiles * slices) if slices else 0  # of all sequences
        # row blocks, or segments, that the longest program goes through, and pairs of them
        per_chunk = min(self.blocks, self.chunk // self.BT)
        if "seg_rows" in args:
            self.turns, self.turn_pairs = -(-min(self.T, args["seg_rows"]) // self.BT), 0
        elif "first_block" in args:
            self.turns, self.turn_pairs = min(self.blocks, 1), max(0, per_chunk - 1)
        elif "first_chunk" in args:
            run = min(self.chunks, args.get("every", 1))  # of chunks, in one program
            self.turns, self.turn_pairs = run * per_chunk, run * per_chunk * (per_chunk - 1)
        elif "n_added" in args:
            self.turns, self.turn_pairs = self.segments - 1, 0
        else:
            self.turns, self.turn_pairs = self.T, 0
        # and the program of a sequence's last segment, which may be cut short
        self.slices = slices
        self.last_turns = self.blocks - (slices - 1) * self.turns if "seg_rows" in args and self.T else self.turns
        # states that are read or stored of few
        self.few = -(-self.chunks // max(1, args.get("every", 1)))
        # programs, other than by tile, that share a chunk's rows
        self.by_block = per_chunk if "first_block" in args else 1

        self.gated: bool = c["GATED"]
        self.single: bool = self.chunk == self.BT
        self.wide: bool = c.get("FULL", False) and self.gated  # products between row blocks take float32 operands
        self.halved: bool = c.get("DOT") == tl.bfloat16  # float32 operands go in as halves: tiles.dot_half, dot_fine
        self.precision: str = c.get("PRECISION", "ieee")
        # tensor-core products that sum a block's gates; none where they are summed along the rows
        self.gate_products = 0
        gates = args.get("p_g")
        if self.gated and gates is not None and (self.halved or gates.dtype == torch.float16):
            parts = 2 if launch.in_gluon else 3  # of float32 gates: see hopper/layouts.py
            self.gate_products = parts if gates.dtype == torch.float32 else 1

        # elements of a tile of keys, of values, of scores, of a state
        self.keys, self.values = self.BT * self.BK, self.BT * self.BV
        self.scores, self.state = self.BT * self.BT, self.BK * self.BV

    def pairs(self, rows: int) -> int:
        """Pairs of different row blocks of the same chunk, in that many rows from the start of a chunk."""
        return sum(blocks * (blocks - 1) // 2 for blocks in self._blocks_by_chunk(rows))

    def blocks_between(self) -> int:
        """Row blocks that lie between the two of a pair, summed over all pairs."""
        return sum(n * (n - 1) * (n - 2) // 6 for n in self._blocks_by_chunk(self.T))

    def later_rows(self) -> int:
        """Rows of the later block, summed over all pairs of a sequence: only its last block may be short."""
        rest = self.T % self.chunk
        left = -(-rest // self.BT)
        return self.pairs(self.T) * self.BT - max(0, left - 1) * (left * self.BT - rest)

    def _blocks_by_chunk(self, rows: int) -> list[int]:
        full, rest = divmod(rows, self.chunk)
        return [self.chunk // self.BT] * full + [-(-rest // self.BT)]


def _slice(args: dict[str, int], block_t: int, chunk: int) -> tuple[int, int, int]:
    """First row of a launch's slice, rows that there is room for, and programs of a head for each tile."""
    if "seg_rows" in args:
        return args["first_seg"] * args["seg_rows"], args["n_seg"] * args["seg_rows"], args["n_seg"]
    if "first_block" in args:
        return args["first_block"] * block_t, args["n_here"] * block_t, args["n_here"]
    if "first_chunk" in args:
        at_once = args.get("share", args.get("every", 1))
        return args["first_chunk"] * chunk, args["n_here"] * chunk, -(-args["n_here"] // at_once)
    return 0, args.get("T", 1), 1


class Count:
    """Sums over a head. ``read`` and ``written``: elements, by tensor, of all programs; ``again``: what of ``read`` the
    same program loads twice in a row, or neighbours that run at the same time; ``states``: of states that are read,
    elements of different ones. The rest is of one tile of each program: ``products``, ``wide_products`` and
    ``gate_products``, FLOP of products of operands of the launch's type, of float32 and of gates in 16 bits; ``exps``,
    exponentials; ``vector``, float32 operations."""

    def __init__(self, sizes: Sizes) -> None:
        self.s = sizes
        self.read: dict[str, int] = {}
        self.again: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self.products = 0
        self.wide_products = 0
        self.gate_products = 0
        self.exps = 0
        self.vector = 0

    def load(self, rows: int, *names: str, again: bool = False) -> None:
        """Load rows of tensors: programs of different tiles of V all load whole rows of K, and the reverse."""
        s = self.s
        for name in names:
            if rows and (name != "g" or s.gated):
                self._read(name, rows * (s.K * s.over_v if name in ROWS_OF_K else s.V * s.over_k), again)

    def load_scores(self) -> None:
        """Load a row block's scores, in two parts, by each tile of V."""
        self._read("a", self.s.T * 2 * self.s.BT * self.s.over_v, False)

    def store_scores(self) -> None:
        """The inverse."""
        self.written["a"] = self.s.T * 2 * self.s.BT

    def load_halves(self, count: int, again: bool = False, name: str = HALVES) -> None:
        """Load halves of row blocks' decays, of so many blocks, or segments' decays: all of K, by each tile of V."""
        if count and self.s.gated:
            self._read(name, count * self.s.K * self.s.over_v, again)

    def load_states(self, count: int, name: str, different: int | None = None) -> None:
        """Load states, each program its tiles; ``different``: how many different ones, all by default."""
        if count:
            size = self.s.K * self.s.V
            first = min(different or count, count) if name not in self.states else 0
            self.states.setdefault(name, first * size)
            self._read(name, first * size, False)
            self._read(name, (count - first) * size, True)

    def start(self, given: str, name: str, count: int = 1) -> None:
        """The states, or their gradients, that programs start from, where the launch is given any."""
        if self.s.constexprs[given]:
            self.load_states(count, name)
            self.vector += count * self.s.state

    def _read(self, name: str, elements: int, again: bool) -> None:
        self.read[name] = self.read.get(name, 0) + elements
        if again:
            self.again[name] = self.again.get(name, 0) + elements

    def store(self, rows: int, *names: str) -> None:
        """Store rows of tensors, each program its tile."""
        for name in names if rows else ():
            self.written[name] = rows * (self.s.V if name in ROWS_OF_V else self.s.K)

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

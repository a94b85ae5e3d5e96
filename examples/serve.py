"""A small engine that serves a GLA Transformer of random weights: continuous batching, one CUDA graph a step.

python examples/serve.py                                  # 64 requests on a GPU: tokens a second, and are they right?
python examples/serve.py --states bfloat16 --tail 8
TRITON_INTERPRET=1 python examples/serve.py --tiny        # a few on a CPU

A request waits until a slot of the layers' pools is free. Its prompt is read in pieces, one a step; each step decodes
one token of all requests whose prompts have been read. A step's tensors have the same sizes whatever is in them, so
that two graphs serve all steps, and what a request gets does not depend on the others, bit for bit: rows of a product
are those of one size of product, `StatePool` says the same of its steps, and a piece has tokens of one prompt only.
There is no word that ends a text: requests say how many tokens they want.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels.nn import GatedLinearAttention
from gla_kernels.serving import StatePool

STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn}


class Block(nn.Module):
    """x + GLA(norm(x)), and then SwiGLU likewise."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        inner = 8 * width // 3 // 64 * 64 or 64
        self.mixer = GatedLinearAttention(hidden_size=width, num_heads=heads)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, mix: Callable[[GatedLinearAttention, Tensor], Tensor]) -> Tensor:
        x = x + mix(self.mixer, self.norms[0](x))
        up, gate = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks: Any = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def pools(self, slots: int, dtype: torch.dtype, tail: int) -> list[StatePool]:
        return [block.mixer.state_pool(slots, dtype=dtype, tail=tail) for block in self.blocks]

    def decode(self, tokens: Tensor, pools: Sequence[StatePool], slots: Tensor) -> Tensor:
        """The next tokens [B] after tokens [B] of the requests in slots [B]."""
        x = self.embedding(tokens)
        for block, pool in zip(self.blocks, pools, strict=True):
            x = block(x, lambda mixer, x, pool=pool: mixer.serve(x, pool, slots))
        return self._likeliest(x)

    def read(self, tokens: Tensor, pools: Sequence[StatePool], slots: Tensor, bounds: Tensor) -> Tensor:
        """The next token [1] after the first of the sequences in tokens [T]. slots [N], bounds [N+1]: of each sequence,
        and where they begin and end."""
        x = self.embedding(tokens)[None]
        for block, pool in zip(self.blocks, pools, strict=True):
            x = block(x, lambda mixer, x, pool=pool: mixer.prefill(x, pool, slots, bounds))
        return self._likeliest(x[0].index_select(0, bounds[1:2] - 1))

    def _likeliest(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight).argmax(-1)


@dataclass
class Request:
    prompt: list[int]
    wanted: int
    found: list[int] = field(default_factory=list)


@dataclass
class Running:
    """A request that has a slot: how much of its prompt has been read, and how many tokens have been queued."""

    request: Request
    slot: int
    read: int = 0
    queued: int = 0


class Engine:
    """Serves up to so many requests at once. piece: the most tokens of a prompt that a step reads."""

    def __init__(self, model: Model, slots: int, piece: int, dtype: torch.dtype, tail: int) -> None:
        device = model.embedding.weight.device
        self.model, self.slots, self.piece, self.device = model, slots, piece, device
        self.pools = model.pools(slots, dtype, tail)
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=device)  # the last one of each slot
        # what the host says of a step, in one copy: slots that decode, those of the piece and of its padding, the slot
        # to clear, the piece's bounds, its tokens
        self.sizes = (slots, 2, 1, 3, piece)
        self.said = torch.zeros(sum(self.sizes), dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self.to_say = [torch.zeros(sum(self.sizes), dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self.heard = [torch.zeros(slots, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self.done = [torch.cuda.Event() for _ in range(2)] if pinned else []
        self.steps: dict[bool, Callable[[], None]] = {reads: self._ready(reads) for reads in (False, True)}

    def run(self, requests: Sequence[Request]) -> int:
        """Fill in what each request finds; returns the number of steps."""
        waiting, free = deque(requests), list(range(self.slots))[::-1]
        reading, decoding = deque[Running](), list[Running]()
        before: list[Running] = []
        steps = 0
        while waiting or reading or decoding:
            while waiting and free:
                reading.append(Running(waiting.popleft(), free.pop()))
            finds = list(decoding)
            self._say(steps, decoding, reading[0] if reading else None)
            self.steps[bool(reading)]()
            if reading and reading[0].read == len(reading[0].request.prompt):
                finds.append(reading[0])
                decoding.append(reading.popleft())
            self._ask(steps)
            for one in finds:
                one.queued += 1
            free += [one.slot for one in finds if one.queued == one.request.wanted]
            decoding = [one for one in decoding if one.queued < one.request.wanted]
            if steps:  # this step is under way: what the last one found has come meanwhile
                self._hear(steps - 1, before)
            before, steps = finds, steps + 1
        self._hear(steps - 1, before)
        return steps

    def _say(self, step: int, decoding: Sequence[Running], reading: Running | None) -> None:
        active, joining, fresh, bounds, tokens = self.to_say[step % 2].split(self.sizes)
        active.fill_(-1)
        for one in decoding:
            active[one.slot] = one.slot
        if reading is not None:
            part = reading.request.prompt[reading.read : reading.read + self.piece]
            joining[0], joining[1] = reading.slot, -1
            fresh[0] = -1 if reading.read else reading.slot
            bounds[0], bounds[1], bounds[2] = 0, len(part), self.piece
            tokens[: len(part)] = torch.tensor(part)
            reading.read += len(part)
        self.said.copy_(self.to_say[step % 2], non_blocking=True)

    def _ask(self, step: int) -> None:
        self.heard[step % 2].copy_(self.tokens, non_blocking=True)
        for event in self.done[step % 2 : step % 2 + 1]:
            event.record()

    def _hear(self, step: int, finds: Sequence[Running]) -> None:
        for event in self.done[step % 2 : step % 2 + 1]:
            event.synchronize()
        for one in finds:
            one.request.found.append(int(self.heard[step % 2][one.slot]))

    def _ready(self, reads: bool) -> Callable[[], None]:
        """The step, with a piece of a prompt or without, as a graph where there is a GPU."""

        def step() -> None:
            with torch.no_grad():
                self._step(reads)

        if self.device.type != "cuda":
            return step
        self.said.fill_(-1)  # no slot of any request
        bounds = self.said.split(self.sizes)[3]
        bounds.copy_(torch.tensor([0, self.piece, self.piece]))
        self.said.split(self.sizes)[4].zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def _step(self, reads: bool) -> None:
        active, joining, fresh, bounds, piece = self.said.split(self.sizes)
        following = self.model.decode(self.tokens, self.pools, active)
        self.tokens.copy_(torch.where(active >= 0, following, self.tokens))
        if reads:
            for pool in self.pools:
                pool.reset(fresh)
            found = self.model.read(piece.long(), self.pools, joining, bounds)
            here = torch.arange(self.slots, device=self.device) == joining[0]
            self.tokens.copy_(torch.where(here, found, self.tokens))


def drawn(count: int, longest: int, words: int, seed: int = 0) -> list[Request]:
    """Requests of mixed lengths."""
    draw = random.Random(seed)

    def one() -> Request:
        prompt = [draw.randrange(words) for _ in range(draw.randint(1, longest))]
        return Request(prompt, draw.randint(1, max(1, longest // 8)))

    return [one() for _ in range(count)]


def again(requests: Sequence[Request]) -> list[Request]:
    return [Request(one.prompt, one.wanted) for one in requests]


def alone(engine: Engine, requests: Sequence[Request]) -> Iterator[Request]:
    for one in again(requests):
        engine.run([one])
        yield one


def busy_ms(run: Callable[[], object]) -> float:
    """Milliseconds of the GPU's time in kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum(one.self_device_time_total for one in profile.key_averages()) / 1e3


def main(argv: Sequence[str] | None = None) -> int:
    given = argparse.ArgumentParser(description="Serve a GLA Transformer of random weights.")
    given.add_argument("--requests", type=int, default=64)
    given.add_argument("--slots", type=int, default=32, help="requests that decode at once")
    given.add_argument("--longest", type=int, default=2048, help="tokens of the longest prompt")
    given.add_argument("--piece", type=int, default=512, help="tokens of a prompt that a step reads")
    given.add_argument("--layers", type=int, default=24)
    given.add_argument("--width", type=int, default=1024)
    given.add_argument("--heads", type=int, default=4)
    given.add_argument("--states", choices=STATES, default="float32")
    given.add_argument("--tail", type=int, default=0, help="tokens of a slot that wait to be folded into its state")
    given.add_argument("--tiny", action="store_true", help="a few small requests on a CPU")
    asked = given.parse_args(argv)
    words, dtype, device = 32000, torch.bfloat16, "cuda"
    if asked.tiny:
        asked.requests, asked.slots, asked.longest, asked.piece = 3, 2, 24, 16
        asked.layers, asked.width, asked.heads = 1, 32, 2
        words, dtype, device = 64, torch.float32, "cpu"
    torch.manual_seed(0)
    model = Model(words, asked.width, asked.heads, asked.layers).to(device, dtype)
    engine = Engine(model, asked.slots, asked.piece, STATES[asked.states], asked.tail)

    requests = drawn(asked.requests, asked.longest, words)
    engine.run(again(requests))  # what is made at the first call is made
    began = time.perf_counter()
    steps = engine.run(requests)
    took = time.perf_counter() - began
    read, found = sum(len(one.prompt) for one in requests), sum(len(one.found) for one in requests)
    held = sum(pool.nbytes for pool in engine.pools) / asked.slots / 2**20
    print(f"{len(requests)} requests, {read} tokens read and {found} found in {steps} steps; {held:.1f} MiB a request")
    if device == "cuda":
        outside = 1 - busy_ms(lambda: engine.run(again(requests))) / (1e3 * took)
        each = f"{1e3 * took / steps:.3f} ms a step, {outside:.1%} of it outside kernels"
        print(f"{torch.cuda.get_device_name()}: {took:.2f} s, {found / took:.0f} found a second, {each}")
    other = sum(one.found != by_itself.found for one, by_itself in zip(requests, alone(engine, requests), strict=True))
    print(f"{len(requests) - other} of {len(requests)} find the same tokens as alone")
    return 1 if other else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What `gla_kernels.fla.accelerate` is worth in flash-linear-attention's own GLA models: ``python -m
glabench.tools.accelerate``. Needs a GPU and flash-linear-attention with its models.

Tokens a second of steps of training before and after, in turns in one process, of one model; and the loss of the first
steps from several seeds, each side from the same weights on the same batches. Tokens are bytes of the standard
library's source, which a model learns. Weights, gradients, activations and AdamW's moments are in bf16, without
autocast: what FLA's layers compute is then what they compute under flame, FLA's own trainer, whose optimizer keeps
weights in float32 besides.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.step import check_names

KIND = "accelerate"
SIDES = ("before", "after")
SETTLING = 2  # steps before a sample: the other side's addresses are gone from the allocator by then
LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.01
BYTES = 4_000_000  # of source, at most
VOCABULARY = 32_000

# GLAConfig's arguments, and sequences of a batch by default.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "340M": ({"hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 4, "vocab_size": VOCABULARY}, 8),
    "1.3B": ({"hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 4, "vocab_size": VOCABULARY}, 2),
}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "vocab_size": 256, "intermediate_size": 64}
TINY_LENGTH = 70  # beyond the 64 tokens up to which FLA's layer takes the recurrent form

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Question:
    """What is asked of a model: batches of B sequences of T tokens; steps whose loss is kept, from each of the seeds
    0, 1, ...; samples of wall time of each side, of so many steps each."""

    model: str
    config: dict[str, Any]
    B: int
    T: int
    steps: int
    seeds: int
    rounds: int
    sample_steps: int


@app.command()
def accelerate(
    models: Annotated[str, typer.Option(help="Comma-separated: 340M, 1.3B.")] = "340M,1.3B",
    batch: Annotated[int | None, typer.Option("--B", help="Sequences; 8 for 340M, 2 for 1.3B.", min=1)] = None,
    length: Annotated[int, typer.Option("--T", help="Tokens of a sequence.", min=1)] = 2048,
    steps: Annotated[int, typer.Option(help="Steps whose loss is compared.", min=1)] = 50,
    seeds: Annotated[int, typer.Option(help="Times that a model is trained, by each side.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="Samples of wall time of each side.", min=1)] = 5,
    sample_steps: Annotated[int, typer.Option(help="Steps of a sample.", min=1)] = 10,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="A tiny model in float32, on a CPU too: tries the program.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    read: Annotated[Path | None, typer.Option(help="File of rows to show; nothing is measured.", exists=True)] = None,
) -> None:
    """Measure FLA's models before and after. Exit code: 0 done; 1 a loss is not finite, or a call ran FLA's own kernels
    after; 2 bad input, no GPU or no FLA."""
    if read is not None:
        show(rows_of(read, KIND), wide_enough())
        return
    import torch

    names = models.split(",")
    check_names(names, MODELS, "--models")
    if not tiny and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; only --tiny needs none", param_hint="--models")
    try:
        import fla.models  # noqa: F401
    except ImportError as error:
        text = f"flash-linear-attention with its models: pip install flash-linear-attention ({error})"
        raise typer.BadParameter(text, param_hint="--models") from None
    how = steps, seeds, rounds, sample_steps
    if tiny:
        questions = [Question("tiny", TINY, batch or 1, min(length, TINY_LENGTH), *how)]
    else:
        questions = [Question(name, MODELS[name][0], batch or MODELS[name][1], length, *how) for name in names]
    rows = []
    for question in questions:
        row = measure(question, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        append([row], out)
        rows.append(row)
    show(rows, wide_enough())
    raise typer.Exit(0 if all(sound(row) for row in rows) else 1)


def measure(asked: Question, device: Any) -> Row:
    """A row of one model. Imports torch and FLA."""
    import fla

    from gla_kernels.fla import calls
    from glabench.hardware.environment import environment

    losses: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    counted: dict[tuple[str, str | None], int] = {}
    for seed in range(asked.seeds):
        for side in SIDES if seed % 2 == 0 else reversed(SIDES):
            trainer = Trainer(asked, seed, device)
            before = calls()
            with on(side):
                losses[side].append(trainer.losses(asked.steps))
            for key, count in calls().items():
                counted[key] = counted.get(key, 0) + count - before.get(key, 0)
    trainer = Trainer(asked, asked.seeds, device)
    wall = in_turns(trainer, asked)
    row: Row = {"kind": KIND, "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    row |= {"model": asked.model, "config": asked.config, "parameters": trainer.parameters, "dtype": trainer.dtype}
    row |= {"B": asked.B, "T": asked.T, "steps": asked.steps, "sample_steps": asked.sample_steps}
    row |= {"losses": losses, "wall_ms": wall, "fla": fla.__version__}
    row["calls"] = [[name, why, count] for (name, why), count in counted.items()]
    return row | {"environment": environment(device.type, bandwidth=False)}


def on(side: str) -> AbstractContextManager[Any]:
    """FLA as it is, or accelerated."""
    from gla_kernels.fla import accelerate

    return accelerate() if side == "after" else nullcontext()


class Trainer:
    """A model of FLA with its optimizer, and the batches of a seed, one after another."""

    def __init__(self, asked: Question, seed: int, device: Any) -> None:
        import torch
        from fla.models import GLAConfig, GLAForCausalLM

        self.asked, self.device = asked, device
        dtype = torch.float32 if asked.model == "tiny" else torch.bfloat16
        self.dtype = str(dtype).removeprefix("torch.")
        torch.manual_seed(seed)
        with device:
            self.model = GLAForCausalLM(GLAConfig(expand_k=0.5, **asked.config)).to(dtype).train()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        given = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "fused": device.type == "cuda"}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **given)
        self.source = torch.frombuffer(source(), dtype=torch.uint8)
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self) -> Any:
        """Tokens [B, T] of the next batch."""
        import torch

        B, T = self.asked.B, self.asked.T
        starts = torch.randint(len(self.source) - T, (B, 1), generator=self.generator)
        return self.source[starts + torch.arange(T)].long().to(self.device)

    def step(self, tokens: Any) -> Any:
        """One step, queued; the loss before it."""
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        """The loss of each of the next steps."""
        return [float(loss) for loss in [self.step(self.batch()) for _ in range(steps)]]

    def wall_ms(self, steps: int) -> float:
        """The mean of so many steps on one batch, between two waits for the GPU."""
        from glabench.run.train import synchronize

        tokens = self.batch()
        for _ in range(SETTLING):
            self.step(tokens)
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step(tokens)
        synchronize(self.device)
        return (time.perf_counter() - start) * 1e3 / steps


def source() -> bytearray:
    """Source of the standard library, file after file by name."""
    found = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        found += path.read_bytes()
    return found[:BYTES]


def in_turns(trainer: Trainer, asked: Question) -> dict[str, list[float]]:
    """Samples of wall time of each side, in an order that turns around from round to round, so that a clock that drifts
    is the same for both."""
    wall: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(asked.rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            with on(side):
                wall[side].append(trainer.wall_ms(asked.sample_steps))
    return wall


def sound(row: Row) -> bool:
    """Whether every loss is finite, and all calls after were of these kernels."""
    finite = all(math.isfinite(x) for side in SIDES for curve in row["losses"][side] for x in curve)
    return finite and bool(row["calls"]) and all(why is None for _, why, _ in row["calls"])


def show(rows: Sequence[Row], console: Console) -> None:
    """Print tokens a second of each side, and a line of losses for each seed."""
    table = Table(title=f"FLA {rows[0]['fla']}, {rows[0]['environment']['device']}")
    for column in ("model", "parameters", "B, T", "dtype", "before, tokens/s", "after", "ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        what = row["model"], f"{row['parameters'] / 1e6:.1f}M", f"{row['B']}, {row['T']}", row["dtype"]
        table.add_row(*what, *_rates(row))
    console.print(table)
    for row in rows:
        pairs = zip(*(row["losses"][side] for side in SIDES), strict=True)
        for seed, (before, after) in enumerate(pairs):
            apart = [abs(a - b) for a, b in zip(before, after, strict=True)]
            largest = max(range(len(apart)), key=apart.__getitem__)
            fell = f"loss {before[0]:.4f} -> {before[-1]:.4f} before, {after[-1]:.4f} after"
            text = f"{row['model']}, seed {seed}: {fell}; at most {apart[largest]:.4f} apart, at step {largest + 1}"
            console.print(text, soft_wrap=True)
        for name, why, count in row["calls"]:
            where = "these kernels" if why is None else f"FLA's own, {why}"
            console.print(f"{row['model']}: {count} calls of {name} ran {where}", soft_wrap=True)


def _rates(row: Row) -> list[str]:
    """Tokens a second before and after, and their ratio; dashes on a CPU."""
    if row["environment"]["kind"] == "cpu":
        return ["-"] * 3
    tokens = row["B"] * row["T"] * 1e3
    before, after = (tokens / statistics.mean(row["wall_ms"][side]) for side in SIDES)
    return [f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}"]


if __name__ == "__main__":
    app()

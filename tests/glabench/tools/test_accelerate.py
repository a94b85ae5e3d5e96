"""The program that measures flash-linear-attention's models before and after, on a stand-in for FLA: what it runs, what
is in its rows, and what it says of them."""

from __future__ import annotations

import inspect
import io
import json
import sys
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import gla_kernels.fla
from gla_kernels.fla import which
from glabench.tools.accelerate import app, show, sound
from glabench.tools.rows import Row

MODELS = """
import torch
from types import SimpleNamespace
from fla.ops.gla import chunk_gla

def GLAConfig(**config):
    return config

class GLAForCausalLM(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        D = config["hidden_size"]
        self.embedding = torch.nn.Embedding(config["vocab_size"], D)
        self.head = torch.nn.Linear(D, config["vocab_size"])
        self.mix = torch.nn.Linear(D, 4 * D)

    def forward(self, input_ids, labels, use_cache):
        q, k, v, g = (x.unflatten(-1, (2, -1)) for x in self.mix(self.embedding(input_ids)).chunk(4, -1))
        o, _ = chunk_gla(q, k, v, torch.nn.functional.logsigmoid(g))
        logits = self.head(o.flatten(-2))[:, :-1]
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))
"""
ARGUMENTS = ["--tiny", "--steps", "4", "--seeds", "2", "--rounds", "2", "--sample-steps", "1"]


@pytest.fixture(scope="module")
def fla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package ``fla`` with one model, and the functions that `accelerate` asks for."""
    folder = tmp_path_factory.mktemp("stand-in") / "fla"
    (folder / "ops").mkdir(parents=True)
    (folder / "__init__.py").write_text("__version__ = '0.6.0'\n")
    (folder / "models.py").write_text(MODELS)
    (folder / "ops" / "__init__.py").touch()
    for name, where in which.WHERE.items():
        with folder.joinpath("ops", where.split(".")[-1]).with_suffix(".py").open("a") as file:
            file.write(stand_in(name))
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "fla"}
    loaded = dict(which.THEIRS)
    which.THEIRS.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder.parent)
        yield
    for name in list(sys.modules):
        if name.split(".")[0] == "fla":
            del sys.modules[name]
    sys.modules.update(hidden)
    which.THEIRS.clear()
    which.THEIRS.update(loaded)


def stand_in(name: str) -> str:
    """The source of a function with the parameters of ours; one of them computes."""
    found = inspect.signature(getattr(gla_kernels.fla, name)).parameters.values()
    given = ", ".join(str(x.replace(annotation=inspect.Parameter.empty)) for x in found)
    body = "return chunkwise(q, k, v, g)[0], None" if name == "chunk_gla" else "raise AssertionError"
    return f"from gla_kernels.reference import chunkwise\ndef {name}({given}):\n    {body}\n"


@pytest.fixture(scope="module")
def row(fla: None, tmp_path_factory: pytest.TempPathFactory) -> Row:
    """What the program wrote."""
    which._calls.clear()
    out = tmp_path_factory.mktemp("accelerate") / "new" / "accelerate.rows"
    done = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "tiny, seed 1: loss" in done.output
    (line,) = out.read_text().splitlines()
    found: Row = json.loads(line)
    return found


@pytest.mark.exhaustive
def test_both_sides_train_from_the_same_weights_on_the_same_batches(row: Row) -> None:
    for before, after in zip(row["losses"]["before"], row["losses"]["after"], strict=True):
        assert before[0] == pytest.approx(after[0], abs=1e-5)
        assert before == pytest.approx(after, abs=1e-3)
        assert after[-1] < after[0] - 0.01
    assert row["losses"]["before"][0] != row["losses"]["before"][1]


@pytest.mark.exhaustive
def test_raw_samples_and_what_ran(row: Row) -> None:
    assert [len(row["wall_ms"][side]) for side in ("before", "after")] == [2, 2]
    assert row["calls"] == [["chunk_gla", None, 8]]
    assert (row["model"], row["B"], row["T"], row["steps"], row["fla"]) == ("tiny", 1, 70, 4, "0.6.0")
    assert {"commit", "torch", "triton", "device"} <= set(row["environment"])
    assert sound(row)


@pytest.mark.exhaustive
def test_what_is_not_sound(row: Row) -> None:
    assert not sound(row | {"calls": [["chunk_gla", "reverse=True", 1], ["chunk_gla", None, 1]]})
    assert not sound(row | {"calls": []})
    assert not sound(row | {"losses": {"before": [[1.0]], "after": [[float("nan")]]}})


@pytest.mark.exhaustive
def test_rates_are_shown_of_a_gpu_alone(row: Row) -> None:
    if row["environment"]["kind"] == "cpu":
        assert "-" in printed(row)
    gpu = {"environment": {"kind": "cuda", "device": "GPU"}, "B": 1, "T": 1000}
    gpu |= {"wall_ms": {"before": [200.0, 300.0], "after": [100.0, 100.0]}}
    text = printed(row | gpu)
    assert "4,000" in text
    assert "10,000" in text
    assert "2.50" in text
    assert "8 calls of chunk_gla ran these kernels" in text


@pytest.mark.exhaustive
def test_losses_that_lie_apart_are_told_with_their_step(row: Row) -> None:
    losses = {"before": [[3.0, 2.0, 1.0]], "after": [[3.0, 2.5, 1.25]]}
    assert "loss 3.0000 -> 1.0000 before, 1.2500 after; at most 0.5000 apart, at step 2" in printed(
        row | {"losses": losses}
    )


def printed(row: Row) -> str:
    out = io.StringIO()
    show([row], Console(file=out, width=200))
    return out.getvalue()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    done = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "only --tiny needs none" in done.output


def test_without_fla_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "fla":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fla", None)
    done = CliRunner().invoke(app, ["--tiny"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "pip install flash-linear-attention" in done.output


def test_a_model_is_named_rightly() -> None:
    done = CliRunner().invoke(app, ["--models", "340"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "did you mean '340M'" in done.output

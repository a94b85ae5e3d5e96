"""The program of multi-query associative recall: that models learn it, its rows, table, figure and refusals."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from glabench.hardware.environment import detect_device
from glabench.report.style import RECALL, style
from glabench.systems.models.model import SYSTEMS
from glabench.tools.mqar.__main__ import TINY, app
from glabench.tools.mqar.figure import TITLES, best, figure, show
from glabench.tools.mqar.question import First, Question, Run, Task
from glabench.tools.mqar.runs import failed, trained_all, trained_together
from glabench.tools.mqar.training import Stepper, Trainer
from glabench.tools.rows import Row

RUN = Run(system="fa2", width=32, learning_rate=0.005, seed=0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of rows that the program wrote for a tiny question."""
    out: Path = tmp_path_factory.mktemp("mqar") / "new" / "mqar.rows"
    done = CliRunner().invoke(app, ["--tiny", "--processes", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Softmax attention" in done.output
    return out


@pytest.fixture(scope="module")
def rows(written: Path) -> list[Row]:
    return [json.loads(line) for line in written.read_text().splitlines()]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """These products are too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.exhaustive
def test_attention_learns_to_recall(one_thread: None) -> None:
    """Two pairs: who knows the values of a sequence, and that the first key mostly comes first, but does not know a key
    again is right two times in three."""
    task = Task(length=8, pairs=2)
    question = Question(
        title="Small", tasks=[task], systems=["fa2"], widths=[32], learning_rates=[0.005],
        steps=300, batch_tokens=1024, tests=200, vocabulary=16,
    )  # fmt: skip
    (row,) = trained_together(question, [RUN], "cpu", graphs=False)
    assert row["error"] is None
    assert row["accuracy"][task.name] > 0.95
    losses = row["losses"][task.name]
    assert losses[-1] < 0.3 < losses[0]


def losses(row: Row) -> list[float]:
    """Of all tasks."""
    return [loss for of_task in row["losses"].values() for loss in of_task]


def test_a_row_a_model(rows: list[Row]) -> None:
    assert [(row["system"], row["width"], row["error"]) for row in rows] == [("gla", 32, None), ("fa2", 32, None)]
    for row in rows:
        assert row["question"]["steps"] == len(row["losses"]["16 tokens, 2 pairs"]) == TINY.steps
        assert all(0 <= share <= 1 for share in row["accuracy"].values())
        assert list(row["accuracy"]) == ["16 tokens, 2 pairs"]
        assert {"commit", "torch", "triton", "device"} <= set(row["environment"])
        assert row["implementation"]
        assert row["parameters"] > 0


def test_accuracy_counts_right_answers_of_every_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that always tells the same value is right where it is the answer; the last batch is a smaller one."""
    question = TINY.model_copy(update={"tests": 101})
    trainer = Trainer(question, RUN, torch.device("cpu"))
    seen = []

    def logits(batch: Any) -> torch.Tensor:
        seen.append(batch.values)
        return torch.nn.functional.one_hot(torch.full_like(batch.values, 20), question.vocabulary)

    monkeypatch.setattr(trainer, "logits", logits)
    found = trainer.accuracy(question.tasks[0])
    values = torch.cat(seen)
    assert values.shape == (101, 2)
    assert found == pytest.approx((values == 20).float().mean().item())
    assert 0 < found < 0.5


def test_the_learning_rate_rises_then_falls_to_nothing() -> None:
    trainer = Trainer(TINY.model_copy(update={"steps": 100}), RUN, torch.device("cpu"))
    rates = []
    for step in range(100):
        trainer.set_rate(step)
        rates.append(trainer.rate.item())
    top = max(rates)
    assert top == pytest.approx(RUN.learning_rate)
    assert 5 <= rates.index(top) <= 12
    assert rates[: rates.index(top)] == sorted(rates[: rates.index(top)])
    assert rates[rates.index(top) :] == sorted(rates[rates.index(top) :], reverse=True)
    assert rates[-1] < 0.01 * top


def test_what_the_optimizer_knows_is_forgotten_in_place() -> None:
    trainer = Trainer(TINY, RUN, torch.device("cpu"))
    before = [weight.clone() for weight in trainer.master]
    trainer.step(draw_of(trainer))  # at a learning rate of 0, as before graphs
    moments = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    assert any(moment.any() for moment in moments)
    trainer.forget()
    assert not any(moment.any() for moment in moments)
    assert all(torch.equal(weight, old) for weight, old in zip(trainer.master, before, strict=True))


def draw_of(trainer: Trainer) -> Any:
    from glabench.tools.mqar.task import draw

    return draw(16, 2, trainer.question.vocabulary, 2, torch.Generator().manual_seed(0))


def test_what_comes_first_is_trained_alone_and_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    first, tasks = First(length=8, pairs=2, share=0.5), [Task(length=16, pairs=2), Task(length=12, pairs=2)]
    question = TINY.model_copy(update={"first": first, "tasks": tasks, "steps": 8})
    seen = []
    step = Stepper.step

    def watched(stepper: Stepper) -> torch.Tensor:
        seen.append(stepper.task)
        return step(stepper)

    monkeypatch.setattr(Stepper, "step", watched)
    (row,) = trained_together(question, [RUN], "cpu", graphs=False)
    assert seen == [first] * 4 + tasks * 2
    assert list(row["accuracy"]) == [task.name for task in tasks]
    assert {name: len(losses) for name, losses in row["losses"].items()} == {
        "8 tokens, 2 pairs": 4, "16 tokens, 2 pairs": 2, "12 tokens, 2 pairs": 2,
    }  # fmt: skip


def test_models_are_trained_in_groups_of_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glabench.tools.mqar.runs.TOGETHER", 3)
    question = TINY.model_copy(update={"widths": [32, 64], "systems": ["fa2"], "seeds": [0, 1, 2, 3], "steps": 1})
    rows = list(trained_all(question, "cpu", 1, graphs=False))
    assert [(row["width"], row["seed"]) for row in rows] == [(width, seed) for width in (32, 64) for seed in range(4)]
    assert [row["trained_together"] for row in rows] == [3, 3, 3, 1] * 2


def test_models_that_are_trained_together_learn_what_each_does_alone() -> None:
    runs = [RUN, RUN.model_copy(update={"learning_rate": 0.02}), RUN.model_copy(update={"seed": 1})]
    together = trained_together(TINY, runs, "cpu", graphs=False)
    alone = [row for run in runs for row in trained_together(TINY, [run], "cpu", graphs=False)]
    assert [losses(row) for row in together] == [losses(row) for row in alone]
    assert len({tuple(losses(row)) for row in together}) == len(runs)
    assert [row["trained_together"] for row in together] == [3] * 3


@pytest.mark.gpu
def test_graphs_draw_and_learn_what_steps_do() -> None:
    """Losses of graphs, two models at a time, are those of steps on the same batches, and no others'."""
    question = TINY.model_copy(update={"steps": 12, "first": First(length=32, pairs=4, share=0.25)})
    runs = [RUN, RUN.model_copy(update={"seed": 1})]
    graphs, steps = (trained_together(question, runs, "cuda", graphs=graphs) for graphs in (True, False))
    for one, other in zip(graphs, steps, strict=True):
        assert one["error"] is other["error"] is None
        assert losses(one) == pytest.approx(losses(other), rel=2e-3)
    assert losses(graphs[0]) != pytest.approx(losses(graphs[1]), rel=1e-2)
    assert len(set(losses(graphs[0]))) == question.steps


@pytest.mark.exhaustive
def test_several_processes_train_the_same_models(rows: list[Row], tmp_path: Path) -> None:
    out = tmp_path / "mqar.rows"  # as users start it: only then is __main__.py no module that processes can import
    command = [sys.executable, "-m", "glabench.tools.mqar", "--tiny", "--processes", "2", "--only", "fa2"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = (json.loads(line) for line in out.read_text().splitlines())
    assert losses(row) == pytest.approx(losses(rows[1]), rel=1e-4)


def test_rows_are_shown_again_and_drawn(written: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--read", str(written), "--figure", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "16 tokens, 2 pairs" in done.output
    svg = (tmp_path / "mqar.svg").read_text()
    assert "series:model:gla" in svg
    assert "Multi-query associative recall" in svg
    assert (tmp_path / "mqar.png").stat().st_size > 0


def test_the_best_learning_rate_counts_and_seeds_are_averaged(rows: list[Row]) -> None:
    (task,) = rows[0]["accuracy"]

    def row(rate: float, seed: int, share: float) -> Row:
        return rows[0] | {"learning_rate": rate, "seed": seed, "accuracy": {task: share}}

    found = [row(0.1, 0, 0.9), row(0.1, 1, 0.1), row(0.2, 0, 0.5), row(0.2, 1, 0.7)]
    found.append(failed(TINY, RUN, ValueError("no")))
    assert [x["learning_rate"] for x in best(found, "gla", 32, task)] == [0.2, 0.2]
    (panel,) = figure(found).panels
    (series,) = panel.series
    ((point,),) = (series.points,)
    assert [point.at, point.value, point.low, point.high] == pytest.approx([32, 60, 50, 70])


def test_a_model_that_fails_is_a_row_that_says_why(rows: list[Row]) -> None:
    run = Run(system="gla", width=33, learning_rate=0.01, seed=0)  # of which two heads cannot be made
    row, other = trained_together(TINY, [run, RUN], "cpu", graphs=False)
    assert other["error"] is None
    assert row["accuracy"] is None
    assert row["error"]
    out = io.StringIO()
    show([*rows, row | {"environment": rows[0]["environment"]}], Console(file=out, width=150))
    assert f"gla, width 33, learning rate 0.01, seed 0: {row['error']}" in out.getvalue()


def test_every_system_has_a_title_and_a_look() -> None:
    assert TITLES.keys() == set(SYSTEMS)
    assert {f"model:{system}" for system in SYSTEMS} == RECALL.keys()
    looks = [(s.colour, s.marker, s.dashes, s.filled) for s in map(style, RECALL)]
    assert len(set(looks)) == len(looks)


@pytest.mark.skipif(detect_device() == "cuda", reason="there is a GPU")
def test_without_a_gpu_only_a_tiny_question_is_asked() -> None:
    done = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "only --tiny needs none" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "gla,fa-2"], "did you mean 'fa2'"),
        (["no_such.yaml"], "does not exist"),
        (["--read", __file__], "is no JSON Lines"),
    ],
)
def test_bad_input_is_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["--tiny", *arguments], env={"COLUMNS": "250"})
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())

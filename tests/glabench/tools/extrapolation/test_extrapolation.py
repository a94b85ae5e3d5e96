"""The program that asks for losses beyond the length of training: its text, its losses, its rows, table and figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from glabench.hardware.environment import detect_device
from glabench.systems.models.model import SYSTEMS
from glabench.tools.extrapolation import corpus
from glabench.tools.extrapolation.__main__ import app, train
from glabench.tools.extrapolation.figure import TITLES, best, figure
from glabench.tools.extrapolation.training import Question, Run, Trainer, by_position, config_of, rows_of
from glabench.tools.rows import Row

ASKED = Question(width=32, layers=1, length=16, times=2, steps=60, batch=8, buckets=2, documents=5)
RUN = Run("fa2", 0.01, 0)
CPU = torch.device("cpu")


def test_files_are_held_out_by_their_names_and_tests_are_left_out(tmp_path: Path) -> None:
    names = [f"package/file{i}.py" for i in range(60)]
    for name in [*names, "test/a.py", "package/tests/b.py", "site-packages/c.py", "notes.txt"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    found = corpus.read(tmp_path)
    parts = [part.decode().split("\0")[:-1] for part in (found.training, found.held_out)]
    assert [len(part) for part in parts] == [
        sum(not corpus.is_held_out(x) for x in names),
        sum(map(corpus.is_held_out, names)),
    ]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == sorted(f"# {name}\n" for name in names)
    (tmp_path / names[0]).write_text("#\n")
    assert corpus.read(tmp_path).digest != found.digest


def test_every_machine_has_text_enough() -> None:
    found = corpus.read()
    assert len(found.training) > 5_000_000
    assert len(found.held_out) > 50 * 4097
    assert b"import" in found.held_out


def test_buckets_have_the_mean_of_their_positions_and_its_error_over_documents() -> None:
    losses = torch.tensor([[1.0, 3.0, 5.0, 5.0], [3.0, 5.0, 5.0, 9.0]])
    found = by_position(losses, 2)
    assert found["positions"] == [2, 4]
    assert found["loss"] == [3.0, 6.0]
    assert found["standard_error"] == pytest.approx([1.0, 1.0])  # of means 2 and 4, and of 5 and 7


def test_documents_are_the_text_in_its_order() -> None:
    rows = rows_of(bytes(range(23)), 4, 3)
    assert rows.tolist() == [[5 * i + j for j in range(5)] for i in range(3)]
    with pytest.raises(ValueError, match="length: expected two documents of 21 bytes in 23 held out"):
        rows_of(bytes(range(23)), 20, 3)


def test_losses_are_those_of_each_position() -> None:
    trainer = Trainer(ASKED, RUN, CPU)
    documents = torch.randint(256, (3, 33), dtype=torch.uint8)
    found = trainer.losses(documents, 64)
    assert found.shape == (3, 32)
    batch = documents[:, :-1].long(), documents[:, 1:].long()
    assert found.mean().item() == pytest.approx(trainer.loss(batch).item(), rel=1e-5)
    short = trainer.losses(documents[:, :9], 64)
    torch.testing.assert_close(found[:, :8], short, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These products are too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_models_learn_the_text() -> None:
    text = corpus.Corpus(b"abcd" * 500, b"abcd" * 100, "")
    row = train(ASKED, RUN, text, "cpu", graphs=True)
    assert row["error"] is None
    assert row["losses"][0] > 5 > 1 > row["losses"][-1]
    assert row["validation_loss"] < 1
    assert row["positions"] == [8, 16, 24, 32]
    assert row["documents"] == 5


def test_a_model_that_fails_is_a_row_that_says_why() -> None:
    row = train(ASKED, RUN, corpus.Corpus(b"abcd" * 500, b"abcd", ""), "cpu", graphs=True)
    assert row["error"].startswith("ValueError: length: expected two documents of 17 bytes")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of rows that the program wrote."""
    out: Path = tmp_path_factory.mktemp("extrapolation") / "new" / "extrapolation.rows"
    arguments = ["--tiny", "--systems", "gla,fa2", "--rates", "0.01", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Transformer++" in done.output
    return out


@pytest.fixture(scope="module")
def rows(written: Path) -> list[Row]:
    return [json.loads(line) for line in written.read_text().splitlines()]


def test_a_row_a_model(rows: list[Row]) -> None:
    assert [(row["system"], row["learning_rate"], row["error"]) for row in rows] == [
        ("gla", 0.01, None),
        ("fa2", 0.01, None),
    ]
    for row in rows:
        assert row["kind"] == "extrapolation"
        assert len(row["losses"]) == row["question"]["steps"]
        assert len(row["loss"]) == len(row["positions"]) == 8
        assert all(error > 0 for error in row["standard_error"])
        assert row["corpus"]["sha256"] == rows[0]["corpus"]["sha256"]
        assert {"commit", "torch", "triton", "device"} <= set(row["environment"])
        assert row["parameters"] > 0


def test_rows_are_shown_again_and_drawn(written: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--read", str(written), "--figure", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "at 64" in done.output
    svg = (tmp_path / "extrapolation.svg").read_text()
    assert "series:model:gla" in svg
    assert "a toy" in svg
    assert (tmp_path / "extrapolation.png").stat().st_size > 0


def test_the_learning_rate_of_the_least_loss_counts(rows: list[Row]) -> None:
    def row(rate: float, validation: float, **other: object) -> Row:
        return rows[0] | {"learning_rate": rate, "validation_loss": validation, **other}

    found = [row(0.1, math.nan), row(0.2, 1.0, loss=[2.0] * 8), row(0.3, 1.5), row(0.4, 0.5, error="no")]
    assert [one["learning_rate"] for one in best(found)["gla"]] == [0.2]
    assert list(best([*found, rows[1]])) == ["fa2", "gla"]
    (panel,) = figure(found).panels
    (line,) = panel.series
    assert {point.value for point in line.points} == {2.0}
    assert panel.value_range is not None
    assert panel.value_range[0] <= min(point.low for point in line.points)


def test_models_have_the_same_width_depth_and_nearly_as_many_parameters() -> None:
    asked = Question(width=128, layers=2, length=16, times=4, steps=1, batch=1, buckets=2, documents=2)
    counts = {name: Trainer(asked, Run(name, 0.01, 0), CPU).model.parameter_count for name in ("gla", "retnet", "fa2")}
    assert max(counts.values()) < 1.02 * min(counts.values())
    assert config_of(asked).heads == (1, 64, 128)


def test_every_system_has_a_title() -> None:
    assert TITLES.keys() == set(SYSTEMS)


@pytest.mark.skipif(detect_device() == "cuda", reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    done = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "only --tiny needs none" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--systems", "gla,fa-2"], "did you mean 'fa2'"),
        (["--rates", "0.01,fast"], "expected numbers between 0 and 1, got '0.01,fast'"),
        (["--rates", "0"], "expected numbers between 0 and 1"),
        (["--width", "100"], "expected a multiple of 128, got 100"),
        (["--buckets", "3"], "expected a divisor of the length, 1024"),
        (["--read", __file__], "is no JSON Lines"),
    ],
)
def test_bad_input_is_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_rows_of_several_questions_are_refused(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "mixed.rows"
    path.write_text(
        "".join(json.dumps(row | {"question": row["question"] | {"steps": i}}) + "\n" for i, row in enumerate(rows))
    )
    done = CliRunner().invoke(app, ["--read", str(path)], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "have not all the same question" in " ".join(done.output.split())

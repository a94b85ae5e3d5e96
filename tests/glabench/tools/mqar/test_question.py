"""Questions of multi-query associative recall: the one that comes along, and what is no question."""

from __future__ import annotations

from pathlib import Path

import pytest

from glabench.errors import UserError
from glabench.systems.models.model import SYSTEMS
from glabench.tools.mqar.__main__ import QUESTION
from glabench.tools.mqar.question import Run, read

FILE = """\
title: Any
tasks:
  - {length: 64, pairs: 4}
systems: [gla, fa2]
widths: [64, 128]
learning_rates: [0.001, 0.01]
steps: 10
batch_tokens: 128
"""


def error_of(text: str, folder: Path) -> str:
    path = folder / "question.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read(path, tuple(SYSTEMS))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def test_the_question_that_comes_along_is_one() -> None:
    question = read(QUESTION, tuple(SYSTEMS))
    assert {"gla", "retnet", "linear", "fa2"} <= set(question.systems)
    assert min(question.widths) == 64
    assert max(question.widths) == 512
    assert {task.length for task in question.tasks} == {64, 128, 256, 512}


def test_runs_of_a_width_are_all_combinations(tmp_path: Path) -> None:
    (path := tmp_path / "question.yaml").write_text(FILE)
    runs = read(path, tuple(SYSTEMS)).runs(128)
    assert len(set(runs)) == len(runs) == 2 * 2
    assert {run.width for run in runs} == {128}
    assert runs[0] == Run(system="gla", width=128, learning_rate=0.001, seed=0)


def test_what_comes_first_is_taught_for_its_share_and_tasks_in_turn(tmp_path: Path) -> None:
    text = FILE.replace("systems", "  - {length: 32, pairs: 2}\nfirst: {length: 16, pairs: 4, share: 0.4}\nsystems")
    (path := tmp_path / "question.yaml").write_text(text)
    question = read(path, tuple(SYSTEMS))
    order = [question.taught[question.taught_at(step)] for step in range(question.steps)]
    assert order == [question.first] * 4 + question.tasks * 3
    (path := tmp_path / "without.yaml").write_text(FILE)
    question = read(path, tuple(SYSTEMS))
    assert [question.taught[question.taught_at(step)] for step in range(2)] == question.tasks * 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("pairs: 4", "pairs: 17", "FILE:3: length: expected an even number of tokens >= 4 pairs = 68, got 64"),
        ("pairs: 4", "pair: 4", "FILE:3: unknown key 'pair' (did you mean 'pairs'?)"),
        ("steps: 10", "step: 10", "FILE:7: unknown key 'step' (did you mean 'steps'?)"),
        ("steps: 10\n", "", "FILE:1: missing key 'steps'"),
        ("steps: 10", "steps: ten", "FILE:7: steps: input should be a valid integer, got 'ten'"),
        ("steps: 10", "steps: 0", "FILE:7: steps: input should be greater than 0, got 0"),
        ("gla, fa2", "gla, fa-2", "FILE:4: unknown system 'fa-2' (did you mean 'fa2'?)"),
        ("[64, 128]", "[64, 100]", "FILE:1: widths: expected multiples of 32, got 100"),
        ("steps", "first: {length: 8, pairs: 2}\nsteps", "FILE:7: missing key 'share'"),
        ("steps", "first: {length: 8, pairs: 2, shar: 0.1}\nsteps", "FILE:7: unknown key 'shar' (did you mean 'share'"),
        (
            "steps",
            "first: {length: 8, pairs: 3, share: 0.1}\nsteps",
            "FILE:7: length: expected an even number of tokens",
        ),
        ("0.001", "1.5", "FILE:6: learning_rates.0: input should be less than 1, got 1.5"),
        ("batch_tokens: 128", "batch_tokens: 32", "FILE:1: batch_tokens: expected at least the longest task, 64, got"),
        (
            "title: Any",
            "title: Any\nvocabulary: 60",
            "FILE:1: vocabulary: expected more than a sequence has tokens, 64",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in FILE
    assert says in error_of(FILE.replace(old, new), tmp_path)


def test_no_mapping_is_told(tmp_path: Path) -> None:
    assert error_of("[1, 2]", tmp_path).startswith("FILE:1: expected a mapping with title")

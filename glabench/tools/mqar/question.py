"""What is asked of which models: a YAML file, validated whole before anything is trained."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from glabench.errors import UserError, did_you_mean
from glabench.spec.source import Source, read_yaml

HEADS = 2  # as the paper has it for GLA and RetNet; here of attention, too

Count = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Task(_Strict):
    """Sequences of ``length`` tokens that begin with ``pairs`` of a key and a value."""

    length: Count
    pairs: Count

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length % 2 or 4 * self.pairs > self.length:
            least = f"an even number of tokens >= 4 pairs = {4 * self.pairs}"
            raise ValueError(f"length: expected {least}, got {self.length}")
        return self

    @property
    def name(self) -> str:
        return f"{self.length} tokens, {self.pairs} pairs"


class First(Task):
    """What is trained alone, for a ``share`` of the steps, before the tasks are; no model is tested on it."""

    share: Annotated[float, Field(gt=0, lt=1)]


class Question(_Strict):
    """A model for each system, width, learning rate and seed. Each is trained on all tasks, a batch of one after a
    batch of another, and tested on each."""

    title: Annotated[str, Field(min_length=1)]
    first: First | None = None
    tasks: Annotated[list[Task], Field(min_length=1)]
    systems: Annotated[list[str], Field(min_length=1)]  # of glabench.systems.models.model.SYSTEMS
    widths: Annotated[list[Count], Field(min_length=1)]
    learning_rates: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    steps: Count
    batch_tokens: Count  # length times sequences of a batch
    tests: Count = 2048  # sequences of a task that accuracy is measured on
    vocabulary: Count = 8192
    layers: Count = 2

    @model_validator(mode="after")
    def _fits(self) -> Self:
        longest = self.longest
        if self.batch_tokens < longest:
            raise ValueError(f"batch_tokens: expected at least the longest task, {longest}, got {self.batch_tokens}")
        if self.vocabulary <= longest:
            least = f"more than a sequence has tokens, {longest}"
            raise ValueError(f"vocabulary: expected {least}, got {self.vocabulary}")
        if wrong := [width for width in self.widths if width % 32]:
            raise ValueError(f"widths: expected multiples of 32, got {wrong[0]}")
        return self

    @property
    def taught(self) -> list[Task]:
        """What models are trained on: what comes first, if anything, and the tasks."""
        return ([] if self.first is None else [self.first]) + self.tasks

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return max(task.length for task in self.taught)

    def taught_at(self, step: int) -> int:
        """Which of ``taught`` a step is of."""
        alone = 0 if self.first is None else round(self.first.share * self.steps)
        if step < alone:
            return 0
        return len(self.taught) - len(self.tasks) + (step - alone) % len(self.tasks)

    def runs(self, width: int) -> list[Run]:
        """The models of a width."""
        each = itertools.product(self.systems, self.learning_rates, self.seeds)
        return [Run(system=system, width=width, learning_rate=rate, seed=seed) for system, rate, seed in each]


class Run(_Strict):
    """One model of a question."""

    system: str
    width: int
    learning_rate: float
    seed: int


def read(path: Path, systems: tuple[str, ...]) -> Question:
    """The question of a file. UserError with file, line and what was expected for one that is none, or that asks for a
    system not in ``systems``."""
    source = read_yaml(path)
    if not isinstance(source.data, dict):
        raise source.error((), f"expected a mapping with title, tasks, systems and more, got {source.data!r}")
    try:
        question = Question.model_validate(source.data)
    except ValidationError as error:
        # a key that is missing may only be misspelt: others are told first
        first = min(error.errors(), key=lambda item: item["type"] == "missing")
        raise _told(source, dict(first)) from None
    for i, name in enumerate(question.systems):
        if name not in systems:
            raise source.error(("systems", i), f"unknown system {name!r}{did_you_mean(name, systems)}")
    return question


def _told(source: Source, item: dict[str, Any]) -> UserError:
    """What pydantic found, in a line with the place of it."""
    loc = tuple(item["loc"])
    if item["type"] == "extra_forbidden":
        of: dict[int | str, type[_Strict]] = {"tasks": Task, "first": First}
        return source.unknown_key(loc, tuple((of[loc[0]] if len(loc) > 1 else Question).model_fields))
    if item["type"] == "missing":
        return source.error(loc[:-1], f"missing key {loc[-1]!r}")
    if item["type"] == "value_error":
        return source.error(loc, str(item["ctx"]["error"]))
    label = ".".join(map(str, loc))
    return source.error(loc, f"{label}: {item['msg'].lower()}, got {item['input']!r}")


__all__ = ["HEADS", "First", "Question", "Run", "Task", "read"]

"""Several GPUs share the cases of a sweep so that what is compared is of one GPU, none computes a reference that
another one has, and all end together.

A worker goes on with the question of its last case while there are cases of it, for its process has the reference: a
loop over time in float64, which takes longer than most cases. Then it takes what is left of the shape, which attention
answers as a question of its own: two GPUs of a model are not quite as fast, and a ratio of two systems is to be of one.
Then come the longest shape that nobody has begun, the longest question, and when there is none, the worker helps where
most is gained. Seconds are the guesses of ``glabench.run.order``.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from glabench.run.order import case_s, longest_first, reference_s
from glabench.run.question import Asked, asked
from glabench.spec.case import Case

Shape = tuple[int, int, int, int, int, str]


class Shared:
    """The cases that are left, taken one at a time. Used by many threads."""

    def __init__(self, cases: Sequence[Case]) -> None:
        by_question: dict[Asked, deque[Case]] = defaultdict(deque)
        for case in longest_first(cases):
            by_question[asked(case)].append(case)
        seconds = {question: reference_s(question) + _sum_s(mine) for question, mine in by_question.items()}
        by_shape: dict[Shape, float] = defaultdict(float)
        for question, its_s in seconds.items():
            by_shape[_shape(question)] += its_s
        longest = sorted(by_question, key=lambda one: (by_shape[_shape(one)], seconds[one]), reverse=True)
        self._left = {question: by_question[question] for question in longest}
        self._at: dict[int, Asked] = {}
        self._begun: set[Shape] = set()
        self._lock = threading.Lock()

    def take(self, worker: int) -> Case | None:
        """The next case of the worker with this number; None when the others will be done sooner without it."""
        with self._lock:
            question = self._next(worker)
            if question is None:
                return None
            self._at[worker] = question
            self._begun.add(_shape(question))
            cases = self._left[question]
            case = cases.popleft()
            if not cases:
                del self._left[question]
            return case

    def _next(self, worker: int) -> Asked | None:
        mine = self._at.get(worker)
        if mine in self._left:
            return mine
        new = [question for question in self._left if question not in self._at.values()]
        return (
            next((question for question in new if mine is not None and _shape(question) == _shape(mine)), None)
            or next((question for question in new if _shape(question) not in self._begun), None)
            or max(new, key=lambda one: reference_s(one) + _sum_s(self._left[one]), default=None)
            or max(filter(self._pays, self._left), key=self._gain_s, default=None)
        )

    def _pays(self, question: Asked) -> bool:
        return self._gain_s(question) >= 0

    def _gain_s(self, question: Asked) -> float:
        """By how much sooner one case of a question that another worker has begun is done by a second worker, which
        computes the reference again, than as the last of the first's."""
        cases = self._left[question]
        return _sum_s(cases) - reference_s(question) - case_s(cases[0])


def _shape(question: Asked) -> Shape:
    """What systems of several operators are compared at."""
    one = question.case
    return one.B, one.T, one.H, one.K, one.V, one.dtype


def _sum_s(cases: Iterable[Case]) -> float:
    return sum(map(case_s, cases))

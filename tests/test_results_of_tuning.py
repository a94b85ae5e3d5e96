"""The figures of docs/tuning.md are those of the committed tunings, computed again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from glabench.analysis.load import load_tunings, only_tunings
from glabench.analysis.tuning import winner
from glabench.tune.held_out import cost_of
from glabench.tuning_store import Tuning

from .committed import H100, RESULTS, SHAPE, geomean, words


def test_what_tuning_on_an_h100_won() -> None:
    rows = []
    for one in load_tunings(only_tunings([RESULTS / H100 / "tune-axes"])):
        before = [end for end in one.finalists if end.role == "incumbent" and end.samples_ms]
        if before and one.winner is not None:
            ends = (one.finalists[one.winner], before[0])
            won, old = (float(np.median(end.samples_ms)) for end in ends)
            rows.append(one.workload | {"open": one.workload["schedule"] is None, "gain": won / old})
    table = pd.DataFrame(rows)
    free, asked = table[table["open"]], table[~table["open"]]
    (most,) = free[free[[*SHAPE, "direction"]].eq([8, 2048, 8, 256, 256, "fwd"]).all(axis=1)]["gain"]
    said = words("docs/tuning.md")
    assert f"take {geomean(free['gain']):.2f} of the time of what was chosen before" in said
    assert f"(geometric mean of {len(free)}), and {most:.2f} at (8, 2048, 8, 256, 256) forward" in said
    assert f"tiles by size, {geomean(asked['gain']):.2f} (of {len(asked)})" in said


def random_shapes(folder: str) -> pd.Series:
    """What the plan in use takes of what tuning found, by workload."""
    cost = {}
    for one in load_tunings(only_tunings([RESULTS / H100 / folder])):
        (before,) = [end for end in one.finalists if end.role == "incumbent"]
        assert one.winner is not None
        won, old = (float(np.median(end.samples_ms)) for end in (one.finalists[one.winner], before))
        cost[tuple(one.workload[name] for name in [*SHAPE, "direction"])] = old / won
    return pd.Series(cost)


def worst_of(table: pd.Series) -> str:
    *shape, direction = table.idxmax()
    where = f"({', '.join(map(str, shape))}) {'forward' if direction == 'fwd' else 'backward'}"
    return f"{table.max():.2f}x at worst, at {where}"


def test_what_plans_of_an_h100_cost_at_random_shapes() -> None:
    table, said = random_shapes("tune-random"), words("docs/tuning.md")
    assert (
        f"what they cost there was {geomean(table):.3f}x of what tuning finds (geometric mean of {len(table)}" in said
    )
    assert worst_of(table) in said
    beyond = table[table > 1.2]
    assert {(one[3], one[5]) for one in beyond.index} == {(256, "fwd")}
    assert f"The {('no', 'one', 'two', 'three')[len(beyond)]} above 1.2x" in said
    fifth = random_shapes("judge-fifth-draw")
    assert f"{geomean(fifth):.3f}x, and {worst_of(fifth)} (`judge-fifth-draw`, {len(fifth)} workloads" in said


def test_what_a_search_finds_of_two_levels() -> None:
    """Beside all candidates, as these were measured in one run."""
    found: dict[str, dict[tuple[object, ...], Tuning]] = {"model": {}, "exhaustive": {}}
    for one in load_tunings(only_tunings([RESULTS / H100 / "tune-two-levels"])):
        key = *(one.workload[name] for name in [*SHAPE, "direction"]), *one.workload["schedule"].values()
        found[one.strategy][key] = one
    assert found["model"].keys() == found["exhaustive"].keys()
    assert all(len(one.trials) == one.feasible for one in found["exhaustive"].values())
    cost = []
    for key, one in found["model"].items():
        won = winner(one)
        assert won is not None
        cost.append(cost_of(found["exhaustive"][key], won.plan))
    said = words("docs/tuning.md")
    assert f"takes at most {100 * max(cost) - 100:.1f} % longer than the best of all candidates" in said
    assert f"in the mean of the {len(cost)} {100 * geomean(pd.Series(cost)) - 100:.1f} %" in said
    assert f"all {sum(one.feasible for one in found['exhaustive'].values()):,} were measured" in said

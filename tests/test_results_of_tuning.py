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


def test_what_tuning_again_on_an_h200_won() -> None:
    cost = cost_in_use("nvidia-h200", "retune")
    said = words("docs/tuning.md")
    (most,) = [f"({', '.join(map(str, shape))})" for *shape, direction in [cost.idxmax()] if direction == "bwd"]
    assert f"{geomean(1 / cost):.3f} of the time of those in use before (geometric mean of {len(cost)}" in said
    assert f"), and {1 / cost.max():.2f} at {most} backward" in said
    least = cost.drop([one for one in cost.index if one[3] == 256])
    (most,) = [f"({', '.join(map(str, shape))})" for *shape, direction in [least.idxmax()] if direction == "fwd"]
    assert f"but for heads of 256 {1 / least.max():.2f} at least, at {most} forward" in said


def cost_in_use(gpu: str, folder: str) -> pd.Series:
    """What the plan in use takes of what tuning found, by workload with gates whose schedule was open."""
    cost = {}
    for one in load_tunings(only_tunings([RESULTS / gpu / folder])):
        if one.workload["schedule"] is not None or not one.workload["gated"]:
            continue
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
    table, said = cost_in_use(H100, "tune-random"), words("docs/tuning.md")
    assert (
        f"what they cost there was {geomean(table):.3f}x of what tuning finds (geometric mean of {len(table)}" in said
    )
    assert worst_of(table) in said
    beyond = table[table > 1.2]
    assert {(one[3], one[5]) for one in beyond.index} == {(256, "fwd")}
    assert f"The {('no', 'one', 'two', 'three')[len(beyond)]} above 1.2x" in said
    fifth = cost_in_use(H100, "judge-fifth-draw")
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

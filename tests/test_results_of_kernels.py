"""What documents say of kernels, and of those of several commits, is what the committed rows say, computed again."""

from __future__ import annotations

from statistics import median

import numpy as np
import pandas as pd

from .committed import H100, MODES, RESULTS, SHAPE, as_printed, lines, spread, table, words


def test_one_decay_a_head_is_that_of_the_rows() -> None:
    found = lines("docs/kernels.md", "One decay a head")
    rows = table(f"{H100}/scalar_decay")
    rows = rows[(rows["status"] == "ok") & ~rows["chunk"].isin([32, 128])]
    columns = (
        ("simple_gla", 0),
        ("simple_gla", 1),
        ("gla", 0),
        ("fla_simple", None),
        ("fla_retention", 0),
        ("jla_simple", 0),
        ("mamba2_ssd", None),
        ("fa2", None),
    )
    assert len(found) == 16
    for key, cells in found.items():
        *sizes, mode = key.split(", ")
        here = rows[(rows[SHAPE] == [int(size) for size in sizes]).all(axis=1) & (rows["mode"].map(MODES) == mode)]
        for (system, shared), cell in zip(columns, cells, strict=True):
            one = here[(here["system"] == system) & (here["qk_heads"].isin([shared]) | (shared is None))]
            assert cell == ("" if one.empty else f"{one['ms'].min():.3f}"), (key, system)


def test_what_one_decay_a_head_saves() -> None:
    rows, said = table(f"{H100}/scalar_decay"), words("docs/kernels.md")
    keys = [*SHAPE, "qk_heads", "mode"]
    fastest = rows.pivot_table(index=keys, columns="system", values="ms", aggfunc="min")
    ours = fastest["simple_gla"]
    fwd, both = ((ours / fastest["gla"]).xs(mode, level="mode").dropna() for mode in MODES)
    assert f"`simple_gla` takes {spread(fwd)} of `gla`'s time forward and {spread(both)} with the backward pass" in said
    theirs = {
        name: spread((fastest[name] / ours).dropna())
        for name in ("fla_simple", "fla_retention", "jla_simple", "mamba2_ssd")
    }
    assert f"FLA's kernels take {theirs['fla_simple']} times as long" in said
    assert f"FLA's retention {theirs['fla_retention']} times, jla's {theirs['jla_simple']} times" in said
    assert f"Mamba-2's SSD {theirs['mamba2_ssd']} times" in said


def test_what_gates_of_the_value_side_cost() -> None:
    rows = table(f"{H100}/value_gates")
    of_gla, gated = rows["system"] == "gla", rows["gate"] == "1 + value side"
    kinds = {
        "with": gated & rows["chunk"].isna(),
        "without": of_gla & ~gated,
        "passes": gated & (rows["materialize"] == True),  # noqa: E712 - None where any schedule may be chosen
        "fa2": rows["system"] == "fa2",
    }
    ms = pd.DataFrame({name: rows[which].set_index([*SHAPE, "mode"])["ms"] for name, which in kinds.items()})
    printed = lines("docs/kernels.md", "Gates on the value side")
    assert len(printed) == len(ms) == 6
    for (*shape, mode), measured in ms.iterrows():
        assert [f"{one:.3f}" for one in measured] == printed[", ".join([*map(str, shape), MODES[mode]])]
    fwd, both = (spread(one["with"] / one["without"]) for one in (ms.xs(mode, level="mode") for mode in MODES))
    said = words("docs/kernels.md")
    assert f"{fwd} times as long as without forward, {both} times with the backward pass" in said


def test_what_strong_gates_cost() -> None:
    rows = table(f"{H100}/strong_gates").pivot_table(index=[*SHAPE, "mode"], columns=["system", "gate"], values="ms")
    ours, theirs = rows["gla"], rows["fla"].min(axis=1)
    strengths, resets = ["1", "4", "16", "10000"], ["1 reset each 512", "1 reset each 64"]
    printed = lines("docs/kernels.md", "What strong gates cost", of=1)
    assert len(printed) == len(rows) == 16
    for (*shape, mode), measured in ours.iterrows():
        cells = ["" if np.isnan(one) else f"{one:.3f}" for one in measured[[*strengths, *resets]]]
        assert [*cells, f"{theirs[(*shape, mode)]:.3f}"] == printed[", ".join([*map(str, shape), MODES[mode]])]
    slowest, said = ours[strengths].max(axis=1), words("docs/kernels.md")
    assert ours[[*strengths, *resets]].lt(theirs, axis=0).all(axis=None)
    assert "`gla` is never behind" in said
    assert f"where gates are strongest its kernels are {spread(theirs / slowest)} times as fast" in said
    assert f"`gla` is {spread(theirs / slowest)} times as fast as FLA [at eight shapes]" in words("docs/results.md")
    longer = slowest / ours["1"]
    forward, few = longer.xs("fwd", level="mode").max(), longer.loc[2, 1024, 4, 128, 128]
    assert f"Strong gates take {spread(longer)} times as long as mild ones, at most {forward:.2f} forward" in said
    assert f"{few['fwd']:.2f} times forward and {few['fwdbwd']:.2f} with the backward pass" in said
    costs = [spread((ours[one] / ours["1"]).dropna()) for one in resets]
    assert f"each 512 rows costs {costs[0]} times the time, each 64 rows {costs[1]} times" in said
    faster = [spread((theirs / ours[one]).dropna()) for one in resets]
    assert f"there `gla` is {faster[0]} and {faster[1]} times as fast as FLA" in said
    differ = (rows["fla"].max(axis=1) / theirs - 1).max()
    assert f"Its times differ by {100 * differ:.1f} % at most whatever the gates are" in said


def test_a_sequence_over_two_h200s() -> None:
    rows = pd.read_json(RESULTS / "nvidia-h200" / "context_parallel" / "2026-11-28-f1f942e.rows.xz", lines=True)
    ran = rows[(rows.ranks == 2) & (rows["mode"] == "fwdbwd")]
    assert list(ran.K) == [128, 256]
    faster, exposed = (list(ran[name]) for name in ("times_one_gpu", "exposed"))
    speed = f"Two H200s are {faster[0]:.2f} and {faster[1]:.2f} times as fast as one at the first and the third shape"
    assert f"{speed}, with {100 * exposed[0]:.1f} and {100 * exposed[1]:.1f} % exposed" in words("docs/kernels.md")


def test_what_sums_of_gates_from_where_they_lie_save() -> None:
    rows = pd.read_json(RESULTS / "nvidia-h200" / "trees" / "2026-11-28-c2dd6ea-again.rows.xz", lines=True)
    ms = rows[rows.strength == 1].set_index("what")[["old_ms", "new_ms"]].map(median)
    forward, both = (ms[ms.index.str.endswith(f" {way}")] for way in ("fwd", "fwd+bwd"))
    assert len(forward) == len(both) == 8
    said = words("docs/results.md")
    for way, verb in ((forward, "{} times as long forward"), (both, "and {} both ways")):
        assert verb.format(spread(way.new_ms / way.old_ms)) in said
    shape = "2, 16384, 16, 128, 128"
    one, two = ms.loc[f"{shape} fwd"], ms.loc[f"{shape} fwd+bwd"]
    assert f"at ({shape}) {one.new_ms:.3f} ms for {one.old_ms:.3f} and {two.new_ms:.3f} for {two.old_ms:.3f}" in said


def test_what_gates_of_minus_infinity_cost() -> None:
    def medians(name: str) -> pd.DataFrame:
        rows = pd.read_json(RESULTS / "nvidia-h200" / "trees" / f"2026-11-28-65e395f-{name}.rows.xz", lines=True)
        return pd.DataFrame({tree: pd.DataFrame(list(rows[tree])).median() for tree in ("old_ms", "new_ms")})

    def longer(trees: pd.DataFrame) -> pd.Series:
        return trees["new_ms"] / trees["old_ms"]

    closed, finite = medians("closed"), medians("kernels")
    printed, said = lines("docs/results.md", "Gates of -inf"), words("docs/results.md")
    finite = finite.loc[closed.index]
    assert len(printed) == len(closed) == 8
    for what in closed.index:
        values = [value for trees in (finite, closed) for value in (*trees.loc[what], longer(trees).loc[what])]
        cells = printed[", ".join(str(what).rsplit(" ", 1))]
        assert all(as_printed(value, cell) for value, cell in zip(values, cells, strict=True)), what
    for tree, sentence in (
        ("new_ms", "that is {} times as long forward and {} both ways"),
        ("old_ms", "before {} and {}."),
    ):
        price = closed[tree] / finite[tree]
        forward = price.index.str.endswith(" fwd")
        assert sentence.format(spread(price[forward]), spread(price[~forward])) in said

"""The figures of README.md and docs/results.md are those of the committed rows, computed again."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from glabench.analysis.compare import answers
from glabench.analysis.frame import frame
from glabench.analysis.load import latest, load_tunings, located, only_tunings
from glabench.analysis.overhead import account
from glabench.analysis.tuning import winner
from glabench.phases import spent_of
from glabench.tune.held_out import cost_of
from glabench.tuning_store import Tuning

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
H100 = "nvidia-h100-80gb-hbm3"
BOARD = f"{H100}/board"
OF_H200 = "nvidia-h200/board"
SHAPE = ["B", "T", "H", "K", "V"]
MODES = {"fwd": "fwd", "fwdbwd": "fwd+bwd"}


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def words(name: str) -> str:
    """A document with one blank between words, as sentences are looked for."""
    return " ".join(text(name).split())


@cache
def table(*names: str) -> pd.DataFrame:
    """The rows of committed folders, of each case the one that counts."""
    return frame(latest(row for _, row in located([RESULTS / name for name in names])))


@cache
def times(*names: str, value: str = "ms") -> pd.DataFrame:
    """By shape and mode, a column a system: the fastest of each at its question, at gates of strength 1."""
    best = answers(table(*names))
    best = best[(best["gate"] == "1") & best["mode"].isin(MODES)]
    best = best.assign(variant=best["variant"].str.replace(":16x64", ""))  # attention of the papers' setting
    return best.pivot_table(index=[*SHAPE, "mode"], columns="variant", values=value, sort=False)


def lines(document: str, heading: str, of: int = 1) -> dict[str, list[str]]:
    """The cells of the first table below a heading, by what stands in the first columns: so many, and the mode."""
    part = text(document).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.rstrip().strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"
    ]
    first = of + (cells[0][1] == "mode")
    return {", ".join(line[:first]): line[first:] for line in cells[2:]}


def as_printed(value: float, cell: str) -> bool:
    """Whether a figure is what a cell says, at the cell's own precision."""
    decimals = len(cell.rstrip("x").partition(".")[2])
    return f"{value:.{decimals}f}" == cell.rstrip("x")


def spread(values: pd.Series, decimals: int = 2) -> str:
    return f"{values.min():.{decimals}f} to {values.max():.{decimals}f}"


def geomean(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


@pytest.mark.parametrize(
    ("board", "heading"), [(BOARD, "The board on an H100"), (OF_H200, "The board on an H200")], ids=["H100", "H200"]
)
def test_the_board(board: str, heading: str) -> None:
    measured, floors = times(board), times(board, value="over_floor")["gla"]
    rivals = ["fla", "helion", "fa2", "fa4", "cudnn"] if board == BOARD else ["fla", "helion", "fa2", "cudnn"]
    ratios = measured[rivals].div(measured["gla"], axis=0)
    printed = lines("docs/results.md", heading)
    assert len(printed) == len(measured) == 20
    for (*shape, mode), own in measured["gla"].items():
        at = (*shape, mode)
        said = printed[", ".join([*map(str, shape), MODES[mode]])]
        values = [own, floors[at], *ratios.loc[at]]
        assert [cell for cell, value in zip(said, values, strict=True) if not as_printed(value, cell)] == [], at


def test_the_board_in_readme_and_by_geometric_means() -> None:
    measured, floors = times(BOARD), times(BOARD, value="over_floor")["gla"]
    faster = measured.div(measured["gla"], axis=0)
    papers = faster.index.get_level_values("B") == 32
    rows = {
        "times as fast as FLA's": faster["fla"],
        "times as fast as Helion's": faster["helion"],
        "times as fast as jax-linear-attention's, at the five with K = V = 64 or 128": faster["jla"].dropna(),
        "times as fast as FlashAttention-2, T = 1024 to 8192 in the papers' setting": faster["fa2"][papers],
    }
    printed = lines("README.md", "How fast")
    for name, values in rows.items():
        assert printed.pop(name) == [spread(values.xs(mode, level="mode")) for mode in MODES], name
    assert f"{spread(faster['fla'], 1)} times as fast as flash-linear-attention's on an H100" in words("README.md")
    means = [f"{geomean(floors.xs(mode, level='mode')):.1f}" for mode in MODES]
    assert list(printed.values()) == [means]
    said = words("docs/results.md")
    assert f"{means[0]} times the floor forward, {means[1]} forward and backward" in said
    better = faster[["fla", "helion", "jla"]].min(axis=1)
    assert f"kernels are {geomean(better):.2f} times as fast as the best of FLA's, Helion's and jax-linear" in said
    assert f"The latter's take {spread(faster['jla'].dropna())} times as long" in said
    ahead = faster[["fa2", "fa4", "cudnn"]].lt(1)
    assert ahead.sum().to_dict() == {"fa2": 0, "fa4": 1, "cudnn": 2}
    assert set(faster.index[ahead["cudnn"]].get_level_values("mode")) == {"fwd"}
    assert faster.index[ahead["fa4"]].tolist() == [(8, 2048, 32, 256, 256, "fwd")]
    where = "by cuDNN and at (8, 2048, 32, 256, 256) by FlashAttention-4"
    assert f"Attention is ahead at two forward passes, {where}" in said
    small = times(BOARD, value="wall_ms").loc[8, 1024, 8, 64, 64, "fwdbwd"]
    assert f"at (8, 1024, 8, 64, 64) it takes {small['gla']:.3f} ms" in said
    assert small["cudnn"] < small["gla"]
    older = times(OF_H200, value="over_floor")["gla"]
    means = [f"{geomean(older.xs(mode, level='mode')):.1f}" for mode in MODES]
    assert f"{means[0]} times the floor forward, {means[1]} forward and backward. They are from" in said


def test_memory() -> None:
    rows = table(BOARD)
    rows = rows[(rows["mode"] == "fwdbwd") & (rows["gate"] == "1") | rows["family"].eq("attention")]
    peak = rows[rows["mode"] == "fwdbwd"].assign(variant=rows["variant"].str.replace(":16x64", ""))
    peak = peak.pivot_table(index=SHAPE, columns="variant", values="beyond_mib")
    at = peak.loc[1, 8192, 96, 128, 128]
    said = words("docs/results.md")
    assert f"with states `gla` needs {at['gla']:,.0f} MiB beyond the inputs, FLA {at['fla']:,.0f}; without," in said
    assert f"without, {at['gla:wo']:,.0f} MiB" in said
    assert f"FlashAttention-2 {at['fa2']:,.0f}." in said
    attention = peak["fa2"].dropna()
    with_states, without = (spread((peak[name] / attention).dropna()) for name in ("gla", "gla:wo"))
    assert f"{with_states} times as much as FlashAttention-2 with states, and {without} times as much without" in said


def test_without_gates_and_decoding() -> None:
    rows = table(BOARD)
    ungated = rows[(rows["H"] == 16) & (rows["K"] == 64)].pivot_table(
        index=["mode", "T"], columns="variant", values="ms"
    )
    ratio = ungated["fla_linear"] / ungated["gla"]
    forward, both = ungated.loc[("fwd", 1024), "gla"], ungated.loc[("fwdbwd", 1024), "gla"]
    said = words("docs/results.md")
    assert f"take {forward:.3f} ms forward and {both:.3f} ms forward and backward" in said
    assert f"{ratio['fwd', 1024]:.2f} and {ratio['fwdbwd', 1024]:.2f} times as fast as those of FLA's" in said
    longer = [spread(ratio[mode].drop(1024)) for mode in MODES]
    assert f"they are {longer[0]} and {longer[1]} times as fast" in said
    rows = table(OF_H200)
    step = rows[(rows["mode"] == "step") & (rows["B"] == 256) & rows["system"].isin(["gla", "gla_recurrent"])]
    fastest = step.sort_values("ms").iloc[0]
    assert f"takes {fastest['ms']:.3f} ms on an H200, {fastest['over_floor']:.1f} times what its bytes need" in said


def test_a_first_compare() -> None:
    """From when the first process began to when the rows were there."""
    spent = [spent_of(row) for _, row in located([RESULTS / H100 / "compare"])]
    began = min(one.began for row in spent for one in row)
    ends = sorted(max(one.began + sum(one.seconds.values()) for one in row) - began for row in spent)
    assert len(ends) == 6
    said = words("docs/results.md")
    first, all_six = f"{ends[0]:.1f} s", f"{ends[-1]:.1f} s"
    assert f"first row {first} after its processes began, and all six, FLA's tuning included, after {all_six}" in said


def test_strong_gates() -> None:
    def at(name: str, *shape: int) -> pd.DataFrame:
        rows = table(name)
        rows = rows[(rows["mode"] == "fwdbwd") & (rows[SHAPE] == list(shape)).all(axis=1) & (rows["chunk"].isna())]
        return rows.pivot_table(index="gate_strength", columns="variant", values="ms")

    large, small = (
        at("nvidia-h200/gate_strength", 2, 4096, 8, 128, 128),
        at("nvidia-h200/papers", 2, 1024, 4, 128, 128),
    )
    said = words("docs/results.md")
    over = large["fla"] / large["gla"]
    longer = large["gla"] / large.loc[1.0, "gla"]
    assert f"its kernels are {over[1.0]:.1f} times as fast as FLA's at (2, 4096, 8, 128, 128)" in said
    assert f"take {longer[1e4]:.1f} times as long as with mild ones, and are {over[1e4]:.2f} times as fast" in said
    alike = small.loc[1e4, "gla"] / small.loc[1.0, "gla"], small.loc[1e4, "gla"] / small.loc[1e4, "fla"]
    assert f"they took {alike[0]:.1f} times as long then, and {alike[1]:.1f} times as long as FLA" in said


def test_beside_fla() -> None:
    rows = table(f"{H100}/host").set_index([*SHAPE, "variant"])
    printed = lines("docs/results.md", "Beside FLA")
    assert printed
    for shape, said in printed.items():
        own, theirs = (rows.loc[(*map(int, shape.split(", ")), name)] for name in ("gla", "fla"))
        pairs = [(own[name], theirs[name] / own[name]) for name in ("ms", "wall_ms")]
        pairs += [(own[name], theirs[name]) for name in ("host_ms", "kept_mib")]
        values = [value for pair in pairs for value in pair]
        assert [cell for cell, value in zip(said, values, strict=True) if not as_printed(value, cell)] == [], shape


def test_packed_sequences() -> None:
    ms = table(f"{H100}/packed").pivot_table(index=["mode", "lengths"], columns="variant", values="ms")
    longer = {mode: ms.loc[mode, "gla"] / ms.loc[(mode, ""), "gla"] for mode in MODES}
    drawn = next(name for name in longer["fwd"].index if name.startswith("1300,"))
    said = words("docs/results.md")
    for name in ("uniform:8", drawn):
        assert [f"{longer[mode][name]:.2f}" for mode in MODES] == ["1.06", "1.10"]
    assert "take 1.06 times what one takes forward and 1.10 forward and backward" in said
    many = [f"{longer[mode]['uniform:1024']:.2f}" for mode in MODES]
    assert f"1024 of eight tokens {many[0]} and {many[1]}" in said
    over = (ms["fla"] / ms["gla"]).drop("", level="lengths")
    few = over.drop("uniform:1024", level="lengths")
    most = [f"{over[mode, 'uniform:1024']:.0f}" for mode in MODES]
    assert f"FLA's take {spread(few, 1)} times as long, and {most[0]} and {most[1]} (" in said


def test_gates_in_float32() -> None:
    ms = table(f"{H100}/gate_dtype").pivot_table(index=[*SHAPE, "mode"], columns="gate", values="ms")
    longer = (ms["1 in fp32"] / ms["1"]).sort_values()
    said = words("docs/results.md")
    assert f"take {spread(longer[:16])} times as long as in bfloat16 in 16 of {len(longer)} passes" in said
    for (*shape, mode), ratio in longer[16:].items():
        assert mode == "fwd"
        assert f"{ratio:.2f}{' times' if ratio == longer.iloc[16] else ''} at ({', '.join(map(str, shape))})" in said


@pytest.mark.parametrize("other", ["transformer_lm", "gla_lm_fla"])
def test_training(other: str) -> None:
    rows = table(f"{H100}/training", f"{H100}/training-packed")
    rate, peak = (
        rows.pivot_table(index=["model", "lengths", "T"], columns="variant", values=name)
        for name in ("tokens_per_s", "peak_mib")
    )
    over, memory = rate["gla_lm"] / rate[other], peak["gla_lm"] / peak[other]
    plain, packed = over["1.3b", ""], over["1.3b", "lognormal:8"].iloc[0]
    said = words("docs/results.md")
    low, high = rate.loc[("1.3b", ""), "gla_lm"].agg(["min", "max"])
    assert f"takes {round(low, -2):,.0f} to {round(high, -2):,.0f} tokens a second" in said
    if other == "transformer_lm":
        listed = ", ".join(f"{ratio:.2f}" for ratio in plain[:-1]) + f" and {plain.iloc[-1]:.2f}"
        assert f"{listed} times as many as Transformer++" in said
        assert {f"{share:.2f}" for share in memory["1.3b", ""]} == {"0.99"}
        assert f"{packed:.2f} and " in said.split("eight documents packed into 16,384 tokens, ")[1][:9]
        assert f"at 2k, {over['340m', ''].iloc[0]:.2f} and " in said
    else:
        assert f"{spread(plain)} times as many as the same model with FLA's operator" in said
        assert {f"{share:.2f}" for share in memory["1.3b", ""]} == {"1.00"}
        assert re.search(rf"16,384 tokens, [\d.]+ and {packed:.2f} times as many as these two", said)
        assert re.search(rf"at 2k, [\d.]+ and {over['340m', ''].iloc[0]:.2f} times", said)


def test_counts_of_cases() -> None:
    said = words("docs/results.md")
    assert (table(OF_H200)["status"] == "ok").all()
    of = {name: table(BOARD)["system"] == name for name in ("helion", "jla", "fa4")}
    here = len(table(BOARD)) - sum(rows.sum() for rows in of.values())
    assert (table(BOARD)["status"] == np.where(of["jla"] & (table(BOARD)["K"] == 256), "unsupported", "ok")).all()
    assert f"{here} cases in one start, half an hour later the {of['helion'].sum()} of Helion" in said
    assert f"another day the {of['jla'].sum()} of jax-linear-attention" in said
    assert f"on one H100, the {of['fa4'].sum()} of FlashAttention-4" in said
    assert f"all {len(table(OF_H200))} cases in one start, all right" in said
    assert f"the papers' {len(table('nvidia-h200/papers'))} cases" in said


def test_what_the_harness_takes() -> None:
    said = words("docs/results.md")
    for name, wall in ((OF_H200, "board's {} seconds"), ("nvidia-h200/papers", "{} that the papers'")):
        found = account([row for _, row in located([RESULTS / name])]).wall
        assert f"{100 * found.overhead:.1f} % of the {wall.format(f'{found.seconds:.0f}')}" in said


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


def test_chunk_by_sub_chunk() -> None:
    measured = table(f"{H100}/sub_chunk").pivot_table(
        index=["chunk", "sub_chunk"], columns=["materialize", "mode"], values="ms"
    )
    columns = [(states, mode) for states in (True, False) for mode in MODES]
    printed = lines("docs/results.md", "Chunk and sub-chunk on an H100", of=2)
    assert len(printed) == len(measured) == 15
    for (chunk, sub_chunk), row in measured.iterrows():
        said = printed[f"{chunk:.0f}, {sub_chunk:.0f}"]
        assert all(as_printed(row[column], cell) for column, cell in zip(columns, said, strict=True)), (
            chunk,
            sub_chunk,
        )


def test_sequence_length() -> None:
    measured = times(f"{H100}/sequence_length")
    faster = measured["fa2"] / measured["gla"]
    said = [f"{ratio.min():.3g} to {ratio.max():.3g}" for _, ratio in faster.groupby("mode")]
    assert (
        f"`gla` is {said[0]} times as fast as FlashAttention-2 forward and {said[1]} times forward and backward"
        in words("docs/results.md")
    )


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

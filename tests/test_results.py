"""The figures of README.md and docs/results.md are those of the committed rows, computed again."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from glabench.analysis.load import located
from glabench.analysis.overhead import account
from glabench.phases import spent_of

from .committed import H100, MODES, RESULTS, SHAPE, as_printed, geomean, lines, spread, table, times, words

BOARD = f"{H100}/board"
OF_H200 = "nvidia-h200/board"
H200_BEFORE, H200_TODAY = "2026-11-25-0becc44.jsonl.xz", "2026-11-28-9f8914f.jsonl.xz"


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
    lightning = rows[rows["system"].isin(["gla", "lightning2"]) & (rows["H"] == 16) & (rows["K"] == 64)]
    lightning = lightning.pivot_table(index=["mode", "T"], columns="variant", values="ms")
    faster = lightning["lightning2"] / lightning["gla"]
    both = lightning.loc[("fwdbwd", 1024), "gla"]
    ratios = [spread(faster[mode]) for mode in MODES]
    assert f"on an H200 they take {both:.3f} ms" in said
    assert f"`gla` is {ratios[0]} and {ratios[1]} times as fast as LightningAttention-2" in said
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


def test_steps_on_an_h200() -> None:
    rows = table("nvidia-h200/training")
    eager, compiled = (rows[rows["training"] == f"1.3b, {how}"] for how in ("eager", "compiled"))
    rate = compiled.pivot_table(index=["lengths", "B", "T"], columns="variant", values="tokens_per_s")
    printed = lines("docs/models.md", "Steps on an H200")
    assert len(printed) == len(rate) == 6
    for (documents, *shape), of in rate.iterrows():
        cells = [
            cell.replace(",", "")
            for cell in printed[", ".join([*map(str, shape), *([f"`{documents}`"] if documents else [])])]
        ]
        own, others = of["gla_lm"], [of[f"gla_lm:{kind}"] for kind in ("w", "re", "wo")]
        values = [own]
        for rival in ("transformer_lm", "gla_lm_fla"):
            values += [of[rival], own / of[rival]]
        for value, cell in zip([*values, *others], cells, strict=True):
            assert as_printed(value, cell) if cell else np.isnan(value)
    said = words("docs/models.md")
    assert f"{len(rows)} of the sweep's 47 cases" in said
    gla, rival = (
        spread(compiled[compiled["system"].eq(one)]["peak_mib"] / 1024, 1) for one in ("gla_lm", "transformer_lm")
    )
    assert f"All of GLA have a peak of {gla} GiB, Transformer++ {rival.split()[0]}" in said
    (one, other, fla) = (eager.set_index("system").loc[name] for name in ("gla_lm", "transformer_lm", "gla_lm_fla"))
    times_as_many = [f"{one['tokens_per_s'] / rival['tokens_per_s']:.2f} times as many as" for rival in (other, fla)]
    assert f"{one['tokens_per_s']:,.0f}, {times_as_many[0]} Transformer++ and {times_as_many[1]} with FLA's" in said
    peaks = [f"{row['peak_mib'] / 1024:.1f}" for row in (one, other, fla)]
    assert f"in {peaks[0]} GiB for {peaks[1]} and {peaks[2]}" in said


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
    today = table(f"{OF_H200}/{H200_TODAY}")
    assert f"all {len(today)} cases in one start on two GPUs of a host" in said
    rows = [row for _, row in located([RESULTS / OF_H200 / H200_TODAY])]
    stopped = Counter(row.case["system"] for row in rows if row.time and "wall budget" in (row.time["stopped"] or ""))
    of = today["system"].value_counts()
    assert stopped["fa2"] == 4
    stops = f"{stopped['cudnn']} of cuDNN's {of['cudnn']}, four of FlashAttention-2's"
    assert f"{stops} and {stopped['gla']} of `gla`'s {of['gla']} were stopped by the budget" in said
    assert f"the papers' {len(table('nvidia-h200/papers'))} cases" in said


def test_what_changed_on_an_h200() -> None:
    then, today = (times(f"{OF_H200}/{file}") for file in (H200_BEFORE, H200_TODAY))
    longer = (today / then).dropna(axis=1).xs("fwdbwd", level="mode")
    longer = longer[(longer.index.get_level_values("K") == 128) & (longer.index.get_level_values("V") == 128)]
    rivals = longer[["fla", "helion", "fa2", "cudnn"]].stack()
    said = words("docs/results.md")
    assert f"rivals take {spread(rivals)} times as long at K = V = 128 forward and backward" in said
    assert f"and `gla` {spread(longer['gla'])}" in said


def test_which_commits_changed_it_on_an_h200() -> None:
    folder = RESULTS / "nvidia-h200" / "trees"

    def longer(commit: str, than: str, way: str) -> list[float]:
        """Of each shape, the mean of both rounds."""
        found, before = (
            pd.read_json(folder / f"2026-11-28-{one}-between.rows.xz", lines=True).mean() for one in (commit, than)
        )
        ratios = (found / before)[[name.endswith(f" {way}") for name in found.index]]
        assert len(ratios) == 4
        return list(ratios)

    said = words("docs/results.md")
    few, kept = (longer("1593329", "3121997", f"fwd+bwd{more}") for more in ("", ", all states kept"))
    assert f"both passes take {min(few):.2f} to {max(few):.2f} times as long; an H100" in said
    assert f"by `recompute=False`, they take {min(kept):.2f} to {max(kept):.2f} times as long" in said


def test_what_the_harness_takes() -> None:
    said = words("docs/results.md")
    for name, wall in (
        (f"{OF_H200}/{H200_BEFORE}", "board's {} seconds"),
        ("nvidia-h200/papers", "{} that the papers'"),
    ):
        found = account([row for _, row in located([RESULTS / name])]).wall
        assert f"{100 * found.overhead:.1f} % of the {wall.format(f'{found.seconds:.0f}')}" in said


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

"""The report's section on training steps."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from glabench.analysis.frame import frame
from glabench.report import figures, headline, training
from glabench.spec.axes import Execution
from glabench.spec.case import Case
from glabench.store import Row

SHAPE: dict[str, Any] = {"H": 4, "K": 256, "V": 512, "mode": "train", "model": "1.3b"}
GPU = "NVIDIA H100 80GB HBM3"


def step(
    system: str, ms: float, gib: float, T: int = 2048, execution: Execution | None = "compiled", **case: Any
) -> Row:
    """A row of a training step that took so many ms, in so many GiB."""
    asked = Case(system, 16384 // T, T, execution=execution, gate_strength=None, **SHAPE, **case)
    kernels = {"operator": ms / 4, "matrix products": ms / 2, "nobody knows": 1.0}
    time = {"clock": "steps_wall", "samples_ms": [ms * 0.99, ms, ms * 1.01], "training": {"kernel_ms": kernels}}
    memory = {"peak_bytes": int(gib * 2**30), "inputs_bytes": 2**30, "beyond_inputs_bytes": 2**30}
    environment = {"kind": "cuda", "device": GPU}
    return Row(asked.id, "test", asked.to_dict(), "ok", time=time, memory=memory, environment=environment)


@pytest.fixture
def table() -> pd.DataFrame:
    rows = [
        step("gla_lm", 250.0, 41.0), step("gla_lm", 240.0, 42.0, materialize=False, chunk=64),
        step("transformer_lm", 300.0, 40.0), step("gla_lm", 260.0, 41.0, T=4096),
        step("transformer_lm", 390.0, 40.0, T=4096), step("transformer_lm", 400.0, 44.0, execution=None),
    ]  # fmt: skip
    return frame(rows)


def test_ours_is_compared_at_its_fastest_and_its_leanest(table: pd.DataFrame) -> None:
    (found,) = training.against(table)
    assert (found.training, found.rival) == ("1.3b, compiled", "transformer_lm")
    (first, second) = found.at
    assert list(first) == pytest.approx([2048, 300 / 240, 41 / 40])
    assert list(second) == pytest.approx([4096, 390 / 260, 41 / 40])


def test_what_is_compiled_never_stands_beside_what_is_not(table: pd.DataFrame) -> None:
    found = training.figures(table)
    assert [figure.title for figure in found if "Training" in figure.title] == [
        "Training: 1.3b, compiled, bf16", "Training: 1.3b, eager, bf16",
    ]  # fmt: skip
    rate, memory = found[0].panels
    assert [one.key for one in rate.series] == ["gla_lm:wo", "gla_lm", "transformer_lm"]
    assert [p.at for p in rate.series[1].points] == [2048.0, 4096.0]
    assert [p.value for p in rate.series[1].points] == pytest.approx([16384e3 / 250, 16384e3 / 260])
    assert rate.series[1].points[0].low < rate.series[1].points[0].value < rate.series[1].points[0].high
    assert [p.value for p in memory.series[2].points] == [40.0, 40.0]


def test_a_bar_is_a_step_and_what_has_no_colour_is_other(table: pd.DataFrame) -> None:
    bars = next(f for f in training.figures(table) if f.stacked).panels[0]
    assert bars.categories[0] == "GLA Transformer without states, T 2k"
    pieces = {one.title: [p.value for p in one.points] for one in bars.series}
    assert pieces["operator"][0] == 60.0
    assert pieces["other"] == [1.0] * len(bars.categories)


def test_steps_are_told_in_words_and_are_no_operators(table: pd.DataFrame) -> None:
    (device,) = table["device"].unique()
    said = next(f for f in headline.findings(table, device) if "Transformer++" in f.lead)
    assert said.figure == "1.50×"
    assert said.sentence.startswith("1.25× at T = 2k, 1.50× at T = 4k")
    titles = {section.name: section.figures for section in figures.sections(table)}
    assert titles["training"]
    assert not titles["speed"]
    assert not titles["memory"]


def test_packed_documents_have_a_figure_of_their_own_and_are_never_merged_with_a_whole_sequence() -> None:
    rows = [step(name, ms, 41.0, T=16384) for name, ms in (("gla_lm", 250.0), ("transformer_lm", 500.0))]
    both = ("gla_lm", 260.0), ("transformer_lm", 312.0)
    rows += [step(name, ms, 41.0, T=16384, lengths="uniform:8") for name, ms in both]
    table = frame(rows)
    plain, packed = training.against(table)
    assert [plain.training, packed.training] == ["1.3b, compiled", "1.3b, compiled, packed uniform:8"]
    assert [plain.at[0][1], packed.at[0][1]] == pytest.approx([2.0, 1.2])
    found = {figure.title: figure for figure in training.figures(table)}
    whole = found["Training: 1.3b, compiled, bf16"]
    assert [[p.value for p in one.points] for one in whole.panels[0].series] == [
        [pytest.approx(16384e3 / 250)], [pytest.approx(16384e3 / 500)],
    ]  # fmt: skip
    (drawn,) = (figure for title, figure in found.items() if title.startswith("Packed sequences: 16k tokens"))
    assert drawn.panels[0].categories == ("one sequence", "packed uniform:8\n0% padding if padded")
    bars = next(figure for figure in found.values() if figure.stacked).panels[0]
    assert "GLA Transformer, T 16k packed uniform:8" in bars.categories


def test_flop_are_a_share_of_the_gpus_peak() -> None:
    row = {"kind": "cuda", "device": GPU, "tflop_per_s": 494.75}
    assert training.mfu(row) == pytest.approx(0.5)
    assert training.mfu(row | {"device": "GeForce"}) is None
    assert training.mfu(row | {"kind": "cpu"}) is None

"""Training steps in sweep files: models, how they are executed, and the work of a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glabench.errors import UserError
from glabench.spec.axes import later
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.models import CONFIGS
from glabench.spec.sweep import Sweep
from glabench.spec.work import operator_work, work

Write = Callable[[str], Sweep]


def cases(sweep: Sweep) -> tuple[Case, ...]:
    return expand(sweep, "cuda").cases


def test_heads_follow_from_the_model(sweep_of: Write) -> None:
    text = "title: x\naxes: {B: 1, T: 64, mode: train, system: gla_lm, model: [tiny, 340m, 1.3b]}\n"
    assert [(c.model, c.H, c.K, c.V) for c in cases(sweep_of(text))] == [
        ("tiny", 2, 16, 32), ("340m", 4, 128, 256), ("1.3b", 4, 256, 512),
    ]  # fmt: skip


def test_a_training_step_is_named_whole_and_comes_back(sweep_of: Write) -> None:
    text = (
        "title: x\naxes: {B: 1, T: 64, mode: train, model: tiny, system: [gla_lm, transformer_lm], "
        "execution: [null, compiled, graph], recompute: [true, false]}\n"
    )
    found = cases(sweep_of(text))
    assert len({case.id for case in found}) == len(found) == 12  # transformer_lm cannot recompute: its rows will say so
    for case in found:
        assert Case.from_dict(case.to_dict()) == case
        assert "recompute" not in later(case.to_dict()) or case.recompute is True
        assert case.gate_strength is None  # gates are the model's


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("system: gla_lm, mode: train", "missing H, K, V: every case needs"),
        ("system: gla_lm, mode: train, model: [null, tiny]", "missing H, K, V: there is no model to size them"),
        ("system: gla_lm, mode: train, model: 350m",
         r"model: expected 340m, 1.3b, tiny or null, got '350m' \(did you mean '340m'\?\)"),
        ("system: gla_lm, mode: train, H: 2, K: 16, V: 32", "mode train: expected a model, 340m or 1.3b or tiny"),
        ("system: gla_lm, model: tiny", "model tiny: expected mode train, got fwdbwd"),
        ("system: gla, H: 2, K: 16, V: 32, execution: compiled", "execution compiled: expected mode train, got fwdbwd"),
        ("system: gla_lm, mode: train, model: tiny, K: 32", "K 32: expected nothing, or 16 as model tiny has it"),
        ("system: gla_lm, mode: train, model: tiny, lengths: 'uniform:64'",
         "lengths uniform:64: expected a document of two tokens, of which one predicts the other"),
        ("system: gla_lm, mode: train, model: tiny, execution: eager",
         "execution: expected compiled, graph or null for eager, got 'eager'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_where(sweep_of: Write, axes: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"\.yaml:2: {said}"):
        cases(sweep_of(f"title: x\naxes: {{B: 1, T: 64, {axes}}}\n"))


def test_a_step_is_six_flop_a_weight_and_token_and_its_operators() -> None:
    config = CONFIGS["340m"]
    weights = 24 * (4 * 1024**2 + 3 * 1024 * 2816) + 32_000 * 1024
    H, K, V = config.heads
    step = Case("gla_lm", 2, 256, H, K, V, mode="train", model="340m")
    inside = operator_work(Case("gla", 2, 256, H, K, V, mode="fwdbwd").to_dict())
    assert work(step.to_dict()) == {"flops": 6 * weights * 512 + 24 * inside["flops"], "hbm_bytes": None}
    attention = Case("fa2", 2, 256, H, K, V, mode="fwdbwd", attn_heads=16, attn_dim=64)
    other = Case("transformer_lm", 2, 256, H, K, V, mode="train", model="340m")
    assert work(other.to_dict())["flops"] == 6 * weights * 512 + 24 * operator_work(attention.to_dict())["flops"]


def test_every_model_has_an_operator_and_its_layers() -> None:
    from glabench.systems.language_model import LAYERS
    from glabench.systems.models.model import SYSTEMS

    models = {name: info for name, info in CATALOG.items() if info.family == "model"}
    assert LAYERS.keys() == models.keys()
    assert set(LAYERS.values()) <= SYSTEMS.keys()
    for info in models.values():
        assert info.inside in CATALOG
        assert info.modes == ("train",)
        assert {"model", "execution"} <= info.takes
    assert all("train" not in info.modes for name, info in CATALOG.items() if name not in models)

"""The language models: alike but for one layer, as large as their names say, causal, and compiled whole."""

from __future__ import annotations

import math

import pytest
import torch

from glabench.systems.models.attention import Attention
from glabench.systems.models.gla import GatedLinearAttention
from glabench.systems.models.model import CONFIGS, SYSTEMS, Block, LanguageModel

TINY = CONFIGS["tiny"]


@pytest.mark.parametrize(("name", "size"), [("340m", 340e6), ("1.3b", 1.3e9)])
def test_models_are_as_large_as_their_names_say(name: str, size: float) -> None:
    with torch.device("meta"):
        counts = {system: LanguageModel(CONFIGS[name], system, 16).parameter_count for system in SYSTEMS}
    assert counts == {system: pytest.approx(size, rel=0.01) for system in SYSTEMS}
    assert counts["gla"] == pytest.approx(counts["fa2"], rel=0.002)


def test_models_differ_in_the_mixing_layer_alone() -> None:
    def others(system: str) -> dict[str, torch.Size]:
        named = LanguageModel(TINY, system, 16).named_parameters()
        return {name: parameter.shape for name, parameter in named if ".mixer." not in name}

    assert others("gla") == others("gla-recompute") == others("fa2")


@pytest.mark.parametrize(("system", "layer"), [("gla", GatedLinearAttention), ("fa2", Attention)])
def test_a_block_is_one_graph(system: str, layer: type) -> None:
    (block, _) = LanguageModel(TINY, system, 16).blocks
    assert isinstance(block, Block)
    assert isinstance(block.mixer, layer)
    x = torch.randn(1, 16, TINY.width)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))


@pytest.mark.parametrize("system", ["gla", "fa2"])
def test_logits_know_no_later_token(system: str) -> None:
    model = LanguageModel(TINY, system, 16)
    tokens = torch.randint(TINY.vocabulary, (1, 16))
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % TINY.vocabulary
    logits, changed = model(tokens), model(other)
    torch.testing.assert_close(changed[:, :9], logits[:, :9])
    assert not torch.equal(changed[:, 9:], logits[:, 9:])


def test_loss_of_weights_that_know_nothing_is_that_of_a_guess() -> None:
    model = LanguageModel(TINY, "fa2", 16)
    model.embedding.weight.data.zero_()
    tokens = torch.randint(TINY.vocabulary, (2, 16))
    assert model.loss(tokens, tokens).item() == pytest.approx(math.log(TINY.vocabulary))

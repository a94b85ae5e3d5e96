"""The language models: alike but for one layer, as large as their names say, causal, and compiled whole."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glabench.systems.inputs import packed
from glabench.systems.models.mamba import STEPS, Mamba
from glabench.systems.models.model import CONFIGS, NO_TARGET, ONE_GRAPH, PACKING, SYSTEMS, Block, LanguageModel, missing

TINY = CONFIGS["tiny"]
SLIM = replace(TINY, layers=1, width=16)  # where the interpreter scans number by number


HERE = [system for system in SYSTEMS if missing(system) is None]


@functools.cache
def parameter_counts(name: str) -> dict[str, int]:
    """Of each system's model of that size, whose numbers nobody draws: there PyTorch draws a hundred times slower."""
    with torch.device("meta"), mock.patch.object(nn.init, "normal_", lambda x, *_, **__: x):
        return {system: LanguageModel(CONFIGS[name], system, 16).parameter_count for system in HERE}


@pytest.mark.parametrize(("name", "size"), [("340m", 341e6), ("1.3b", 1.3e9)])
def test_models_are_as_large_as_their_names_say(name: str, size: float) -> None:
    counts = dict(parameter_counts(name))
    mambas = {system: counts.pop(system) for system in ("mamba", "mamba2")}
    assert counts == dict.fromkeys(counts, pytest.approx(counts["fa2"], rel=0.002))
    assert counts["gla"] == pytest.approx(size, rel=0.01)
    # Mamba has the sizes that it has: 350M, say the authors of GLA
    assert mambas == dict.fromkeys(mambas, pytest.approx(350e6 if name == "340m" else size, rel=0.03))


def test_counts_are_those_of_the_documentation() -> None:
    """In the table of docs/models.md, by system: a cell a system and model, "4 heads, K 128, V 256: 341.7M"."""
    text = (Path(__file__).parents[4] / "docs" / "models.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `") and line.endswith("M |")]
    said = {name.strip(" `"): cells for name, _, *cells in rows if name.strip(" `") in HERE}
    assert said.keys() == set(HERE)
    for column, name in enumerate(("340m", "1.3b")):
        assert {system: cells[column].split(": ")[-1].strip() for system, cells in said.items()} == {
            system: f"{count / 1e6:.1f}M" for system, count in parameter_counts(name).items()
        }


def test_models_differ_in_the_mixing_layer_alone() -> None:
    def others(system: str) -> dict[str, torch.Size]:
        named = LanguageModel(TINY, system, 16).named_parameters()
        return {name: parameter.shape for name, parameter in named if ".mixer." not in name}

    assert others("gla") == others("gla-recompute") == others("retnet") == others("linear") == others("fa2")
    mamba = others("mamba")
    assert mamba.items() >= {name: shape for name, shape in others("fa2").items() if ".mlp." not in name}.items()


@pytest.mark.parametrize("system", ["mamba", "mamba2"])
def test_a_block_of_mamba_is_two_layers_of_it(system: str) -> None:
    (block, _) = LanguageModel(TINY, system, 16).blocks
    assert isinstance(block, Block)
    assert type(block.mixer) is type(block.mlp)


@pytest.mark.exhaustive(system=("gla-recompute", "linear", "retnet"))
@pytest.mark.parametrize("system", ONE_GRAPH)
def test_a_block_is_one_graph(system: str) -> None:
    (block, _) = LanguageModel(TINY, system, 16).blocks
    x = torch.randn(1, 16, TINY.width)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))


@pytest.mark.parametrize("system", HERE)
def test_logits_know_no_later_token(system: str) -> None:
    model = LanguageModel(SLIM if system == "mamba" else TINY, system, 16)
    tokens = torch.randint(TINY.vocabulary, (1, 16))
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % TINY.vocabulary
    logits, changed = model(tokens), model(other)
    torch.testing.assert_close(changed[:, :9], logits[:, :9])
    assert not torch.equal(changed[:, 9:], logits[:, 9:])


DOCUMENTS = (5, 1, 20, 9)
PACKED = sorted({*PACKING} - {"gla-recompute"})  # which runs the operator of "gla"


@pytest.mark.parametrize("system", PACKED)
def test_packed_documents_are_each_alone(system: str) -> None:
    """Logits are those of each document by itself, and the loss that of all tokens after which another of theirs
    comes."""
    model = LanguageModel(TINY, system, sum(DOCUMENTS))
    tokens, targets = torch.randint(TINY.vocabulary, (2, 1, sum(DOCUMENTS))).unbind()
    targets[:, torch.tensor(DOCUMENTS).cumsum(0) - 1] = NO_TARGET
    bounds = packed(DOCUMENTS, "cpu")
    with torch.no_grad():
        logits, loss = model(tokens, bounds), model.loss(tokens, targets, bounds)
        alone = torch.cat([model(part) for part in tokens.split(DOCUMENTS, 1)], 1)
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-5)
    counted = targets != NO_TARGET
    assert counted.sum() == sum(DOCUMENTS) - len(DOCUMENTS)
    torch.testing.assert_close(loss, F.cross_entropy(alone[counted], targets[counted]))


@pytest.mark.parametrize("system", ["mamba", "mamba2"])
def test_layers_that_cannot_tell_documents_apart_say_so(system: str) -> None:
    with pytest.raises(ValueError, match=f"packed: expected None for '{system}', whose layers take no bounds"):
        LanguageModel(TINY, system, 8)(torch.zeros(1, 8, dtype=torch.long), packed((3, 5), "cpu"))


@pytest.mark.exhaustive(system={*PACKED} - {"gla", "fa2"})
@pytest.mark.parametrize("system", PACKED)
def test_a_block_of_packed_documents_is_one_graph_for_all_steps(system: str) -> None:
    """Other bounds of as many documents, and as long a longest one, are no other graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = LanguageModel(TINY, system, 16)
    tokens = torch.randint(TINY.vocabulary, (1, 16))
    right = [model.hidden(tokens, packed(documents, "cpu")) for documents in ((9, 7), (7, 9))]
    model.compile_parts(backend=backend)
    for documents, expected in zip(((9, 7), (7, 9)), right, strict=True):
        torch.testing.assert_close(model.hidden(tokens, packed(documents, "cpu")), expected, rtol=1e-4, atol=1e-5)
        assert len(graphs) == 1
    torch._dynamo.reset()


def test_the_compiled_loss_is_that_of_eager_steps() -> None:
    torch._dynamo.reset()
    model, tokens = LanguageModel(SLIM, "linear", 16).to(torch.bfloat16), torch.randint(TINY.vocabulary, (2, 9))
    targets = tokens[:, 1:].index_fill(1, torch.tensor([3]), NO_TARGET)
    found = []
    for compiled in (False, True):
        if compiled:
            model.compile_parts(backend="aot_eager_decomp_partition")
        loss = model.loss(tokens[:, :-1], targets)
        found.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    assert found[1][0].dtype == torch.float32
    for eager, again in zip(*found, strict=True):
        torch.testing.assert_close(again, eager, rtol=2**-6, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.exhaustive(system=("mamba",))
@pytest.mark.parametrize("system", HERE)
def test_a_model_learns_its_batch(system: str) -> None:
    width = 4 if system == "mamba" else 32
    model = LanguageModel(replace(SLIM, width=width, hidden=32), system, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    tokens = torch.randint(TINY.vocabulary, (1, 6))
    first = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss = first
    for _ in range(2):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    assert loss.item() < first.item() - 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_steps_of_mamba_begin_as_its_layer_has_them() -> None:
    (block, _) = LanguageModel(TINY, "mamba", 16).blocks
    assert isinstance(block.mixer, Mamba)
    low, high = STEPS
    steps = F.softplus(block.mixer.dt_proj.bias)
    assert low * 0.99 < steps.min() < steps.max() < high * 1.01


def test_loss_of_weights_that_know_nothing_is_that_of_a_guess() -> None:
    model = LanguageModel(TINY, "fa2", 16)
    model.embedding.weight.data.zero_()
    tokens = torch.randint(TINY.vocabulary, (2, 16))
    assert model.loss(tokens, tokens).item() == pytest.approx(math.log(TINY.vocabulary))

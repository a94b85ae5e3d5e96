"""The program of long sequences: that steps by segments are those of truncated backpropagation, its rows and table."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from glabench.hardware.environment import detect_device
from glabench.run.train import made
from glabench.tools.long_sequences.__main__ import app, show, sound
from glabench.tools.long_sequences.training import Segmented, Way, apart, by_segments, model_of, trainer_of
from glabench.tools.rows import Row

CPU = torch.device("cpu")
WAY = Way(B=1, T=26, segments=2)  # a boundary is within a chunk


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These products are too small for two. What `forget_compiled` tells torch.compile is for programs that train."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch.set_num_threads(threads)


def gradients(loss: Tensor, model: torch.nn.Module) -> dict[str, Tensor]:
    names = dict(model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


def test_a_step_by_segments_stops_gradients_between_them_and_nothing_else() -> None:
    """Through states that are not detached, segments have the whole sequence's gradients; detached, the step's."""
    trainer = trainer_of("tiny", WAY, CPU, torch.float32, compiled=False)
    assert isinstance(trainer, Segmented)
    model, halves = trainer.model, [x.tensor_split(2, 1) for x in (trainer.tokens, trainer.targets)]

    def by_hand(cut: bool) -> dict[str, Tensor]:
        (first, second), targets = halves
        logits, states = model.continued(first)
        after, _ = model.continued(second, [x.detach() for x in states] if cut else states)
        pairs = zip((logits, after), targets, strict=True)
        return gradients(torch.stack([F.cross_entropy(x[0], y[0]) for x, y in pairs]).mean(), model)

    whole, through, truncated = gradients(trainer.forward(), model), by_hand(cut=False), by_hand(cut=True)
    seen: dict[str, Tensor] = {}

    def look() -> None:
        seen.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    trainer.optimizer.register_step_pre_hook(lambda *_: look())
    loss = trainer.step()
    for name, right in whole.items():
        torch.testing.assert_close(through[name], right, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(seen[name], truncated[name], rtol=1e-3, atol=1e-6)
    key = "blocks.0.mixer.k_proj.weight"
    assert (truncated[key] - whole[key]).norm() > 1e-2 * whole[key].norm()
    assert loss.isfinite()


def test_logits_by_segments_are_the_whole_ones() -> None:
    model = made(model_of("tiny", WAY, torch.float32), CPU)
    tokens = torch.randint(64, (2, 26))
    with torch.no_grad():
        whole = model(tokens)
        for segments in (2, 4):
            assert apart(by_segments(model, tokens, segments), whole)["error"] < 1e-5
        forgetful = torch.cat([model(part) for part in tokens.tensor_split(2, 1)], 1)
    assert apart(forgetful, whole)["error"] > 1e-2


def test_segments_share_one_graph() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = made(model_of("tiny", WAY, torch.float32), CPU)
    tokens = torch.randint(64, (1, 32))
    right = by_segments(model, tokens, 4)
    model.compile_parts(segments=True, backend=backend)
    torch.testing.assert_close(by_segments(model, tokens, 4), right, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 2  # of the first segment, which follows on none, and of all others
    torch._dynamo.reset()


def test_other_layers_carry_no_state() -> None:
    from glabench.systems.models.model import CONFIGS, LanguageModel

    with pytest.raises(ValueError, match="states: expected a system of gla, got 'fa2'"):
        LanguageModel(CONFIGS["tiny"], "fa2", 8).continued(torch.zeros(1, 8, dtype=torch.long))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What the program wrote."""
    out: Path = tmp_path_factory.mktemp("long") / "new" / "long.rows"
    done = CliRunner().invoke(app, ["--tiny", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "40 tokens in 2 segments" in done.output
    again = CliRunner().invoke(app, ["--read", str(out)])
    assert again.output == done.output
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.exhaustive
def test_a_row_a_way(rows: list[Row]) -> None:
    assert [(row["T"], row["segments"]) for row in rows] == [(40, 1), (40, 2), (20, 1)]
    for row in rows:
        assert row["kind"] == "long sequences"
        assert len(row["wall_ms"]) == 2
        assert {"commit", "torch", "triton", "device"} <= set(row["environment"])
        assert (row["forward"] is not None) == (row["segments"] > 1)
        assert sound(row)
    whole, segments, _ = rows
    assert segments["loss_first"] == pytest.approx(whole["loss_first"], abs=1e-5)
    found = segments["forward"]["float32"]
    assert found["whole"]["error"] == 0
    assert found["segments"]["error"] < 1e-5
    assert found["segments"]["losses"] == pytest.approx(found["whole"]["losses"], abs=1e-5)


@pytest.mark.exhaustive
def test_what_is_not_sound(rows: list[Row]) -> None:
    def logits(fine: float, coarse: float) -> Row:
        both = {"whole": {"error": 0.01}, "segments": {"error": coarse}}
        return rows[1] | {"forward": {"float32": {"segments": {"error": fine}}, "bfloat16": both}}

    assert sound(logits(1e-4, 0.011))
    assert not sound(logits(1e-2, 0.011))
    assert not sound(logits(1e-4, 0.03))
    assert not sound(logits(math.nan, 0.01))
    assert not sound(rows[1] | {"forward": {"float32": {"segments": {"error": 2e-5}}}})
    assert not sound(rows[0] | {"loss_last": rows[0]["loss_first"]})
    assert not sound(rows[0] | {"loss_last": math.nan})
    assert sound(rows[0] | {"oom": True})


@pytest.mark.exhaustive
def test_costs_are_shown_of_a_gpu_alone(rows: list[Row]) -> None:
    gpu = {"environment": {"kind": "cuda", "device": "GPU"}, "wall_ms": [10.0, 20.0, 12.0], "peak_bytes": 3 * 2**30}
    out = io.StringIO()
    show([rows[0] | gpu, rows[1] | gpu | {"oom": True}], Console(file=out, width=150))
    text = out.getvalue()
    assert "12.0" in text
    assert "3,333" in text
    assert "3.0" in text
    assert "out of memory" in text


@pytest.mark.skipif(detect_device() == "cuda", reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    done = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "only --tiny needs none" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--models", "340"], "did you mean '340m'"), (["--models", "tiny"], "unknown 'tiny'")],
)
def test_bad_input_is_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert says in done.output

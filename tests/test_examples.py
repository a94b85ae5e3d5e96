"""The examples run, and what they say is so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve", ROOT / "examples" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["serve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def model(serve: ModuleType) -> Any:
    torch.manual_seed(0)
    return serve.Model(words=24, width=32, heads=2, layers=1)


def greedy(model: Any, prompt: list[int], wanted: int) -> list[int]:
    """Without a pool or pieces: every token is read again for each one that is found."""

    def mix(mixer: Any, x: Tensor) -> Any:
        return mixer(x)[0]

    tokens = list(prompt)
    for _ in range(wanted):
        x = model.embedding(torch.tensor(tokens))[None]
        for block in model.blocks:
            x = block(x, mix)
        tokens.append(int(model._likeliest(x[0, -1:])))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("tail", [0, 3])
def test_the_engine_finds_what_a_plain_loop_finds(serve: ModuleType, model: Any, tail: int) -> None:
    """More requests than slots, prompts of more than a piece and of one token, and one that is done at once."""
    asked = [([3, 1, 4] * 6, 3), ([5], 2), ([2, 7], 1), ([8, 2, 8, 1], 2)]
    requests = [serve.Request(prompt, wanted) for prompt, wanted in asked]
    with torch.no_grad():
        serve.Engine(model, 2, 16, torch.float32, tail).run(requests)
        right = [greedy(model, prompt, wanted) for prompt, wanted in asked]
    assert [one.found for one in requests] == right


def test_a_request_that_finds_other_tokens_alone_is_counted(
    serve: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = serve.alone

    def forgets(engine: Any, requests: Any) -> Any:
        for number, one in enumerate(alone(engine, requests)):
            yield serve.Request(one.prompt, one.wanted, one.found[number == 0 :])

    monkeypatch.setattr(serve, "alone", forgets)
    assert serve.main(["--tiny"]) == 1
    assert "2 of 3 find the same tokens as alone" in capsys.readouterr().out

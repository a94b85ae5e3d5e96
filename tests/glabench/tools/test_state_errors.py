"""The errors of states in few bits, at a small size."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from glabench.tools.state_errors import Decoding, app, drifts


@pytest.fixture(scope="module")
def found(device):
    what = Decoding(B=1, K=16, V=16, tokens=100, decay=None)
    return {(one.dtype, one.stochastic, one.tail): one for one in drifts(what, device)}


def test_each_way_to_keep_states_is_there(found):
    assert len(found) == 14
    assert all(one.o > 0 and one.state > 0 for one in found.values())


def test_fewer_bits_err_more(found):
    errors = [found[dtype, False, 0].state for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn")]
    assert errors == sorted(errors)
    assert errors[0] < 1e-6


def test_a_tail_rounds_more_seldom(found):
    for (dtype, stochastic, tail), one in found.items():
        if tail and dtype != "float32":
            assert one.state < found[dtype, stochastic, 0].state


def test_small_summands_get_lost_to_nearest_alone(device):
    """A state that grows, until what a token adds is less than half a unit."""
    what = Decoding(B=1, K=16, V=16, tokens=400, decay=None, mean=1.0)
    nearest, by_chance = drifts(what, device, [torch.float8_e4m3fn], [0])
    assert by_chance.state < nearest.state / 2


def test_a_table_is_printed(monkeypatch):
    monkeypatch.setattr("glabench.tools.state_errors.DTYPES", ())
    done = CliRunner().invoke(app, ["--tokens", "70", "--batch", "1", "--decay", "0"])
    assert done.exit_code == 0, done.output
    assert "70 tokens, no gates, mean 0" in done.output

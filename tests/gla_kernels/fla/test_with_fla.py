"""With flash-linear-attention itself, where it is installed: its parameters, its modules, its layers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import gla_kernels.fla
from gla_kernels.fla import accelerate, calls, which
from gla_kernels.fla.patch import OURS, parameters

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROBE = Path(__file__).with_name("model_probe.py")


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    pytest.importorskip("fla.ops.gla", reason="flash-linear-attention is not installed")


def test_parameters_are_those_of_the_fla_that_is_installed():
    for name, where in {**which.WHERE, "fused_chunk_gla": "fla.ops.gla"}.items():
        theirs = which.THEIRS.get(name) or getattr(importlib.import_module(where), name)
        assert parameters(theirs) == parameters(getattr(gla_kernels.fla, name)), name


def test_fla_holds_none_of_its_own_functions_meanwhile():
    def holders(functions):
        """Modules of FLA that hold one of them."""
        ids = {id(function) for function in functions}
        modules = [(name, module) for name, module in sys.modules.items() if name.split(".")[0] == "fla"]
        return {name for name, module in modules if ids & {id(value) for value in vars(module).values()}}

    for name in which.WHERE:
        which.load(name)
    before = holders(which.THEIRS.values())
    assert {"fla.ops", "fla.ops.gla.chunk", "fla.ops.lightnet.chunk", "fla.ops.retention.chunk"} <= before
    with accelerate():
        assert holders(which.THEIRS.values()) == set()
        assert holders(OURS.values()) == before
    assert holders(which.THEIRS.values()) == before
    assert holders(OURS.values()) == set()


def test_functions_compute_what_flas_plain_form_does(inputs):
    from fla.ops.gla.naive import naive_recurrent_gla

    x = inputs((2, 40, 2, 16, 24), torch.float32, 1.0)
    want = naive_recurrent_gla(x.q, x.k, x.v, x.g, x.initial_state, True)
    with accelerate():
        ops = importlib.import_module("fla.ops")
        chunked = ops.chunk_gla(x.q, x.k, x.v, x.g, None, x.initial_state, True)
        recurrent = ops.fused_recurrent_gla(x.q, x.k, x.v, x.g, None, None, x.initial_state, True)
    for o, final in (chunked, recurrent):
        torch.testing.assert_close(o, want[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(final, want[1], rtol=1e-4, atol=1e-4)
    assert calls() == {("chunk_gla", None): 1, ("fused_recurrent_gla", None): 1}


@pytest.mark.parametrize("model", ["gla", "retnet", "linear"])
def test_a_model_of_fla(python_process, model):
    """Its loss and gradients by these kernels are those by plain PyTorch, and it decodes as it reads: see the probe."""
    pytest.importorskip("fla.models", reason="flash-linear-attention's models need transformers")
    done = python_process(str(PROBE), model, interpret=DEVICE == "cpu", timeout=280)
    assert done.stdout.splitlines()[-1] == "alike"

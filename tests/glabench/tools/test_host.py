"""The program that says where Python's time goes: what it notes of a call, its lines, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gla_kernels import gla
from gla_kernels.launch.image import Image
from gla_kernels.ops import autograd
from gla_kernels.ops.prepared import Prepared
from glabench.hardware.environment import detect_device
from glabench.tools.host import PARTS, Watch, app, queued, report

NEEDS_NONE = pytest.mark.skipif(detect_device() == "cuda", reason="there is a GPU")


def test_it_says_what_it_is_for() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert "--shape" in done.output


@NEEDS_NONE
def test_without_a_gpu_it_says_so_in_a_line() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith("error: there is no usable NVIDIA GPU here")


@pytest.mark.parametrize("shape", ["1,2,3,4", "1,2,3,4,0", "1,2,3,4,x", ""])
def test_what_is_no_shape_is_refused(shape: str) -> None:
    done = CliRunner().invoke(app, ["--shape", shape])
    assert done.exit_code == 2
    assert "B,T,H,K,V" in done.output


def test_a_call_has_all_parts_and_nothing_stays_watched(device: torch.device) -> None:
    before: Any = (Prepared.forward, autograd._gradients, Image.fire)
    x = [torch.randn(1, 20, 1, 16, device=device).requires_grad_() for _ in range(3)]
    watch = Watch()
    with watch.watching():
        for _ in range(2):  # each call anew
            forward, backward, *parts = queued(lambda: gla(x[0], x[1], x[2], None)[0], x, x[2].detach(), watch)
    assert len(parts) == len(PARTS)
    assert sum(parts) == pytest.approx(forward + backward)
    assert len(watch.fired) == (2 if device.type == "cuda" else 0)
    assert (Prepared.forward, autograd._gradients, Image.fire) == before


def test_lines_are_of_medians() -> None:
    ours = [[10.0 * n, 20.0 * n, *(float(n * part) for part in range(1, 6))] for n in (1, 9, 2)]
    lines = report(ours, [[15.0, 35.0]])
    assert [line.split()[-2:] for line in lines[1:3]] == [["20.0", "40.0"], ["15.0", "35.0"]]
    assert [line.split()[-1] for line in lines[3:]] == ["2.0", "4.0", "6.0", "8.0", "10.0"]
    assert [line[2:-10].strip() for line in lines[3:]] == list(PARTS)


@pytest.mark.gpu
def test_on_a_gpu_both_passes_are_fired_both_ways() -> None:
    done = CliRunner().invoke(app, ["--shape", "1,128,2,64,64", "--calls", "3"])
    assert done.exit_code == 0, done.output
    assert done.output.count("one by one") == done.output.count("as a graph") == 2

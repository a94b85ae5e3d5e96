"""``glabench doctor`` as it is printed."""

from __future__ import annotations

import pytest
import triton
import typer

from glabench.commands.doctor import doctor
from glabench.hardware import diagnosis, environment
from glabench.hardware.diagnosis import Finding


def test_the_doctor_runs_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    doctor()
    printed = capsys.readouterr().out
    for word in ("Machine", "GPU", "Software", "torch", "Triton", "Plans", "Systems", "chunkwise_torch"):
        assert word in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_a_rival_that_cannot_run_here_is_no_defect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "gpu_name", lambda: None)
    monkeypatch.setenv("COLUMNS", "200")
    show([], monkeypatch)
    printed = capsys.readouterr().out
    assert any("fa2" in line and "needs an NVIDIA GPU" in line for line in printed.splitlines())
    assert "Nothing to fix" in printed


def show(findings: list[Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "examine", lambda: findings)
    doctor()


@pytest.mark.parametrize("here", ["3.6.0", "9.9"])
def test_plans_say_what_they_were_tuned_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    monkeypatch.setattr(triton, "__version__", here)
    monkeypatch.setenv("COLUMNS", "200")
    show([], monkeypatch)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "NVIDIA H200" in line)
    assert "tuned with Triton 3.6.0" in line
    assert ("outdated" in line) == (here != "3.6.0")


def test_nothing_to_fix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    show([Finding("GPU", "GPU", "NVIDIA H200")], monkeypatch)
    assert "Nothing to fix" in capsys.readouterr().out


def test_what_should_be_fixed_is_no_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show([Finding("GPU", "temperature", "91 °C", "let the GPU cool down")], monkeypatch)
    assert "1. should: let the GPU cool down" in capsys.readouterr().out


def test_what_is_broken_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.Exit) as exit_:
        show([Finding("Software", "torch", "not installed", "pip install torch", broken=True)], monkeypatch)
    assert exit_.value.exit_code == 1
    assert "1. must: pip install torch" in capsys.readouterr().out

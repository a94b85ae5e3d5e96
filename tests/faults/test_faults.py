"""A short campaign: one fault of each kind. The long one is ``python tests/faults/campaign.py``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CAMPAIGN = str(Path(__file__).with_name("campaign.py"))


def test_every_case_has_one_right_row_whatever_fails(
    python_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = python_process(CAMPAIGN, "--cases", "16", "--injections", "12", "--limit", "3")
    assert "16 cases, 12 faults of 12 kinds" in done.stdout
    assert "each is right" in done.stdout


@pytest.mark.gpu
def test_so_it_is_with_the_faults_of_a_gpu(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process(CAMPAIGN, "--cases", "16", "--injections", "12", "--device", "cuda", "--workers", "4")
    assert "16 cases, 12 faults of 12 kinds" in done.stdout
    assert "each is right" in done.stdout

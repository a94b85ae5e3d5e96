"""A process that compiles kernels, forked from one that has imported what takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., str]


def test_code_is_run_with_its_arguments_and_what_it_prints_comes_back(compiling_process: Start) -> None:
    code = "import sys, triton; print(__name__, sys.argv[1:], triton.knobs.runtime.interpret)"
    assert compiling_process("-c", code, "a", "b") == "__main__ ['a', 'b'] False\n"


def test_a_program_is_run_and_a_process_knows_nothing_of_the_one_before(
    compiling_process: Start, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, torch; print(hasattr(torch, 'mine'), sys.argv[1:]); torch.mine = 1")
    for _ in range(2):
        assert compiling_process(str(program), "a") == "False ['a']\n"


@pytest.mark.parametrize("code", ["1 / 0", "import sys; sys.exit(3)", "import sys; sys.exit('no')",
                                  "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"])  # fmt: skip
def test_what_fails_fails_its_test_and_not_the_next(compiling_process: Start, code: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="exit code"):
        compiling_process("-c", code)
    assert compiling_process("-c", "print(1)") == "1\n"

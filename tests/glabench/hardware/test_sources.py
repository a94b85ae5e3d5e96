"""Which files the fingerprint of rows is of: those that a case meets, and none that only show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import glabench
from glabench.hardware.sources import ROOMS, result_sources

PACKAGE = Path(glabench.__file__).parent

# Runs cases of three kinds, then says which files of the package were imported for them.
RUN = """
import sys
from pathlib import Path
import glabench
from glabench.run.pipeline import run_case
from glabench.spec.case import Case
from glabench.spec.settings import Settings

settings = Settings(device="cpu", min_samples=1, min_time_s=1e-9, warmup_s=1e-9)
for system in ("sdpa", "chunkwise_torch"):
    case = Case(system, 1, 16, 1, 16, 16, dtype="fp32", chunk=16 if system == "chunkwise_torch" else None)
    assert run_case(case, "test", settings).status == "ok"
package = Path(glabench.__file__).parent
for module in list(sys.modules.values()):
    if module.__name__.startswith("glabench.") and getattr(module, "__file__", None):
        print(Path(module.__file__).relative_to(package).as_posix())
"""


def names() -> set[str]:
    return {path.relative_to(PACKAGE).as_posix() for path in result_sources(PACKAGE)}


def test_all_that_running_a_case_imports_is_among_them(
    compiling_process: Callable[..., str],
) -> None:
    """And what a process imports that compiles, in a fork of which this runs."""
    met = set(compiling_process("-c", RUN).split())
    computing = {name for name in met if name.split("/")[0] in ROOMS}
    assert {"run/gate.py", "run/measure.py", "spec/case.py", "systems/sdpa.py"} <= computing
    assert computing - names() == set()


def test_what_a_gpu_or_a_model_alone_imports_is_among_them() -> None:
    assert {"run/sm_clock.py", "run/cold.py", "run/eager.py", "run/autotuned.py", "hardware/crosscompile.py"} <= names()
    assert {"run/training.py", "systems/models/gla.py", "systems/baselines/form.py", "spec/models.py"} <= names()


def test_what_shows_or_plans_is_not() -> None:
    rooms = {name.split("/")[0] for name in names()}
    assert rooms == set(ROOMS)
    assert not names() & {"run/driver.py", "run/progress.py", "spec/expand.py", "hardware/diagnosis.py"}


def test_imports_of_several_lines_and_for_the_type_checker_alone(tmp_path: Path) -> None:
    several = "from glabench.run import (\n    one,\n    two,\n)\n\n\ndef f():\n    import glabench.run.three\n"
    typed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from glabench.run import typed\n\nX = 1\n"
    files = {"run/pipeline.py": several, "run/one.py": typed}
    files |= {f"run/{name}.py": "" for name in ("two", "three", "typed", "never")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {path.stem for path in result_sources(tmp_path)}
    assert found == {"pipeline", "one", "two", "three"}

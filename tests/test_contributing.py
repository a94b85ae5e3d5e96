"""The worked examples of CONTRIBUTING.md do what they say, as they are printed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import the example that names ``path`` in its first line, under the name that it would have there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    examples = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))

    def start(path: str) -> ModuleType:
        name = path.removeprefix("kernels/").removesuffix(".py").replace("/", ".")
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(examples[path], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return start


def test_system(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the gate and is timed on a CPU."""
    from glabench.run.pipeline import run_case
    from glabench.spec import catalog
    from glabench.spec.case import Case
    from glabench.spec.settings import Settings
    from glabench.systems.base import load as load_system

    load("glabench/systems/sdpa_math.py")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"`(_attention\(.*?\))`", text)
    info = eval(entry, vars(catalog))
    monkeypatch.setitem(catalog.CATALOG, info.name, info)

    settings = Settings(device="cpu", min_samples=2, max_samples=2, min_time_s=0.001, max_time_s=0.01, warmup_s=0.001)
    case = Case("sdpa_math", B=1, T=64, H=2, K=32, V=32, dtype="fp32", gate_strength=None, attn_heads=2, attn_dim=32)
    row = run_case(case, "example", settings, load_system("sdpa_math"))
    assert (row.status, row.reason) == ("ok", None)
    assert row.implementation is not None
    assert row.implementation.endswith("SDPA math")
    assert row.time is not None
    assert len(row.time["samples_ms"]) >= 2


# Run with the example's axis in place: what a user meets of it, from a sweep file to a page.
OF_AN_AXIS = """
from pathlib import Path
from glabench import schema
from glabench.analysis import compare
from glabench.analysis.frame import frame
from glabench.commands.compare import compare as command
from glabench.report import text
from glabench.run.pipeline import run_case
from glabench.spec.axes import reference
from glabench.spec.expand import expand
from glabench.spec.settings import Settings
from glabench.spec.sweep import load
from glabench.store import from_json, to_json
import inspect, torch

axes = "{system: [recurrent_torch, sdpa], key_scale: [null, 4]}"
Path("mine.yaml").write_text("title: x\\ndefaults: {B: 1, T: 8, H: 1, K: 8, V: 8, dtype: fp32}\\naxes: " + axes)
plain, large, _, untaken = expand(load(Path("mine.yaml")), "cpu").cases
settings = Settings(device="cpu", min_samples=2, max_samples=2, min_time_s=0.001, max_time_s=0.01, warmup_s=0.001)
rows = [from_json(to_json(run_case(case, "mine", settings))) for case in (plain, large, untaken)]
assert [row.status for row in rows] == ["ok", "ok", "unsupported"], rows
assert rows[2].reason == "sdpa has no keys of another size", rows[2].reason
assert "key_scale" not in rows[0].case and rows[1].case["key_scale"] == 4
table = frame(rows[:2])
assert len(compare.answers(table)) == 2  # two questions
assert [text.shape(line) for line in table.to_dict("records")] == ["B1 T8 H1 8", "B1 T8 H1 8 keys times 4"]
assert "key_scale" in inspect.signature(command).parameters
assert "key_scale" in schema.sweep()["$defs"]["Case"]["properties"]
assert any("`key_scale`" in line for line in reference())
from glabench.systems.inputs import make_inputs
one, four = (make_inputs(case, "gla", "cpu") for case in (plain, large))
assert torch.equal(four.k, 4 * one.k) and torch.equal(four.q, one.q)
print("all of it")
"""
FILES_OF_AN_AXIS = 4


@pytest.mark.exhaustive
def test_axis(tmp_path: Path) -> None:
    """Put where it says, in so few files, the example is an axis from a sweep file to a page."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Add an axis\n")[1].split("\n## ")[0]
    examples = re.findall(r"^```python\n# (\S+\.py), [^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len({path for path, _ in examples}) == len(examples) < FILES_OF_AN_AXIS  # and one for a test of its own
    shutil.copytree(ROOT / "glabench", tmp_path / "glabench")
    places = {
        "glabench/spec/axes.py": r"\n(?=\n\nAXES: )",
        "glabench/systems/inputs.py": r"(?<=\n)(?=}\n\n\ndef gate_shape)",
        "glabench/spec/catalog.py": r"OPERATOR = .*\n",
    }
    for path, code in examples:
        before = (tmp_path / path).read_text(encoding="utf-8")
        (place,) = re.finditer(places[path], before)
        kept = "\n" if place[0] == "\n" else ""
        (tmp_path / path).write_text(before[: place.start()] + kept + code + before[place.end() :], encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "kernels")])
    asked = [sys.executable, "-c", OF_AN_AXIS]
    ran = subprocess.run(asked, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert ran.stdout == "all of it\n", ran.stderr


def test_no_later_axis_is_named_in_more_files() -> None:
    """Of the axes that are numbers alone: the catalogues, what makes their inputs, and the system that says so."""
    named = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "glabench").rglob("*.py")
        if re.search(r"\bresets\b", path.read_text(encoding="utf-8"))
    }
    assert named == {
        "glabench/spec/axes.py", "glabench/spec/catalog.py", "glabench/systems/inputs.py", "glabench/systems/fla.py",
    }  # fmt: skip


def test_kernel_step(load: Load, device: torch.device) -> None:
    """The example's own test passes, and fails when the kernel is not what it should be."""
    step = load("kernels/gla_kernels/chunk/gate_sums.py")
    example = load("tests/gla_kernels/test_gate_sums.py")
    test: Any = example.test_gate_sums_are_those_of_float64
    (mark,) = test.pytestmark
    for length in mark.args[1]:
        test(device, length)

    def wrong(g: torch.Tensor, chunk: int, launch: Callable[..., None]) -> torch.Tensor:
        result: torch.Tensor = step.gate_sums(g, chunk, launch)
        return result - g

    vars(example)["gate_sums"] = wrong
    with pytest.raises(AssertionError):
        test(device, 63)


def test_figure(load: Load) -> None:
    """It draws a point for each case that went through the gate."""
    from glabench.analysis.frame import frame
    from glabench.spec.case import Case
    from glabench.store import Row

    def row(system: str, length: int, error: float) -> Row:
        case = Case(system, B=1, T=length, H=2, K=32, V=32)
        outputs = {"o": {"error": error, "baseline": 1e-3, "tolerance": 4e-3}}
        accuracy = {"passed": True, "where": "cpu", "outputs": outputs}
        return Row(
            case.id, "example", case.to_dict(), "ok", accuracy=accuracy, environment={"device": "CPU", "kind": "cpu"}
        )

    figures = load("glabench/report/accuracy.py")
    table = frame(
        [row("recurrent_torch", 64, 1e-3), row("chunkwise_torch", 64, 2e-3), row("chunkwise_torch", 128, 3e-3)]
    )
    (figure,) = figures.error_share(table)
    values = [point.value for panel in figure.panels for series in panel.series for point in series.points]
    assert sorted(values) == pytest.approx([0.25, 0.5, 0.75])
    assert figures.error_share(table.iloc[:0]) == ()


def test_claim() -> None:
    """It is one of the claims as it stands there."""
    from glabench.analysis import claims

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(Claim\(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert eval(example, vars(claims)) in claims.CLAIMS


def test_every_hopper_kernel_has_its_place() -> None:
    """In the table of "Change a Hopper kernel", beside the host code that chooses it."""
    text = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .split("\n## Change a Hopper kernel\n")[1]
        .split("\n## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    chunk = ROOT / "kernels" / "gla_kernels" / "chunk"
    named = {name for row in rows for name in re.findall(r"`(\w+\.py)`", row[-1])}
    assert named == {path.name for path in (chunk / "hopper").glob("*.py")} - {"__init__.py"}
    for row in rows[:-1]:
        for host in re.findall(r"`(\w+\.py)`", row[1]):
            assert "from .hopper import" in (chunk / host).read_text(encoding="utf-8"), host

"""Whatever is in a file that glabench reads, what comes of it is its content or one clear line.

``GLABENCH_FUZZ=10000 pytest tests/fuzz --timeout 0`` tries ten thousand inputs a reader.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gla_kernels.plan import table
from glabench import store, tuning_store
from glabench.errors import UserError
from glabench.hardware import ceilings
from glabench.spec.case import CASE_FIELDS, Case
from glabench.spec.expand import check
from glabench.spec.sweep import SweepFile, load

ROOT = Path(__file__).parents[2]
MOST_LINE = 2000  # characters of an error


def leaves() -> st.SearchStrategy[Any]:
    words = ["gla", "sdpa", "bf16", "fwd", "all", "", "nan", "x" * 300, "<script>", "\x00", "é\u2028"]
    numbers = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, 64, -1, 10**400])
    return st.none() | st.booleans() | numbers | st.sampled_from(words) | st.text(max_size=8)


def trees(keys: list[str]) -> st.SearchStrategy[Any]:
    """Nested data with keys that the reader may know."""
    names = st.sampled_from(keys) | st.text(max_size=6)
    return st.recursive(
        leaves(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6), max_leaves=20
    )


@st.composite
def edited(draw: st.DrawFn, texts: list[str], tokens: list[str]) -> str:
    """One of the texts with pieces cut out, doubled, and tokens put in."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        put = draw(st.sampled_from(["", text[start:end] * 2, *tokens]) | st.text(max_size=5))
        text = text[:start] + put + text[end:]
    return text


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """JSON data with one value in it replaced."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(changed(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], draw(changed(value[index])), *value[index + 1 :]]
    return draw(trees(["a"]))


def clear(error: Exception, name: str = "") -> None:
    """It is one line, not too long, that names the file."""
    text = str(error)
    assert name in text
    assert "\n" not in text
    assert len(text) < MOST_LINE


def written(name: str, content: str | bytes, read: Callable[[Path], Any]) -> None:
    """Read a file of that content; what is wrong with it is one clear line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
        try:
            read(path)
        except UserError as error:
            clear(error, name)


SWEEPS = [path.read_text() for path in sorted((ROOT / "sweeps").glob("*.yaml")) if path.stat().st_size < 3000]
YAML_TOKENS = [
    "&a ", "*a", "<<: *a", "!!int ", "!!set ", "!!binary ", "!!timestamp ", "!!python/name:os.system ", "{", "[", "]",
    "}", ": ", "\n", "? ", "- ", "2026-13-45", "1:99:99", "0x" + "f" * 2000, ".inf", ".nan", "-1", "%YAML 9.9\n",
    "---\n", "\t",
]  # fmt: skip
SWEEP_KEYS = [*SweepFile.model_fields, *CASE_FIELDS, "cpu", "cuda", "H,K,V", "head_dim", "max_time_s"]


@given(
    edited(SWEEPS, YAML_TOKENS)
    | trees(SWEEP_KEYS).map(lambda tree: json.dumps(tree))
    | st.dictionaries(st.sampled_from(SWEEP_KEYS), trees(SWEEP_KEYS)).map(
        lambda tree: json.dumps({"title": "t"} | tree)
    )
    | st.binary(max_size=60)
    | st.text(max_size=60)
)
def test_sweeps(content: str | bytes) -> None:
    written("sweep.yaml", content, lambda path: check(load(path)))


ROW = store.Row(
    "id",
    "s",
    Case("gla", 1, 64, 1, 16, 16).to_dict(),
    "ok",
    accuracy={"passed": True},
    time={"clock": "c", "samples_ms": [1.0]},
)
LINE = store.to_json(ROW)
OLD_ROW = {key: value for key, value in json.loads(LINE).items() if key not in ("checksum", "deaths")} | {"schema": 2}
JSON_TOKENS = ["{", "}", "[" * 5000, ",", '"', "\n", "NaN", "1e999", "null", "9" * 5000, "\x00", "\ud800"]


@given(
    st.lists(
        edited([LINE, json.dumps(OLD_ROW)], JSON_TOKENS)
        | changed(OLD_ROW).map(json.dumps)
        | trees(list(store.ROW_FIELDS)).map(json.dumps)
        | st.text(max_size=40),
        max_size=4,
    ).map("\n".join)
    | st.binary(max_size=80)
)
def test_rows(content: str | bytes) -> None:
    def read(path: Path) -> None:
        bad: list[str] = []
        rows = list(store.read(path, bad.append))
        assert all(store.from_json(store.to_json(row)).status == row.status for row in rows)
        assert all(f"{path}:" in line and "\n" not in line and len(line) < MOST_LINE for line in bad)
        with store.Appender(path, warn=bad.append) as out:  # what it keeps can be read
            out.append(ROW)
        assert list(store.read(path, pytest.fail))[-1] == ROW

    written("rows.jsonl", content, read)


def tables() -> st.SearchStrategy[str | bytes]:
    shipped = min((ROOT / "kernels" / "gla_kernels" / "plan" / "tuned").glob("*.json"))
    values = json.loads(shipped.read_text())
    few = {**values, "entries": values["entries"][:2]}
    return changed(few).map(json.dumps) | edited([json.dumps(few)], JSON_TOKENS) | st.binary(max_size=60)


@given(tables())
def test_tables_of_tuned_plans(content: str | bytes) -> None:
    def read(path: Path) -> None:
        try:
            found = table.read(path)
        except table.TableError as error:
            clear(error)
        else:
            assert found is not None
            assert all(len(line) < MOST_LINE for line in found.refused)

    written("table.json", content, read)


with store.open_to_read(ROOT / "results" / "nvidia-h200" / "tune-board" / "2026-11-23-b9eada6.jsonl.xz") as file:
    TUNING = file.readline().decode()


def tunings() -> st.SearchStrategy[str]:
    values = json.loads(TUNING)
    few = {**values, "trials": values["trials"][:2]}
    return changed(few).map(json.dumps) | edited([json.dumps(few)], JSON_TOKENS)


@given(tunings())
def test_records_of_tunings(content: str) -> None:
    try:
        assert isinstance(tuning_store.from_json(content), tuning_store.Tuning)
    except ValueError as error:
        clear(error)


@given(changed(ceilings.ceilings_of("H200").to_dict()).map(json.dumps) | st.binary(max_size=60))
@pytest.mark.filterwarnings("ignore:.*no ceilings")
def test_ceilings(content: str | bytes) -> None:
    written("ceilings.json", content, lambda path: ceilings._load(path, "measured anew"))

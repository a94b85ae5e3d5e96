"""The schemas take what glabench writes and reads, and refuse nothing that it does not refuse itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from glabench import schema, store
from glabench.cli import main
from glabench.errors import UserError
from glabench.lines import ROW_START
from glabench.spec.expand import check
from glabench.spec.source import read_yaml
from glabench.spec.sweep import load
from glabench.spec.values import CaseValues, read_block

jsonschema = pytest.importorskip("jsonschema", reason="make venv installs jsonschema")
ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
RESULTS = sorted((ROOT / "results").rglob("*.jsonl*"))
ROWS = [path for path in RESULTS if not path.parent.name.startswith(("tune-", "judge-"))]
EVERY = 12  # of a file's rows one in so many is looked at: all of them take minutes


@pytest.fixture(scope="module")
def of_row() -> Any:
    return jsonschema.Draft202012Validator(schema.row())


@pytest.fixture(scope="module")
def of_sweep() -> Any:
    return jsonschema.Draft202012Validator(schema.sweep())


def lines(path: Path) -> Iterator[str]:
    with store.open_to_read(path) as file:
        yield from (line.decode() for line in file if line.startswith(ROW_START))


@pytest.mark.parametrize("kind", ["row", "sweep"])
def test_the_command_prints_a_sound_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["schema", kind])
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == schema.SCHEMAS[kind]()


def test_the_command_names_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["schema", "sweeps"])
    assert stop.value.code == 2
    assert "did you mean 'sweep'" in capsys.readouterr().err


def test_committed_rows(of_row: Any) -> None:
    seen = 0
    for path in ROWS:
        for number, line in enumerate(islice(lines(path), 0, None, EVERY)):
            seen += 1
            found = next(of_row.iter_errors(json.loads(line)), None)
            assert found is None, f"{path.name}, row {number * EVERY}: {found.json_path}: {found.message}"
    assert seen > 100


def a_row() -> dict[str, Any]:
    case = {"system": "gla", "dtype": "bf16", "mode": "fwd", "B": 1, "T": 64, "H": 1, "K": 16, "V": 16}
    outputs = {"o": {"error": float("nan"), "tolerance": 1e-3}}
    time = {"clock": "cpu_wall", "samples_ms": [1.0, 2.0]}
    row = store.Row("0" * 12, "s", case, "wrong", accuracy={"passed": False, "outputs": outputs}, time=time)
    made: dict[str, Any] = json.loads(store.to_json(row))
    return made


def with_checksum(values: dict[str, Any]) -> str:
    """A line of these values whose checksum is right, so that a reader looks at the rest."""
    text = json.dumps({key: value for key, value in values.items() if key != "checksum"})
    return f'{text[:-1]}, "checksum": "{store._checksum(text)}"}}'


def test_a_number_that_json_cannot_hold_is_a_text(of_row: Any) -> None:
    row = a_row()
    assert row["accuracy"]["outputs"]["o"]["error"] == "NaN"
    of_row.validate(row)
    row["accuracy"]["outputs"]["o"]["error"] = "many"
    assert not of_row.is_valid(row)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *[("status", "fine"), ("case_id", None), ("case_id", 7), ("wall_s", "1"), ("schema", 99), ("schema", True)],
        *[("extra", 1), ("case.B", 0), ("case.T", "64"), ("case.system", None), ("time.samples_ms", [])],
        *[("time.samples_ms", [0.0]), ("time.samples_ms", ["NaN"]), ("accuracy.passed", "yes"), ("deaths", "none")],
        *[("environment", None), ("environment.device", ["x"]), ("compiled", {}), ("compiled", [{"registers": -1}])],
        *[("work", {"flops": "Infinity"}), ("clocks", {}), ("spent", [{"part": "all", "began": 0}])],
    ],
)
def test_odd_rows_are_refused_by_both(of_row: Any, where: str, value: Any) -> None:
    row = a_row()
    *above, last = where.split(".")
    place = row
    for name in above:
        place = place[name]
    place[last] = value
    assert not of_row.is_valid(row)
    with pytest.raises((ValueError, UserError)):
        store.from_json(with_checksum(row))


def test_a_row_without_its_checksum_is_none(of_row: Any) -> None:
    row = a_row()
    del row["checksum"]
    assert not of_row.is_valid(row)
    of_row.validate(row | {"schema": store.FIRST_WITH_CHECKSUM - 1})


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_our_sweeps(of_sweep: Any, path: Path) -> None:
    of_sweep.validate(read_yaml(path).data)


def test_sweeps_of_the_documents(of_sweep: Any, tmp_path: Path) -> None:
    texts = [path.read_text() for path in (*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md")]
    blocks = [block for text in texts for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    assert len(blocks) > 2
    for block in blocks:
        path = tmp_path / "example.yaml"
        path.write_text(block)
        of_sweep.validate(read_yaml(path).data)


def reads(path: Path) -> bool:
    """Whether glabench takes a sweep file."""
    try:
        check(load(path))
    except UserError:
        return False
    return True


SOUND = "title: t\naxes: {system: gla, B: 1, T: 64, H: 1, K: 16, V: 16}\n"


@pytest.mark.parametrize(
    "odd",
    [
        *[
            "title: 7",
            "titel: t",
            "axes: []",
            "axes: {}",
            "cases: []",
            "cases: [{system: gla, attention: most}]",
            "limit_s: 0",
            "tokens: 1.5",
            "name: a b",
        ],
        *["settings: {min_sample: 3}", "settings: {min_samples: 0}", "settings: {min_samples: 1.5}"],
        *["devices: {gpu: {}}", "devices: {cpu: {title: t}}", "defaults: {dtype: [bf16, fp32]}", "exclude: [{}]"],
        *['exclude: [{"B,T": [[1, 2]]}]', "attention: {head_dim: 0}", "attention: most", 'axes: {"B,X": [[1, 2]]}'],
        'axes: {"B,T": [1, 2]}',
    ],
)
def test_odd_sweeps_are_refused_by_both(of_sweep: Any, tmp_path: Path, odd: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(SOUND)
    assert reads(path)
    of_sweep.validate(read_yaml(path).data)
    key = odd.split(":")[0]
    path.write_text("\n".join([*(line for line in SOUND.splitlines() if not line.startswith(key)), odd, ""]))
    assert not of_sweep.is_valid(read_yaml(path).data)
    assert not reads(path)


@pytest.mark.parametrize("name", CaseValues.model_fields)
def test_what_the_schema_refuses_of_a_field_the_reader_does(of_sweep: Any, tmp_path: Path, name: str) -> None:
    odd = ["null", "true", "0", "-1", "1", "1.5", "64", "2147483648", "fwd", "bf16", "gla", "''", "[]", "[1, 2]", "{}"]
    odd += ["[null]", "[1300, -5]", "uniform:8", "uniform:0", "340m", "compiled", "1.0e31", "[x]"]
    taken = []
    for text in odd:
        path = tmp_path / "odd.yaml"
        path.write_text(f"title: t\ncases: [{{{name}: {text}}}]\n")
        try:
            file = load(path)
            read_block(file.source, file.file.cases[0], ("cases", 0))  # type: ignore[index]
        except UserError:
            continue
        taken.append(text)
        assert of_sweep.is_valid(read_yaml(path).data), f"{name}: {text}"
    assert taken
    refused = [text for text in odd if text not in taken]
    assert refused
    loose = {"lengths"}  # of which the schema knows no text
    for text in refused:
        path.write_text(f"title: t\ncases: [{{{name}: {text}}}]\n")
        assert name in loose or not of_sweep.is_valid(read_yaml(path).data), f"{name}: {text}"

"""Every mistake in a sweep file is one line: file, line, what was expected, the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glabench.errors import UserError
from glabench.spec import sweep as sweeps
from glabench.spec.expand import check
from glabench.spec.sweep import Sweep

Write = Callable[[str], Sweep]

# name -> (text, line of the mistake, what the message says)
MISTAKES: dict[str, tuple[str, int, str]] = {
    "misspelt key": ("title: x\nPOINT\naxis: {system: gla}\n", 3, r"unknown key 'axis' \(did you mean 'axes'\?\)"),
    "misspelt title": ("POINT\naxes: {system: gla}\ntitel: x\n", 3, r"unknown key 'titel' \(did you mean 'title'\?\)"),
    "misspelt field": ("title: x\nPOINT\naxes:\n  system: gla\n  chnk: 64\n", 5, r"'chnk' \(did you mean 'chunk'\?\)"),
    "misspelt field of a default": ("title: x\ndefaults: {dtpye: bf16}\naxes: {system: gla}\n", 2, r"mean 'dtype'\?"),
    "unknown system": (
        "title: x\nPOINT\naxes:\n  system:\n    - gla\n    - gla_recurent\n",
        6,
        r"unknown system 'gla_recurent' \(did you mean 'gla_recurrent'\?\)",
    ),
    "unknown dtype": ("title: x\nPOINT\naxes: {system: gla, dtype: bf61}\n", 3, r"dtype: expected bf16, fp16 or fp32"),
    "empty axis": ("title: x\nPOINT\naxes:\n  system: gla\n  chunk: []\n", 5, r"empty axis 'chunk'"),
    "empty axes": ("title: x\naxes: {}\n", 2, r"empty axes"),
    "wrong type": (
        "title: x\nPOINT\naxes:\n  system: gla\n  T: [64, many]\n",
        5,
        r"T: expected an integer > 0 and < 2\^31, got 'many'",
    ),
    "a number as text": (
        "title: x\nPOINT\naxes: {system: gla, T: '64'}\n",
        3,
        r"T: expected an integer > 0 and < 2\^31, got '64'",
    ),
    "true is no integer": ("title: x\nPOINT\naxes: {system: gla, T: true}\n", 3, r"T: expected an integer"),
    "zero": ("title: x\nPOINT\naxes: {system: gla, H: 0}\n", 3, r"H: expected an integer > 0 and < 2\^31, got 0"),
    "chunk that does not exist": ("title: x\nPOINT\naxes: {system: gla, chunk: 48}\n", 3, r"chunk: expected 16, 32"),
    "gate of the wrong sign": ("title: x\nPOINT\naxes: {system: gla, gate_strength: -1}\n", 3, r"a number >= 0"),
    "sub_chunk of an explicit case": (
        "title: x\nPOINT\ncases:\n  - system: gla\n    chunk: 32\n    sub_chunk: 64\n",
        6,
        r"sub_chunk 64 does not divide chunk 32",
    ),
    "broken YAML": ("title: x\naxes: {system: [gla\ncases: 1\n", 3, r"not valid YAML"),
    "a tab": ("title: x\n\taxes: 1\n", 2, r"not valid YAML"),
    "a key twice": (
        "title: x\nPOINT\ntitle: y\naxes: {system: gla}\n",
        3,
        r"key 'title' is given twice, first on line 1",
    ),
    "a number as key": ("title: x\n3: y\n", 2, r"a key must be a name, got 3"),
    "missing field": ("title: x\ndefaults: {B: 1, T: 8}\naxes: {system: gla}\n", 3, r"missing H, K, V"),
    "missing batch": ("title: x\ndefaults: {T: 8, H: 1, K: 8, V: 8}\naxes: {system: gla}\n", 3, r"missing B"),
    "missing system": ("title: x\nPOINT\naxes: {chunk: 64}\n", 3, r"missing system"),
    "missing title": ("POINT\naxes: {system: gla}\n", 1, r"missing key 'title'"),
    "batch and tokens": (
        "title: x\ntokens: 128\nPOINT\naxes:\n  B: 1\n  system: gla\n",
        5,
        r"B is given and so is tokens",
    ),
    "tokens that T does not divide": (
        "title: x\ntokens: 100\ndefaults: {H: 1, K: 8, V: 8}\naxes:\n  system: gla\n  T: [50, 64]\n",
        6,
        r"T 64 does not divide tokens 100",
    ),
    "empty file": ("", 1, r"the file is empty"),
    "a list": ("- title\n", 1, r"expected a mapping"),
    "nothing to run": ("title: x\nPOINT\n", 1, r"nothing to run"),
    "everything excluded": (
        "title: x\nPOINT\naxes: {system: gla}\nexclude: [{system: gla}]\n",
        1,
        r"expands to no case",
    ),
    "a list in defaults": ("title: x\ndefaults: {T: [1, 2]}\naxes: {system: gla}\n", 2, r"lists belong under axes"),
    "coupled rows of the wrong length": (
        "title: x\nPOINT\naxes:\n  system: gla\n  'B,T':\n    - [1, 2]\n    - [1, 2, 3]\n",
        7,
        r"B,T: expected a list of lists of 2 values",
    ),
    "a field twice": ("title: x\nPOINT\naxes: {system: gla, 'B,T': [[1, 2]], T: 4}\n", 3, r"'T' is given twice"),
    "axes as a list": ("title: x\nPOINT\naxes: [gla]\n", 3, r"axes: expected a mapping"),
    "cases as a mapping": ("title: x\nPOINT\ncases: {system: gla}\n", 3, r"cases: expected a list"),
    "unknown attention": ("title: x\nattention: narrow\nPOINT\naxes: {system: fa2}\n", 2, r"usual, same or \{head_dim"),
    "heads that do not divide": (
        "title: x\nattention: {head_dim: 48}\nPOINT\naxes: {system: fa2}\n",
        4,
        r"head_dim 48 does not divide the width H\*V = 256",
    ),
    "unknown device": ("title: x\nPOINT\naxes: {system: gla}\ndevices: {gpu: {tokens: 4}}\n", 4, r"unknown key 'gpu'"),
    "misspelt key of a device": (
        "title: x\nPOINT\naxes: {system: gla}\ndevices:\n  cpu:\n    axs: {system: gla}\n",
        6,
        r"unknown key 'axs' \(did you mean 'axes'\?\)",
    ),
    "unknown setting": ("title: x\nPOINT\naxes: {system: gla}\nsettings: {max_tme_s: 1}\n", 4, r"mean 'max_time_s'\?"),
    "wrong setting": ("title: x\nPOINT\naxes: {system: gla}\nsettings: {gate_pairs: 0.5}\n", 4, r"an integer > 0"),
    "a setting that is no number": (
        "title: x\nPOINT\naxes: {system: gla}\nsettings: {max_noise: .nan}\n",
        4,
        r"max_noise: expected a number > 0, got nan",
    ),
    "a setting without end": ("title: x\nPOINT\naxes: {system: gla}\nsettings: {warmup_s: .inf}\n", 4, r"a number > 0"),
    "a setting that is true": (
        "title: x\nPOINT\naxes: {system: gla}\nsettings: {max_noise: true}\n",
        4,
        r"max_noise: expected a number, got True",
    ),
    "unsafe name": ("name: ../x\ntitle: x\nPOINT\naxes: {system: gla}\n", 1, r"name: expected letters"),
    "empty match": ("title: x\nPOINT\naxes: {system: gla}\nexclude:\n  - {}\n", 5, r"an empty match"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(sweep_of: Write, name: str) -> None:
    text, line, message = MISTAKES[name]
    with pytest.raises(UserError, match=message) as caught:
        check(sweep_of(text))
    said = str(caught.value)
    assert "\n" not in said
    assert f"mine.yaml:{line}: " in said


def test_the_first_mistake_of_several_is_named(sweep_of: Write) -> None:
    with pytest.raises(UserError, match=r"mine.yaml:2: "):
        sweep_of("title: x\ntokens: none\nlimit_s: none\nquestion: 3\n")


def test_an_alias_to_itself_is_refused(sweep_of: Write) -> None:
    with pytest.raises(UserError, match="an alias that contains itself"):
        sweep_of("title: x\naxes: &a\n  system: *a\n")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        sweeps.load(path)


def test_yaml_merge_keys_and_exponents(sweep_of: Write) -> None:
    sweep = sweep_of(
        "title: x\ndefaults: &d {B: 1, T: 8, H: 1, K: 8, V: 8, gate_strength: 1e4}\naxes: {<<: *d, system: gla}\n"
    )
    assert sweep.file.axes is not None
    assert sweep.file.axes["gate_strength"] == 1e4
    check(sweep)


def test_names_that_yaml_1_1_takes_for_booleans_stay_names(sweep_of: Write) -> None:
    assert sweep_of("title: on\nquestion: 'no'\nPOINT\naxes: {system: gla}\n").title == "on"


def test_a_sweep_is_found_by_name_here_and_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweeps.find("quick").name == "quick.yaml"
    (tmp_path / "sweeps").mkdir()
    own = tmp_path / "sweeps" / "quick.yaml"
    own.write_text("title: mine\n")
    assert sweeps.find("quick").samefile(own)
    (tmp_path / "sweeps" / "other.yml").write_text("title: other\n")
    assert "other" in sweeps.available()
    assert "board" in sweeps.available()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikc", r"no such sweep \(did you mean 'quick'\?\)"),
        ("sweeps/quikc.yaml", r"no such sweep file"),
        ("quikc.yaml", r"no such sweep file"),
        (".", r"is a directory"),
    ],
)
def test_a_sweep_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        sweeps.find(name)


def test_a_device_replaces_only_what_it_gives(sweep_of: Write) -> None:
    sweep = sweep_of(
        """\
        title: x
        limit_s: 7
        POINT
        axes: {system: gla}
        settings: {max_time_s: 2}
        devices:
          cpu: {axes: {system: sdpa}, settings: {max_time_s: 0.5}}
        """
    )
    assert sweep.section("cpu").axes == {"system": "sdpa"}
    assert sweep.section("cuda").axes == {"system": "gla"}
    assert sweep.section("cpu").limit_s == sweep.section("cuda").limit_s == 7
    assert (sweep.settings("cpu").max_time_s, sweep.settings("cuda").max_time_s) == (0.5, 2)
    assert sweep.settings("cpu").device == "cpu"

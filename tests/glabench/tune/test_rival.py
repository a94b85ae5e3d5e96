"""The rival's autotuning time, with made-up rivals in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glabench.spec.case import Case
from glabench.tune import rival

CASE = Case("fla", 4, 2048, 16, 128, 128)
RIVAL = """
import os, sys, time

def handle(request):
    assert request["case"]["system"] == "fla"
    folder = os.environ["TRITON_CACHE_DIR"]
    empty = not os.listdir(folder)
    open(os.path.join(folder, "kernel"), "w").close()
    forgets = (os.environ["FLA_CACHE_RESULTS"], os.environ.get("FLA_CONFIG_DIR"), empty)
    if request["case"]["T"] == 1:
        time.sleep(600)
    if request["case"]["T"] == 2:
        print("RuntimeError: made up", file=sys.stderr, flush=True)
        os._exit(3)
    return {"implementation": f"a rival that forgets {forgets}"}
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "made_up_rival.py").write_text(RIVAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("FLA_CONFIG_DIR", "/remembered")
    monkeypatch.setenv("FLA_CACHE_RESULTS", "1")
    return "made_up_rival"


def test_it_starts_without_a_memory_each_time(made_up: str) -> None:
    for _ in range(2):
        record = rival.measure(CASE, 60, made_up)
        assert (record["kind"], record["status"], record["case"]["T"]) == ("rival", "ok", 2048)
        assert record["implementation"] == "a rival that forgets ('0', None, True)"
        assert 0 < record["wall_s"] < 60
        json.dumps(record, allow_nan=False)
    assert rival.line(record).startswith("B=4 T=2048 H=16 K=128 V=128 bf16: a rival that forgets")


def test_one_that_takes_too_long_is_stopped(made_up: str) -> None:
    record = rival.measure(Case("fla", 4, 1, 16, 128, 128), 1.5, made_up)
    assert (record["status"], record["limit_s"]) == ("timeout", 1.5)
    assert rival.line(record) == "B=4 T=1 H=16 K=128 V=128 bf16: over 1.5 s"


def test_one_that_dies_says_why(made_up: str) -> None:
    record = rival.measure(Case("fla", 4, 2, 16, 128, 128), 60, made_up)
    assert record["status"] == "crashed"
    assert rival.line(record).endswith("ended by itself with exit code 3: RuntimeError: made up")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["4,2048"], "expected B,T,H,K,V"),
        (["4,2048,16,128,128", "--dtype", "fp8"], "--dtype fp8: unknown dtype"),
        (["4,2048,16,128,128", "--limit", "0"], "--limit 0: expected seconds > 0"),
        (["4,2048,16,128,128"], "no usable NVIDIA GPU here"),
    ],
)
def test_bad_calls_are_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as stop:
        rival.main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_record_is_appended_and_the_package_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rival, "require_cuda", lambda why: None)
    monkeypatch.setattr(rival, "device_name", lambda kind: "a GPU")
    out = tmp_path / "rival.jsonl"
    call = ["1,64,2,32,32", "--limit", "2", "--out", str(out)]
    ended = {"kind": "rival", "status": "timeout", "reason": "over 2 s"}
    monkeypatch.setattr(rival, "measure", lambda case, limit_s: {**ended, "case": case.to_dict(), "limit_s": limit_s})
    monkeypatch.setattr("glabench.systems.fla.missing_package", lambda package, remedy: None)
    monkeypatch.setattr("glabench.systems.fla.needs_gpu", lambda device: None)
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            rival.main(call)
        assert stop.value.code == 0
    assert capsys.readouterr().out.splitlines() == ["B=1 T=64 H=2 K=32 V=32 bf16: over 2 s"] * 2
    first, second = map(json.loads, out.read_text().splitlines())
    assert first == second
    assert (first["limit_s"], first["environment"]["device"], first["case"]["mode"]) == (2.0, "a GPU", "fwdbwd")

    monkeypatch.setattr("glabench.systems.fla.missing_package", lambda package, remedy: f"no {package}; {remedy}")
    with pytest.raises(SystemExit) as stop:
        rival.main(call)
    assert stop.value.code == 2
    assert "no fla; pip install fla-core" in capsys.readouterr().err

"""What ncu prints, and an ncu of the tests' own that does what the real one may do."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from glabench.hardware import environment
from glabench.profile import counters
from glabench.profile.counters import count, metrics, parse, refusal
from glabench.spec.case import Case

CASE = Case("gla", 1, 64, 2, 32, 32)
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
CSV = (
    "==PROF== Connected to process 4711 (/usr/bin/python3.12)\n"
    '==PROF== Profiling "states_kernel" - 0: 0%....50%....100% - 9 passes\n'
    "a warning that the target printed\n"
    "==PROF== Disconnected from process 4711\n"
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","launch__registers_per_thread",'
    '"lts__t_sector_hit_rate.pct","lts__t_sectors_op_read.sum","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",'
    f'"{STALLED.format("wait")}","{STALLED.format("long_scoreboard")}","{STALLED.format("drain")}"\n'
    '"","","","","","","","","","","","byte","byte","ns","register/thread","%","sector","%","inst","inst","inst"\n'
    '"0","4711","python3.12","host","states_kernel","1","7","(128, 1, 1)","(2,048, 1, 1)","0","9.0","134,217,728",'
    '"1,024","105,472","168","41.25","8,388,608","12.5","0.75","3.5","0"\n'
    '"1","4711","python3.12","host","void f<int, (bool)1>(T1 *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","n/a",'
    '"nan","3,000","32","99","64","","","",""\n'
)
REFUSED = (
    "==PROF== Connected to process 7 (/usr/bin/python3.12)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
    "==PROF== Disconnected from process 7\n"
)


def test_each_launch_has_its_counters_in_plain_units() -> None:
    (first, found), (second, others) = parse(CSV)
    assert (first, second) == ("states_kernel", "void f<int, (bool)1>(T1 *)")
    assert found == {
        "ms": pytest.approx(0.105472),
        "hbm_read_bytes": 134217728,
        "hbm_write_bytes": 1024,
        "l2_read_bytes": 32 * 8388608,
        "l2_write_bytes": None,  # not counted
        "l2_hit_share": pytest.approx(0.4125),
        "tensor_share": pytest.approx(0.125),
        "occupancy_share": None,
        "registers": 168,
        "stalls": {"long_scoreboard": 3.5, "wait": 0.75},
    }
    assert list(found["stalls"]) == ["long_scoreboard", "wait"]  # the largest first, none that does not occur
    assert others["hbm_read_bytes"] is None
    assert others["hbm_write_bytes"] is None
    assert others["ms"] == pytest.approx(0.003)
    assert others["stalls"] == {}


@pytest.mark.parametrize(("unit", "ms"), [("usecond", 105.472), ("us", 105.472), ("second", 105472e3), ("cycle", None)])
def test_time_is_in_ms_whatever_its_unit(unit: str, ms: float | None) -> None:
    text = CSV.replace('"ns"', f'"{unit}"')
    assert parse(text)[0][1]["ms"] == (None if ms is None else pytest.approx(ms))


def test_output_without_a_table_has_no_launches() -> None:
    assert parse(REFUSED) == []
    assert parse("") == []


def test_a_refusal_is_one_line() -> None:
    assert refusal(REFUSED, 1) == "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)"
    assert "LibraryNotLoaded" in refusal("==ERROR== LibraryNotLoaded\n", 9)
    said = refusal(
        "==PROF== Connected\nTraceback:\nRuntimeError: no kernel image\n==ERROR== The application failed\n", 1
    )
    assert said == "ncu ended with exit code 1: The application failed"
    assert refusal("Traceback:\nImportError: torch\n", 1) == "ncu ended with exit code 1: ImportError: torch"
    assert refusal("", 137) == "ncu ended with exit code 137: nothing was printed"


def test_kernels_of_a_graph_are_counted_one_by_one() -> None:
    """As they are unless ncu is told otherwise."""
    words = counters.command("ncu", CASE, ["gpu__time_duration.sum"])
    assert "--graph-profiling" not in words
    assert words[words.index("--target-processes") + 1] == "application-only"


def test_only_metrics_that_the_gpu_has_are_asked_for() -> None:
    known = {"dram__bytes_op_read", "gpu__time_duration", "smsp__average_warps_issue_stalled_wait_per_issue_active"}
    assert metrics(known) == [
        "gpu__time_duration.sum", "dram__bytes_op_read.sum", "launch__registers_per_thread", STALLED.format("wait")
    ]  # fmt: skip
    assert len(metrics(())) == sum(map(len, counters.METRICS.values())) + len(counters.STALLS)


FAKE = """#!{python}
import sys
KNOWN = {known!r}
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880)")
elif "--query-metrics" in sys.argv:
    print("Device NVIDIA H200 (GH100)\\n" + "-" * 40)
    for name in KNOWN if {tells} else []:
        print(f"{{name:40}} Counter    # of bytes read")
else:
    wanted = sys.argv[sys.argv.index("--metrics") + 1].split(",")
    for name in wanted:
        if name.split(".")[0] not in KNOWN and not name.startswith("launch__"):
            print("==ERROR== Failed to find metric regex:^" + name.split(".")[0] + r"\\.(sum|min|max|avg|pct|ratio)$")
            sys.exit(1)
    open({log!r}, "a").write("|".join(sys.argv[1:]) + "\\n")
    sys.stdout.write({text!r})
    sys.exit({status})
"""
KNOWN = ["dram__bytes_read", "dram__bytes_write", "gpu__time_duration", "lts__t_sectors_op_read"]


def fake_ncu(folder: Path, text: str, status: int = 0, tells: bool = True, known: list[str] = KNOWN) -> str:
    path = folder / "ncu"
    log = str(folder / "calls")
    path.write_text(FAKE.format(python=sys.executable, known=known, tells=tells, text=text, status=status, log=log))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    counters.available.cache_clear()
    return str(path)


@pytest.mark.parametrize("tells", [True, False])
def test_ncu_is_asked_for_what_it_knows_whether_it_tells_or_not(tmp_path: Path, tells: bool) -> None:
    found = count(CASE, fake_ncu(tmp_path, CSV, tells=tells))
    assert (found.version, found.refused) == ("2025.3.1.0", None)
    assert [name for name, _ in found.launches] == ["states_kernel", "void f<int, (bool)1>(T1 *)"]
    (call,) = (tmp_path / "calls").read_text().splitlines()
    words = call.split("|")
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[-3:-1] == ["-m", "glabench.profile.ncu_target"]
    assert '"system": "gla"' in words[-1]


def test_what_ncu_refuses_is_an_answer(tmp_path: Path) -> None:
    found = count(CASE, fake_ncu(tmp_path, REFUSED, status=1))
    assert found.version == "2025.3.1.0"
    assert found.launches == ()
    assert found.refused == "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)"


def test_a_call_in_which_ncu_saw_nothing_says_so(tmp_path: Path) -> None:
    found = count(CASE, fake_ncu(tmp_path, "==WARNING== No kernels were profiled.\n"))
    assert found.refused == "ncu ended with exit code 0: nothing was printed"


def test_ncu_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    monkeypatch.setattr(counters, "LIMIT_S", 0.2)
    monkeypatch.setattr(counters, "QUERY_LIMIT_S", 0.2)
    counters.available.cache_clear()
    assert count(CASE, str(path)) == counters.Counted(None, "ncu took longer than 0.2 s")


def test_what_ncu_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, started = tmp_path / "ncu", tmp_path / "started"
    path.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {started}\nsleep 60\n")
    path.chmod(0o755)
    monkeypatch.setattr(counters, "LIMIT_S", 0.3)
    monkeypatch.setattr(counters, "available", lambda tool: frozenset())
    with pytest.raises(counters.Refused, match=r"^ncu took longer than 0.3 s$"):
        counters._counted(str(path), CASE)
    state, end = Path(f"/proc/{started.read_text().strip()}/stat"), time.monotonic() + 30

    def ended() -> bool:
        try:
            return state.read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    # A busy machine has yet to run what was killed; by itself it ends after 60 s.
    while not ended() and time.monotonic() < end:
        time.sleep(0.05)
    assert ended()


@pytest.mark.parametrize("tells", [True, False])
def test_sectors_that_the_sms_ask_for_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    """And where ncu does not know them, the others are there as before."""
    few = {name: counters.METRICS[name] for name in ("hbm_read_bytes", "l2_read_bytes")}
    monkeypatch.setattr(counters, "METRICS", few)
    monkeypatch.setattr(counters, "STALLS", ())
    name = "lts__t_sectors_srcunit_tex_op_read"
    text = CSV.replace('"lts__t_sectors_op_read.sum"', f'"lts__t_sectors_op_read.sum","{name}.sum"')
    text = text.replace('"%","sector"', '"%","sector","sector"').replace('"8,388,608"', '"8,388,608","5,592,405"')
    for known, printed, sectors in ((KNOWN, CSV, 8388608), ([*KNOWN, name], text, 5592405)):
        folder = tmp_path / str(sectors)
        folder.mkdir()
        found = count(CASE, fake_ncu(folder, printed, tells=tells, known=known))
        counted = found.launches[0][1]
        assert (counted["l2_read_bytes"], counted["hbm_read_bytes"]) == (32 * sectors, 134217728)
        (call,) = (folder / "calls").read_text().splitlines()
        assert (f"{name}.sum" in call) == (name in known)


def test_a_machine_without_ncu_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "NCU_PLACES", (f"{tmp_path}/*/ncu",))
    assert environment.find_ncu() is None
    refused = count(CASE).refused
    assert refused is not None
    assert refused.startswith("ncu was not found")
    for version in ("2025.9.0", "2025.10.1", "2024.3.2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch(mode=0o755)
    assert environment.find_ncu() == str(tmp_path / "2025.10.1" / "ncu")
    (tmp_path / "ncu").touch(mode=0o755)
    assert environment.find_ncu() == str(tmp_path / "ncu")  # what is on the PATH comes first

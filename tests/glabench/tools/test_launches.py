"""A listing of launches tells what launches otherwise from what only has another name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gla_kernels import Entry, Plan, Schedule, Workload, default_config
from gla_kernels.plan.table import Header, Table
from glabench.errors import UserError
from glabench.tools import launches
from glabench.tools.launches import differences, main, read
from glabench.tools.listing import others, plan_id, shipped

PROBE = Path(__file__).with_name("launches_probe.py")
HEAD = "# launches, ir of Triton 3.7.1"


@pytest.fixture(scope="module")
def found(compiling_process: Callable[..., str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(compiling_process(str(PROBE)).splitlines()[-1])
    return answer


@pytest.mark.exhaustive
def test_every_launch_has_a_line_and_every_kernel_a_hash(found):
    head, *lines = found["one"]
    assert head.startswith("# launches, ir of Triton ")
    assert lines == sorted(lines)
    # a walk and what it leaves; the backward passes, with states that the forward one has kept, and without
    assert len(lines) == 4 * 2 + 2 * 4 + 2 * 5
    assert all(len(line.rpartition(" | ")[2]) == 16 for line in lines)
    (one,) = [line for line in lines if "(kept, a state) 000 grad_states" in line]
    assert one.startswith("sm_90 bwd 1x300x4x64x64 bf16 gated any tuned ")
    for part in ("[4] | num_warps=4 ", " BT=64 ", " HAS_DST=False ", "p_q=bfloat16[1,300,4,64][76800,256,64,1]@0+0 "):
        assert part in one


@pytest.mark.exhaustive
def test_processes_find_what_one_finds(found):
    """Of every third launch."""
    assert len(found["two"]) > 5
    assert set(found["two"]) <= set(found["one"])


@pytest.mark.exhaustive
def test_what_does_not_compile_is_listed_by_its_error(found):
    assert found["wrong"][1].rpartition(" | ")[2].endswith("Error")


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["ir", "ptx"])
def test_what_a_kernel_is_compiled_to_has_no_names(found, form):
    for name, text in zip(found["names"], found[form], strict=True):
        assert len(text) > 1000
        for word in (name, "gla_kernels", ".py", "loc(", ".loc\t", ".file", "//", "p_q", "b_s"):
            assert word not in text


@pytest.mark.exhaustive
def test_each_architecture_has_its_own(found):
    assert "wgmma" in found["ptx"][0]
    assert ".target sm_90" in found["ptx"][1]
    assert ".target sm_80" in found["a100"]


def test_a_gpu_that_cannot_run_a_plan_has_another():
    schedule = Schedule(64)
    work = Workload("fwd", 1, 300, 2, 64, 64)
    plan = Plan(schedule, default_config(64, 64, 2, schedule))
    table = Table(Header("NVIDIA H200", 1, 90, "3.6.0", "0" * 16, "0" * 16), (Entry(work, plan, 1.0),))
    lines = [one.line for one in shipped([table], (80, 90))]
    assert {line.split(" (")[0] for line in lines if line.startswith("sm_90")} == {
        f"sm_90 fwd 1x300x2x64x64 bf16 gated any tuned {plan_id(plan)}"
    }
    assert all(" chosen " in line for line in lines if line.startswith("sm_80"))


def test_other_calls_are_of_every_function():
    kernels = {one.launch.name for one in others((90,))}
    assert {"walk_kernel", "combine_kernel", "simple_walk_kernel", "gv_mild_kernel", "step_kernel"} <= kernels
    assert {"recurrent_output_kernel", "simple_decays_kernel", "grad_walk_hopper_kernel"} <= kernels


def test_listings_differ_by_lines():
    before = [HEAD, "a 000 old_kernel[1] | x=1 | 11", "a 001 other_kernel[1] | x=1 | 22"]
    assert differences(before, before, {}) == []
    after = [HEAD, "a 000 old_kernel[1] | x=1 | 11", "a 001 other_kernel[1] | x=1 | 33"]
    assert differences(before, after, {}) == [f"- {before[2]}", f"+ {after[2]}"]
    assert differences(before, after[:2], {}) == [f"- {before[2]}"]


def test_a_renamed_kernel_is_the_same_where_it_is_said_so():
    before, after = [HEAD, "a 000 old_kernel[1] | old=1 | 11"], [HEAD, "a 000 new_kernel[1] | old=1 | 11"]
    assert len(differences(before, after, {})) == 2
    assert differences(before, after, {"old_kernel": "new_kernel"}) == []
    assert len(differences(before, after, {"old": "new"})) == 2


def test_listings_of_other_compilers_are_not_compared():
    with pytest.raises(UserError, match=r"made with something else: '# launches, ptx of Triton 3.7.1'"):
        differences(["# launches, ptx of Triton 3.7.1"], [HEAD], {})
    with pytest.raises(UserError, match="'nothing'"):
        differences([], [HEAD], {})


@pytest.fixture
def listing(monkeypatch) -> list[str]:
    """What the tool finds."""
    lines = [HEAD, "a 000 a_kernel[1] | x=1 | 11"]
    monkeypatch.setattr(launches, "lines_of", lambda *_: lines)
    monkeypatch.setattr(launches, "interpreting", lambda: False)
    return lines


@pytest.mark.parametrize("name", ["before.txt", "before.txt.xz"])
def test_a_listing_is_written_and_compared_with(tmp_path, capsys, listing, name):
    path = tmp_path / name
    assert main(["--output", str(path)]) == 0
    assert read(path) == listing
    assert main(["--against", str(path)]) == 0
    assert capsys.readouterr().out == "1 launches, 1 different kernels: 0 lines differ\n"
    listing[1] = "a 000 b_kernel[1] | x=1 | 11"
    assert main(["--against", str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "- a 000 a_kernel[1] | x=1 | 11",
        "+ a 000 b_kernel[1] | x=1 | 11",
        "1 launches, 1 different kernels: 2 lines differ",
        "kernels that are gone: 1 a_kernel; new: 1 b_kernel",
    ]
    assert main(["--against", str(path), "--rename", "a_kernel=b_kernel"]) == 0


def test_without_a_file_it_is_printed(capsys, listing):
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == listing


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--against", "nowhere.txt"], "nowhere.txt: no listing of launches"),
        (["--rename", "a"], "--rename: expected OLD=NEW, each OLD once, got a"),
    ],
)
def test_a_mistake_is_one_line(capsys, listing, arguments, error):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {error}")


def test_kernels_that_are_interpreted_are_not_listed(capsys, monkeypatch):
    monkeypatch.setattr(launches, "interpreting", lambda: True)
    assert main([]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err

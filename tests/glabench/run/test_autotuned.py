"""An autotuner's configs are compiled, and nothing is launched or decided; what it finds, it finds at each shape."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import Config
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from glabench.claims import Claims
from glabench.phases import spent_of
from glabench.run import autotuned
from glabench.run.autotuned import (
    CLEARLY_SLOWER,
    LONG,
    LOOK_MS,
    at_its_shape,
    call_block,
    compile_ahead,
    compiling,
)
from glabench.run.parts import merge, parts
from glabench.run.pipeline import run_case
from glabench.spec.case import Case, Mode
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems import mamba2_ssd
from glabench.systems.base import System, load
from glabench.systems.inputs import Inputs
from glabench.systems.language_model import LanguageModelSystem
from glabench.systems.models import mamba2
from glabench.systems.models.mamba2 import Mamba2

WIDTHS = (16, 32, 64, 128)
CASE = Case("fla", 1, 100, 2, 8, 8, "fp32", "fwdbwd")


class Kernel:
    """Stands for what ``@triton.jit`` makes; says what it was run with. A width of 64 does not compile."""

    def __init__(self) -> None:
        self.fn = lambda x, n, WIDTH: None
        self.ran: list[dict[str, Any]] = []

    def run(self, *args: Any, **options: Any) -> None:
        self.ran.append({"args": args} | options)
        if options["WIDTH"] == 64:
            raise RuntimeError("PassManager::run failed")


def tuner(kernel: Kernel, leave_out: Any = None) -> Autotuner:
    prune = None if leave_out is None else {"early_config_prune": leave_out}
    configs = [Config({"WIDTH": width}, num_warps=4) for width in WIDTHS]
    return Autotuner(kernel, ["x", "n", "WIDTH"], configs, ["n"], None, None, prune_configs_by=prune)


def test_every_config_is_compiled_and_none_is_launched() -> None:
    kernel = Kernel()
    tuned = tuner(kernel)
    with compiling():
        tuned.run("x", 5, grid=(1,), warmup=False)
    assert sorted(run["WIDTH"] for run in kernel.ran) == list(WIDTHS)
    assert all(run["warmup"] and run["args"] == ("x", 5) and run["grid"] == (1,) for run in kernel.ran)
    assert tuned.cache == {}  # what is fastest is still open
    assert tuned.best_config in tuned.configs  # which callers may ask for


def test_processes_begin_with_different_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = set()
    for pid in range(20):
        kernel = Kernel()
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        with compiling():
            tuner(kernel).run("x", 5, grid=(1,), warmup=False)
        begun.add(kernel.ran[0]["WIDTH"])
    assert begun == set(WIDTHS)


def test_what_another_process_has_claimed_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [Kernel(), Kernel(), Kernel()]
    for kernel, length in zip(kernels, (100, 100, 101), strict=True):
        monkeypatch.setattr(autotuned, "CLAIMS", Claims(tmp_path))
        with compiling():
            tuner(kernel).run(torch.zeros(4), length, grid=(1,), warmup=False)
        autotuned.CLAIMS.wait()
    assert [len(kernel.ran) for kernel in kernels] == [len(WIDTHS), 0, len(WIDTHS)]


def test_configs_that_the_arguments_rule_out_are_not_compiled() -> None:
    def narrow(configs: list[Config], arguments: dict[str, Any], **options: Any) -> list[Config]:
        return [one for one in configs if one.kwargs["WIDTH"] <= arguments["n"]]

    kernel = Kernel()
    with compiling():
        tuner(kernel, narrow).run("x", 32, grid=(1,), warmup=False)
    assert sorted(run["WIDTH"] for run in kernel.ran) == [16, 32]


IMPORTED = """
import sys, torch

@torch.compile
def one(x): return x

@torch.compile(fullgraph=True)
def two(x): return x

@torch.compiler.disable
def three(x): return x

assert [form(5) for form in (one, two, three)] == [5, 5, 5]
"""


@pytest.mark.exhaustive
def test_what_compiles_imports_none_of_pytorch_s_compiler_for_what_packages_hand_it(
    compiling_process: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "rival.py").write_text(IMPORTED)
    asked = f"""
import sys, torch
sys.path.append({str(tmp_path)!r})
from glabench.run.autotuned import without_dynamo
before = torch.compile, torch.compiler.disable
with without_dynamo():
    import rival
assert (torch.compile, torch.compiler.disable) == before
print("torch._dynamo" in sys.modules)
torch.compiler.disable(print)
print("torch._dynamo" in sys.modules)
"""
    assert compiling_process("-c", asked).split() == ["False", "True"]


def test_a_rival_is_called_without_pytorch_s_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Decorated(Rival):
        def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
            seen.append(torch.compile(seen.append) == seen.append)
            return super().forward(inputs, case)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    compile_ahead(Decorated(), CASE)
    assert seen == [True]


def test_afterwards_autotuners_are_triton_s_again() -> None:
    before = Autotuner.run
    with compiling():
        assert Autotuner.run is not before
    assert Autotuner.run is before
    with pytest.raises(KeyError), compiling():
        raise KeyError
    assert Autotuner.run is before


class Rival(System):
    """Says which lengths it was called with, and whether for gradients."""

    def __init__(self) -> None:
        super().__init__(CATALOG["fla"])
        self.calls: list[tuple[int, bool]] = []

    def implementation(self, case: Case) -> str:
        return "a system of the tests"

    def draw_inputs(self, case: Case, device: str, salt: int = 0) -> Inputs:
        return super().draw_inputs(case, "cpu", salt)

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.calls.append((inputs.q.shape[1], torch.is_grad_enabled()))
        q, k, v, g = (x for x in (inputs.q, inputs.k, inputs.v, inputs.g) if x is not None)
        return v * (q.sum() + k.sum() + g.sum()), None


@pytest.mark.parametrize(("T", "short"), [(100, 100), (1024, 1024), (1500, 1500), (8192, 1024), (8192 + 48, 1024 + 48)])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwdbwd"])
def test_a_long_case_is_called_at_a_length_with_the_same_divisors(
    T: int, short: int, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    rival = Rival()
    compile_ahead(rival, replace(CASE, T=T, mode=mode))
    assert rival.calls == [(short, mode != "fwd")]
    assert all(T % size == short % size for size in (16, 64, LONG))


def test_rivals_that_tune_themselves_are_compiled_ahead_on_a_gpu() -> None:
    assert {name for name, info in CATALOG.items() if info.autotuned} == {
        "fla", "fla_linear", "fla_simple", "fla_retention", "gla_lm_fla", "mamba2_ssd", "mamba2_lm"
    }  # fmt: skip
    assert parts(CASE, "cuda") == ("compile", "all")
    assert parts(CASE, "cpu") == ("all",)


@pytest.mark.parametrize("installed", [False, True])
def test_mamba_2_tunes_itself_where_it_is_the_package_s(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba2_ssd, "official", lambda: installed)
    monkeypatch.setattr(mamba2, "official", lambda: installed)
    systems = [load(name) for name, info in CATALOG.items() if info.autotuned]
    assert not any(system.autotuned and system.info.triton for system in systems)
    assert {s.name for s in systems if not s.autotuned} == (set() if installed else {"mamba2_ssd", "mamba2_lm"})


def test_a_block_whose_layers_are_a_package_s_is_called_with_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    class Theirs(Mamba2):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.register_hook(lambda gradient: seen.append(gradient.shape))
            return super().forward(x)

    monkeypatch.setitem(sys.modules, "mamba_ssm", SimpleNamespace(Mamba2=Theirs))
    monkeypatch.setattr(mamba2, "official", lambda: True)
    system = load("mamba2_lm")
    assert isinstance(system, LanguageModelSystem)
    call_block(system, Case("mamba2_lm", 2, 9, 2, 16, 32, mode="train", model="tiny"), torch.device("cpu"))
    assert seen == [(2, 9, 64)] * 2  # the block's two layers


def test_the_part_that_compiles_leaves_the_verdict_to_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotuned, "compile_ahead", lambda system, case: asked.append((system.name, case)))
    asked: list[tuple[str, Case]] = []
    settings = replace(Settings.for_device("cpu"), part="compile")
    row = run_case(CASE, "tests", settings, Rival())
    assert asked == [("fla", CASE)]
    assert (row.status, row.compiled, row.time) == ("ok", None, None)
    assert set(spent_of(row)[0].seconds) >= {"compile"}
    wrong = replace(row, status="wrong", spent=[])
    assert merge(wrong, row).status == "wrong"


class Clock:
    """Stands for Triton's benchmark: a config takes what is set for its width, and it is told how it was measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, **ms: float) -> None:
        self.kernel, self.ms = kernel, {int(width.removeprefix("w")): value for width, value in ms.items()}
        self.asked: list[tuple[int, dict[str, int]]] = []
        active = SimpleNamespace(get_benchmarker=lambda: self)
        monkeypatch.setattr(autotuned, "driver", SimpleNamespace(active=active))

    def __call__(self, call: Any, quantiles: tuple[float, ...], **how: int) -> list[float]:
        call()
        width = self.kernel.ran[-1]["WIDTH"]
        self.asked.append((width, how))
        return [self.ms[width]] * len(quantiles)

    @property
    def measured(self) -> list[int]:
        """Widths of the configs that were measured, in order."""
        return list(dict.fromkeys(width for width, _ in self.asked))


class Compiles(Kernel):
    def run(self, *args: Any, **options: Any) -> None:
        self.ran.append({"args": args} | options)


def called_at(tuned: Autotuner, case: Case) -> dict[str, str]:
    """What the kernel's autotuner chose, after a call of it at the case."""
    with at_its_shape(case) as chosen:
        tuned.run("x", 5, grid=(1,), warmup=False)
        return chosen()


def test_a_kernel_is_tuned_at_every_shape_and_once_for_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Compiles()
    clock = Clock(monkeypatch, kernel, w16=4.0, w32=3.0, w64=2.0, w128=1.0)
    tuned = tuner(kernel)
    short, long = replace(CASE, T=100), replace(CASE, T=200)
    assert "WIDTH: 128" in called_at(tuned, short)["<lambda>"]
    clock.ms, clock.asked = {16: 1.0, 32: 2.0, 64: 3.0, 128: 4.0}, []
    assert "WIDTH: 16" in called_at(tuned, long)["<lambda>"]
    assert clock.measured == list(WIDTHS)
    clock.asked = []
    for same in (short, replace(short, mode="fwd"), replace(short, gate_strength=8.0), replace(short, seed=3)):
        assert "WIDTH: 128" in called_at(tuned, same)["<lambda>"]
        assert kernel.ran[-1]["WIDTH"] == 128
    assert clock.asked == []
    called_at(tuned, replace(short, gate_strength=None))
    called_at(tuned, replace(short, system="fla_linear"))
    assert len(clock.asked) == 2 * (1 + len(WIDTHS) + 1)  # twice all, the first once more, and the best at length


def test_what_the_disk_has_is_of_who_knows_which_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Compiles()
    clock = Clock(monkeypatch, kernel, w16=1.0, w32=2.0, w64=2.0, w128=2.0)
    tuned = tuner(kernel)
    tuned.cache_results = True
    monkeypatch.setattr(Autotuner, "check_disk_cache", lambda *_: pytest.fail("the disk was asked"))
    assert "WIDTH: 16" in called_at(tuned, replace(CASE, T=300))["<lambda>"]
    assert clock.measured == list(WIDTHS)


def test_what_cannot_win_is_looked_at_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    near = 1.0 * CLEARLY_SLOWER - 0.01
    kernel = Compiles()
    clock = Clock(monkeypatch, kernel, w16=2.0, w32=near, w64=9.0, w128=1.0)
    assert "WIDTH: 128" in called_at(tuner(kernel), replace(CASE, T=400))["<lambda>"]
    look = {"warmup": LOOK_MS[0], "rep": LOOK_MS[1]}
    assert clock.asked == [*((width, look) for width in (16, *WIDTHS)), (32, {}), (128, {})]


def test_configs_that_the_arguments_rule_out_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Compiles()
    clock = Clock(monkeypatch, kernel, w16=2.0, w32=1.0, w64=0.5, w128=0.5)
    narrow = tuner(kernel, lambda configs, arguments, **options: configs[:2])
    assert "WIDTH: 32" in called_at(narrow, replace(CASE, T=600))["<lambda>"]
    assert clock.measured == [16, 32]


def test_what_does_not_run_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooLarge(Compiles):
        def run(self, *args: Any, **options: Any) -> None:
            super().run(*args, **options)
            if options["WIDTH"] != 64:
                raise OutOfResources(2, 1, "shared memory")

    kernel = TooLarge()
    clock = Clock(monkeypatch, kernel, w64=1.0)
    assert "WIDTH: 64" in called_at(tuner(kernel), replace(CASE, T=700))["<lambda>"]
    assert [width for width, how in clock.asked if not how] == [64]


def test_a_rival_s_own_way_of_measuring_is_kept() -> None:
    kernel = Compiles()
    configs = [Config({"WIDTH": width}, num_warps=4) for width in WIDTHS]
    taken = iter([[3.0], [1.0], [2.0], [4.0]])
    own = lambda *_, **__: next(taken)  # noqa: E731 (the autotuner's keyword takes a function)
    tuned = Autotuner(kernel, ["x", "n", "WIDTH"], configs, ["n"], None, None, do_bench=own)
    assert "WIDTH: 32" in called_at(tuned, replace(CASE, T=500))["<lambda>"]
    assert tuned.do_bench is own


def test_outside_of_a_case_autotuners_are_triton_s() -> None:
    before = Autotuner._bench, Autotuner.check_disk_cache
    with at_its_shape(CASE):
        assert Autotuner._bench is not before[0]
    assert (Autotuner._bench, Autotuner.check_disk_cache) == before
    with pytest.raises(KeyError), at_its_shape(CASE):
        raise KeyError
    assert (Autotuner._bench, Autotuner.check_disk_cache) == before


@pytest.mark.gpu
def test_on_a_gpu_a_row_says_what_was_chosen_at_its_shape() -> None:
    pytest.importorskip("fla")
    settings = Settings.for_device("cuda")
    rows = [run_case(Case("fla", 1, T, 2, 64, 64, mode="fwd"), "tests", settings) for T in (256, 512)]
    assert [row.status for row in rows] == ["ok", "ok"]
    for row in rows:
        assert row.time is not None
        assert any("num_warps" in config for config in row.time["tuned"].values())


@pytest.mark.gpu
def test_on_a_gpu_configs_compile_and_memory_is_left_alone() -> None:
    import triton
    import triton.language as tl

    @triton.autotune([Config({"WIDTH": width}) for width in (16, 32)], key=["n"])
    @triton.jit
    def double(p_x, n, WIDTH: tl.constexpr):
        at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
        tl.store(p_x + at, 2 * tl.load(p_x + at, mask=at < n), mask=at < n)

    x = torch.ones(64, device="cuda")
    with compiling():
        double[(4,)](x, 64)
    assert x.eq(1).all()
    double[lambda meta: (64 // meta["WIDTH"],)](x, 64)
    assert x.ne(1).all()

"""Kernels that tune themselves at their first call: compiled ahead of it, and tuned at every shape that is measured.

Triton's ``@autotune`` compiles one config after another, in the process that times cases: hundreds for a shape of FLA's
GLA, minutes in which the GPU waits. Here the first call is made beforehand, in as many processes as there are cores,
with an autotuner that compiles its configs and launches none. The processes share Triton's cache on the disk, and
claim each config before they compile it (``glabench.claims``): those that meet at a kernel, of two cases or, where a
core has no other left (``glabench.run.untimed``), of the same, share its work, and as nothing is launched nobody waits
at it for the others. Which config is the fastest stays the rival's own finding, at its first call in the process that
times.

That call would decide for all later ones: keys of FLA's autotuners have neither batch nor length in them, nor often the
head dimension, and what won is kept on the disk. A user's process trains at one shape and tunes there. Here the next
case has another shape, and would run what was the fastest at the first one: up to 9 % slower on an H200
(docs/regressions.md). So each system's autotuners begin anew at every shape (``at_its_shape``).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner

from glabench.claims import Claims
from glabench.run import gate
from glabench.spec.case import Case
from glabench.spec.models import CONFIGS
from glabench.systems.base import System
from glabench.systems.inputs import DTYPES
from glabench.systems.language_model import LanguageModelSystem

LONG = 1024  # tokens; what a kernel is compiled for depends on a length by what divides it, up to this

# All configs of a kernel are looked at first, for so many ms: (warming up, samples). What then takes this many times as
# long as the best is not measured for as long as Triton does (125 ms).
LOOK_MS = (1, 5)
CLEARLY_SLOWER = 1.1
CLAIMS = Claims.of_environment()


def compile_ahead(system: System, case: Case) -> None:
    """Compile what the case's first call on this GPU would, and compute nothing. Of a model its operator, or one block
    where more of it than the operator is a package's.

    Of a long case's tokens only as many as have the same divisors: what compiles side by side shares the GPU's memory.
    Packed sequences are all there. Raises what the system raises; an autotuned kernel that does not compile is left to
    its autotuner.
    """
    short = case if case.lengths else replace(case, T=min(case.T, LONG + case.T % LONG))
    with compiling():
        if isinstance(system, LanguageModelSystem) and system.whole_layers:
            call_block(system, short, torch.device("cuda"))
        else:
            operator, asked = system.operator_of(short)
            with without_dynamo():
                gate.run_once(operator, operator.draw_inputs(asked, "cuda"), asked, asked.mode in ("bwd", "fwdbwd"))
    torch.cuda.synchronize()  # kernels without an autotuner did run
    CLAIMS.wait()


def call_block(system: LanguageModelSystem, case: Case, device: torch.device) -> None:
    """Forward and backward through one block of the case's model."""
    from glabench.run.train import made  # imports the models, and those torch._dynamo, for seconds

    (block, *_), width = made(lambda: system.model(case), device).blocks, CONFIGS[case.model or "tiny"].width
    x = torch.randn(case.B, case.T, width, device=device, dtype=DTYPES[case.dtype], requires_grad=True)
    y = block(x)
    y.backward(torch.ones_like(y))


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Meanwhile PyTorch's compiler leaves functions as they are. Packages hand it some of theirs as they are imported,
    and it imports itself for that, which takes as long as torch: not where Triton alone is to compile."""
    pytorch: Any = torch
    before = pytorch.compile, pytorch.compiler.disable
    pytorch.compile = pytorch.compiler.disable = _as_it_is
    try:
        yield
    finally:
        pytorch.compile, pytorch.compiler.disable = before


def _as_it_is(function: Any = None, *_: Any, **options: Any) -> Any:
    """The function, or what takes one where only options are given, as ``torch.compile`` does."""
    return _as_it_is if function is None else function


@contextmanager
def compiling() -> Iterator[None]:
    """Meanwhile every autotuner of Triton compiles its configs when it is called, and launches and remembers none."""
    run = Autotuner.run
    Autotuner.run = _compile
    try:
        yield
    finally:
        Autotuner.run = run


def _compile(tuner: Any, *args: Any, **options: Any) -> None:
    """``Autotuner.run``, compiling only."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))  # what leaves out configs by the arguments reads it
    configs = list(tuner.prune_configs(options) if len(tuner.configs) > 1 else tuner.configs)
    random.Random(os.getpid()).shuffle(configs)
    kernel = f"{tuner.base_fn.__module__} {tuner.base_fn.__name__} {[*map(_kind, args)]}"
    kernel += f" {[(name, _kind(value)) for name, value in options.items() if name not in ('grid', 'warmup')]}"
    for config in configs:
        with CLAIMS.take(f"{kernel} {config}") as ours, suppress(Exception):
            if ours:
                tuner.fn.run(*args, **(options | {"warmup": True}), **config.all_kwargs())
    tuner.nargs = None
    tuner.best_config = configs[0]  # any will do: mamba_ssm asks what its kernel ran with, to size what it reads next


def _kind(value: object) -> str:
    """What of an argument a kernel is compiled for, or more, the same in every process."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.data_ptr() % 16 == 0}"
    if isinstance(value, (tuple, list)):
        return str([_kind(one) for one in value])
    plain = value is None or isinstance(value, (bool, int, float, str, torch.dtype))
    return str(value) if plain else type(value).__qualname__


@contextmanager
def at_its_shape(case: Case) -> Iterator[Callable[[], dict[str, str]]]:
    """Meanwhile autotuners of Triton know what they found at this case's shape, in whichever mode, and nothing else:
    no winner of another shape, or of another system that shares the kernel, and none that the disk has.

    Gives a function that says what they found: {kernel: its config}, of several configs all.
    """
    bench, disk = Autotuner._bench, Autotuner.check_disk_cache
    _winners.go_to(replace(case, mode="fwd", seed=0, gate_strength=None if case.gate_strength is None else 1.0))

    def watched(tuner: Any, *args: Any, config: Any, **options: Any) -> list[float]:
        if _winners.begins(tuner):
            _winners.looks = _looked_at(partial(bench, tuner, *args, **options), tuner, options)
        look = _winners.looks.get(config)
        if look is not None and look[0] > CLEARLY_SLOWER * min(ms for ms, *_ in _winners.looks.values()):
            return look
        return list(bench(tuner, *args, config=config, **options))

    Autotuner._bench, Autotuner.check_disk_cache = watched, _without_disk
    try:
        yield _winners.said
    finally:
        Autotuner._bench, Autotuner.check_disk_cache = bench, disk


def _without_disk(tuner: Any, key: Any, configs: Any, benchmark: Callable[[], None]) -> bool:
    """``Autotuner.check_disk_cache``, measuring always."""
    benchmark()
    return False


def _looked_at(bench: Callable[..., Sequence[float]], tuner: Any, options: dict[str, Any]) -> dict[Any, list[float]]:
    """What a first look at each config found, in ms, the median first; nothing where the kernel is measured in a way of
    its own. The first is looked at twice: until then the GPU may have had nothing to do."""
    if tuner._do_bench is not None:
        return {}
    measure = driver.active.get_benchmarker()
    warmup, samples = LOOK_MS
    configs = tuner.prune_configs(options)
    tuner.do_bench = partial(measure, warmup=warmup, rep=samples)
    looks = {config: list(bench(config=config)) for config in (configs[0], *configs)}
    tuner.do_bench = measure
    return looks


class _Winners:
    """What the autotuners of this process found, apart for each system and shape; and in ``looks`` what a first look at
    the configs of the present one did."""

    def __init__(self) -> None:
        self._here: Case | None = None
        self._found: dict[Any, dict[Case | None, dict[Any, Any]]] = {}  # autotuner -> where -> its cache
        self._tuning: tuple[Any, ...] = ()
        self.looks: dict[Any, list[float]] = {}

    def go_to(self, here: Case) -> None:
        self._here = here
        for tuner, found in self._found.items():
            tuner.cache = found.setdefault(here, {})

    def begins(self, tuner: Any) -> bool:
        """Told before each config that an autotuner measures, and knows it from now on: whether it is the first one."""
        self._found.setdefault(tuner, {self._here: tuner.cache})
        tuning = (tuner, self._here, len(tuner.cache))  # each tuning adds one to the cache
        begun, self._tuning = tuning != self._tuning, tuning
        return begun

    def said(self) -> dict[str, str]:
        """What was found here, by kernel."""
        here = {tuner.base_fn.__name__: found.get(self._here, {}) for tuner, found in self._found.items()}
        return {name: "; ".join(map(str, found.values())) for name, found in sorted(here.items()) if found}


_winners = _Winners()

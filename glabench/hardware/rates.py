"""What the current CUDA device reaches at best: memory, caches, products, exponentials and launches, timed.

Every time is the median of repeated samples, between CUDA events that are queued ahead of the GPU. Reads are tried in a
few ways and the fastest counts: a ceiling is what the GPU can do, not what one kernel of ours happens to.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from gla_kernels.launch import execute
from glabench.hardware import nvml, streams

DEVICE = "cuda"
BUFFER_BYTES = 4 * 2**30  # far beyond any L2, so that every byte travels; short programs, so that all end together
FLOAT_BYTES = 4
READERS = (streams.Reader(2048, 4, 8), streams.Reader(4096, 4, 4), streams.Reader(4096, 8, 8))
L2_BYTES = 16 * 2**30  # read from the L2 in one launch, some milliseconds
L2_STEPS = 32  # of a program's: where the L2 answers faster, a program's beginning and end count for more
PRODUCT = 8192  # rows and columns of the matrices
EXP_PROGRAMS = 32  # for each SM: twice what it holds at once
EXP_ROUNDS = 128
LAUNCHES = 256  # in a row; a GPU's queue takes some 1,000
SAMPLES = 20
WARMUP = 5
WAKE_S = 0.5  # of work before anything is timed: an idle GPU's clocks are low


class Stopwatch:
    """Times work on the current CUDA device, and reads the device's clocks while the work is running."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.uuid = str(properties.uuid)
        self.sms: int = properties.multi_processor_count
        self.l2_bytes: int = properties.L2_cache_size
        self.readings: list[nvml.Clocks] = []

    def seconds(self, run: Callable[[], object], ahead: Callable[[], object] | None = None) -> float:
        """GPU seconds of one call of ``run``, the median. ``ahead`` keeps the GPU busy before each, untimed, while the
        host queues what the GPU does faster than that."""
        for _ in range(WARMUP):
            run()
        marks = []
        for _ in range(SAMPLES):
            if ahead is not None:
                torch.cuda.synchronize()  # leaves the whole queue to this sample
                ahead()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            marks.append((start, end))
        reading = nvml.clocks(self.uuid)  # while the last samples run
        torch.cuda.synchronize()
        if reading is not None:
            self.readings.append(reading)
        return statistics.median(start.elapsed_time(end) for start, end in marks) / 1000


def wake() -> None:
    """Products for WAKE_S seconds, so that what follows is timed at the clocks of a GPU at work."""
    a, b, out = (random_numbers(PRODUCT, PRODUCT, dtype=torch.bfloat16) for _ in range(3))
    began = time.perf_counter()
    while time.perf_counter() - began < WAKE_S:
        torch.mm(a, b, out=out)
        torch.cuda.synchronize()


def random_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed, for zeros draw less power and run at higher clocks. torch's own generator is left alone."""
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    return torch.empty(*shape, dtype=dtype, device=DEVICE).normal_(generator=generator)


def hbm_read_bytes_per_s(watch: Stopwatch) -> float:
    """Bytes a second that kernels read from memory: 4 GiB, or a fifth of the free memory where that is less."""
    free, _ = torch.cuda.mem_get_info()
    unit = max(reader.floats for reader in READERS)
    data = random_numbers(min(BUFFER_BYTES, free // 5) // FLOAT_BYTES // unit * unit)
    launches = [streams.read_once(data, reader)[0] for reader in READERS]
    return data.numel() * FLOAT_BYTES / min(watch.seconds(partial(execute, launch)) for launch in launches)


def l2_read_bytes_per_s(watch: Stopwatch) -> float:
    """Bytes a second that kernels read from the L2: a buffer of at most a third of it, read over and over in one launch
    and past the L1."""
    data = random_numbers(l2_floats(watch.l2_bytes))
    size, rates = data.numel() * FLOAT_BYTES, list[float]()
    times = max(1, L2_BYTES // (size * L2_STEPS))
    for reader in READERS:
        launch, _ = streams.read_over(data, replace(reader, steps=L2_STEPS), times)
        rates.append(size * L2_STEPS * times / watch.seconds(partial(execute, launch)))
    return max(rates)


def l2_floats(l2_bytes: int) -> int:
    """The largest power of two of floats that a third of the L2 holds."""
    return int(2 ** ((l2_bytes // 3 // FLOAT_BYTES).bit_length() - 1))


def product_flops(watch: Stopwatch, dtype: torch.dtype, precision: str = "ieee") -> float:
    """FLOP a second of a product of two random matrices, by torch. precision: of float32, "ieee" or "tf32"."""
    a, b = (random_numbers(PRODUCT, PRODUCT, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    with float32_products(precision):
        return 2 * PRODUCT**3 / watch.seconds(lambda: torch.mm(a, b, out=out))


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Within it, torch multiplies float32 matrices on CUDA in "tf32" or "ieee"; afterwards as before."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = precision
    try:
        yield
    finally:
        setting.fp32_precision = before


def exps_per_s(watch: Stopwatch) -> float:
    """exp2 results a second, of numbers that stay in registers."""
    x = random_numbers(EXP_PROGRAMS * watch.sms * streams.EXP_BLOCK)
    launch = streams.exponentiate(x, EXP_ROUNDS)
    return x.numel() * EXP_ROUNDS * streams.EXP_UNROLL / watch.seconds(partial(execute, launch))


def launch_seconds(watch: Stopwatch) -> tuple[float, float]:
    """(GPU seconds that a kernel of nothing takes in a long queue of them, host seconds that Python needs to launch
    one), both by the function that launches every kernel of ours."""
    launch = streams.mark(torch.empty(1, dtype=torch.int32, device=DEVICE))

    def burst() -> None:
        for _ in range(LAUNCHES):
            execute(launch)

    host_s = _host_seconds(burst)
    top = nvml.clocks(watch.uuid)
    hertz = (top.sm_mhz_max if top is not None else 2000.0) * 1e6
    spin_cycles = int(2 * host_s * hertz)  # the GPU waits until all of them are queued
    gpu_s = watch.seconds(burst, ahead=lambda: torch.cuda._sleep(spin_cycles))
    return gpu_s / LAUNCHES, host_s / LAUNCHES


def _host_seconds(run: Callable[[], object]) -> float:
    """Seconds until ``run`` returns, with nothing queued before it; the median."""
    times = []
    for _ in range(WARMUP + SAMPLES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(times[WARMUP:])

"""Synthetic rows that look like a sweep on an H200 and like `quick` on a CPU, their pages, and a browser. The rows are
made up, and only ever used by tests."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.analysis.load import Profiled
from glabench.analysis.profile import calls
from glabench.report.figures import sections
from glabench.report.model import Section
from glabench.report.page import render
from glabench.report.papers import Pages
from glabench.report.papers import render as render_papers
from glabench.report.profile import render as render_profile
from glabench.report.profile_figures import sections as profile_sections
from glabench.spec.case import DTYPE_BYTES, Case, Mode
from glabench.spec.expand import expand
from glabench.spec.sweep import load
from glabench.store import Row

H200 = {
    "device": "NVIDIA H200", "kind": "cuda", "device_slug": "nvidia-h200", "memory_bytes": 150_754_820_096,
    "driver": "570.86.15", "cuda": "13.0", "torch": "2.11.0+cu130", "triton": "3.6.0", "python": "3.12.9",
    "glabench": "0.1.0", "commit": "0123456789abcdef", "dirty": True, "fingerprint": "f00dfeed",
    "copy_bytes_per_s": 4.28e12, "os": "Linux 6.8", "cpu_count": 16,
}  # fmt: skip
CPU = {
    "device": "AMD EPYC 9554", "kind": "cpu", "device_slug": "amd-epyc-9554", "memory_bytes": 8_000_000_000,
    "driver": None, "cuda": None, "torch": "2.13.0+cpu", "triton": "3.7.1", "python": "3.11.2", "glabench": "0.1.0",
    "commit": "0123456789abcdef", "dirty": False, "fingerprint": "f00dfeed", "copy_bytes_per_s": None,
    "os": "Linux 6.1", "cpu_count": 2,
}  # fmt: skip

HOST_MS = 0.3044  # to queue a call

# Times over the floor: made up, of the right order.
OVER_FLOOR = {"gla:wo": 5.6, "gla:w": 5.1, "gla": 5.0, "gla_recurrent": 30.0, "fla": 9.1, "fla_linear": 4.0}
MODE_SHARE = {"fwd": 1.0, "bwd": 2.6, "fwdbwd": 3.7, "step": 0.01}
OUTPUTS = {"fwd": ("o",), "bwd": ("dq", "dk", "dv", "dg"), "fwdbwd": ("o", "dq", "dk", "dv", "dg"), "step": ("o",)}


ALL_MODES: tuple[Mode, ...] = ("fwd", "bwd", "fwdbwd")
BOTH: tuple[Mode, ...] = ("fwd", "fwdbwd")
SHAPES: list[tuple[dict[str, Any], tuple[Mode, ...]]] = [
    *(({"B": 32768 // t, "T": t, "H": 4, "K": 128, "V": 256}, BOTH) for t in (1024, 4096, 16384)),
    ({"B": 1, "T": 8192, "H": 96, "K": 128, "V": 128}, BOTH),
    ({"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128}, ALL_MODES),
    *(({"B": 8, "T": 2048, "H": 1024 // d, "K": d, "V": d}, BOTH[:1]) for d in (64, 256)),
]


def hbm_bytes(case: Case) -> int:
    per_token = DTYPE_BYTES[case.dtype] * {"fwd": 3 * case.K + 2 * case.V, "bwd": 6 * case.K + 3 * case.V}.get(
        case.mode, 9 * case.K + 5 * case.V
    )
    return per_token * case.B * case.T * case.H


def samples(rng: random.Random, ms: float, count: int = 30) -> list[float]:
    return [round(ms * rng.lognormvariate(0, 0.012), 6) for _ in range(count)]


def accuracy(rng: random.Random, case: Case, where: str, passed: bool = True) -> dict[str, Any]:
    outputs = {
        name: {"error": rng.uniform(1.5e-3, 2.4e-3) * (1 if passed else 900), "baseline": 2.1e-3, "tolerance": 5e-3}
        for name in OUTPUTS[case.mode]
    }
    shape = {"B": 1, "T": 130, "H": 1, "K": case.K, "V": case.V} if where == "interpreter" else None
    return {
        "passed": passed, "where": where, "pairs": 2, "reference": "float64 recurrence", "outputs": outputs,
        "shape": shape or {"B": case.B, "T": case.T, "H": case.H, "K": case.K, "V": case.V},
    }  # fmt: skip


def gpu_row(rng: random.Random, case: Case, sweep: str = "board", environment: dict[str, Any] | None = None) -> Row:
    floor = hbm_bytes(case) / 4.28e12 * 1e3
    width = case.B * case.T * case.H * case.V
    key = case.system if case.materialize is None else f"gla:{'w' if case.materialize else 'wo'}"
    if case.attn_heads:
        ms = case.B * case.H * case.V * case.T**2 * 7.0e-12 * MODE_SHARE[case.mode] * (0.65 if key == "cudnn" else 1)
    elif case.system == "recurrent_torch":
        ms = case.T * 0.055 * MODE_SHARE[case.mode]
    else:
        shape = {16: 2.1, 32: 1.4, 64: 1.0, 128: 0.97, 256: 1.35}.get(case.chunk or 64, 1.0)
        ms = floor * OVER_FLOOR.get(key, 5.0) * shape * (1 + 0.1 * abs((case.sub_chunk or 16) - 16) / 16)
    beyond = int(width * 2 * {"gla:w": 4.2, "gla:wo": 1.3, "fla": 8.0, "recurrent_torch": 90}.get(key, 2.0))
    return Row(
        case.id, sweep, asdict(case), "ok", implementation=f"{case.system}, made up",
        accuracy=accuracy(rng, case, "cuda"), environment=environment or H200, started="2026-11-21T09:00:00+00:00",
        time={"clock": "cuda_events_cold_l2", "samples_ms": samples(rng, ms), "dropped": 1, "stopped": "noise",
              "warmup": 5, "launch_bound": case.system == "recurrent_torch",
              "eager": {"host_ms": [HOST_MS] * 9, "wall_ms": samples(rng, max(0.98 * ms, HOST_MS + 0.1), 9)}},
        memory={"peak_bytes": beyond + 4 * width, "inputs_bytes": 4 * width, "beyond_inputs_bytes": beyond,
                **({"kept_bytes": 0 if case.materialize is False else beyond // 3} if "bwd" in case.mode else {})},
        work={"flops": 4 * case.K * width, "hbm_bytes": hbm_bytes(case)}, wall_s=1.5,
        clocks={"sm_mhz": 1965.0, "sm_mhz_max": 1980.0, "power_w": 640.0, "temperature_c": 61.0,
                "throttle": ["sw_power_cap"] if case.T > 8000 else []},
    )  # fmt: skip


def failed(case: Case, status: str, reason: str, detail: str | None = None, sweep: str = "board") -> Row:
    return Row(case.id, sweep, asdict(case), status, reason, detail, environment=H200,
               started="2026-11-21T09:00:00+00:00", wall_s=0.4)  # fmt: skip


def board() -> list[Row]:
    """Sequence lengths in the papers' setting, production shapes, head dimensions, chunk sizes; 6 systems; failures.
    Each panel of their page takes a tenth of a second to draw, and each test in a browser reads all of it."""
    rng = random.Random(7)
    rows = [row for shape, modes in SHAPES for mode in modes for row in everyone(rng, {**shape, "mode": mode})]
    known = {row.case_id for row in rows}
    rows += [row for row in chunk_sizes(rng) if row.case_id not in known]
    return rows + failures(rng)


def everyone(rng: random.Random, at: dict[str, Any]) -> list[Row]:
    """Every system at one shape and mode; the PyTorch loop gives up on long sequences."""
    attention: dict[str, Any] = {**at, "gate_strength": None, "attn_heads": 16, "attn_dim": 64}
    cases = [Case("gla", chunk=64, sub_chunk=16, materialize=m, **at) for m in (True, False)]
    cases += [Case(name, **at) for name in ("gla_recurrent", "fla")]
    cases.append(Case("fa2", **attention))
    loop = Case("recurrent_torch", **at)
    last = (
        gpu_row(rng, loop) if loop.T <= 4096 else failed(loop, "timeout", "no result after 60 s, the limit of a case")
    )
    return [*(gpu_row(rng, case) for case in cases), last]


def chunk_sizes(rng: random.Random) -> list[Row]:
    at: dict[str, Any] = {"B": 8, "T": 4096, "H": 4, "K": 128, "V": 256}
    choices = itertools.product(BOTH, (16, 64, 128, 256), (16, 64), (True, False))
    rows = []
    for mode, chunk, sub, kept in choices:
        if sub > chunk:
            continue
        case = Case("gla", chunk=chunk, sub_chunk=sub, materialize=kept, **at, mode=mode)
        if (mode, chunk, sub) == ("fwdbwd", 256, 64):
            reason = "out of resource: shared memory, needs 294912, has 232448"
            rows.append(failed(case, "compile_error", reason, "OutOfResources: ...\n  at states.py", "chunk_size"))
        else:
            rows.append(gpu_row(rng, case, "chunk_size"))
    return rows


def failures(rng: random.Random) -> list[Row]:
    odd: dict[str, Any] = {"B": 2, "T": 3001, "H": 4, "K": 100, "V": 100}
    wrong = Case("fla_recurrent", **odd, gate_strength=8.0)
    bad = replace(
        failed(wrong, "wrong", "dg: error 1.8 exceeds its tolerance 0.005"),
        accuracy=accuracy(rng, wrong, "cuda", passed=False),
    )
    return [
        failed(Case("cudnn", gate_strength=None, **odd), "unsupported", "head dimension 100 is no multiple of 8"),
        failed(Case("fla", **odd, gate_strength=40.0), "oom", "CUDA out of memory: asked for 48.00 GiB"),
        failed(Case("gla", **odd, chunk=16, sub_chunk=16, materialize=True), "crashed", "signal 11 (SIGSEGV)"),
        bad,
    ]


def compiled(rng: random.Random, chunk: int, mode: str) -> list[dict[str, Any]]:
    kernels = ["gates_kernel", "states_kernel", "output_kernel"]
    kernels += ["states_bwd_kernel", "output_bwd_kernel"] if mode != "fwd" else []
    return [
        {"kernel": kernel, "arch": arch, "registers": rng.choice([64, 128, 168, 255]), "num_warps": 4, "num_stages": 2,
         "spill_bytes": rng.choice([0, 0, 0, 96]) if arch == "sm_90" else 0, "shared_bytes": chunk * 768,
         "tensor_core": "none" if kernel == "gates_kernel" else "wgmma" if arch == "sm_90" else "mma", "error": None}
        for kernel in kernels for arch in ("sm_90", "sm_80")
    ]  # fmt: skip


def quick_cpu() -> list[Row]:
    """PyTorch forms timed over T, Triton kernels gated in the interpreter and cross-compiled, never timed."""
    rng = random.Random(11)
    rows: list[Row] = []
    per_token = {"recurrent_torch": 0.05, "chunkwise_torch": 0.008}
    for t in (256, 1024, 4096):
        for mode in ("fwd", "fwdbwd"):
            for name in ("recurrent_torch", "chunkwise_torch", "parallel_torch", "sdpa"):
                at: dict[str, Any] = {"B": 1, "T": t, "H": 2, "K": 64, "V": 64, "dtype": "fp32", "mode": mode}
                if name == "sdpa":
                    at |= {"gate_strength": None, "attn_heads": 2, "attn_dim": 64}
                if name == "chunkwise_torch":
                    at |= {"chunk": 64}
                case = Case(name, **at)
                ms = t * per_token[name] if name in per_token else t * t * (4e-6 if name == "sdpa" else 9e-5)
                rows.append(Row(
                    case.id, "quick", asdict(case), "ok", implementation=f"{name}, made up", environment=CPU,
                    accuracy=accuracy(rng, case, "cpu"), started="2026-11-21T09:00:00+00:00", wall_s=0.6,
                    time={"clock": "cpu_wall", "samples_ms": samples(rng, ms * MODE_SHARE[mode], 9), "dropped": 0,
                          "stopped": "budget", "warmup": 1},
                    work={"flops": 10**9, "hbm_bytes": hbm_bytes(case)},
                ))  # fmt: skip
    for mode in BOTH:
        for chunk in (16, 32, 64, 128, 256):
            for m in (True, False):
                case = Case("gla", 1, 4096, 4, 128, 256, "fp32", mode, chunk=chunk, sub_chunk=16, materialize=m)
                rows.append(Row(
                    case.id, "quick", asdict(case), "ok", implementation="gla_kernels, Triton 3.7.1", environment=CPU,
                    accuracy=accuracy(rng, case, "interpreter"), compiled=compiled(rng, chunk, mode), wall_s=2.0,
                    work={"flops": 10**9, "hbm_bytes": hbm_bytes(case)}, started="2026-11-21T09:00:00+00:00",
                ))  # fmt: skip
    return rows


def papers() -> list[Row]:
    """The sweep `papers` on a GPU, and profiles of the forward pass by chunk size."""
    rng = random.Random(3)
    sweep = load(Path(__file__).parents[3] / "sweeps" / "papers.yaml")
    rows = [papers_row(rng, case) for case in expand(sweep, "cuda").cases]
    for chunk in (16, 32, 64, 128, 256):
        case = Case("gla", 32, 2048, 4, 128, 256, mode="fwd", chunk=chunk, sub_chunk=min(chunk, 64), materialize=True)
        parts = {"inter_ms": [8 / chunk + 0.4] * 3, "intra_ms": [0.3 + chunk / 500] * 3}
        kernels = [profiled_kernel("states", 10 / chunk, 0.1), profiled_kernel("output", 1.0, chunk / 30)]
        rows.append(papers_profile(rng, case, {"parts": parts, "kernels": kernels}))
    for kept, flops in ((True, 1.0), (False, 1.3)):
        case = Case("gla", 32, 2048, 16, 64, 64, gate_strength=None, chunk=64, sub_chunk=64, materialize=kept)
        rows.append(papers_profile(rng, case, {"kernels": [profiled_kernel("output", 1.0, flops)]}))
    return rows


def papers_profile(rng: random.Random, case: Case, found: dict[str, Any]) -> Row:
    profile = {"target": {"name": "NVIDIA H200", "here": True}, "ceilings": PAPERS_CEILINGS, **found}
    return replace(gpu_row(rng, case, "profile"), time=None, memory=None, profile=profile)


PAPERS_CEILINGS = {"hbm_copy_bytes_per_s": 4e12, "hbm_read_bytes_per_s": 4e12, "l2_read_bytes_per_s": 1e13,
                   "bf16_flops": 8e14, "fp32_flops": 5e13, "exps_per_s": 4e12, "launch_gap_s": 1e-6}  # fmt: skip


def profiled_kernel(step: str, hbm_ms: float, flops_ms: float) -> dict[str, Any]:
    """A kernel that needs so long for its bytes and for its products."""
    work = {"tensor_flops": {"bf16": 8e11 * flops_ms}, "vector_flops": 0, "exps": 0, "requested_bytes": 0,
            "hbm_read_bytes": 2e9 * hbm_ms, "hbm_write_bytes": 2e9 * hbm_ms, "tensors": {}}  # fmt: skip
    return {"name": f"{step}_kernel", "step": step, "direction": "fwd", "count": 1, "work": work,
            "samples_ms": [2 * max(hbm_ms, flops_ms)] * 3}  # fmt: skip


def papers_row(rng: random.Random, case: Case) -> Row:
    """Like ``gpu_row``, with what the papers' rivals are known for."""
    if case.system == "fa3":
        return failed(case, "unsupported", "the package flash_attn_interface is not installed", sweep="papers")
    if (case.system, case.T, case.K) == ("recurrent_hbm", 2048, 128):
        return failed(case, "oom", "CUDA out of memory: asked for 69.00 GiB", sweep="papers")
    if case.system == "helion" and (case.gate_strength or 0) > 8:
        return replace(
            failed(case, "wrong", "dg has 9 values that are NaN or infinite", sweep="papers"),
            accuracy=accuracy(rng, case, "cuda", passed=False)
            | {"outputs": {"o": {"error": 2e-3}, "dg": {"error": None, "tolerance": 5e-3}}},
        )
    row = gpu_row(rng, case, "papers")
    slow = {"recurrent_hbm": 9.0, "scan": 14.0, "chunkwise_torch": 7.0, "parallel_triton": case.T / 300,
            "mamba_scan": 1.8, "lightning2": 0.8, "chunkwise_direct": 2.4}.get(case.system, 1.0)  # fmt: skip
    slow *= 0.02 * case.T**0.5 if case.mode == "step" and case.attn_heads else 1.0
    assert row.time
    assert row.memory
    more = {"recurrent_hbm": case.K, "scan": 2 * case.K}.get(case.system, 1)
    time = row.time | {"samples_ms": [ms * slow for ms in row.time["samples_ms"]]}
    memory = {key: value * (more if key != "inputs_bytes" else 1) for key, value in row.memory.items()}
    return replace(row, time=time, memory=memory)


@pytest.fixture(scope="session")
def board_rows() -> list[Row]:
    return board()


@pytest.fixture(scope="session")
def papers_rows() -> list[Row]:
    return papers()


@pytest.fixture(scope="session")
def quick_rows() -> list[Row]:
    return quick_cpu()


@pytest.fixture(scope="session")
def at_strengths(board_rows: list[Row]) -> Callable[..., list[Row]]:
    """``at_strengths(0.06, 1.0)``: ours and FLA forward and backward at one shape, at each of these gate strengths."""
    some = [row for row in board_rows if row.time and (row.case["T"], row.case["B"]) == (2048, 4)]
    some = [row for row in some if row.case["mode"] == "fwdbwd" and row.case["system"] in ("gla", "fla")]
    return lambda *wanted: [
        replace(row, case_id=f"{row.case_id} {m}", case=row.case | {"gate_strength": m}) for row in some for m in wanted
    ]


@pytest.fixture(scope="session")
def strengths_rows(at_strengths: Callable[..., list[Row]]) -> list[Row]:
    """Many gate strengths of one mode and shape, whose names are long."""
    return at_strengths(0.06, 0.3, 1.0, 4.0, 16.0, 40.0, 1e4)


# Figures and pages take seconds: those of these rows are made once, for the tests that read them and for the browser.
MadeOnce = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="session")
def board_sections(made_once: MadeOnce, board_rows: list[Row]) -> list[Section]:
    found: list[Section] = made_once("board sections", lambda: sections(frame(board_rows)))
    return found


@pytest.fixture(scope="session")
def board_page(made_once: MadeOnce, board_rows: list[Row], board_sections: list[Section]) -> str:
    return str(made_once("board page", lambda: render(board_rows, frame(board_rows), board_sections)))


@pytest.fixture(scope="session")
def strengths_sections(strengths_rows: list[Row]) -> list[Section]:
    return sections(frame(strengths_rows))


@pytest.fixture(scope="session")
def strengths_page(made_once: MadeOnce, strengths_rows: list[Row], strengths_sections: list[Section]) -> str:
    return str(made_once("strengths page", lambda: render(strengths_rows, frame(strengths_rows), strengths_sections)))


@pytest.fixture(scope="session")
def papers_page(made_once: MadeOnce, papers_rows: list[Row]) -> str:
    pages = Pages(papers_rows)
    return str(made_once("papers page", lambda: render_papers(pages, pages.sections())))


@pytest.fixture(scope="session")
def profile_page(made_once: MadeOnce, profile_rows: list[Row]) -> str:
    profiled = [Profiled(row, Path("traces")) for row in profile_rows]
    found = calls(profiled)
    return str(made_once("profile page", lambda: render_profile(profiled, found, profile_sections(found))))


class Outline(HTMLParser):
    """What a page consists of: ids, references to other files, scripts, and tags that are never closed."""

    VOID = frozenset(("meta", "br", "input", "hr", "img", "link", "path"))
    OPTIONAL = frozenset(("td", "th", "tr", "li", "p", "option", "tbody", "thead"))  # HTML lets these end by themselves

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        references = [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data") and value]
        self.loads += [value for value in references if not value.startswith(("#", "data:"))]
        self.scripts += tag == "script"
        if tag not in self.VOID | self.OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID | self.OPTIONAL:
            assert self.open.pop() == tag


@pytest.fixture(scope="session")
def outline() -> Callable[[str], Outline]:
    """``outline(html)``: see Outline; a page whose tags do not match fails here."""
    return Outline


# --- A browser --------------------------------------------------------------------------------------------------------


def found(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; skips with the reason where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install -e '.[dev]')")
    binary, driver = found("chromium", "chromium-browser", "google-chrome"), found("chromedriver")
    if not binary or not driver:
        pytest.skip("no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync",
                     f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()

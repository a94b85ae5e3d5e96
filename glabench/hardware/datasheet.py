"""What NVIDIA promises of its GPUs: ceilings for machines one does not have. No torch.

Tensor-core rates are dense ones. NVIDIA prints most of them with sparsity, which doubles them, and says so in a
footnote: such a figure is written here as it is printed, divided by two. Nothing reaches all of it; a copy reaches some
90 % of the memory's bandwidth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from glabench.errors import UserError, did_you_mean

MIB = 2**20

A100_SHEET = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf"
A100_PAPER = "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
H100_PAGE = "https://www.nvidia.com/en-us/data-center/h100/"
H100_PAPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
H200_PAGE = "https://www.nvidia.com/en-us/data-center/h200/"
HGX_PAGE = "https://www.nvidia.com/en-us/data-center/hgx/"
DGX_B200_PAGE = "https://www.nvidia.com/en-us/data-center/dgx-b200/"
BLACKWELL_GUIDE = "https://docs.nvidia.com/cuda/blackwell-tuning-guide/index.html"
B200_DEVICE = "https://github.com/pytorch/ao/pull/4002"  # what CUDA says of one

# Results an SM gives in a clock: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
THROUGHPUT_TABLE = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions"
EXPS_PER_CLOCK = 16  # exp2f, on compute capability 8.0, 9.0 and 10.0
FMAS_PER_CLOCK = {"sm_80": 64, "sm_90": 128, "sm_100": 128}  # float32 multiply-adds, of two FLOP each


@dataclass(frozen=True)
class Datasheet:
    """A GPU as its maker describes it. Rates are in bytes or dense FLOP a second; ``sources`` has a URL for each field
    that is a number."""

    name: str
    arch: str
    sms: int
    hbm_bytes_per_s: float
    l2_bytes: int
    bf16_flops: float
    fp16_flops: float
    tf32_flops: float
    fp32_flops: float  # CUDA cores
    sources: dict[str, str]

    @property
    def boost_hz(self) -> float:
        """The clock at which the CUDA cores give ``fp32_flops``."""
        return self.fp32_flops / (2 * FMAS_PER_CLOCK[self.arch] * self.sms)

    @property
    def exps_per_s(self) -> float:
        """exp2 results a second at the boost clock, by THROUGHPUT_TABLE."""
        return EXPS_PER_CLOCK * self.sms * self.boost_hz


def _sources(page: str, **others: str) -> dict[str, str]:
    """A URL for every figure: that of the page, but for the others."""
    figures = [field.name for field in fields(Datasheet) if field.name not in ("name", "arch", "sources")]
    return dict.fromkeys(figures, page) | others


DATASHEET: dict[str, Datasheet] = {
    "A100": Datasheet(
        name="NVIDIA A100 80GB SXM",
        arch="sm_80",
        sms=108,
        hbm_bytes_per_s=2.039e12,
        l2_bytes=40 * MIB,
        bf16_flops=312e12,
        fp16_flops=312e12,
        tf32_flops=156e12,
        fp32_flops=19.5e12,
        sources=_sources(A100_SHEET, sms=A100_PAPER, l2_bytes=A100_PAPER),
    ),
    "H100": Datasheet(
        name="NVIDIA H100 SXM",
        arch="sm_90",
        sms=132,
        hbm_bytes_per_s=3.35e12,
        l2_bytes=50 * MIB,
        bf16_flops=1979e12 / 2,
        fp16_flops=1979e12 / 2,
        tf32_flops=989e12 / 2,
        fp32_flops=67e12,
        sources=_sources(H100_PAGE, sms=H100_PAPER, l2_bytes=H100_PAPER),
    ),
    # The chip of the H100, with all six stacks of memory and so with all of the L2, 60 MB by the whitepaper.
    "H200": Datasheet(
        name="NVIDIA H200 SXM",
        arch="sm_90",
        sms=132,
        hbm_bytes_per_s=4.8e12,
        l2_bytes=60 * MIB,
        bf16_flops=1979e12 / 2,
        fp16_flops=1979e12 / 2,
        tf32_flops=989e12 / 2,
        fp32_flops=67e12,
        sources=_sources(H200_PAGE, sms=H100_PAPER, l2_bytes=H100_PAPER),
    ),
    # Printed for eight of them. The clock and the bus width that a B200 reports make 7.67e12 bytes/s (B200_DEVICE).
    "B200": Datasheet(
        name="NVIDIA B200 SXM",
        arch="sm_100",
        sms=148,
        hbm_bytes_per_s=64e12 / 8,
        l2_bytes=126 * MIB,
        bf16_flops=36e15 / 2 / 8,
        fp16_flops=36e15 / 2 / 8,
        tf32_flops=18e15 / 2 / 8,
        fp32_flops=600e12 / 8,
        sources=_sources(HGX_PAGE, sms=B200_DEVICE, hbm_bytes_per_s=DGX_B200_PAGE, l2_bytes=BLACKWELL_GUIDE),
    ),
}

# Boards and parts of GPUs that carry a name from above and are not what it describes.
OTHER_BOARDS = frozenset({"pcie", "nvl", "40gb", "mig"})


def find_datasheet(name: str) -> Datasheet | None:
    """The datasheet of a GPU by its own name ("NVIDIA H100 80GB HBM3") or by its short one ("h100"); None for a GPU
    that no datasheet describes, such as the PCIe board of the same name."""
    words = _words(name)
    return None if OTHER_BOARDS.intersection(words) else _namesake(words)


def datasheet_for(name: str) -> Datasheet:
    """The same. Raises UserError for a GPU that no datasheet describes."""
    sheet = find_datasheet(name)
    if sheet is None:
        namesake = _namesake(_words(name))
        hint = f" (there is one of the {namesake.name})" if namesake is not None else did_you_mean(name, DATASHEET)
        raise UserError(f"a GPU without a ceiling: no measurement and no datasheet of {name!r}{hint}")
    return sheet


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _namesake(words: list[str]) -> Datasheet | None:
    return next((sheet for short, sheet in DATASHEET.items() if short.lower() in words), None)

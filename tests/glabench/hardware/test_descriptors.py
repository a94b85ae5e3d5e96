"""Where products of Hopper's machine code read their operands, in pieces of it as nvdisasm writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glabench.hardware.descriptors import Code, lost_in, parse

ADDRESS = ["S2UR UR4, SR_CgaCtaId", "UMOV UR5, 0x400", "ULEA UR5, UR4, UR5, 0x18",
           "USHF.R.U32.HI UR6, URZ, 0x4, UR5", "USGXT.U32 UR6, UR6, 0xe"]  # fmt: skip
LAYOUT = "UMOV UR7, 0x80000020"
PRODUCT = "HGMMA.64x32x16.F32.BF16 R24, R40, gdesc[UR4].tnspB, RZ, !UPT"  # rows in registers, columns by UR6 and UR7
SWAPPED = [f"ULOP3.LUT UR{a}, UR{b}, UR{c}, URZ, 0x3c, !UPT" for a, b, c in ((7, 7, 6), (6, 7, 6), (7, 7, 6))]
OTHER = "UIMAD.WIDE.U32 UR6, UR9, UR10, URZ"


def code(*rows: str) -> str:
    """The rows as machine code; a row that ends in a colon is a label."""
    lines = (
        row if row.endswith(":") else f"        /*{16 * n:04x}*/                   {row} ;"
        for n, row in enumerate(rows)
    )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([*ADDRESS, LAYOUT, PRODUCT], 0),
        ([*ADDRESS, LAYOUT, "UIADD3.64 UR6, UR6, 0x40, URZ", PRODUCT], 0),
        ([*ADDRESS, LAYOUT, "UIMAD UR6, UR9, 0x200, UR6", PRODUCT], 0),  # one of several buffers
        ([*ADDRESS, LAYOUT, OTHER, PRODUCT], 1),
        ([*ADDRESS, LAYOUT, "@UP0 " + OTHER, PRODUCT], 1),  # of what may have been, the layout is no constant
        ([LAYOUT, PRODUCT], 1),
        ([*ADDRESS, "R2UR UR7, R3", PRODUCT], 0),  # kept by each thread meanwhile
        ([*ADDRESS, "R2UR UR3, R3", "UIADD3.X UR7, UR3, -0x7fffffe0, URZ, UP0, !UPT", PRODUCT], 1),
        ([*ADDRESS, "UMOV UR3, URZ", "UIADD3.X UR7, UR3, -0x7fffffe0, URZ, UP0, !UPT", PRODUCT], 0),
        (["R2UR UR6, R3", LAYOUT, PRODUCT], 0),  # an address that each thread had: not followed
        (["R2UR UR6, R3", "R2UR UR3, R4", "UIADD3.X UR7, UR3, URZ, URZ, UP0, !UPT", PRODUCT], 0),  # a carry, of 0
        ([*ADDRESS, "UMOV UR7, UR6", "UMOV UR6, 0x80000020", *SWAPPED, PRODUCT], 0),
        ([*ADDRESS, "UMOV UR7, UR6", OTHER, *SWAPPED, PRODUCT], 1),
        ([*ADDRESS, "UMOV UR7, UR6", "UMOV UR6, 0x80000020", *SWAPPED[:2], "UMOV UR8, UR6", PRODUCT], 1),
    ],
    ids=str,
)
def test_registers_are_followed_to_where_their_values_come_from(rows: list[str], wrong: int) -> None:
    assert len(lost_in(code(*rows, "EXIT"))) == wrong


def test_what_a_later_turn_of_a_loop_finds_counts() -> None:
    loop = [*ADDRESS, LAYOUT, ".L_x_1:", PRODUCT, OTHER, "@P0 BRA `(.L_x_1)", "EXIT"]
    assert lost_in(code(*loop)) == [PRODUCT]
    assert lost_in(code(*(row for row in loop if row != OTHER))) == []


def test_both_operands_in_shared_memory_are_looked_at() -> None:
    product = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24"
    rows = [*ADDRESS, LAYOUT, product, "EXIT"]  # UR4 and UR5 have an address, but no layout
    assert lost_in(code(*rows)) == [product]
    moved = ["UMOV UR8, UR6", "UMOV UR9, UR7", "UMOV UR10, UR6", "UMOV UR11, UR7"]
    assert lost_in(code(*rows[:-2], *moved, product.replace("UR4", "UR8"), "EXIT")) == []


def test_parts_of_a_kernel_that_a_table_leads_to_are_followed() -> None:
    lines = ['BRX R2 -0x250 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)', ".L_x_1:", "EXIT", ".L_x_2:", PRODUCT, "EXIT"]
    assert lost_in(code(*ADDRESS, LAYOUT, *lines)) == []
    assert lost_in(code(*ADDRESS, LAYOUT, OTHER, *lines)) == [PRODUCT]


def test_code_after_an_end_is_only_reached_by_a_jump() -> None:
    lines = parse(code("@P0 BRA `(.L_x_1)", "EXIT", ".L_x_1:", "UMOV UR4, 0x1", "BRA `(.L_x_1)"))
    assert [line.after for line in lines] == [(2, 1), (), (3,), (2,)]
    assert Code(lines).written[3] == {4: frozenset([2])}


NARROW = """
import torch
from gla_kernels.ops.simple_gla import launches
from glabench.hardware.crosscompile import compile_launch
from glabench.hardware.descriptors import lost
found = launches(B=2, T=20, H=4, K=16, V=16, dtype=torch.float32, qk_heads=2, initial_state=True, mode="bwd")
(launch,) = (one for one in found if one.step == "simple_grad_qk_group")
print(launch.step, len(lost(compile_launch(launch, "sm_90").asm["cubin"])))
"""


def test_heads_of_16_features_in_float32_lose_none(compiling_process: Callable[..., str]) -> None:
    """Of dq and dk summed over heads: with 16 columns, 27 products read what lay elsewhere."""
    assert compiling_process("-c", NARROW).split() == ["simple_grad_qk_group", "0"]

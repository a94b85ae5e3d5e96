"""Loops of machine code: which there are, what is said of a kernel, and the errors."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from glabench.errors import UserError
from glabench.hardware.descriptors import parse
from glabench.tools import loops

CODE = """
        .section .text.kernel
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   IMAD.WIDE R2, R3, 0x4, R4 ;
.L_x_0:
        /*0020*/              @!P0 FMUL.FTZ R5, R5, R6 ;
        /*0030*/                   FMUL R5, R5, R6 ;
        /*0040*/               @P1 BRA `(.L_x_0) ;
        /*0050*/                   MUFU.EX2 R5, R5 ;
        /*0060*/          @!UP0 BRA `(.L_x_1) ;
        /*0070*/               @P2 BRA `(.L_x_3) ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   RET.REL.NODEC R2 `(kernel) ;
.L_x_2:
        /*00a0*/                   BRA `(.L_x_2);
"""


PRODUCTS = """
        /*0000*/                   WARPGROUP.ARRIVE ;
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4].tnspB, R24 ;
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, R92, gdesc[UR8].tnspB, R24, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0040*/                   EXIT ;
"""


def test_loops_run_from_a_label_to_the_branch_back() -> None:
    outer, inner = loops.loops_of(parse(CODE))
    assert (outer.instructions, inner.instructions) == (6, 3)
    assert inner.opcodes == {"FMUL": 2, "BRA": 1}
    assert str(outer) == "loop of 6: FMUL 2, BRA 2, IMAD 1, MUFU 1"


def test_code_without_loops() -> None:
    assert loops.loops_of(parse(" /*0000*/  EXIT ;\n.L_x_0:\n /*0010*/  BRA `(.L_x_0);\n")) == []


def test_a_kernel_of_gla(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is known elsewhere (hardware/test_crosscompile.py)."""
    kept = SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(shared=4096))
    monkeypatch.setattr("glabench.hardware.crosscompile.compile_launch", lambda launch, arch: kept)
    used = {"registers": 40, "spill_bytes": 8}
    monkeypatch.setattr("glabench.hardware.crosscompile.resources", lambda cubin: used)
    monkeypatch.setattr(loops, "disassemble", lambda cubin: CODE)
    states, *rest = loops.report("1,2048,2,64,64", "fwdbwd", "states", "sm_80", "none")
    assert states == "states_kernel: 40 registers, 8 bytes spilled, 4096 of shared memory, 11 instructions"
    assert [line.split(":")[0] for line in rest] == ["  loop of 6", "  loop of 3"]
    monkeypatch.setattr(loops, "disassemble", lambda cubin: PRODUCTS)
    with_products, *_ = loops.report("1,2048,2,64,64", "fwdbwd", "states", "sm_80", "none")
    assert with_products.endswith("5 instructions, 2 products and 1 waits for them")
    lines = list(loops.report("1,2048,2,64,64", "fwdbwd", "", "sm_80", "bf16"))
    assert [line.split(":")[0] for line in lines if line[0] != " "][-2:] == ["grad_qk_kernel", "grad_v_kernel"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("4,2048", "fwd", "", "sm_90", "bf16"), "shape 4,2048: expected B,T,H,K,V"),
        (("1,512,2,64,64", "fwd", "", "h100", "bf16"), "--target h100: expected an architecture"),
        (("1,512,2,64,64", "fwd", "sates", "sm_80", "bf16"), "--kernel sates: expected one of "),
    ],
)
def test_bad_input(asked: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        list(loops.report(*asked))


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SimpleNamespace(asm={"cubin": b""})
    monkeypatch.setattr("glabench.hardware.crosscompile.compile_launch", lambda launch, arch: kept)
    monkeypatch.setattr("glabench.hardware.descriptors.cuobjdump", lambda: None)
    result = CliRunner().invoke(loops.app, ["1,512,2,64,64"])
    assert result.exit_code == 2
    assert result.output == "error: cuobjdump, and nvdisasm beside it, come with Triton and are missing\n"

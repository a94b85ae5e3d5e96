"""What the compiler makes of a kernel has no names. Whole kernels: tests/glabench/tools/test_launches.py."""

from __future__ import annotations

import pytest

from glabench.hardware.lowered import nameless


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("tt.func public @a_kernel(%arg0: i32)", "tt.func public @kernel(%arg0: i32)"),
        (".entry a_kernel(\n.param .u64 a_kernel_param_0,", ".entry kernel(\n.param .u64 kernel_param_0,"),
        ("call grad_a_kernel; b.a_kernel$x", "call grad_a_kernel; b.a_kernel$x"),
        ("add.s32 x; // a_kernel.py:3\n\n// end", "add.s32 x;"),
    ],
)
def test_names_go(text, left):
    assert nameless(text, "a_kernel") == left

"""What packed sequences with one decay a head need besides compiles for GPUs: an interpreter takes what a compiler
refuses."""

from __future__ import annotations

import pytest

CODE = """
import sys
import torch
from gla_kernels.ops.simple_gla import launches
from glabench.hardware.crosscompile import compile_launch

H, qk_heads = int(sys.argv[1]), int(sys.argv[2])
shape = dict(B=1, T=96, H=H, K=32, V=32, dtype=torch.bfloat16, qk_heads=qk_heads, initial_state=True, sequences=2)
for launch in launches(**shape, capability=80):
    if launch.name.startswith("simple_edge"):
        compile_launch(launch, "sm_80")
        print(launch.name)
"""


@pytest.mark.parametrize(("H", "qk_heads"), [(2, 1), (1, 2)])
def test_packed_sequences_compile_with_states_at_both_ends(compiling_process, H, qk_heads):
    names = set(compiling_process("-c", CODE, str(H), str(qk_heads)).split())
    assert names == {"simple_edge_rows_kernel", "simple_edge_states_kernel", "simple_edge_grads_kernel"}

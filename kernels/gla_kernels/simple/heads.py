"""Heads of queries and keys, or of values, that several states share: where their rows lie.

Every state has a head, H of them. Of them GROUP share each head of a tensor [B, T, H // GROUP, D], those beside one
another: head h reads the tensor's head h // GROUP. A gradient of such a tensor is a sum over the group.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl


@triton.jit
def first_row(i_bh, T, H, GROUP: tl.constexpr):
    """The first row of a state's head, i_bh of all [B, H], in a tensor [B, T, H // GROUP, D]; int64."""
    return (i_bh // H) * T * (H // GROUP) + i_bh % H // GROUP


@triton.jit
def first_row_of_part(i_bh, B, T, H, GROUP: tl.constexpr):
    """The same in [GROUP, B, T, H // GROUP, D], where what each state's head adds to a sum lies apart."""
    return i_bh % GROUP * B * T * (H // GROUP) + first_row(i_bh, T, H, GROUP)

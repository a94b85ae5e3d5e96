"""A shape as one types it on the command line: B,T,H,K,V, or 4x2048x16x128x128 as rows and files have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from glabench.errors import UserError

SHAPE = "B,T,H,K,V"
TOO_LARGE = 2**31  # for any of them; kernels count programs and rows in 32 bits
LONGEST = 20  # digits that are read of one: too large by then


def is_shape(text: str) -> bool:
    """Whether a word of the command line is meant as a shape and not as a sweep's name or file."""
    if re.fullmatch(r"[\d\s]+|(\d+x)+\d*", text):  # a number alone, or 4x2048x16x128x128, as files are named
        return True
    return "," in text and re.search(r"[/\\]|\.ya?ml$", text) is None


def sizes(text: str) -> tuple[int, int, int, int, int]:
    """B, T, H, K and V; UserError when that is none."""
    words = [size.strip() for size in re.split(",|x", text)]
    found = [int(size[:LONGEST]) if size.isdecimal() else 0 for size in words]
    if len(found) != len(SHAPE.split(",")) or min(found) < 1:
        raise UserError(f"shape {text}: expected {SHAPE}, five integers > 0 such as 4,2048,16,128,128")
    if max(found) >= TOO_LARGE:
        raise UserError(f"shape {text[:60]}: {max(found)} is too large, expected integers < 2^31")
    B, T, H, K, V = found
    return B, T, H, K, V


def name_of(text: str) -> str:
    """The shape as files are named after it: "4x2048x16x128x128". UserError when it is none."""
    return "x".join(map(str, sizes(text)))


def named(case: Mapping[str, Any]) -> str:
    """The shape of a case, or the one at which it was checked: "B1 T165 H2 K64 V64"."""
    return " ".join(f"{axis}{case[axis]}" for axis in "BTHKV")

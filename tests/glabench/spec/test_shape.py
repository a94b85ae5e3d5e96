"""Shapes as they are typed."""

from __future__ import annotations

import pytest

from glabench.errors import UserError
from glabench.spec.shape import is_shape, sizes


def test_a_shape() -> None:
    assert is_shape("4,2048, 16,128,256")
    assert sizes("4,2048, 16,128,256") == (4, 2048, 16, 128, 256)


@pytest.mark.parametrize("text", ["1,2,3,4", "1,2,3,4,5,6", "0,2,3,4,5", "1,,3,4,5", ","])
def test_what_is_no_shape(text: str) -> None:
    assert is_shape(text)
    with pytest.raises(UserError, match=rf"^shape {text}: expected B,T,H,K,V"):
        sizes(text)


def test_names_are_no_shapes() -> None:
    assert not any(map(is_shape, ("board", "1,2,x", "my_model.yaml", "")))

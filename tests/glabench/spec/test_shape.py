"""Shapes as they are typed."""

from __future__ import annotations

import pytest

from glabench.errors import UserError
from glabench.spec.shape import is_shape, name_of, named, sizes


def test_a_shape() -> None:
    assert is_shape("4,2048, 16,128,256")
    assert sizes("4,2048, 16,128,256") == (4, 2048, 16, 128, 256)
    assert name_of("4,2048, 16,128,256") == "4x2048x16x128x256"


def test_a_shape_as_rows_and_files_have_it() -> None:
    assert is_shape("4x2048x16x128x256")
    assert sizes("4x2048x16x128x256") == (4, 2048, 16, 128, 256)
    assert named(dict(zip("BTHKV", sizes("4x2048x16x128x256"), strict=True))) == "B4 T2048 H16 K128 V256"


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3,4",
        "1,2,3,4,5,6",
        "0,2,3,4,5",
        "1,,3,4,5",
        ",",
        "4,-1,16,64,64",
        "4,2e3,16,64,64",
        "a,b,c,d,e",
        "1,2,x",
        "4x2048x16x128",
        "4x2048x16x128x",
        "4,2048,16,128,²",
    ],
)
def test_what_is_no_shape(text: str) -> None:
    assert is_shape(text)
    with pytest.raises(UserError, match=rf"^shape {text}: expected B,T,H,K,V"):
        sizes(text)


def test_a_number_that_python_would_not_read_is_too_large() -> None:
    with pytest.raises(UserError, match="too large"):
        sizes(f"4,2048,16,{'9' * 5000},1")


def test_names_are_no_shapes() -> None:
    assert not any(map(is_shape, ("board", "my_model.yaml", "", "xx", "a,b.yaml", "one,two/of")))

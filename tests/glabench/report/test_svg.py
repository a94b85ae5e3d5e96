"""Drawings on a page are small: nothing is said twice, and nothing that says nothing."""

from __future__ import annotations

import pytest

from glabench.report.svg import _bare, shared


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ('<svg><g><g a="1"><g><path/></g></g></g></svg>', '<svg><g a="1"><path/></g></svg>'),
        ('<g/><g a="1"/><g a="1"><g/>x</g>', '<g a="1">x</g>'),
        ("<g><glyph/></g>", "<glyph/>"),
    ],
)
def test_groups_that_say_nothing_go(body: str, left: str) -> None:
    assert _bare(body) == left


def test_a_style_that_drawings_repeat_is_said_once() -> None:
    page = (
        '<head></head><p style="fill: red; x: 1"></p>'
        '<svg viewBox="0"><path style="fill: red; x: 1"/><path style="fill: blue"/></svg>'
        '<svg viewBox="1"><text style="fill: red; x: 1">style</text></svg>'
    )
    assert shared(page) == (
        '<head><style id="looks">.l0{fill:red;x:1}</style>\n</head><p style="fill: red; x: 1"></p>'
        '<svg viewBox="0"><path class="l0"/><path style="fill: blue"/></svg>'
        '<svg viewBox="1"><text class="l0">style</text></svg>'
    )
    assert shared("<head></head>") == "<head></head>"

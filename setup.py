"""What pyproject.toml cannot say: the README of an index, which has no files beside it that a link could lead to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def absolute(text: str, home: str) -> str:
    """Links to files of the repository at ``home``, as addresses in its main branch; pictures as files alone."""

    def link(found: re.Match[str]) -> str:
        mark, words, path = found.groups()
        return f"{mark}[{words}]({home}/{'raw' if mark else 'blob'}/main/{path})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", link, text)


def readme() -> str:
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return absolute((HERE / "README.md").read_text(encoding="utf-8"), project["urls"]["Repository"])


if __name__ == "__main__":
    from setuptools import setup

    setup(long_description=readme(), long_description_content_type="text/markdown")

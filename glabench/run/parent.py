"""What a child says to its parent while it works on a request: see ``glabench.run.child``. No torch."""

from __future__ import annotations

import json
import queue
from typing import Any, TextIO

_line: tuple[TextIO, queue.Queue[str]] | None = None  # where this process answers, and what it is sent; not in a child


def connect(answers: TextIO, requests: queue.Queue[str]) -> None:
    global _line
    _line = answers, requests


def tell(note: dict[str, Any]) -> None:
    """Of a child that works on a request: tell its parent, and come back once it has heard. Nothing elsewhere."""
    if _line is None:
        return
    answers, requests = _line
    answers.write(json.dumps({"note": note}) + "\n")
    answers.flush()
    requests.get()

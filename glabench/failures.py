"""What an exception means for a row: its status, one line of reason, and the traceback's tail."""

from __future__ import annotations

import re
import traceback

STATUS_BY_NAME = {
    "OutOfMemoryError": "oom",
    "MemoryError": "oom",
    "CompilationError": "compile_error",
    "CompileTimeAssertionFailure": "compile_error",
    "UnsupportedLanguageConstruct": "compile_error",
    "OutOfResources": "compile_error",
    "PTXASError": "compile_error",
    "NotImplementedError": "unsupported",
}
# RuntimeErrors that only their text tells apart.
STATUS_BY_TEXT = (
    (re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE), "oom"),
    (re.compile(r"PassManager::run failed|ptxas|failed to translate|LLVM ERROR", re.IGNORECASE), "compile_error"),
    (re.compile(r"no available kernel|no viable backend|not supported|only supports?", re.IGNORECASE), "unsupported"),
)
DETAIL_LINES = 12


class NotMeasured(Exception):
    """Something cannot be had here, or has no meaning for the case; says why in one line."""


def of_machine(error: BaseException | None) -> bool:
    """Whether the machine did it, and not what it ran: a full or busy disk, a stale handle, no process or file left.
    The same may well succeed another time."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return True
        error = error.__cause__
    return False


def of_import(error: BaseException) -> bool:
    """Whether an import statement of glabench's own failed: that of a system's package, which does so for every case
    that comes to the statement. Not what a function of the package imports, which may depend on what it was given."""
    if not isinstance(error, ImportError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__")) for frame in frames]
    ours = [number for number, name in enumerate(names) if name.split(".")[0] == __package__]
    below = frames[ours[-1] + 1 :]
    return not below or below[0].f_code.co_name == "<module>"


def classify(error: BaseException) -> str:
    """The row status of an error: "oom", "compile_error", "unsupported", or "crashed" for all that is unforeseen."""
    if of_machine(error):
        return "crashed"
    for cls in type(error).__mro__:
        if cls.__name__ in STATUS_BY_NAME:
            return STATUS_BY_NAME[cls.__name__]
    text = str(error)
    return next((status for pattern, status in STATUS_BY_TEXT if pattern.search(text)), "crashed")


def one_line(error: BaseException) -> str:
    """The error's name and the first line of its message that says something.

    Where that line only introduces the rest ("at 2:11:" and the source, as Triton's compiler writes), the last line
    follows it: it is the one that says what is wrong. Where that only marks a call, the error within says it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if lines[-1] == "^" and error.__cause__ is not None:
        return one_line(error.__cause__)
    first = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def reason(error: BaseException) -> str:
    """One line for the row. Out of memory says how much was asked for and how much there is, when PyTorch knows."""
    if classify(error) == "oom":
        text = " ".join(str(error).split())
        tried = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", text)
        total = re.search(r"total capacity of ([\d.]+ \w+)", text)
        free = re.search(r"of which ([\d.]+ \w+) is free", text)
        if tried:
            parts = [f"out of memory: {tried[1]} more were needed"]
            if total:
                parts.append(f"of {total[1]}" + (f", {free[1]} free" if free else ""))
            return " ".join(parts)
    return one_line(error)


def detail(error: BaseException) -> str:
    """The last lines of the traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-DETAIL_LINES:])

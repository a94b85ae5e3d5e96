"""List every launch of every shipped plan, with a hash of its kernel: ``python -m glabench.tools.launches``.

Shows that sources which were moved or renamed launch what they launched: list before, and after with ``--against``. A
line is one launch (listing.py): of which workload, by which plan, for which compute capability, with states kept
between the passes or not, with an initial state or without; then its kernel, grid, settings, constants and arguments,
of tensors type, shape, strides and which memory of the call they lie in; last the hash of what the compiler makes of
it, which knows no names of files, functions and variables. So are calls that no plan is shipped for. Needs no GPU.
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import triton

from gla_kernels.launch import interpreting
from gla_kernels.plan.files import shipped_tables
from glabench.errors import UserError
from glabench.hardware.lowered import Form, lowered
from glabench.tools.listing import Listed, digest, others, shipped

SHOWN = 40  # lines that differ


# --- Kernels ----------------------------------------------------------------------------------------------------------

_waiting: list[tuple[Listed, Form]] = []  # for processes, which are forked: launches cannot be sent


def hashes(found: Iterable[Listed], form: Form, jobs: int = 1) -> dict[tuple[int, str], str]:
    """By kernel, the hash of what the compiler makes of it, each different one compiled once; of an error, its name."""
    different = {one.kernel: one for one in found}
    _waiting[:] = [(one, form) for one in different.values()]
    try:
        if jobs == 1:
            made = [_hashed(number) for number in range(len(_waiting))]
        else:
            with multiprocessing.get_context("fork").Pool(jobs) as pool:
                made = pool.map(_hashed, range(len(_waiting)), chunksize=1)
    finally:
        _waiting.clear()
    return dict(zip(different, made, strict=True))


def _hashed(number: int) -> str:
    one, form = _waiting[number]
    try:
        return digest(lowered(one.launch, one.capability, form))
    except MemoryError:
        raise
    except Exception as error:
        return type(error).__name__


# --- Files ------------------------------------------------------------------------------------------------------------


def lines_of(launches: Iterable[Listed], form: Form = "ir", jobs: int = 1) -> list[str]:
    """The listing: what it was made with, then a line for each launch, sorted."""
    found = list(launches)
    made = hashes(found, form, jobs)
    return [_head(form), *sorted(f"{one.line} | {made[one.kernel]}" for one in found)]


def _head(form: Form) -> str:
    return f"# launches, {form} of Triton {triton.__version__}"


def read(path: Path) -> list[str]:
    """The lines of a listing. Raises UserError."""
    try:
        with _opened(path, "rt") as file:
            return file.read().splitlines()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no listing of launches: {error}") from None


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[TextIO]:
    """A file of text; one whose name ends in .xz is compressed."""
    opened: Any = lzma.open if path.suffix == ".xz" else open
    with opened(path, mode) as file:
        yield file


def differences(before: Sequence[str], after: Sequence[str], renamed: dict[str, str]) -> list[str]:
    """Lines that only one of two listings has, "- " those of the first, in which words are renamed. Raises UserError
    for listings that cannot be compared."""
    if before[:1] != after[:1]:
        raise UserError(f"made with something else: {before[0] if before else 'nothing'!r}, this one with {after[0]!r}")
    if renamed:
        words = re.compile(rf"\b({'|'.join(map(re.escape, renamed))})\b")
        before = [words.sub(lambda word: renamed[word[0]], line) for line in before]
    # in the order of the lines, so that what has changed stands beside what it has become
    return sorted(
        [f"- {line}" for line in set(before) - set(after)] + [f"+ {line}" for line in set(after) - set(before)],
        key=lambda line: (line[2:], line[0] == "+"),
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the listing, or compare it with an earlier one; the exit code, 1 where they differ."""
    parser = argparse.ArgumentParser(
        prog="python -m glabench.tools.launches", description="List every launch, with its kernel."
    )
    parser.add_argument("--ptx", action="store_true", help="hash PTX, not what the compiler's front end makes")
    parser.add_argument("--shipped", action="store_true", help="shipped plans only, not other calls beside")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--output", type=Path, help="file for the listing; compressed if it ends in .xz")
    parser.add_argument("--against", type=Path, help="an earlier listing; exit 1 with the lines that differ")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="a word of the earlier one that is another now"
    )
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if interpreting():
        raise UserError("TRITON_INTERPRET is set: kernels would not be compiled")
    renamed = dict(word.split("=", 1) for word in options.rename if "=" in word)
    if len(renamed) < len(options.rename):
        raise UserError(f"--rename: expected OLD=NEW, each OLD once, got {' '.join(options.rename)}")
    before = read(options.against) if options.against else None
    found = chain(shipped(shipped_tables()), () if options.shipped else others())
    lines = lines_of(found, "ptx" if options.ptx else "ir", max(1, options.jobs))
    if options.output:
        with _opened(options.output, "wt") as file:
            file.writelines(f"{line}\n" for line in lines)
    elif before is None:
        print("\n".join(lines))
    if before is None:
        return 0
    unlike = differences(before, lines, renamed)
    print("\n".join(unlike[:SHOWN]), end="\n" if unlike else "")
    print(f"{len(lines) - 1:,} launches, {len(_kernels(lines))} different kernels: {len(unlike):,} lines differ")
    if unlike:
        # of kernels that are launched on both sides, only what they are given, or their order, can differ
        gone, new = (_kernels(line for line in unlike if line[0] == sign) for sign in "-+")
        print(f"kernels that are gone: {_counted(gone - new)}; new: {_counted(new - gone)}")
    return 1 if unlike else 0


def _kernels(lines: Iterable[str]) -> set[tuple[str, str]]:
    """The name and the hash of each different kernel in a listing, or in lines that differ."""
    found = (re.search(r"(\w+)\[[\d, ]*\] \| .*\| (\w+)$", line) for line in lines)
    return {(one[1], one[2]) for one in found if one}


def _counted(kernels: Iterable[tuple[str, str]]) -> str:
    """How many there are of each name."""
    counts = Counter(name for name, _ in kernels)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())

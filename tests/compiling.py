"""Runs Python code in forks of a process that has imported what takes seconds to import: see `compiling_process` in
conftest.py. A line of JSON asks for one: ``arguments`` as Python's own, and files for what is printed; a line with its
exit code answers."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import Any

import torch  # noqa: F401
import triton  # noqa: F401

import glabench.hardware.crosscompile  # noqa: F401


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            os._exit(run(request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(request: dict[str, Any]) -> int:
    """In the fork. Answers the exit code."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY), number)
    try:
        first, *rest = request["arguments"]
        if first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = request["arguments"]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()

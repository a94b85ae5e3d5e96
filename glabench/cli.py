"""The command line: joins the commands, and turns every mistake of a user into one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from functools import cache
from typing import Annotated, Any

import typer

from glabench import __version__
from glabench.commands.check import check
from glabench.commands.compare import compare
from glabench.commands.compile import compile_
from glabench.commands.doctor import doctor
from glabench.commands.ls import ls
from glabench.commands.profile import profile
from glabench.commands.report import report
from glabench.commands.results import results
from glabench.commands.schema import schema
from glabench.commands.sweep import sweep
from glabench.commands.tune import tune
from glabench.errors import UserError, did_you_mean

app = typer.Typer(
    name="glabench",
    help="Benchmark, correctness gate, tuner and report for gated linear attention kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = {
    function.__name__.rstrip("_"): function
    for function in (compare, sweep, report, check, tune, profile, compile_, ls, doctor, schema)
}
for _name, _function in COMMANDS.items():
    app.command(_name)(_function)
app.add_typer(results, name="results")
NAMES = (*COMMANDS, "results")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"glabench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of glabench itself."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 something in the results is bad, 2 a mistake in what was asked."""
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII gets question marks
    try:
        code = _parser().main(args=given, prog_name="glabench", standalone_mode=False)
        sys.stdout.flush()  # here, where a full disk can be told of
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # of which the parser makes an exit code of its own
            _reader_is_gone()
        raise
    except BrokenPipeError:
        _reader_is_gone()
    except OSError as error:  # a path that cannot be looked at, or a full disk behind our output
        if error.filename is None:
            _drop_output()
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C, as the parser passes it on
            sys.exit(130)
        if not hasattr(error, "format_message"):  # not one of the parser's own
            raise
        _fail(_usage(error, given))
    sys.exit(code if isinstance(code, int) else 0)


@cache
def _parser() -> Any:
    """Of all commands: it takes a tenth of a second to make, and tests run hundreds of command lines in one process."""
    return typer.main.get_command(app)


def _reader_is_gone() -> None:
    """As where the signal ends a program: `glabench ls | head`."""
    _drop_output()
    sys.exit(141)


def _drop_output() -> None:
    """What waits to be written goes nowhere: at the end Python would try again, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Any, given: list[str]) -> str:
    """What the parser found wrong, in one line with the nearest command."""
    message = str(error.format_message()).strip().rstrip(".")
    name = next((word for word in given if not word.startswith("-")), "")
    if message.startswith("No such command") and name not in NAMES:
        return f"no such command {name!r}{did_you_mean(name, NAMES)}"
    command = f"glabench {name}" if name in NAMES else "glabench"
    return f"{message[:1].lower()}{message[1:]}; see `{command} --help`"


def _fail(message: str) -> None:
    print(f"glabench: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)

"""Options of the command line for axes of a case: those that `glabench.spec.axes` has a help for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer

from glabench.spec.axes import AXES, TYPES


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with an option for each axis in the place of its ``**axes``, which are then given by name."""
    signature = inspect.signature(command)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [_option(name) for name, axis in AXES.items() if axis.option is not None]
    hints = get_type_hints(command, include_extras=True)
    parameters = [*(one.replace(annotation=hints[one.name]) for one in own), *more]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # as inspect reads it
    return command


def _option(name: str) -> inspect.Parameter:
    axis, flag = AXES[name], f"--{name.replace('_', '-')}"
    if axis.default is False:
        kind: Any = Annotated[bool, typer.Option(flag, help=axis.option)]
    else:
        whole = int in get_args(TYPES[name])
        shown = typer.Option(flag, help=axis.option, show_default=axis.unset)
        kind = Annotated[int | None, shown] if whole else Annotated[str | None, shown]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=axis.default, annotation=kind)

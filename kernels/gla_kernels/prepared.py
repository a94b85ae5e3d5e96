"""Launches that were made before, made again without asking Triton which kernel they want.

``kernel[grid](...)`` sorts arguments by what a kernel is compiled for (types, numbers, whether 16 divides an address),
and tensor descriptors check what they are made of: most of what Python takes for a launch, and the same each time
(kernels/NOTES.md, "What Python takes"). So what came of it is kept, and a launch that is like it in all that may matter
calls the compiled kernel itself, ``compiled[grid](*values)``, as Triton's tutorial 02 does.

Triton's settings for debugging and instrumentation, and constants of modules that kernels use, count as they were at a
launch's first time. Its launch hooks run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from .launch import Launch

ALIGNED = 16  # bytes: of an address that is a multiple of it the compiler makes use
MOST = 4096  # kept; a shape of a call has some ten

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A compiled kernel and how it takes its arguments.

    values: all of them in order, None for those that follow. given: positions and names of run-time arguments.
    described: positions of tensor descriptors, with the name of the tensor, the class, and all fields but the tensor,
    whose memory would be kept with it.
    """

    compiled: Any
    values: tuple[Any, ...]
    given: tuple[tuple[int, str], ...]
    described: tuple[tuple[int, str, Any, dict[str, Any]], ...]

    def run(self, grid: tuple[int, ...], args: dict[str, Any]) -> None:
        """Launch the kernel on the current device and stream. args: as a launch has them, by name."""
        values = list(self.values)
        for at, name in self.given:
            values[at] = args[name]
        for at, name, cls, fields in self.described:
            # not by the constructor: what that checks is in the key, and was checked the first time
            values[at] = descriptor = cls.__new__(cls)
            descriptor.__dict__.update(fields, base=args[name])
        self.compiled[(*grid, 1, 1)[:3]](*values)


_kept: dict[Key, Prepared] = {}


def run(launch: Launch, device: int) -> None:
    """Run the launch on the device, which is the current one. Raises what Triton raises."""
    key = key_of(launch, device)
    known = _kept.get(key)
    if known is not None and not launch.kernel.pre_run_hooks:
        known.run(launch.grid, launch.args)
        return
    arguments = launch.arguments
    compiled = launch.kernel[launch.grid](**arguments, **launch.constants, **launch.options)
    found = _prepare(launch, arguments, compiled)
    if found is not None:
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = found


def key_of(launch: Launch, device: int) -> Key:
    """All of a launch that the kernel is compiled for, or that a tensor descriptor is checked for."""
    kinds: list[Any] = []
    described = launch.blocks
    for name, x in launch.args.items():
        kinds.append(name)
        if isinstance(x, Tensor):
            kinds += (x.dtype, x.data_ptr() % ALIGNED)
            if name[2:] in described:
                kinds += (x.shape, x.stride())
        else:
            kinds += (x.__class__, x)  # True is 1 and 1 is 1.0, but they are not compiled alike
    return (
        id(launch.kernel),  # no other's: `compiled` keeps the kernel
        device,
        launch.num_warps,
        launch.num_stages,
        launch.max_registers,
        launch.early,
        *launch.constexprs.items(),
        *described.items(),
        *kinds,
    )


def _prepare(launch: Launch, arguments: dict[str, Any], compiled: Any) -> Prepared | None:
    """How to make the launch again; None where a parameter has a default value, which is Triton's to fill in, or where
    there is no compiled kernel: one that is still being compiled (Triton's AsyncCompileMode) cannot be called."""
    names, known = launch.kernel.arg_names, arguments | launch.constants
    if not hasattr(type(compiled), "__getitem__") or any(name not in known for name in names):
        return None
    values = [None if name in arguments else launch.constants[name] for name in names]
    given = [(at, name) for at, name in enumerate(names) if name in arguments and name in launch.args]
    described = [
        (at, f"p_{name[2:]}", type(arguments[name]), {x: y for x, y in vars(arguments[name]).items() if x != "base"})
        for at, name in enumerate(names)
        if name in arguments and name not in launch.args and arguments[name] is not None
    ]
    return Prepared(compiled, tuple(values), tuple(given), tuple(described))

"""Single launches: run in Triton's interpreter, or compiled on the first one of their like and fired from then on.

``kernel[grid](...)`` sorts arguments by what a kernel is compiled for (types, numbers, whether 16 divides an address),
and tensor descriptors check what they are made of: most of what Python takes for a launch, and the same each time
(kernels/NOTES.md, "What Python takes"). So what came of it is kept, by all of a launch that may matter.

Triton's settings for debugging and instrumentation, and constants of modules that kernels use, count as they were at a
launch's first time. Where somebody listens to Triton's launches (a profiler's hooks), Triton makes them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from .image import Image, Unfit, make, stream_of
from .interpreter import lean
from .launch import Launch

ALIGNED = 16  # bytes: of an address that is a multiple of it the compiler makes use
MOST = 4096  # kept; a shape of a call has some ten

Key = tuple[Any, ...]


def interpreting() -> bool:
    """Whether kernels run on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1 at import)."""
    return bool(triton.knobs.runtime.interpret)


def execute(launch: Launch) -> None:
    """Run the kernel on the device that its tensors are on. An empty grid (no batch, no heads) runs nothing, nor does
    anything on meta tensors, which have shapes and no data."""
    if math.prod(launch.grid) == 0:
        return
    tensor = next(x for x in launch.args.values() if isinstance(x, Tensor))
    if tensor.is_meta:
        return
    with torch.cuda.device_of(tensor):  # Triton launches on the current GPU, which need not be the tensors'
        _run(launch, tensor.get_device())


def _interpret(launch: Launch, device: int) -> None:
    with lean():
        launch.kernel[launch.grid](**launch.arguments, **launch.constants, **launch.options)


def by_triton(launch: Launch) -> None:
    """Make the launch as Triton does. Raises what Triton raises."""
    launch.kernel[launch.grid](**launch.arguments, **launch.constants, **launch.options)


def compile_launch(launch: Launch) -> Any:
    """The compiled kernel of a launch, for the current device; its tensors may be on the meta device, where their
    addresses count from the start of their memory. Raises what Triton raises."""
    compiled = launch.kernel.warmup(**launch.arguments, **launch.constants, **launch.options, grid=launch.grid)
    return compiled.result() if hasattr(compiled, "result") else compiled


def listened_to() -> bool:
    """Whether somebody wants to hear of launches from Triton."""
    settings = triton.knobs.runtime
    return bool(settings.launch_enter_hook.calls or settings.launch_exit_hook.calls)


_kept: dict[Key, Image | None] = {}


def run(launch: Launch, device: int) -> None:
    """Run the launch on the device, which is the current one. Raises what Triton raises."""
    if listened_to() or launch.kernel.pre_run_hooks:
        return by_triton(launch)
    key, tensors = key_of(launch, device), [x for x in launch.args.values() if isinstance(x, Tensor)]
    if key not in _kept:
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = _image(launch, tensors)
    image = _kept[key]
    if image is None:
        return by_triton(launch)
    _memory, calls = image.bind([stream_of(device), *(x.data_ptr() for x in tensors)])
    return make(calls)


_run = _interpret if interpreting() else run


def _image(launch: Launch, tensors: list[Tensor]) -> Image | None:
    """The launch to be fired; None where Triton has to make it."""
    try:
        return Image(
            [(launch, compile_launch(launch))], lambda x: (next(i for i, y in enumerate(tensors) if y is x), 0)
        )
    except Unfit:
        return None


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
        launch.kernel,
        launch.grid,
        device,
        launch.num_warps,
        launch.num_stages,
        launch.max_registers,
        launch.early,
        *launch.constexprs.items(),
        *described.items(),
        *kinds,
    )

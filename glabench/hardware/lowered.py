"""What the compiler makes of a launch, as text without the names of files, functions and variables.

Either what Triton's front end makes of it and all else is made from, or PTX. Needs no GPU of the architecture, and no
``ptxas``; nothing is taken from Triton's cache or put there. Must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from glabench.hardware.crosscompile import source_of

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

Form = Literal["ir", "ptx"]

SYMBOL = "kernel"  # stands for the kernel's name


def lowered(launch: Launch, capability: int, form: Form = "ir") -> str:
    """The launch's kernel compiled for the capability (90 for 9.0): to Triton's dialect of MLIR, in Gluon with layouts,
    all functions in one; or to PTX. Raises what Triton raises."""
    from triton._C.libtriton import ir

    source, backend = source_of(launch), make_backend(GPUTarget("cuda", capability, 32))
    options = backend.parse_options({**launch.options, **source.parse_options()})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()  # lives as long as what is made in it
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    last, metadata = source.ext if form == "ir" else "ptx", {"target": backend.target, **options.__dict__}
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        module = source.make_ir(backend.target, options, generators, modules, context)
        for name, stage in stages.items():  # as `triton.compile` goes through them
            module = stage(module, metadata)
            if name == last:
                break
    return nameless(module.str_nodebug() if form == "ir" else module, launch.name)


def nameless(text: str, kernel: str) -> str:
    """The text with SYMBOL in place of the kernel's name, without comments and empty lines."""
    text = re.sub(rf"(?<![\w$]){re.escape(kernel)}(?=_param_\d|[^\w$]|$)", SYMBOL, text)
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)

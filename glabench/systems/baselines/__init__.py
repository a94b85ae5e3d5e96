"""The forms of gated linear attention that the papers compare with, as Triton kernels: one file a form.

They are rivals of `gla_kernels` and no part of it: written as well as their form allows, and not tuned. Each file has
kernels, and a `Form` whose two host functions launch them; ``form`` makes that differentiable. The adapters in
``glabench.systems`` put them behind the interface that all systems share.
"""

from __future__ import annotations

from glabench.systems.baselines.form import Call, Form, launches, run

__all__ = ["Call", "Form", "launches", "run"]

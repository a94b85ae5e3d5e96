"""Launches of kernels: as data, recorded once for a call and made again, or run one by one.

`Launch` is one as data. A `Program` is all of a direction of a call, recorded on tensors without data (`record`) and
fired from an image of the driver's own structures. `execute` runs a single one, compiling it if need be.
"""

from .launch import Launch, Launcher, described, descriptor, settle_keys
from .record import on_cpu
from .run import execute, interpreting

__all__ = ["Launch", "Launcher", "described", "descriptor", "execute", "interpreting", "on_cpu", "settle_keys"]

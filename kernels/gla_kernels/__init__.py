"""Gated linear attention as Triton kernels, with the references that they are judged by.

from gla_kernels import gla, Schedule
o, _ = gla(q, k, v, g)                                             # q, k, g [B, T, H, K]; v [B, T, H, V]
o, state = gla(q, k, v, g, output_final_state=True, schedule=Schedule(chunk=128, materialize=False))
"""

from .api import gla, gla_recurrent, gla_step, launches
from .choose import default_config, default_schedule
from .config import KernelConfig, Plan, Schedule, Tile, Workload
from .launch import Launch

__all__ = [
    "KernelConfig",
    "Launch",
    "Plan",
    "Schedule",
    "Tile",
    "Workload",
    "default_config",
    "default_schedule",
    "gla",
    "gla_recurrent",
    "gla_step",
    "launches",
]

"""Gated linear attention as Triton kernels, with the references that they are judged by.

from gla_kernels import gla, Schedule
o, _ = gla(q, k, v, g)                                             # q, k, g [B, T, H, K]; v [B, T, H, V]
o, state = gla(q, k, v, g, output_final_state=True, schedule=Schedule(chunk=128, materialize=False))
o, _ = simple_gla(q, k, v, g)                                      # one gate a head: g [B, T, H]
"""

from .api import gla, gla_recurrent, gla_step, launches
from .choose import Choice, chosen, default_config, keep, machine_of, refresh
from .config import KernelConfig, Plan, Schedule, Tile, Workload
from .launch import Launch
from .simple import retnet_decays, simple_gla
from .table import Entry, Machine, TableError

__all__ = [
    "Choice",
    "Entry",
    "KernelConfig",
    "Launch",
    "Machine",
    "Plan",
    "Schedule",
    "TableError",
    "Tile",
    "Workload",
    "chosen",
    "default_config",
    "gla",
    "gla_recurrent",
    "gla_step",
    "keep",
    "launches",
    "machine_of",
    "refresh",
    "retnet_decays",
    "simple_gla",
]

"""Gated linear attention as Triton kernels, with the references that they are judged by.

from gla_kernels import gla, Schedule
o, _ = gla(q, k, v, g)                                             # q, k, g [B, T, H, K]; v [B, T, H, V]
o, state = gla(q, k, v, g, output_final_state=True, schedule=Schedule(chunk=128, materialize=False))
o, _ = simple_gla(q, k, v, g)                                      # one gate a head: g [B, T, H]
"""

from .launch.sources import parsed_once

with parsed_once():
    from .launch import Launch
    from .ops.gla import gla, gla_recurrent, gla_step, launches
    from .ops.simple_gla import retnet_decays, simple_gla
    from .plan.choose import Choice, chosen, default_config, keep, machine_of, refresh
    from .plan.table import Entry, Machine, TableError
    from .schedule import KernelConfig, Plan, Schedule, Tile, Workload
    from .version import __version__

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
    "__version__",
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

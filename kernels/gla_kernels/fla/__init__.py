"""Flash-linear-attention's functions on these kernels, and `accelerate`, from which on its layers and models run them.

import gla_kernels.fla; gla_kernels.fla.accelerate()               # FLA's layers, models and functions, from here on
from gla_kernels.fla import chunk_gla                              # or one function, in the place of fla.ops.gla's

Names, parameters and their order are those of flash-linear-attention 0.6.0, and so are layouts: q, k [B, T, H, K],
v [B, T, H, V], states [N, H, K, V] in float32. What these kernels cannot do runs FLA's own, with a warning that says
why (`FallbackWarning`); where FLA is not installed it is a ValueError. `calls` has which ran how often.
"""

from .functions import (
    chunk_gla,
    chunk_linear_attn,
    chunk_retention,
    chunk_simple_gla,
    fused_chunk_gla,
    fused_recurrent_gla,
    fused_recurrent_simple_gla,
)
from .patch import Acceleration, accelerate
from .which import FallbackWarning, calls

__all__ = [
    "Acceleration",
    "FallbackWarning",
    "accelerate",
    "calls",
    "chunk_gla",
    "chunk_linear_attn",
    "chunk_retention",
    "chunk_simple_gla",
    "fused_chunk_gla",
    "fused_recurrent_gla",
    "fused_recurrent_simple_gla",
]

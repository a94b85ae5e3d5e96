"""Loss beyond the length of training, on a toy's scale: ``python -m glabench.tools.extrapolation``."""

"""glabench: benchmark, correctness gate and report for gated linear attention kernels."""

__version__ = "0.1.0"

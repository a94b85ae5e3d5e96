"""One sequence over several GPUs, measured: ``python -m glabench.tools.context_parallel``."""

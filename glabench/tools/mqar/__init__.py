"""Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): ``python -m glabench.tools.mqar``."""

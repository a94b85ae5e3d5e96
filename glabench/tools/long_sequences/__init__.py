"""Training on sequences by segments, with the state carried over: ``python -m glabench.tools.long_sequences``."""

"""Linear attention with one gate a head and token (simple GLA, RetNet), as Triton kernels of its own.

Scores of a chunk are (Q K^T) D, one product, with exponents of sums of gates: no sub-chunks, and right at any gate
strength (decays.py). The order of the passes is in passes.py, and what packed sequences ask for besides in edges.py.
"""

"""The chunkwise form's kernels for Hopper alone, in Gluon. Each takes the place of a portable one in `chunk`."""

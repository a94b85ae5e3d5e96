"""What kernels share: loads, products and decays of tiles, for the GPU; slices of a sequence, for the host."""

"""Tools for those who work on the kernels: run by `python -m`."""

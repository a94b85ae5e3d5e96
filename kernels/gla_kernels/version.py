"""The version of gla-kernels and of glabench, which are released together: said here, and in pyproject.toml, where
glabench asks for these kernels."""

__version__ = "0.1.0"

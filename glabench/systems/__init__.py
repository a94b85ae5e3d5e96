"""Who is measured: one small file a system, all behind ``System``; what is not installed says why and how to get it."""

from __future__ import annotations

from glabench.systems.base import System, Unavailable, load

__all__ = ["System", "Unavailable", "load"]

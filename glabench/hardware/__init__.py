"""The machine: environment, clocks, ceilings and cross-compilation."""

"""Where the time of one case goes: its kernels, their work and what the GPU could do, in a row's ``profile``."""

"""Where the time of one case goes: its kernels, their work and what the GPU could do, in a row's ``profile``."""


class NotMeasured(Exception):
    """A part of a profile cannot be had here, or has no meaning for the case; says why in one line."""

"""Other numbers for every sample: a set of inputs is given them in place, outside of the clock.

A system that remembers what it was asked, by its tensors, by where they lie or by what is in them, has nothing to
remember: the tensors stay, and what they hold was never there before. The numbers of a call are a window of a run of
random ones that is a little longer, so that giving others is one copy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from glabench.run.cold import Renew, keep
from glabench.spec.axes import AXES, later
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs

WINDOWS = 4096
STEP = 16  # elements between windows: what is copied lies as well at each
GRADIENTS = ("do", "dstate")


def varied(case: Case) -> tuple[str, ...]:
    """The tensors of `Inputs` that may hold other numbers from call to call. For mode bwd the gradients alone, for the
    forward pass was done before; a step's state is carried on by the system, and some axes hold what they made."""
    if case.mode == "bwd":
        return GRADIENTS
    unread = {"fwd": GRADIENTS, "step": (*GRADIENTS, "initial_state")}.get(case.mode, ())
    steady = {name for axis in later(vars(case)) for name in AXES[axis].steady}
    return tuple(name for name in Inputs.__dataclass_fields__ if name not in ("packed", *unread, *steady))


def renewal(system: System, case: Case, sets: Sequence[Inputs], settings: Settings) -> Renew:
    """What gives the set of a turn other numbers; ``keep`` on a GPU whose memory has no room for a run of them."""
    if settings.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free + unused < 4 * sets[0].nbytes:
            return keep
    return Fresh(system, case, sets, settings.device)


class Fresh:
    """Gives sets of inputs other numbers, which are drawn as those of one set more."""

    def __init__(self, system: System, case: Case, sets: Sequence[Inputs], device: str) -> None:
        names, salt = varied(case), len(sets) + 1
        self._held = [[(name, x) for name, x in one.tensors() if name in names] for one in sets]
        drawn = dict(system.draw_inputs(case, device, salt).tensors())
        self._runs = {name: _longer(drawn.pop(name)) for name, _ in self._held[0]}
        self._random = random.Random(f"{case.id} {salt}")

    def __call__(self, turn: int) -> None:
        """The set of this turn is given other numbers, queued on the current stream."""
        for name, x in self._held[turn % len(self._held)]:
            start = STEP * self._random.randrange(WINDOWS)
            x.copy_(self._runs[name][start : start + x.numel()].view(x.shape))


def _longer(x: torch.Tensor) -> torch.Tensor:
    """All numbers of a tensor in a row, and some of them again."""
    flat, more = x.flatten(), STEP * WINDOWS
    return torch.cat([flat, flat.repeat(-(-more // max(flat.numel(), 1)))[:more]])

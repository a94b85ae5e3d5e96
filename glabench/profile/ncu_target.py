"""What runs under Nsight Compute: one warm call of a case, between the profiler's start and its stop.

python -m glabench.profile.ncu_target '{"system": "gla", "B": 1, ...}'
"""

from __future__ import annotations

import json
import sys

import torch

from glabench.run import measure
from glabench.spec.case import Case
from glabench.systems.base import load

WARM_CALLS = 2  # the first compiles, or tunes


def main(case: Case) -> None:
    """Make the call. Errors are the process's."""
    system = load(case.system)
    (call,) = measure.calls(system, case, [system.draw_inputs(case, "cuda")])
    for _ in range(WARM_CALLS):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(Case.from_dict(json.loads(sys.argv[1])))

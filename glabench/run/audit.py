"""Whether what was timed is what was judged.

The gate judges a system before it is timed. One that is right there and does less here would be fast for nothing: it
remembers what it was asked before, stops working once it is called again and again, leaves the work to another stream
or thread, or puts it off until somebody looks. So when all samples are taken, a call that was timed is made again, as
the samples were, and once more:

  - its inputs are given the gate's numbers in place, behind a pause of the GPU, so that whoever does not wait for them
    reads others; what it returns is copied at once, on the same stream, and judged by the gate's float64;
  - they are given numbers that nobody has seen, and what it returns is compared with a call on a copy of them, which
    lies elsewhere;
  - it returns plain tensors, which hold their numbers, leaves its inputs as they are, and what it returned stays as it
    is when it is called again;
  - the same numbers again are another result, and on a GPU must not come much sooner than others (``remembers``).

On a CPU, where the gate judges a smaller shape than the one that is timed, that shape is judged again for the first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from glabench.run import gate, measure, oracle
from glabench.run.cold import Call
from glabench.run.fresh import GRADIENTS
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import DTYPES, Inputs

CYCLES_A_SECOND = 2e9  # about as many as a GPU makes
PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0
SOONER = 0.5  # of the time of new numbers: no cache is as cold for those than for old ones, and none makes this much
COPY_FACTOR = 4.0  # two calls of one form on the same numbers: rounding may differ with where tensors lie


def remembers(samples_ms: Sequence[float], repeated_ms: Sequence[float]) -> str | None:
    """What is to be said of a system whose calls on numbers that it was given before take less than half as long as on
    new ones, or None. By a GPU's clock: a CPU may be twice as fast a moment later for reasons of its own, and there no
    more is gained, for all samples are of new numbers."""
    if not samples_ms or not repeated_ms:
        return None
    equal, new = median(repeated_ms), min(samples_ms)
    if equal >= SOONER * new:
        return None
    return f"equal inputs take {equal:.3g} ms and new ones at least {new:.3g} ms: it returns what it remembers"


def judge(
    system: System, case: Case, asked: Case, run: Sequence[Call], sets: Sequence[Inputs], settings: Settings
) -> str | None:
    """What is wrong with what timed calls return, in one line, or None. ``asked``: the case that the gate judged;
    ``run``: the timed calls on the ``sets`` of inputs. Changes the sets' numbers."""
    if asked == case:
        first = _timed_again(system, case, run, sets, settings, salt=0)
    else:
        first = _judged_again(system, asked, settings)
    return first or _timed_again(system, case, run, sets, settings, salt=len(sets) + 2)


def _timed_again(
    system: System, case: Case, run: Sequence[Call], sets: Sequence[Inputs], settings: Settings, salt: int
) -> str | None:
    """What is wrong with a timed call on the numbers of this ``salt``, the gate's where it is 0."""
    held, call = sets[0], run[0]  # which was called, however few samples there are
    numbers = _numbers(system, case, settings, salt)
    gate.poison(numbers)
    if settings.device == "cuda":
        _pause(call)
    with torch.no_grad():
        for name, x in held.tensors():
            if case.mode != "bwd" or name in GRADIENTS:  # of which the forward pass was done before, on these numbers
                x.copy_(getattr(numbers, name))
    returned = named(call(), case, held)
    at_once = {name: x.clone() for name, x in returned.items() if type(x) is torch.Tensor}
    reason = _odd(returned, held)
    if reason is None and salt == 0:
        question = oracle.ask(case, settings.device, settings.gate_pairs)
        reason = gate.worst(gate.scores(at_once, question, oracle.answer(question), settings.gate_factor, at_once))
    elif reason is None:
        reason = _unlike_a_copy(system, case, at_once, numbers)
    reason = reason or gate.written(held, numbers, case) or _not_its_own(run, held, returned, at_once)
    return None if reason is None else f"when timed, {reason}"


def _pause(call: Call) -> None:
    """Keep the GPU from what is queued next until the call will have been queued, several times as long as that takes:
    what another stream does meanwhile, or after, is then not there when the current one goes on."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    queued = time.perf_counter() - began
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES_A_SECOND * min(max(PAUSE_S, 4 * queued), LONGEST_PAUSE_S)))


def named(result: Any, case: Case, inputs: Inputs) -> dict[str, Any]:
    """What a timed call returned, by the names of `oracle.collect`."""
    if case.mode in ("bwd", "fwdbwd"):
        return {f"d{name}": x for name, x in zip(inputs.leaves(), result, strict=True)}
    o, state = result
    return {"o": o} if state is None or inputs.initial_state is None else {"o": o, "final_state": state}


def _numbers(system: System, case: Case, settings: Settings, salt: int) -> Inputs:
    """Those that a timed call is given: the gate's with a ``salt`` of 0. For mode bwd other gradients alone, for its
    forward pass was done on the gate's numbers (``rotation.rotated_inputs``)."""
    drawn = system.draw_inputs(case, settings.device, salt)
    if case.mode != "bwd" or salt == 0:
        return drawn
    return replace(system.draw_inputs(case, settings.device), do=drawn.do, dstate=drawn.dstate)


def _copy(inputs: Inputs) -> Inputs:
    """The same numbers in the same layout, in tensors of their own."""
    return replace(inputs, **{name: x.clone() for name, x in inputs.tensors()})


def _odd(returned: Mapping[str, Any], held: Inputs) -> str | None:
    """What is not a plain tensor on the inputs' device: its numbers may be worked out when somebody reads them."""
    for name, x in returned.items():
        if type(x) is not torch.Tensor:
            return f"{name} is a {type(x).__name__}, expected a torch.Tensor, which holds its numbers"
        if x.device != held.q.device:
            return f"{name} is on {x.device}, expected {held.q.device}"
    return None


def _unlike_a_copy(system: System, case: Case, found: Mapping[str, torch.Tensor], numbers: Inputs) -> str | None:
    """How far outputs are from those of the same call on a copy of its inputs, where that is too far."""
    (other,) = measure.calls(system, case, [_copy(numbers)])
    allowed = COPY_FACTOR * gate.FLOOR[case.dtype] * torch.finfo(DTYPES[case.dtype]).eps / 2
    for name, right in named(other(), case, numbers).items():
        size = float(right.float().norm())
        off = float((found[name].float() - right.float()).norm()) / (size or 1.0)
        if not off <= allowed:
            return f"{name} is off by {off:.2e} from that of a call on a copy of its inputs, {allowed:.2e} is allowed"
    return None


def _judged_again(system: System, asked: Case, settings: Settings) -> str | None:
    """What the gate says of its own shape now that the system was called often."""
    question = oracle.ask(asked, settings.device, settings.gate_pairs)
    gradients = asked.mode in ("bwd", "fwdbwd")
    outputs = gate.run_once(system, system.draw_inputs(asked, settings.device), asked, gradients)
    reason = gate.worst(gate.scored(outputs, question, oracle.answer(question), settings.gate_factor, gradients))
    return None if reason is None else f"after it was timed, {reason}"


def _not_its_own(
    run: Sequence[Call], held: Inputs, returned: Mapping[str, torch.Tensor], at_once: Mapping[str, torch.Tensor]
) -> str | None:
    """Whether what the first call returned is returned again, or written over, by later ones while it is still there:
    on equal inputs, then on others. But for a state, which is carried on in place."""
    given = {x.data_ptr() for _, x in held.tensors()}
    own = [name for name, x in returned.items() if x.data_ptr() not in given and x.numel()]
    places = {x.data_ptr() for x in tensors_of(run[0]())}
    for name in own:
        if returned[name].data_ptr() in places:
            return f"{name} of a call is returned by a later one on equal inputs, too: it is kept, and not computed"
    later = run[-1]()
    changed = [name for name in own if not gate.bits_equal(returned[name], at_once[name])]
    del later  # not before: what a call returns lies elsewhere while the other one's is there
    return f"{changed[0]} of an earlier call is overwritten by a later one" if changed else None


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a timed call returned."""
    return [x for x in result if isinstance(x, torch.Tensor)]

"""The kernels of a case, as a row's ``profile`` lists them: what the model says of each, what was measured, joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glabench.profile.launches import Launched
from glabench.spec.case import Case
from glabench.systems.base import System

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

Kernel = dict[str, Any]


def kernel(name: str, **known: Any) -> Kernel:
    """An entry of which nothing is known but its name and what is given."""
    entry: Kernel = {
        "name": name,
        "step": None,
        "direction": None,
        "count": 1,
        "samples_ms": None,
        "work": None,
        "predicted_ms": None,
        "compiled": None,
        "counters": None,
    }
    return entry | known


def launches_of(system: System, case: Case, arch: str) -> list[tuple[str, Launch]]:
    """(direction, launch) of the case's kernels in order, on a GPU of ``arch``; none for what is not ours."""
    launches = system.launches(case, arch)
    # a forward pass that a backward one follows is not one alone: it leaves states
    back = {"bwd": len(launches), "fwdbwd": len(system.launches(replace(case, mode="bwd"), arch))}.get(case.mode, 0)
    forward = len(launches) - back
    return [("fwd" if i < forward else "bwd", launch) for i, launch in enumerate(launches)]


def modelled(system: System, case: Case, arch: str, l2_bytes: int, sms: int) -> tuple[list[Kernel], list[str]]:
    """(one entry a launch, in order, with what the model says of it, notes)."""
    from gla_kernels.cost.model import predict_ms
    from gla_kernels.cost.work import profile_of

    capability, notes, entries = int(arch.removeprefix("sm_")), list[str](), list[Kernel]()
    for direction, launch in launches_of(system, case, arch):
        work = _known(profile_of, launch, l2_bytes, sms)
        if work is None:
            notes.append(f"{launch.name}: the model does not count it")
        predicted = _known(predict_ms, launch, capability)
        entries.append(kernel(launch.name, step=launch.step, direction=direction, work=work, predicted_ms=predicted))
    if entries and case.initial_state:
        notes.append("the model is of a call that does not return its final state; this one does")
    return entries, notes


def _known(ask: Callable[..., Any], *about: Any) -> Any | None:
    """The model's answer, None for a kernel that it does not know."""
    try:
        return ask(*about)
    except KeyError:
        return None


def add_compiled(entries: Sequence[Kernel], system: System, case: Case, arch: str) -> list[dict[str, Any]]:
    """Put into each of our kernels what the compiler made of it; all of that, once a kernel, for the row itself."""
    from glabench.hardware.crosscompile import cross_compile, kernel_key

    launches = [launch for _, launch in launches_of(system, case, arch)]
    keys = [kernel_key(launch) for launch in launches]
    found = cross_compile(launches, arch)
    by_key = dict(zip(dict.fromkeys(keys), found, strict=True))
    ours = [entry for entry in entries if entry["step"] is not None]
    for entry, key in zip(ours, keys, strict=True):
        entry["compiled"] = by_key[key]
    return found


def joined(model: Sequence[Kernel], calls: Sequence[Launched]) -> tuple[list[Kernel], list[str]]:
    """(the call's kernels in order of their first launch, with their samples; notes).

    calls: those of one case, which all launched the same. Ours are told by name and order, so that a pass that both
    directions have is two kernels; launches of anything else are one kernel a name. Where ours are not those that the
    model expects, nothing is said of any kernel but its time.
    """
    names, notes = calls[0].names, list[str]()
    places: dict[object, list[int]] = {}
    known = {entry["name"] for entry in model}
    ours = [place for place, name in enumerate(names) if name in known]
    fits = [names[place] for place in ours] == [entry["name"] for entry in model]
    if not fits:
        expected = ", ".join(entry["name"] for entry in model)
        notes.append(f"the call launched {', '.join(names[place] for place in ours) or 'none'} where {expected} was "
                     "expected; kernels have no model")  # fmt: skip
    numbers = {place: number for number, place in enumerate(ours)} if fits else {}
    for place, name in enumerate(names):
        places.setdefault(numbers.get(place, name), []).append(place)
    found = []
    for key, at in places.items():
        entry = model[key] if isinstance(key, int) else kernel(names[at[0]])
        samples = [sum(call.events[place].dur_us for place in at) / 1000 for call in calls]
        found.append(entry | {"count": len(at), "samples_ms": samples})
    return found, notes


def add_counters(kernels: Sequence[Kernel], counted: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Put into each kernel the counters of its first launch; notes. ``counted``: (name, counters) of the launches of
    one call, in order."""
    left: dict[str, list[dict[str, Any]]] = {}
    for name, counters in counted:
        left.setdefault(_plain(name), []).append(counters)
    missing = []
    for entry in kernels:
        launches = left.get(_plain(entry["name"]), [])
        if launches:
            entry["counters"] = launches[0]
            del launches[: entry["count"]]
        elif not entry["name"].startswith(("Memset", "Memcpy")):  # these are no kernels, and have no counters
            missing.append(entry["name"])
    return [f"ncu: no counters of {name}" for name in missing]


def _plain(name: str) -> str:
    """A kernel's name without what two tools may write differently."""
    return "".join(name.split())

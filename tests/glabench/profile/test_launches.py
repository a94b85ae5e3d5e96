"""Time lines made up by hand: which kernels belong to which call, and what a call's times come to."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # it is not in __all__

from glabench.profile import launches
from glabench.profile.launches import Launched, alike, call_count, calls_of, packed
from glabench.run.gpu_events import Event, gpu_events

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
FLUSH = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<signed char>>(int)"


def timeline(*calls: list[tuple[str, float, float]], without: str = "") -> list[Event]:
    """Cold calls, each of (name, start after the spin's end, duration). without: a spin that was lost, "close2"."""
    events, now = list[Event](), 100.0
    for number, call in enumerate(calls, 1):
        events.append(Event(FLUSH, now, 30.0))
        if without != f"open{number}":
            events.append(Event(SPIN, now + 31, 40.0))
        began = now + 71
        events += [Event(name, began + start, dur) for name, start, dur in call]
        done = max((e.end_us for e in events), default=began)
        if without != f"close{number}":
            events.append(Event(SPIN, done + 1, 1.5))
        now = done + 10
    return events


CALL = [("states_kernel", 2.0, 50.0), ("output_kernel", 53.0, 80.0)]


def test_each_call_has_its_kernels_and_nothing_of_what_lies_between() -> None:
    first, second = calls_of(timeline(CALL, CALL))
    assert first.names == second.names == ("states_kernel", "output_kernel")
    assert [event.dur_us for event in second.events] == [50.0, 80.0]
    assert first.span_us == pytest.approx(131.0)
    assert first.gaps_us == pytest.approx(1.0)
    assert first.overlap_us == 0


def test_the_order_of_the_events_makes_no_difference() -> None:
    events = timeline(CALL, CALL, CALL)
    expected = calls_of(events)
    random.Random(0).shuffle(events)
    assert calls_of(events) == expected


@pytest.mark.parametrize("lost", ["open2", "close2"])
def test_a_call_whose_spin_was_lost_is_left_out(lost: str) -> None:
    calls = calls_of(timeline(CALL, [("lost_kernel", 0.0, 9.0)], CALL, without=lost))
    assert [call.names for call in calls] == [("states_kernel", "output_kernel")] * 2


def test_calls_without_kernels_and_what_comes_before_the_first_do_not_count() -> None:
    early = [Event("states_kernel", 1.0, 5.0), Event("output_kernel", 7.0, 5.0)]
    assert len(calls_of(early + timeline(CALL, []))) == 1
    assert calls_of(early) == []
    assert calls_of([]) == []


def test_kernels_of_two_streams_are_one_call_and_their_overlap_is_no_gap() -> None:
    side = [("a", 0.0, 100.0), ("inner", 20.0, 30.0), ("late", 90.0, 40.0), ("last", 140.0, 10.0)]
    (call,) = calls_of(timeline(side))
    assert call.names == ("a", "inner", "late", "last")
    assert call.span_us == pytest.approx(150.0)
    assert call.gaps_us == pytest.approx(10.0)  # between "late" and "last"
    assert call.overlap_us == pytest.approx(40.0)  # 180 us of kernels in 140 us


def test_a_span_ends_with_the_kernel_that_ends_last() -> None:
    (call,) = calls_of(timeline([("long", 0.0, 100.0), ("short", 10.0, 5.0)]))
    assert call.span_us == pytest.approx(100.0)
    assert call.gaps_us == 0


def test_only_calls_like_most_others_are_kept() -> None:
    tuned = Launched((Event("candidate", 0.0, 1.0), Event("candidate", 2.0, 1.0)))
    usual = Launched((Event("candidate", 0.0, 1.0),))
    assert alike([tuned, usual, replace(usual)]) == [usual, usual]
    assert alike([]) == []


@pytest.mark.parametrize(("events", "calls"), [(0, 30), (2, 30), (1_000, 30), (2_000, 15), (100_000, 5)])
def test_a_call_of_many_kernels_is_profiled_less_often(events: int, calls: int) -> None:
    assert call_count(events) == calls


def test_only_what_ran_on_the_gpu_is_an_event() -> None:
    def event(name: str, device: object, note: bool = False) -> SimpleNamespace:
        times = SimpleNamespace(start=3.0, end=5.5)
        return SimpleNamespace(name=name, device_type=device, time_range=times, is_user_annotation=note)

    found = gpu_events(
        [event("k", DeviceType.CUDA), event("cudaLaunchKernel", DeviceType.CPU), event("range", DeviceType.CUDA, True)]
    )
    assert found == [Event("k", 3.0, 2.5)]


def test_a_trace_keeps_its_events_alone() -> None:
    trace = {"schemaVersion": 1, "traceName": "/home/someone/trace.json", "traceEvents": [{"name": "k", "ts": 1.5}]}
    data = packed(trace)
    assert json.loads(gzip.decompress(data))["traceEvents"] == trace["traceEvents"]
    assert b"someone" not in gzip.decompress(data)
    assert packed(trace) == data


@pytest.mark.gpu
def test_the_kernels_of_a_call_on_a_gpu() -> None:
    x = torch.zeros(1 << 22, device="cuda")

    def call() -> None:
        x.add_(1)
        x.cos_()

    calls, count = launches.profile_calls([call])
    assert len(alike(calls)) == len(calls) == count == launches.CALLS
    assert all(len(one.names) == 2 and "spin" not in "".join(one.names) for one in calls)
    assert all(0 < event.dur_us <= one.span_us for one in calls for event in one.events)

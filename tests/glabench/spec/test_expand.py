"""What the blocks of a sweep multiply to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from gla_kernels import Schedule
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.sweep import Sweep, available, load

Write = Callable[[str], Sweep]


def cases(sweep: Sweep) -> tuple[Case, ...]:
    return expand(sweep, "cuda").cases


def test_axes_multiply_in_the_order_of_the_file(sweep_of: Write) -> None:
    found = cases(
        sweep_of("title: x\nPOINT\naxes:\n  T: [64, 128]\n  system: [gla, gla_recurrent]\n  mode: [fwd, bwd]\n")
    )
    assert [(c.T, c.system, c.mode) for c in found] == [
        (T, system, mode) for T in (64, 128) for system in ("gla", "gla_recurrent") for mode in ("fwd", "bwd")
    ]
    assert {(c.B, c.H, c.K, c.V, c.dtype, c.gate_strength) for c in found} == {(2, 4, 32, 64, "bf16", 1.0)}


def test_coupled_axes_move_together(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, 'B, T': [[1, 128], [2, 64]], H: [1, 2]}\n"))
    assert [(c.B, c.T, c.H) for c in found] == [(1, 128, 1), (1, 128, 2), (2, 64, 1), (2, 64, 2)]


def test_tokens_derive_the_batch(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\ntokens: 256\ndefaults: {H: 1, K: 8, V: 8}\naxes: {system: gla, T: [64, 256]}\n"))
    assert [(c.B, c.T) for c in found] == [(4, 64), (1, 256)]


def test_fields_without_a_use_go_and_so_do_the_duplicates_they_make(sweep_of: Write) -> None:
    found = cases(
        sweep_of(
            "title: x\nPOINT\naxes:\n  system: [gla, chunkwise_torch, gla_recurrent, fa2, fla_linear]\n"
            "  chunk: [32, 64]\n  materialize: [true, false]\n  gate_strength: [0.5, 1]\n"
        )
    )
    count = {name: sum(c.system == name for c in found) for name in CATALOG}
    assert {name: n for name, n in count.items() if n} == {
        "gla": 8, "chunkwise_torch": 4, "gla_recurrent": 2, "fa2": 1, "fla_linear": 1,
    }  # fmt: skip
    assert len({c.id for c in found}) == len(found)
    by_name = {c.system: c for c in found}
    for name, info in CATALOG.items():
        if name in by_name:
            schedule = {
                field for field in ("chunk", "sub_chunk", "materialize") if asdict(by_name[name])[field] is not None
            }
            assert schedule == info.axes
    assert by_name["fa2"].gate_strength is None
    assert by_name["gla_recurrent"].attn_heads is None


def test_a_schedule_in_part_is_completed_as_the_kernels_would(sweep_of: Write) -> None:
    for given in ({"chunk": 16}, {"chunk": 256}, {"sub_chunk": 16}, {"materialize": False}):
        text = "".join(f", {key}: {str(value).lower()}" for key, value in given.items())
        (case,) = cases(sweep_of(f"title: x\nPOINT\naxes: {{system: gla{text}}}\n"))
        schedule = Schedule(**given)
        assert (case.chunk, case.sub_chunk, case.materialize) == (
            schedule.chunk, schedule.sub_chunk, schedule.materialize,
        )  # fmt: skip


def test_no_schedule_is_the_default_schedule(sweep_of: Write) -> None:
    (case,) = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, chunk: null}\n"))
    assert (case.chunk, case.sub_chunk, case.materialize) == (None, None, None)


def test_pairs_that_do_not_fit_are_dropped_when_both_are_lists(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, chunk: [16, 32, 64], sub_chunk: [16, 32, 64]}\n"))
    assert [(c.chunk, c.sub_chunk) for c in found] == [(16, 16), (32, 16), (32, 32), (64, 16), (64, 32), (64, 64)]


def test_a_mode_that_a_system_lacks_stays_a_case(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: [gla, gla_recurrent], mode: step}\n"))
    assert [(c.system, c.mode) for c in found] == [("gla", "step"), ("gla_recurrent", "step")]


@pytest.mark.parametrize(
    ("attention", "heads"),
    [("same", (4, 64)), ("usual", (4, 64)), ("{head_dim: 32}", (8, 32)), ("{head_dim: 256}", (1, 256))],
)
def test_attention_has_the_same_width(sweep_of: Write, attention: str, heads: tuple[int, int]) -> None:
    (case,) = cases(sweep_of(f"title: x\nattention: {attention}\nPOINT\naxes: {{system: fa2}}\n"))
    assert (case.attn_heads, case.attn_dim) == heads
    assert (case.H, case.K, case.V) == (4, 32, 64)  # what the question was


def test_a_value_gate_is_another_case_and_none_leaves_old_ids_as_they_are(sweep_of: Write) -> None:
    assert Case("gla", 1, 64, 2, 16, 16).id == "a5747f8116a3"  # of before there was the field
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: [gla, fa2], value_gate: [true, false]}\n"))
    assert [(c.system, c.value_gate) for c in found] == [("gla", True), ("gla", False), ("fa2", False)]
    assert len({c.id for c in found}) == 3


def test_usual_heads_of_a_width_that_64_does_not_divide_are_the_same_heads(sweep_of: Write) -> None:
    (case,) = cases(sweep_of("title: x\ndefaults: {B: 1, T: 8, H: 3, K: 8, V: 20}\naxes: {system: fa2}\n"))
    assert (case.attn_heads, case.attn_dim) == (3, 20)


def test_a_selective_scan_has_no_gate_and_no_state(sweep_of: Write) -> None:
    (case,) = cases(
        sweep_of("title: x\nPOINT\naxes: {system: mamba_scan, initial_state: [true, false], chunk: [16, 64]}\n")
    )
    assert (case.gate_strength, case.initial_state, case.chunk, case.attn_heads) == (None, False, None, None)


def test_attention_and_tokens_of_one_case(sweep_of: Write) -> None:
    found = cases(
        sweep_of(
            "title: x\nattention: same\ndefaults: {H: 2, K: 64, V: 128, T: 64}\ncases:\n"
            "  - {system: fa2, tokens: 128}\n  - {system: fa2, B: 1, attention: {head_dim: 64}}\n"
        )
    )
    assert [(c.B, c.attn_heads, c.attn_dim) for c in found] == [(2, 2, 128), (1, 4, 64)]


def test_exclude_matches_every_field_it_gives(sweep_of: Write) -> None:
    found = cases(
        sweep_of(
            "title: x\nPOINT\naxes: {system: [gla, sdpa], T: [1, 2, 3]}\n"
            "exclude:\n  - {system: sdpa, T: [2, 3]}\n  - {T: 1, system: gla}\n"
        )
    )
    assert [(c.system, c.T) for c in found] == [("gla", 2), ("gla", 3), ("sdpa", 1)]


def test_compile_picks_cases(sweep_of: Write) -> None:
    text = "title: x\nPOINT\naxes: {system: gla, dtype: [bf16, fp32]}\n"
    every, picked, none = (
        expand(sweep_of(text + more), "cpu") for more in ("", "compile: [{dtype: bf16}]\n", "compile: []\n")
    )
    assert every.compiled == {c.id for c in every.cases}
    assert picked.compiled == {c.id for c in picked.cases if c.dtype == "bf16"}
    assert none.compiled == set()


@pytest.mark.parametrize("name", list(available()))
def test_the_sweeps_that_come_along_expand_on_every_device(name: str) -> None:
    sweep = load(available()[name])
    assert sweep.name == name
    assert sweep.question
    for device in ("cpu", "cuda"):
        found = expand(sweep, device).cases
        assert len({c.id for c in found}) == len(found) > 0
        assert all(Case.from_dict(c.to_dict()) == c for c in found)


def test_quick_checks_every_schedule_and_the_recurrent_kernel_on_any_device() -> None:
    sweep = load(available()["quick"])
    pairs = {(c, s) for c in (16, 32, 64, 128, 256) for s in (16, 32, 64, 128, 256) if c % s == 0}
    for device in ("cpu", "cuda"):
        found = expand(sweep, device).cases
        schedules = {(c.chunk, c.sub_chunk, c.materialize) for c in found if c.system == "gla" and c.mode == "fwdbwd"}
        assert {(*pair, m) for pair in pairs for m in (True, False)} <= schedules
        assert any(c.system == "gla_recurrent" and c.mode == "fwdbwd" for c in found)


def test_board_has_every_row_of_the_board() -> None:
    found = expand(load(available()["board"]), "cuda").cases
    production = [(1, 8192, 96, 128), (2, 16384, 16, 128), (4, 2048, 16, 128), (4, 4096, 64, 128), (8, 2048, 32, 256), (8, 1024, 8, 64)]  # fmt: skip  # noqa: E501
    shapes = [(B, T, H, D, D) for B, T, H, D in production] + [(32, T, 4, 128, 256) for T in (1024, 2048, 4096, 8192)]
    for shape in shapes:
        for mode in ("fwd", "fwdbwd"):
            here = [c for c in found if shape == (c.B, c.T, c.H, c.K, c.V) and c.mode == mode]
            assert {c.system for c in here} >= {"gla", "fla", "fa2", "cudnn", "gla_recurrent"}
            schedules = {(c.chunk, c.materialize) for c in here if c.system == "gla"}
            assert schedules == {(None, None), (64, True), (64, False)}
            (fa2,) = [c for c in here if c.system == "fa2"]
            assert (fa2.attn_heads, fa2.attn_dim) == ((16, 64) if shape[0] == 32 else (shape[2], shape[4]))
    ungated = {
        (c.system, c.T) for c in found if c.gate_strength is None and c.H == 16 and c.system in ("gla", "fla_linear")
    }
    assert ungated == {(system, T) for system in ("gla", "fla_linear") for T in (1024, 2048, 4096, 8192)}
    assert {(c.system, c.B) for c in found if c.mode == "step"} >= {("gla_recurrent", B) for B in (1, 64, 256)}


def test_host_asks_of_every_shape_of_the_board_and_of_two_wide_layers() -> None:
    board = {
        (c.B, c.T, c.H, c.K, c.V) for c in expand(load(available()["board"]), "cuda").cases if c.system == "helion"
    }
    found = expand(load(available()["host"]), "cuda").cases
    shapes = {(c.B, c.T, c.H, c.K, c.V) for c in found}
    assert shapes == board | {(4, 4096, 4, 256, 512), (8, 2048, 4, 256, 512)}
    for shape in shapes:
        here = [c for c in found if shape == (c.B, c.T, c.H, c.K, c.V)]
        assert [c.mode for c in here] == ["fwdbwd"] * 5
        assert {(c.system, c.materialize) for c in here} == {
            ("gla", None), ("gla", False), ("fla", None), ("helion", None), ("fa2", None)
        }  # fmt: skip
        (fa2,) = [c for c in here if c.system == "fa2"]
        width = shape[2] * shape[4]
        assert fa2.attention_shape == ((shape[2], shape[3]) if shape[3] == shape[4] else (width // 64, 64))

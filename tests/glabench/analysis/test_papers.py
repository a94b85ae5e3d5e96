"""The papers' claims as they are asked, and the sweeps that their rows come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glabench.analysis.claims import CLAIMS
from glabench.analysis.papers import Value, judged
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.sweep import available, load

from .claims_by_hand import claim, evidence, ms


def test_table_3_is_of_gates_on_both_sides(make_row: Any) -> None:
    judge = claim("over-recurrent").judge
    at = {"B": 32, "T": 1024, "H": 16, "K": 64, "V": 64, "mode": "fwdbwd"}
    rival = make_row("recurrent_hbm", ms(8), **at)
    one_side = judge(evidence(make_row("gla", ms(1), **at), rival))
    assert one_side.verdict == "not measured"
    found = judge(evidence(make_row("gla", ms(2), value_gate=True, **at), make_row("gla", ms(1), **at), rival))
    assert (found.verdict, found.found) == ("held", (Value("T 1k, heads of 64", 4.0),))
    assert "gates on both sides" in found.pairs[0]


def test_throughput_is_that_of_training_and_of_no_operator(make_row: Any) -> None:
    judge = claim("throughput").judge
    at = {"B": 8, "T": 2048, "H": 4, "K": 256, "V": 512}
    rows = [make_row("gla", ms(1 if kept else 2), materialize=kept, chunk=64, **at) for kept in (True, False)]
    rows += [make_row("fa2", ms(3), attn_heads=32, attn_dim=64, **at), make_row("mamba_scan", ms(4), **at)]
    assert judge(evidence(*rows)).verdict == "not measured"
    assert claim("throughput").needs == "glabench sweep training"
    of = {"mode": "train", "model": "1.3b", **at}
    eager = [make_row("gla_lm", ms(1 if kept else 2), materialize=kept, chunk=64, **of) for kept in (True, False)]
    eager += [make_row("transformer_lm", ms(3), **of), make_row("mamba2_lm", ms(4), **of)]
    assert judge(evidence(*eager)).verdict == "not measured"
    steps = [replace(row, case=row.case | {"execution": "compiled"}) for row in eager]
    assert judge(evidence(*steps)).verdict == "held"


def test_without_rows_no_claim_is_judged(make_row: Any) -> None:
    found = judged(CLAIMS, evidence(make_row("gla", ms(1))))
    assert len({one.claim.name for one in found}) == len(found) == len(CLAIMS)
    assert {one.outcome.verdict for one in found} == {"not measured"}


def test_the_sweep_papers_leaves_no_operator_out_and_the_sweep_training_no_model() -> None:
    cases = {name: expand(load(available()[name]), "cuda").cases for name in ("papers", "training")}
    models = {name for name, info in CATALOG.items() if info.family == "model"}
    assert {case.system for case in cases["papers"]} == CATALOG.keys() - models
    assert {case.system for case in cases["training"]} == models
    assert len(cases["papers"]) <= 250  # some 20 minutes on an H200


def test_the_sweep_papers_is_small_on_a_cpu() -> None:
    plan = expand(load(available()["papers"]), "cpu")
    assert len(plan.cases) <= 20
    assert not plan.compiled

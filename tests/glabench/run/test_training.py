"""Mode "train": the gate of a training step, and what is measured of one, on tiny models."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from glabench import store
from glabench.phases import Phases
from glabench.run import train_gate, training
from glabench.run.gate import Verdict
from glabench.run.pipeline import run_case
from glabench.run.train import batch_of, forget_compiled
from glabench.spec.axes import Dtype, Execution
from glabench.spec.case import Case
from glabench.spec.models import CONFIGS
from glabench.spec.settings import Settings
from glabench.systems.base import load
from glabench.systems.language_model import LanguageModelSystem
from glabench.systems.models import attention, mamba2
from glabench.systems.models.mamba2 import Mamba2, by_operator, ssd
from glabench.systems.models.model import NO_TARGET, LanguageModel
from glabench.systems.models.operators import Operator, Packed

H, K, V = CONFIGS["tiny"].heads


@pytest.fixture(autouse=True)
def compiler_as_it_was() -> Iterator[None]:
    """What `forget_compiled` tells torch.compile is for processes that train, and this one goes on to other tests.
    Products here are too small for two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch.set_num_threads(threads)


CASE = Case("transformer_lm", 1, 48, H, K, V, mode="train", model="tiny")
QUICK = replace(Settings.for_device("cpu"), warmup_s=0.0, min_samples=2, min_time_s=0.0, max_wall_s=0.5)


def system_of(name: str) -> LanguageModelSystem:
    found = load(name)
    assert isinstance(found, LanguageModelSystem)
    return found


def judged(case: Case, system: LanguageModelSystem | None = None) -> Verdict:
    train_gate._answer.cache_clear()
    return train_gate.check(system or system_of(case.system), case, QUICK, "cpu", Phases())


class Wrong(LanguageModelSystem):
    """Transformer++ whose operator is a little off."""

    def __init__(self, factor: float) -> None:
        super().__init__(load("transformer_lm").info)
        self.factor = factor

    def model(self, case: Case) -> LanguageModel:
        made = super().model(case)
        for mixer in made.mixers:
            own = mixer.operator

            def operator(q: Tensor, k: Tensor, v: Tensor, own: Operator = own) -> Tensor:
                return own(q, k, v) * self.factor

            mixer.operator = operator
        return made


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_loss_and_every_kind_of_parameter_are_judged(dtype: Dtype) -> None:
    verdict = judged(replace(CASE, dtype=dtype))
    assert verdict.passed, verdict.reason
    kinds = {name.split(".", 2)[-1] if name.startswith("blocks.") else name for name, _ in
             system_of(CASE.system).model(CASE).named_parameters()}  # fmt: skip
    assert verdict.accuracy["outputs"].keys() == kinds | {"loss"}
    assert verdict.accuracy["reference"] == "the model with its operator in float64"
    assert verdict.accuracy["shape"] == {"B": 1, "T": 48, "H": H, "K": K, "V": V}


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.05, False), (math.nan, False)])
def test_an_operator_that_is_off_is_told(factor: float, passed: bool) -> None:
    verdict = judged(replace(CASE, dtype="fp32"), Wrong(factor))
    assert verdict.passed is passed
    if not passed:
        assert verdict.reason is not None
        assert ("NaN" in verdict.reason) is math.isnan(factor)


class Theirs(Mamba2):
    """Stands in for a package's layer, which puts out ``factor`` times what the plain one does."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return by_operator(self, x, ssd) * self.factor


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.05, False)])
def test_a_package_s_layer_is_judged_by_the_plain_one_on_its_parameters(
    factor: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Theirs, "factor", factor)
    monkeypatch.setitem(sys.modules, "mamba_ssm", SimpleNamespace(Mamba2=Theirs))
    monkeypatch.setattr(mamba2, "official", lambda: True)
    verdict = judged(replace(CASE, system="mamba2_lm", dtype="fp32"))
    assert verdict.accuracy["reference"] == "the model in float64"
    assert verdict.passed is passed, verdict.reason


PACKED = replace(CASE, T=30, dtype="fp32", lengths="12,1,17")


@pytest.mark.parametrize("name", ["transformer_lm", "gla_lm", "retnet_lm", "linear_lm"])
def test_packed_documents_are_judged_by_each_alone(name: str) -> None:
    verdict = judged(replace(PACKED, system=name))
    assert verdict.passed, verdict.reason
    assert verdict.accuracy["reference"].endswith("float64, one document at a time: 17,12,1")
    assert set(verdict.accuracy["outputs"]) >= {"loss", "embedding.weight"}


class Leaky(LanguageModelSystem):
    """Transformer++ whose attention goes on from one document to the next."""

    def __init__(self) -> None:
        super().__init__(load("transformer_lm").info)

    def model(self, case: Case) -> LanguageModel:
        made = super().model(case)
        for mixer in made.mixers:
            mixer.operator = across
        return made


def across(q: Tensor, k: Tensor, v: Tensor, packed: Packed | None = None) -> Tensor:
    return attention.by_sdpa(q, k, v)


def test_a_document_that_knows_of_another_is_told() -> None:
    verdict = judged(PACKED, Leaky())
    assert not verdict.passed
    assert "is off by" in (verdict.reason or "")


def test_the_last_token_of_a_document_predicts_nothing() -> None:
    tokens, targets = batch_of(64, 1, 6, torch.device("cpu"), (3, 1, 2))
    whole, after = batch_of(64, 1, 6, torch.device("cpu"))
    assert torch.equal(tokens, whole)
    assert targets[0, [2, 3, 5]].tolist() == [NO_TARGET] * 3
    assert torch.equal(targets[0, [0, 1, 4]], after[0, [0, 1, 4]])


@pytest.mark.parametrize("where", ["cuda", "cpu", "interpreter"])
@pytest.mark.parametrize(
    "lengths", ["lognormal:8", "uniform:8", "one-long:9", "uniform:1024", "100,16284", "uniform:8192"]
)
def test_packed_documents_are_judged_few_and_short(lengths: str, where: str) -> None:
    case = replace(CASE, T=16384, lengths=lengths)
    found = train_gate.reduced(case, QUICK, where)
    few = found.sequences
    assert few is not None
    assert found.B == 1
    assert len(few) == min(train_gate.DOCUMENTS, case.states)
    assert max(few) > 1
    assert sum(few) == found.T <= max(train_gate.MOST_TOKENS, QUICK.gate_tokens_cpu)


def test_packed_steps_are_rows_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    row = run_case(replace(CASE, T=24, lengths="lognormal:3"), "mine", QUICK)
    assert row.status == "ok", row.reason
    assert (row.implementation or "").startswith("SDPA MATH with a mask")
    row = run_case(replace(CASE, system="mamba2_lm", lengths="lognormal:3"), "mine", QUICK)
    assert (row.status, row.reason) == ("unsupported", "mamba2_lm has no packed sequences")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    asked = replace(CASE, lengths="lognormal:3", H=4, K=128, V=256, model="340m")
    said = system_of("transformer_lm").unsupported(asked, "cuda")
    assert said is not None
    assert "has no varlen_attn" in said
    assert system_of("transformer_lm").unsupported(replace(asked, lengths=None), "cuda") is None


def test_a_gradient_that_is_missing_or_zero_is_told() -> None:
    right = {"loss": torch.ones(1), "blocks.0.mlp.up.weight": torch.ones(3), "blocks.1.mlp.up.weight": torch.ones(3)}
    own = {**right, "blocks.1.mlp.up.weight": torch.zeros(3)}
    scores = train_gate.scored(own, right, right, "bf16", 4.0)
    assert scores["mlp.up.weight"]["error"] == 1.0  # of the worse layer
    assert "mlp.up.weight is off" in (train_gate._worst(scores) or "")
    del own["blocks.1.mlp.up.weight"]
    missing = train_gate._worst(train_gate.scored(own, right, right, "bf16", 4.0))
    assert missing == "the gradient of mlp.up.weight was not returned"


@pytest.mark.parametrize("name", ["gla_lm", "retnet_lm", "linear_lm"])
def test_references_are_of_the_operator_alone_and_shared_by_systems_of_the_same_layers(name: str) -> None:
    """In float32 the plain form in float64 is so near to that in float32 that only rounding is between them."""
    case = replace(CASE, system=name, dtype="fp32")
    exact, plain = train_gate.references(system_of(name), case, QUICK, whole=False)
    again, _ = train_gate.references(system_of(name), replace(case, materialize=True, chunk=64), QUICK, whole=False)
    assert again is exact
    apart = {kind: score["error"] for kind, score in train_gate.scored(plain, plain, exact, "fp32", 4.0).items()}
    assert 0 < max(apart.values()) < 1e-4, apart


def test_where_blocks_are_compiled_the_whole_model_is_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gradients(
        system: object, case: object, settings: object, form: str, in_float64: bool = False
    ) -> dict[str, Tensor]:
        asked.append((form, in_float64))
        return {"loss": torch.ones(1)}

    monkeypatch.setattr(train_gate, "gradients", gradients)
    verdict = judged(replace(CASE, execution="compiled"))
    assert asked == [("exact", True), ("plain", False), ("own", False)]
    assert verdict.accuracy["reference"] == "the model in float64"


def test_first_tokens_of_a_gated_model_do_not_drown_the_rest() -> None:
    """Keys that are queries keep what the first tokens read from being next to nothing."""
    case = replace(CASE, system="gla_lm", T=40)
    exact, plain = train_gate.references(system_of("gla_lm"), case, QUICK, whole=False)
    apart = {kind: score["error"] for kind, score in train_gate.scored(plain, plain, exact, "bf16", 4.0).items()}
    assert max(apart.values()) < 0.2, apart


def test_a_step_becomes_a_row_that_can_be_read() -> None:
    row = run_case(replace(CASE, T=16), "mine", QUICK)
    assert row.status == "ok", row.reason
    assert row.time is not None
    assert row.time["clock"] == "steps_wall"
    assert row.time["steps"] >= 1
    assert len(row.time["samples_ms"]) >= 2
    trained = row.time["training"]
    assert trained["loss_last"] < trained["loss_first"]
    assert trained["parameters"] == sum(p.numel() for p in system_of(CASE.system).model(CASE).parameters())
    assert row.memory is None  # a CPU's allocator keeps no count
    assert row.work is not None
    assert row.work["hbm_bytes"] is None
    assert store.from_json(store.to_json(row)) == row


def test_a_model_that_does_not_train_is_no_row_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glabench.run.train.LEARNING_RATE", 0.0)
    with pytest.raises(RuntimeError, match=r"the loss on one batch is .* after training on it, and was"):
        training.measure(system_of(CASE.system), replace(CASE, T=16), QUICK)


def test_another_model_after_many_is_compiled_too() -> None:
    """torch.compile gives up on a function of which it has several variants; `forget_compiled` begins anew."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        compiled.append(graph)
        return graph.forward

    def ours(x: Tensor) -> Tensor:
        return x * 2

    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False):  # and as it was afterwards
        function = torch.compile(ours, backend=backend, dynamic=False)
        function(torch.ones(2))
        forget_compiled()
        function(torch.ones(3))
        assert len(compiled) == 2
        with pytest.raises(Exception, match="recompile"):
            function(torch.ones(4))
    torch._dynamo.reset()


def test_operators_do_not_train_and_models_do_nothing_else() -> None:
    row = run_case(replace(CASE, system="recurrent_torch"), "mine", QUICK)
    assert (row.status, row.reason) == ("unsupported", "recurrent_torch has no mode train")
    row = run_case(replace(CASE, mode="fwdbwd", model=None), "mine", QUICK)
    assert (row.status, row.reason) == ("unsupported", "transformer_lm has no mode fwdbwd")
    with pytest.raises(TypeError, match="takes tokens"):
        system_of("gla_lm").forward(None, CASE)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, "70,1,129"])
@pytest.mark.parametrize("execution", [None, "compiled", "graph"])
@pytest.mark.parametrize("name", ["gla_lm", "retnet_lm", "linear_lm", "transformer_lm"])
def test_a_step_on_a_gpu(name: str, execution: Execution | None, lengths: str | None) -> None:
    case = replace(CASE, system=name, T=200, B=1 if lengths else 2, execution=execution, lengths=lengths)
    settings = replace(Settings.for_device("cuda"), min_samples=2, min_time_s=0.0, max_wall_s=1.0)
    row = run_case(case, "mine", settings)
    assert row.status == "ok", row.reason
    assert row.memory is not None
    assert row.memory["peak_bytes"] > row.memory["inputs_bytes"] > 0
    assert row.memory["kept_bytes"] > 0
    assert row.time is not None
    assert row.time["training"]["kernel_ms"]["operator"] > 0

"""A small model of flash-linear-attention by these kernels and by plain PyTorch: ``python model_probe.py gla``.

A process of its own: FLA's other kernels tune themselves, and on a CPU there is nothing to time a kernel with; so
Triton's tuner is told, before they are made, to keep the first config.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "vocab_size": 64, "intermediate_size": 64}
PROMPT, NEW, PADDED = 70, 3, 9
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def untuned(make: Any) -> Any:
    """Autotuner.__init__ that keeps one config."""

    def init(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        self.configs = self.configs[:1]

    return init


Autotuner.__init__ = untuned(Autotuner.__init__)

from fla import models  # noqa: E402

from gla_kernels import reference, retnet_decays  # noqa: E402
from gla_kernels.fla import accelerate, calls, patch, which  # noqa: E402

CONFIGS = {"gla": models.GLAConfig, "retnet": models.RetNetConfig, "linear": models.LinearAttentionConfig}
USED = {
    "gla": {"chunk_gla", "fused_recurrent_gla"},
    "retnet": {"chunk_retention", "fused_recurrent_simple_gla"},
    "linear": {"chunk_simple_gla", "chunk_linear_attn", "fused_recurrent_simple_gla"},
}


def plain(
    q: Any, k: Any, v: Any, gates: Any, scale: Any, state: Any, final: bool, v_first: bool = False, ends: Any = None
) -> Any:
    """The definition, one sequence after another where several are packed."""
    if ends is not None:
        parts = []
        for n, (first, end) in enumerate(pairwise(ends.tolist())):
            own: Any = [None if y is None else y[:, first:end] for y in (q, k, v, gates)]
            own += [scale, None if state is None else state[n : n + 1], final, v_first]
            parts.append(plain(*own))
        return torch.cat([o for o, _ in parts], 1), torch.cat([s for _, s in parts]) if final else None
    o, after = reference.recurrent(q, k, v, gates, scale, state.mT if v_first and state is not None else state)
    return o, (after.mT.contiguous() if v_first else after) if final else None


def by_features(q: Any, k: Any, v: Any, g: Any = None, gk: Any = None, **how: Any) -> Any:
    return plain(q, k, v, gk if g is None else g, how.get("scale"), *_rest(how))


def by_heads(q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None, **how: Any) -> Any:
    gates = g if g_gamma is None else g_gamma.expand(q.shape[:3])
    return plain(q, k, v, None if gates is None else gates.unsqueeze(-1), how.get("scale"), *_rest(how))


def retention(q: Any, k: Any, v: Any, **how: Any) -> Any:
    return by_heads(q, k, v, g_gamma=retnet_decays(q.shape[2], q.device), **how)


def linear(q: Any, k: Any, v: Any, normalize: bool = True, **how: Any) -> Any:
    assert not normalize
    return by_heads(q, k, v, **how)


def _rest(how: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(how.get(name) for name in ("initial_state", "output_final_state", "state_v_first", "cu_seqlens"))


FORMS = {
    "chunk_gla": by_features,
    "fused_recurrent_gla": by_features,
    "chunk_simple_gla": by_heads,
    "fused_recurrent_simple_gla": by_heads,
    "chunk_retention": retention,
    "chunk_linear_attn": linear,
}
PLAIN = {name: partial(form) for name, form in FORMS.items()}  # each an object of its own, to be found again by


def seen(model: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """A loss with all gradients, and the logits of a prompt and of tokens after it, one row of which is padded."""
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    found = {"loss": loss.detach()} | {name: p.grad.clone() for name, p in model.named_parameters()}
    mask = torch.ones_like(tokens)
    mask[0, :PADDED] = 0
    past = None
    with torch.no_grad():
        for first, end in ((0, PROMPT), *((PROMPT + n, PROMPT + n + 1) for n in range(NEW))):
            done = model(tokens[:, first:end], attention_mask=mask[:, :end], past_key_values=past, use_cache=True)
            past = done.past_key_values
            found[f"logits {first}"] = done.logits[:, -1]
    return found


def main(name: str) -> None:
    torch.manual_seed(0)
    config = CONFIGS[name](fuse_cross_entropy=False, fuse_linear_cross_entropy=False, attn_mode="chunk", **SMALL)
    model = getattr(models, type(config).__name__.replace("Config", "ForCausalLM"))(config).to(DEVICE)
    tokens = torch.randint(SMALL["vocab_size"], (2, PROMPT + NEW), device=DEVICE)
    for one in which.WHERE:
        which.load(one)
    patch._replace({which.THEIRS[one]: form for one, form in PLAIN.items()})
    want = seen(model, tokens)
    patch._replace({form: which.THEIRS[one] for one, form in PLAIN.items()})
    with accelerate():
        found = seen(model, tokens)
    assert calls().keys() == {(one, None) for one in USED[name]}, calls()
    for one, right in want.items():
        print(one)  # whose error it would be
        torch.testing.assert_close(found[one], right, rtol=1e-3, atol=1e-5)
    print("alike")


if __name__ == "__main__":
    main(sys.argv[1])

"""flash-linear-attention's GLA layer on these kernels and our layer, from the same weights: ``python nn_probe.py``.

A process of its own: FLA's norms tune themselves, and on a CPU there is nothing to time a kernel with; so Triton's
tuner is told, before they are made, to keep the first config.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_kv_heads": 2, "gate_logit_normalizer": 8, "norm_eps": 1e-2},
    {"fuse_norm": False, "gate_fn": "sigmoid", "feature_map": "relu", "clamp_min": -0.05},
    {"use_output_gate": False, "elementwise_affine": False, "feature_map": "gelu"},
)


def untuned(make: Any) -> Any:
    """Autotuner.__init__ that keeps one config."""

    def init(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        self.configs = self.configs[:1]

    return init


Autotuner.__init__ = untuned(Autotuner.__init__)

from fla import layers  # noqa: E402

from gla_kernels.fla import accelerate  # noqa: E402
from gla_kernels.nn import GatedLinearAttention  # noqa: E402


def main() -> None:
    for how in VARIANTS:
        print(how)  # whose error it would be
        torch.manual_seed(0)
        theirs = layers.GatedLinearAttention(hidden_size=64, num_heads=4, **how).to(DEVICE)
        ours = GatedLinearAttention(hidden_size=64, num_heads=4, **how).to(DEVICE)
        assert list(theirs.state_dict()) == list(ours.state_dict())
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(2, 70, 64, device=DEVICE)
        with accelerate():
            want = theirs(x)[0]
            theirs_grads = torch.autograd.grad(want.square().sum(), list(theirs.parameters()))
        found = ours(x)[0]
        ours_grads = torch.autograd.grad(found.square().sum(), list(ours.parameters()))
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
        for (name, _), a, b in zip(ours.named_parameters(), theirs_grads, ours_grads, strict=True):
            print(name)
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4 * a.abs().max().item())
    print("alike")


if __name__ == "__main__":
    main()

"""One sequence over several GPUs (Yang et al. 2024, arXiv 2312.06635, appendix B): each rank of a group of
`torch.distributed` has a run of the tokens, in the order of the ranks.

from gla_kernels import parallel
o, state = parallel.gla(q, k, v, g, group=group)           # q, k, g, o: this rank's tokens, [B, T of this rank, H, ..]
o, _ = parallel.simple_gla(q, k, v, g, group=group)
o, _ = parallel.gla(*(DTensor(..) of [Shard(1)]))          # the mesh is the group

A rank needs one state a head of those before it, and the gradient of one of those after it. So each says what its
tokens add to a state and how they decay it, all gather that, once forward and once backward, and each works out what
enters its own. What a rank sends does not depend on the number of its tokens.

All ranks make the same calls in the same order, backward passes too: a rank whose o no loss depends on leaves the
others waiting, until the group's timeout.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..ops import gla as whole
from ..ops import grouped
from ..ops import simple_gla as whole_simple
from ..ops.form import Inputs
from ..ops.forms import Chunkwise
from ..ops.gla_form import form_of
from ..ops.signature import prepared, signature_of
from ..ops.validate import check_flag, check_inputs, check_scale
from ..plan.request import Config
from ..schedule import Schedule
from .by_autograd import ByAutograd
from .call import Local, call
from .chunkwise import InSteps, Steps, fits
from .mesh import local_tensors, on_mesh
from .ranks import Ranks


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    group: Any = None,
    gv: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    schedule: Schedule | None = None,
    config: Config = None,
    recompute: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`gla_kernels.gla` on a sequence that lies over the ranks of a group.

    q, k, v, g, gv: this rank's tokens, [B, T of this rank, H, ..], v and gv perhaps with more heads, as there. Ranks
        may have different numbers of tokens, and one may have none. Or tensors of `torch.distributed.tensor`, sharded
        along T alone, on a mesh of one dimension.
    group: the process group; None: all ranks, or of DTensors their mesh.
    initial_state: [B, H, K, V], of the whole sequence: the first rank's counts, and has the gradient.
    output_final_state: the state after the last token of the sequence comes back on the last rank, and zeros on the
        others: the sum over the group is what one GPU would return, of gradients of initial_state as well.
    cu_seqlens: [N+1], of the whole row of tokens, the same on all ranks. States are [N, H, K, V] on every rank: of
        initial_state a rank reads those of the sequences that begin with it, and returns those of the sequences that
        end with it; the others are zeros.
    scale, state_v_first, schedule, config, recompute: as of `gla_kernels.gla`.

    Results are those of one GPU up to the rounding of a state's sum, and the same bits each time. In torch.compile the
    graph breaks around the call.

    Raises ValueError, naming the argument, as `gla_kernels.gla` does, and where ranks differ in what has to be the same
    (looked at in a group's first call of a kind, which waits for the GPU). A rank that is gone is an error of
    `torch.distributed` or of CUDA on the others, within the group's timeout.
    """
    if torch.compiler.is_compiling():  # what goes from rank to rank is nothing that a graph here could hold
        outside, given = torch.compiler.disable(gla), (q, k, v, g, scale, initial_state, output_final_state)
        of_sequences = {"group": group, "gv": gv, "cu_seqlens": cu_seqlens, "state_v_first": state_v_first}
        return outside(*given, **of_sequences, schedule=schedule, config=config, recompute=recompute)
    inputs = Inputs(q, k, v, g, gv, initial_state, cu_seqlens)
    if heads := grouped.together(inputs, state_v_first):
        asked: dict[str, Any] = {"schedule": schedule, "config": config, "recompute": recompute, "group": group}
        asked |= {"scale": scale, "output_final_state": output_final_state}
        return grouped.call(gla, inputs, heads, state_v_first, **asked)
    inputs, group, back = local_tensors(inputs, group)
    check_flag("state_v_first", state_v_first)
    check_flag("output_final_state", output_final_state)
    ranks = Ranks.of(group)
    like = {"cu_seqlens": inputs.cu_seqlens, "v_first": state_v_first, "groups": True}
    check_inputs(*inputs[:4], inputs.initial_state, gv=inputs.gv, **like)  # type: ignore[arg-type]
    how = {"schedule": schedule, "config": config, "recompute": recompute, "state_v_first": state_v_first}
    scale = check_scale(scale, inputs.q.shape[-1])

    def op(x: Inputs) -> tuple[Tensor, Tensor]:
        o, state = whole.gla(
            x.q, x.k, x.v, x.g, scale, x.initial_state, True, gv=x.gv, cu_seqlens=x.cu_seqlens, **how  # type: ignore[arg-type]
        )  # fmt: skip
        assert state is not None
        return o, state

    def make(x: Inputs, differentiated: bool) -> Local:
        if x.gv is None and x.cu_seqlens is None and x.q.shape[1]:
            x = x.readable(())
            of_call = (scale, schedule, config, recompute, state_v_first, differentiated, ranks.rank, ranks.size)

            def prepare() -> Steps | None:
                plans = config or (None, None)  # as they are chosen: other forms are not in steps
                form = form_of(x, x.q.device, scale, schedule, differentiated, recompute, state_v_first, plans)
                return Steps(form) if isinstance(form, Chunkwise) and fits(form) else None

            steps = prepared(signature_of("parallel.gla", x, of_call), prepare)
            if steps is not None:
                return InSteps(steps, ranks, x)
        return ByAutograd(op, ranks, x, state_v_first, differentiated)

    return on_mesh(back, *call(make, ranks, inputs, state_v_first, output_final_state))


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    group: Any = None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    schedule: Schedule | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`gla_kernels.simple_gla`, one gate a head, on a sequence that lies over the ranks of a group. g [B, T of this
    rank, H]; all else as of `gla`."""
    if torch.compiler.is_compiling():
        outside, given = torch.compiler.disable(simple_gla), (q, k, v, g, scale, initial_state, output_final_state)
        return outside(*given, group=group, cu_seqlens=cu_seqlens, state_v_first=state_v_first, schedule=schedule)
    gates = whole_simple.of_states(q, v, g)
    inputs, group, back = local_tensors(Inputs(q, k, v, gates, None, initial_state, cu_seqlens), group)
    check_flag("output_final_state", output_final_state)
    ranks = Ranks.of(group)
    whole_simple.check_call(inputs, state_v_first)
    how = {"schedule": schedule, "state_v_first": state_v_first}
    scale = check_scale(scale, inputs.q.shape[-1])

    def op(x: Inputs) -> tuple[Tensor, Tensor]:
        assert x.g is not None
        run = partial(whole_simple.simple_gla, x.q, x.k, x.v, x.g, scale, x.initial_state, True)
        o, state = run(cu_seqlens=x.cu_seqlens, **how)  # type: ignore[arg-type]
        assert state is not None
        return o, state

    def make(x: Inputs, differentiated: bool) -> Local:
        return ByAutograd(op, ranks, x, state_v_first, differentiated)

    return on_mesh(back, *call(make, ranks, inputs, state_v_first, output_final_state))


__all__ = ["gla", "simple_gla"]

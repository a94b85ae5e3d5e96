"""Who can be measured: static facts about every system, as data.

No torch here: ``glabench ls`` and the validation of sweep files read this before anything heavy is imported. The code
behind each entry is named by ``module`` and loaded by ``glabench.systems.load``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glabench.spec.case import Case

Family = Literal["gla", "linear", "scalar", "attention", "ssm", "model"]
Operator = Literal["gla", "simple", "retention", "ssd", "attention", "ssm", "model"]

TRAINING = ("fwd", "bwd", "fwdbwd")
WITH_STEP = (*TRAINING, "step")
SCHEDULE = frozenset({"chunk", "sub_chunk", "materialize"})
ONE_LEVEL = frozenset({"chunk", "materialize"})  # without sub-chunks
GATES, PACKED = frozenset({"gate_dtype", "resets"}), frozenset({"lengths"})
HEADS = frozenset({"qk_heads"})
OPERATOR = GATES | PACKED | {"value_gate"}  # of an operator, without a model around it
STEP = frozenset({"model", "execution"})  # of a training step

# The selective scan that is measured beside a layer is Mamba's: twice the layer's width in channels of 16 states.
SSM_EXPAND = 2
SSM_STATE = 16


def ssm_shape(case: Case) -> tuple[int, int]:
    """(channels, states) of the selective scan that answers the case: Mamba's at the case's width, H heads of V."""
    return SSM_EXPAND * case.H * case.V, SSM_STATE


GLA_PAPER = "Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv:2312.06635"
FA2_PAPER = "Dao 2023, FlashAttention-2, arXiv:2307.08691"
MAO_PAPER = "Mao 2022, Fine-Tuning Pre-trained Transformers into Decaying Fast Weights, arXiv:2210.04243"
GATELOOP_PAPER = "Katsch 2023, GateLoop: Fully Data-Controlled Linear Recurrence, arXiv:2311.01927"
LIGHTNING_PAPER = "Qin et al. 2024, Lightning Attention-2, arXiv:2401.04658"
MAMBA_PAPER = "Gu and Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, arXiv:2312.00752"
SSD_PAPER = "Dao and Gu 2024, Transformers are SSMs: State Space Duality, arXiv:2405.21060"
RETNET_PAPER = "Sun et al. 2023, Retentive Network: A Successor to Transformer, arXiv:2307.08621"
TFLA_PAPER = "Beck et al. 2025, Tiled Flash Linear Attention, arXiv:2503.14376"
FA3_PAPER = "Shah et al. 2024, FlashAttention-3, arXiv:2407.08608"
FA4_REPO = "https://github.com/Dao-AILab/flash-attention/tree/main/flash_attn/cute"
JLA_REPO = "https://github.com/jla-org/jax-linear-attention"
TILEOPS_REPO = "https://github.com/tile-ai/TileOPs"
FLEX_DOCS = "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html"
FLA_REPO = "https://github.com/fla-org/flash-linear-attention"
HELION_REPO = "https://github.com/pytorch/helion"
SDPA_DOCS = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"


@dataclass(frozen=True)
class SystemInfo:
    """One system under measurement."""

    name: str
    title: str
    family: Family  # "linear" is linear attention without a gate, "scalar" with one decay a head
    operator: Operator  # what the accuracy gate compares it with
    axes: frozenset[str]  # the fields of Case beyond the common ones that it uses: a subset of SCHEDULE
    modes: tuple[str, ...]
    triton: bool  # a Triton kernel of ours: on a CPU it runs in the interpreter and is never timed
    module: str  # "package.module:Class"
    summary: str
    source: str
    takes: frozenset[str] = frozenset()  # of `axes.AXES`
    # by Triton's autotuner, at its first call, with many configs: these are compiled ahead. Where one runs
    # a package's kernels or others, the package's: `System.autotuned` says which it is here
    autotuned: bool = False
    inside: str | None = None  # of a language model, the system whose operator its layers run

    @property
    def gated(self) -> bool:
        """Whether the system reads the gates g, so that the gate strength is part of its cases."""
        return self.family == "gla" or self.operator in ("simple", "ssd")


def _gla(name: str, title: str, module: str, summary: str, source: str, *, axes: frozenset[str] = frozenset(),
         modes: tuple[str, ...] = TRAINING, triton: bool = False, takes: frozenset[str] = frozenset(),
         autotuned: bool = False) -> SystemInfo:  # fmt: skip
    path = f"glabench.systems.{module}"
    return SystemInfo(name, title, "gla", "gla", axes, modes, triton, path, summary, source, takes, autotuned)


def _attention(name: str, title: str, module: str, summary: str, source: str,
               modes: tuple[str, ...] = TRAINING, takes: frozenset[str] = frozenset()) -> SystemInfo:  # fmt: skip
    path = f"glabench.systems.{module}"
    return SystemInfo(name, title, "attention", "attention", frozenset(), modes, False, path, summary, source, takes)


def _scalar(name: str, title: str, operator: Operator, module: str, summary: str, source: str, *,
            axes: frozenset[str] = frozenset(), triton: bool = False, takes: frozenset[str] = frozenset(),
            autotuned: bool = False) -> SystemInfo:  # fmt: skip
    path = f"glabench.systems.{module}"
    return SystemInfo(name, title, "scalar", operator, axes, TRAINING, triton, path, summary, source, takes, autotuned)


def _model(name: str, title: str, inside: str, summary: str, source: str, *, axes: frozenset[str] = frozenset(),
           takes: frozenset[str] = frozenset(), triton: bool = False, autotuned: bool = False,
           cls: str = "LanguageModelSystem") -> SystemInfo:  # fmt: skip
    path = f"glabench.systems.language_model:{cls}"
    return SystemInfo(name, title, "model", "model", axes, ("train",), triton, path, summary, source, takes | STEP,
                      autotuned, inside)  # fmt: skip


_SYSTEMS = (
    _gla("gla", "GLA, chunkwise (ours)", "gla:Gla",
         "chunkwise Triton kernels, two-level chunking, states materialized or not", GLA_PAPER,
         axes=SCHEDULE, triton=True, takes=OPERATOR | HEADS),
    _gla("gla_recurrent", "GLA, fused recurrent (ours)", "gla_recurrent:GlaRecurrent",
         "one Triton program walks the whole sequence with the state on chip; mode step decodes one token", GLA_PAPER,
         modes=WITH_STEP, triton=True, takes=OPERATOR | HEADS),
    _gla("recurrent_torch", "Recurrence, PyTorch loop", "recurrent_torch:RecurrentTorch",
         "the recurrence as a Python loop over time", "Katharopoulos et al. 2020, arXiv:2006.16236", modes=WITH_STEP,
         takes=OPERATOR),
    _gla("chunkwise_torch", "Chunkwise, PyTorch (not I/O-aware)", "chunkwise_torch:ChunkwiseTorch",
         "the chunkwise form in plain PyTorch: every intermediate goes through memory", GLA_PAPER,
         axes=frozenset({"chunk"}), takes=OPERATOR),
    _gla("parallel_torch", "Parallel form, PyTorch", "parallel_torch:ParallelTorch",
         "the quadratic form, in log space so that strong gates do not overflow", GLA_PAPER, takes=OPERATOR),
    _gla("recurrent_hbm", "Recurrence, states in HBM (Triton)", "recurrent_hbm:RecurrentHbm",
         "the recurrence that writes every state to memory, and reads it back for the gradients", MAO_PAPER,
         triton=True, takes=GATES),
    _gla("scan", "Parallel scan over time (Triton)", "scan:Scan",
         "an associative scan over the tokens' decays and outer products, every state in memory", GATELOOP_PAPER,
         triton=True, takes=GATES),
    _gla("chunkwise_direct", "Chunkwise without sub-chunks (Triton)", "chunkwise_direct:ChunkwiseDirect",
         "the design before the second level of chunking: scores inside a chunk element by element, states in memory",
         GLA_PAPER, axes=frozenset({"chunk"}), triton=True, takes=GATES),
    _gla("parallel_triton", "Parallel form (Triton)", "parallel_triton:ParallelTriton",
         "the quadratic form in log space, tile by tile: right at any gate strength, no matrix of scores", GLA_PAPER,
         triton=True, takes=GATES),
    SystemInfo("lightning2", "LightningAttention-2 (Triton, no gate)", "linear", "gla", frozenset(), TRAINING, True,
               "glabench.systems.lightning2:Lightning2",
               "linear attention without a gate, chunk by chunk with the state on chip, nothing materialized",
               LIGHTNING_PAPER),
    SystemInfo("mamba_scan", "Mamba's selective scan", "ssm", "ssm", frozenset(), TRAINING, True,
               "glabench.systems.mamba_scan:MambaScan",
               "mamba_ssm's selective_scan_fn where it is installed, else a Triton kernel; the row says which",
               MAMBA_PAPER),
    _scalar("simple_gla", "GLA with one gate a head (ours)", "simple", "simple_gla:SimpleGla",
            "chunkwise Triton kernels of their own: scores are one product, states materialized or not", GLA_PAPER,
            axes=ONE_LEVEL, triton=True, takes=GATES | PACKED | HEADS),
    _scalar("retention", "Retention (ours)", "retention", "retention:Retention",
            "the kernels of simple_gla with RetNet's constant decays", RETNET_PAPER, axes=ONE_LEVEL, triton=True,
            takes=PACKED),
    _attention("sdpa", "Attention, torch SDPA", "sdpa:Sdpa",
               "softmax attention with the backend that PyTorch picks: the attention baseline of a CPU", SDPA_DOCS,
               WITH_STEP),
    _attention("fa2", "FlashAttention-2", "fa2:FlashAttention2",
               "flash_attn where it is installed, else torch SDPA's flash backend; the row says which", FA2_PAPER,
               WITH_STEP, PACKED | HEADS),
    _attention("fa3", "FlashAttention-3", "fa3:FlashAttention3",
               "flash_attn_interface where it is installed; for Hopper", FA3_PAPER),
    _attention("fa4", "FlashAttention-4", "fa4:FlashAttention4",
               "flash_attn.cute where flash-attn-4 is installed; for Hopper and newer", FA4_REPO),
    _attention("cudnn", "Attention, cuDNN", "cudnn:CudnnAttention",
               "softmax attention through torch SDPA's cuDNN backend", SDPA_DOCS, WITH_STEP),
    _attention("flex", "FlexAttention, causal", "flex:FlexAttention",
               "the Triton kernel that torch.compile makes of FlexAttention with a causal mask", FLEX_DOCS),
    _gla("fla", "FLA chunk_gla", "fla:FlaChunk",
         "fla-core's chunkwise GLA, autotuned by itself", FLA_REPO, takes=GATES | PACKED | HEADS,
         autotuned=True),
    SystemInfo("fla_linear", "FLA chunk_linear_attn (no gate)", "linear", "gla", frozenset(), TRAINING, False,
               "glabench.systems.fla:FlaLinear", "fla-core's chunkwise linear attention without a gate", FLA_REPO,
               PACKED, autotuned=True),
    _scalar("fla_simple", "FLA chunk_simple_gla (one gate a head)", "simple", "fla:FlaSimple",
            "fla-core's chunkwise linear attention with one gate a head, autotuned by itself", FLA_REPO,
            takes=GATES | PACKED | HEADS, autotuned=True),
    _scalar("fla_retention", "FLA chunk_retention", "retention", "fla:FlaRetention",
            "fla-core's chunkwise retention, autotuned by itself", FLA_REPO, takes=PACKED, autotuned=True),
    _scalar("mlstm_tfla", "mLSTM, TFLA (one gate a head)", "simple", "mlstm_tfla:MlstmTfla",
            "mlstm_kernels' chunkwise mLSTM with sigmoid gates, its input gates open", TFLA_PAPER,
            takes=frozenset({"gate_dtype"})),
    _scalar("mamba2_ssd", "Mamba-2's SSD", "ssd", "mamba2_ssd:Mamba2Ssd",
            "mamba_ssm's mamba_chunk_scan_combined where it is installed, else simple_gla; the row says which",
            SSD_PAPER, triton=True, takes=HEADS, autotuned=True),
    _gla("fla_recurrent", "FLA fused_recurrent_gla", "fla:FlaRecurrent",
         "fla-core's fused recurrence; mode step decodes one token", FLA_REPO, modes=WITH_STEP,
         takes=GATES | PACKED),
    _gla("helion", "Helion full GLA", "helion:HelionGla",
         "chunkwise GLA of Helion's examples, with the configs tuned for them; the row says how they were tuned",
         HELION_REPO),
    _gla("jla", "jax-linear-attention GLA", "jla:JlaGla",
         "GLA in Pallas Mosaic GPU, for Hopper, called on PyTorch's tensors", JLA_REPO,
         takes=frozenset({"gate_dtype"})),
    _scalar("jla_simple", "jax-linear-attention (one gate a head)", "simple", "jla:JlaSimple",
            "the same package's linear attention with one gate a head", JLA_REPO,
            takes=HEADS | frozenset({"gate_dtype"})),
    _gla("tileops", "TileOPs GLA", "tileops:TileOpsGla", "chunkwise GLA in TileLang, tuned by itself", TILEOPS_REPO),
    _model("gla_lm", "GLA Transformer", "gla", "a language model with the GLA layer of section 4.4, by gla", GLA_PAPER,
           axes=SCHEDULE, takes=frozenset({"recompute"}) | PACKED, triton=True, cls="OurModelSystem"),
    _model("gla_lm_fla", "GLA Transformer, FLA's operator", "fla", "the same model, by fla-core's chunk_gla", FLA_REPO,
           takes=PACKED, autotuned=True, cls="FlaOperatorSystem"),
    _model("retnet_lm", "RetNet", "retention", "a language model with multi-scale retention, by simple_gla",
           RETNET_PAPER, takes=PACKED, triton=True, cls="RetnetSystem"),
    _model("linear_lm", "Linear attention", "gla", "the GLA Transformer without gates on keys, by gla", GLA_PAPER,
           takes=PACKED, triton=True, cls="UngatedSystem"),
    _model("mamba2_lm", "Mamba-2", "mamba2_ssd",
           "a language model of Mamba-2's layers alone: mamba_ssm's, else plain PyTorch; the row says which", SSD_PAPER,
           autotuned=True, cls="Mamba2System"),
    _model("transformer_lm", "Transformer++, FlashAttention-2", "fa2",
           "rotary positions, SwiGLU, RMS norms, and causal attention by torch SDPA's flash backend", FA2_PAPER,
           takes=PACKED, cls="TransformerSystem"),
)  # fmt: skip

CATALOG: dict[str, SystemInfo] = {info.name: info for info in _SYSTEMS}

# What `gla` is measured beside where nobody says: the other kernels for the same operator, and softmax attention.
RIVALS = ("fla", "helion", "jla", "tileops", "fa2", "fa3", "fa4", "cudnn", "flex")
# What of these forms a CPU can time.
ON_CPU = ("sdpa", "chunkwise_torch", "parallel_torch", "recurrent_torch")

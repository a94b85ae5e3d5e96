"""How cases are run, as plain data that travels to a worker process as JSON. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Device = Literal["cpu", "cuda"]
Part = Literal["all", "gate", "compile"]
BESIDES = ("part", "profile", "forward_parts")  # settings that change no result


@dataclass(frozen=True)
class Profile:
    """What `glabench profile` is asked for. See ``glabench.profile.pipeline``.

    ncu: read hardware counters with Nsight Compute. traces: the folder that Chrome traces go to, a file a case; None
    writes none. target: on a machine without a GPU, the one whose model and ceilings are wanted, by name.
    """

    ncu: bool = False
    traces: str | None = None
    target: str = "H200"


@dataclass(frozen=True)
class Settings:
    """Everything but the case that decides how it is run. Times are in seconds.

    ``part`` matters for our own Triton kernels on a CPU only: "gate" compares them with the reference in Triton's
    interpreter (a process started with TRITON_INTERPRET=1), "compile" cross-compiles them (a process without it).
    See ``glabench.run.parts``.
    """

    device: Device = "cuda"
    part: Part = "all"

    # The gate: error <= gate_factor x error of the same-dtype PyTorch form, on gate_pairs (batch, head) pairs.
    # Four leaves room for another order of summation and one more rounding to the dtype (a factor of about two
    # was seen between sound kernels) and still catches a single factor that is off by 2 % in bf16.
    gate_factor: float = 4.0
    gate_pairs: int = 5
    gate_tokens_cpu: int = 512  # a CPU compares at most this many tokens of a PyTorch system
    gate_dim_interpreter: int = 64  # the interpreter compares at most this head dimension

    # Sampling: see glabench.run.measure.StoppingRule
    warmup_s: float = 0.1
    min_samples: int = 10
    max_samples: int = 2000
    min_time_s: float = 0.3
    max_time_s: float = 1.0
    max_wall_s: float = 3.0
    max_noise: float = 0.005
    full_clock: float = 0.98  # samples taken below this share of the maximal SM clock are dropped

    # Samples of the work inside chunks and between them that the rows of our forward passes w/ m. have besides, where
    # the case asks for a chunk size; none are taken by default. See glabench.run.forward_parts
    forward_parts: int = 0

    # Cross-compilation on a machine without a GPU; with a GPU it is the architecture of that GPU.
    archs: tuple[str, ...] = ("sm_80", "sm_90")

    profile: Profile = Profile()

    @classmethod
    def for_device(cls, device: Device) -> Settings:
        """The defaults of a kind of device: a CPU takes fewer and longer samples."""
        if device == "cpu":
            return cls(device=device, min_samples=3, max_samples=200, min_time_s=0.2, max_time_s=0.5, max_wall_s=3.0)
        return cls(device=device)

    def with_part(self, part: Part) -> Settings:
        return replace(self, part=part)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> str:
        """Eight hex digits of what can change a case's result: all but its part that is run and what is asked for
        besides."""
        counts = {name: value for name, value in self.to_dict().items() if name not in BESIDES}
        return hashlib.sha256(json.dumps(counts, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def given(self) -> dict[str, float]:
        """The numbers that can change a case's result and are not the device's usual ones, by name."""
        usual = Settings.for_device(self.device)._numbers()
        return {name: value for name, value in self._numbers().items() if value != usual[name]}

    def _numbers(self) -> dict[str, float]:
        """The numbers that can change a case's result, by name."""
        return {n: v for n, v in self.to_dict().items() if n not in BESIDES and isinstance(v, (int, float))}

    @classmethod
    def of_row(cls, device: Device, environment: Mapping[str, Any]) -> Settings:
        """The settings that a row was made with, as far as this version knows them: the usual ones where it names none
        or its digest says others."""
        usual = cls.for_device(device)
        given = environment.get("settings_given") or {}
        found = replace(usual, **{name: given[name] for name in usual._numbers().keys() & given.keys()})
        return found if found.digest == environment.get("settings") else usual

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """The inverse of ``to_dict``; JSON's lists become tuples again, an unknown key is a TypeError."""
        if "profile" in values:
            values = values | {"profile": Profile(**values["profile"])}
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise TypeError(f"unknown settings: {', '.join(unknown)}")
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)

"""How much is tried: a little in every run of the tests, as much as GLABENCH_FUZZ says where it is set."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "glabench",
    max_examples=int(os.environ.get("GLABENCH_FUZZ", "40")),
    deadline=None,  # no timing assertions
    derandomize="GLABENCH_FUZZ" not in os.environ,  # the same inputs in every run, so that no run fails by chance
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("glabench")

"""The autotuner: which plan is fastest for a workload on this GPU."""

"""Which figures a set of rows gives, in the order of the page, and which sweep would give those it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from glabench.analysis.compare import answers
from glabench.report import eager, lengths, packing, schedules, shapes, training
from glabench.report.model import Figure, Section
from glabench.report.parts import devices


def sections(table: pd.DataFrame) -> list[Section]:
    """Every section of figures, from the table of ``analysis.frame``; without data, a section of words.

    Devices are never mixed in one figure; where there are several, titles say which.
    """
    return by_device([(name, _sections(table[table["device"] == name])) for name in devices(table)]) or _sections(table)


def by_device(several: list[tuple[str, list[Section]]]) -> list[Section]:
    """The same sections of several devices as one list; none of no device."""
    if len(several) < 2:
        return several[0][1] if several else []
    return [_joined(name_and_section) for name_and_section in _by_section(several)]


def _by_section(several: list[tuple[str, list[Section]]]) -> list[list[tuple[str, Section]]]:
    """The same section of every device, beside its device, for every section."""
    return [[(name, found[i]) for name, found in several] for i in range(len(several[0][1]))]


def _joined(parts: list[tuple[str, Section]]) -> Section:
    """One section of several devices' figures, each with its device in the title."""
    figures = tuple(replace(f, title=f"{name}: {f.title}") for name, section in parts for f in section.figures)
    return replace(parts[0][1], figures=figures)


def _sections(whole: pd.DataFrame) -> list[Section]:
    table = whole[whole["mode"] != "train"]
    best = answers(table)
    return [
        Section("training", "Training", "Training steps of language models", training.figures(whole),
                "No row is of a training step. A GPU and `glabench sweep training` give this."),
        Section("speed", "Speed", "Speed", lengths.speed(best) + shapes.every_shape(best),
                "No row has a time over several sequence lengths or at a shape of its own. "
                "`glabench sweep sequence_length` measures them."),
        Section("eager", "Eager calls", "What a call costs beside its kernels", eager.figures(table),
                "No row has the time of an eager call, which a GPU, a glabench of now and `glabench sweep host` give."),
        Section("memory", "Memory", "Memory", lengths.memory(table) + eager.kept(best),
                "No row has memory over several sequence lengths. Memory is measured on a GPU: run "
                "`glabench sweep board` there."),
        Section("schedule", "Schedule", "Chunk and sub-chunk size", schedules.chunk(table) + schedules.sub_chunk(table),
                "No shape was timed with more than one chunk size. A GPU and `glabench sweep chunk_size` give this; "
                "on a CPU only PyTorch forms are timed."),
        Section("materialize", "Materialized", "Materialized or not", schedules.materialized(best, table),
                "No shape was timed both with states materialized and without. A GPU and `glabench sweep materialize` "
                "give this."),
        Section("heads", "Heads", "Head dimension", shapes.head_dimension(best),
                "No width was timed with more than one head dimension. A GPU and `glabench sweep head_dim` give this."),
        Section("packed", "Packed", "Packed sequences", packing.packed(best),
                "No row of an operator has packed sequences. A GPU and `glabench sweep packed` give this."),
    ]  # fmt: skip


def all_figures(found: Sequence[Section]) -> list[Figure]:
    return [figure for section in found for figure in section.figures]

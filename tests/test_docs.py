"""What the documents tell a reader to run or open is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import glabench

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "kernels/NOTES.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
# What was so when it was written, and rows: their links alone have to hold.
RECORDS = ("results/README.md", *sorted(f"docs/history/{path.name}" for path in (ROOT / "docs/history").glob("*.md")))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences(name: str, language: str) -> list[str]:
    """The contents of a document's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text(name), re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[list[str]]:
    """The command lines of a document's shell blocks, split into words."""
    lines = [line for block in fences(name, "(?:sh|bash|console)") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def anchors(path: Path) -> set[str]:
    """What a link may name after #: GitHub's short form of each heading."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*DOCUMENTS, *RECORDS])
def test_links_lead_somewhere(name: str) -> None:
    here = ROOT / name
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text(name))
    local = [(here.parent / link if link else here, anchor) for link, anchor in links if "://" not in link]
    assert [str(path) for path, _ in local if not path.exists()] == []
    assert [f"{path}#{anchor}" for path, anchor in local if anchor and anchor not in anchors(path)] == []


def test_readme_leads_to_every_document() -> None:
    assert [name for name in DOCUMENTS[1:] if f"]({name})" not in text("README.md")] == []


def test_sections_that_sources_cite_exist() -> None:
    """As in (kernels/NOTES.md, "What Python takes")."""
    sources = [path for folder in ("kernels", "glabench") for path in (ROOT / folder).rglob("*.py")]
    cited = {found for path in sources for found in re.findall(r'([\w/]+\.md),\s+(?:# )?"([^"]+)"', path.read_text())}
    assert cited
    assert [(name, section) for name, section in sorted(cited) if f"# {section}\n" not in text(name)] == []


def test_named_files_exist() -> None:
    """Every path in backquotes that starts in a folder of the tree, unless it has a placeholder in it."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    named = {path for name in DOCUMENTS for path in re.findall(r"`([\w.]+/[\w./-]*)`", text(name))}
    inside = {path for path in named if path.split("/")[0] in folders and "/local" not in path}
    assert inside
    assert {path for path in inside if not (ROOT / path).exists()} == set()


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=`)", text(name)))
        named |= {words[1] for words in commands(name) if words[0] == "make"}
        assert named
        assert named <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_glabench_commands_and_options_exist(name: str) -> None:
    from typer.main import get_command

    from glabench.cli import app

    known = getattr(get_command(app), "commands", {})
    lines = [words[1:] for words in commands(name) if words[0] == "glabench" and not words[1].startswith("-")]
    assert {words[0] for words in lines} <= set(known)
    for name_of, *words in lines:
        command = known[name_of]
        while words and words[0] in getattr(command, "commands", {}):  # `glabench results merge`
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= options, f"{name}: glabench {name_of} has no {sorted(used - options)}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_sweeps_exist(name: str) -> None:
    """A sweep of a command line is one of ours, unless it is the reader's own: my_something.yaml."""
    ours = {path.stem for path in (ROOT / "sweeps").glob("*.yaml")}
    named = {words[2] for words in commands(name) if words[:2] == ["glabench", "sweep"]}
    assert {sweep for sweep in named if not sweep.startswith("my_")} <= ours


def test_sweep_examples_are_valid(tmp_path: Path) -> None:
    from glabench.spec.expand import check
    from glabench.spec.sweep import load

    examples = [block for name in DOCUMENTS for block in fences(name, "yaml")]
    assert examples
    for number, block in enumerate(examples):
        path = tmp_path / f"example_{number}.yaml"
        path.write_text(block, encoding="utf-8")
        check(load(path))


def shown(name: str, device: torch.device) -> str:
    """A document's example, as it is printed on a GPU; in the interpreter where there is none, which knows no Gluon and
    is slow: in float32 and of fewer tokens there."""
    (example,) = fences(name, "python")
    if device.type == "cuda":
        return example
    assert "(2, 300, 2, 64," in example
    return example.replace('"cuda"', '"cpu"').replace("bfloat16", "float32").replace("2, 300, 2, 64", "1, 80, 2, 16")


def test_the_example_of_the_readme_runs(device: torch.device) -> None:
    example = shown("README.md", device)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    B, _, H, V = names["v"].shape
    assert names["v"].grad.shape == names["v"].shape
    assert names["o"].shape == (B, H, V)
    assert names["o"].isfinite().all()
    assert len([line for line in example.splitlines() if line]) <= 9


def test_the_example_of_the_kernels_readme_runs(device: torch.device) -> None:
    """What an index shows of gla-kernels."""
    example = shown("kernels/README.md", device)
    names: dict[str, Any] = {}
    exec(compile(example, "kernels/README.md", "exec"), names)
    assert all(x.grad.isfinite().all() for x in (names["q"], names["k"], names["v"], names["g"]))


def test_examples_of_the_kernels_run(device: torch.device, tmp_path: Path) -> None:
    first, *others = fences("docs/kernels.md", "python")
    names: dict[str, Any] = {}
    if device.type == "cpu":
        first = first.replace('"cuda"', '"cpu"').replace("= 2, 300, 2, 64, 64\n", "= 1, 80, 2, 16, 16\n")
    exec(compile(first, "docs/kernels.md", "exec"), names)
    assert [x.grad.shape for x in names["inputs"][:3]] == [x.shape for x in names["inputs"][:3]]
    assert names["o"].shape == (names["B"], names["H"], names["V"])
    assert names["o"].isfinite().all()
    backend, meet = "nccl" if names["q"].is_cuda else "gloo", (tmp_path / "store").as_uri()
    dist.init_process_group(backend, init_method=meet, rank=0, world_size=1)
    names["group"] = dist.group.WORLD
    for block in others:
        exec(compile(block, "docs/kernels.md", "exec"), names)
    dist.destroy_process_group()
    x = torch.randn(1, 20, 32, device=device, dtype=torch.bfloat16)
    assert names["Mixer"](32, 2).to(x.device, x.dtype)(x).shape == x.shape
    assert names["out"].shape == names["packed"][2].shape
    assert names["out"].isfinite().all()
    assert len(names["states"]) == 3


def test_examples_of_the_layer_run(device: torch.device) -> None:
    names: dict[str, Any] = {}
    for block in fences("docs/layer.md", "python"):
        exec(compile(block, "docs/layer.md", "exec"), names)
    assert names["layer"].q_proj.weight.device.type == device.type
    assert names["y"].isfinite().all()
    assert names["tokens"].shape == (len(names["states"]), names["layer"].hidden_size)


def test_examples_of_serving_run() -> None:
    names: dict[str, Any] = {}
    for block in fences("docs/serving.md", "python"):
        exec(compile(block, "docs/serving.md", "exec"), names)
    assert names["o"].isfinite().all()
    assert names["pool"].lengths[[7, 3]].tolist() == [4, 6]


def test_what_is_read_first_is_short() -> None:
    """Lines of a document, as its readers were promised: what grows moves to docs/."""
    assert len(text("README.md").splitlines()) <= 150
    assert len(text("CHANGELOG.md").splitlines()) <= 40


def test_changelog_has_the_current_version() -> None:
    assert f"## [{glabench.__version__}]" in text("CHANGELOG.md")

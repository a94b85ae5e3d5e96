"""The hash of sources follows what they mean: a move leaves it, a change of anything that runs does not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import gla_kernels
from gla_kernels import Plan, Workload
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.meaning import Package
from gla_kernels.plan.syntax import Place

FOLDER = Path(gla_kernels.__file__).parent
ROOTS = [Place(x.__module__, x.__name__) for x in (all_launches, Plan, Workload)]

SMALL = {
    "__init__.py": "",
    "host.py": '''
"""Host code."""
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
import math
from . import tools
from .kernels import double_kernel as kernel, never_used
if TYPE_CHECKING:
    from .tools import Tile
try:
    from .fast import fast_kernel
except ImportError:
    fast_kernel = None
MOST = 8

@dataclass
class Sizes:
    rows: int
    columns: int = 4
    def area(self) -> int:
        """Rows times columns."""
        if self.rows < 0:
            raise ValueError(f"rows: {self.rows}")
        return self.rows * self.columns
    def most(self, MOST=MOST):
        return MOST

def launch(x: Tile, n: int = 2):
    """Doc."""
    import os.path
    sizes = Sizes(n)  # a comment
    names = [f"{tools!r:>{n}} {n=}" "more" for tools in range(MOST) if (m := n)]
    return kernel, fast_kernel, math.sqrt(tools.rounded(sizes.area())), names, m, os.path.sep
''',
    "kernels.py": '''
import triton
import triton.language as tl
from .tools import WIDTH
@triton.jit(do_not_specialize=["n"])
def double_kernel(p_x, n, BLOCK: tl.constexpr):
    """Doubles."""
    tl.store(p_x, _twice(tl.load(p_x)) * WIDTH)
    double_kernel
@triton.jit
def _twice(b_x):
    return b_x * 2
def never_used():
    return 1
''',
    "fast.py": "import triton\n@triton.jit\ndef fast_kernel(p_x):\n    return p_x\n",
    "tools.py": """
WIDTH = 64
def rounded(n):
    return _up(n, 16)
def _up(n, by):
    return -(-n // by) * by
class Tile: ...
""",
}
Files = dict[str, str]


def edit(name: str, old: str, new: str) -> Callable[[Files], Files]:
    """Replace text in a file."""

    def change(files: Files) -> Files:
        assert old in files[name]
        return files | {name: files[name].replace(old, new)}

    return change


def renamed_file(files: Files) -> Files:
    """kernels.py becomes a package's file."""
    files = {name: text.replace("from .kernels", "from .passes.double") for name, text in files.items()}
    text = files.pop("kernels.py").replace("from .tools", "from ..tools")
    return files | {"passes/__init__.py": "", "passes/double.py": text}


def moved_function(files: Files) -> Files:
    """_twice to another file, whose name it is imported by."""
    text = "@triton.jit\ndef _twice(b_x):\n    return b_x * 2\n"
    assert text in files["kernels.py"]
    kernels = files["kernels.py"].replace(text, "").replace("from .tools", "from .more import _twice\nfrom .tools")
    return files | {"kernels.py": kernels, "more.py": f"import triton\n{text}"}


def reexported(files: Files) -> Files:
    """tools.py becomes two files, one of which names what is in the other."""
    return files | {"tools.py": "from .inner import WIDTH, rounded\n", "inner.py": files["tools.py"]}


def reordered(files: Files) -> Files:
    body = ast.parse(files["tools.py"]).body
    return files | {"tools.py": "\n".join(ast.unparse(node) for node in reversed(body))}


SAME: dict[str, Callable[[Files], Files]] = {
    "a comment": edit("host.py", "# a comment", "# another one"),
    "a docstring": edit("host.py", '"""Doc."""', '"""Another.\n\n    And more."""'),
    "a module's docstring": edit("host.py", '"""Host code."""', ""),
    "a docstring of a kernel": edit("kernels.py", '"""Doubles."""', ""),
    "an annotation": edit("host.py", "x: Tile, n: int = 2)", "x: object, n=2) -> tuple"),
    "an annotated variable": edit("host.py", "sizes = Sizes(n)", "sizes: Sizes = Sizes(n)"),
    "an annotated constant": edit("host.py", "MOST = 8", "MOST: int = 8"),
    "a field's annotation": edit("host.py", "rows: int", "rows: float"),
    "imports in another order": edit(
        "host.py", "import math\nfrom . import tools\n", "from . import tools\nimport math\n"
    ),
    "another name for an import": edit("host.py", "double_kernel as kernel, never_used", "double_kernel as kernel"),
    "a name of the module instead": lambda files: edit("host.py", "tools.rounded", "rounded")(
        edit("host.py", "from . import tools", "from .tools import rounded")(files)
    ),
    "a name from outside instead": lambda files: edit("host.py", "math.sqrt", "sqrt")(
        edit("host.py", "import math", "from math import sqrt")(files)
    ),
    "an absolute import": edit("kernels.py", "from .tools", "from small.tools"),
    "what nothing reaches": edit("kernels.py", "return 1", "return 2"),
    "what an error says": edit("host.py", 'f"rows: {self.rows}"', '"rows: too few"'),
    "a renamed file": renamed_file,
    "a moved function": moved_function,
    "a re-export": reexported,
    "definitions in another order": reordered,
    "spaces": edit("tools.py", "_up(n, 16)", "_up(\n        n,\n        16,\n    )"),
    "a number by another base": edit("tools.py", "16", "0x10"),
}

OTHER: dict[str, Callable[[Files], Files]] = {
    "a constant": edit("tools.py", "WIDTH = 64", "WIDTH = 32"),
    "a constant in a function": edit("tools.py", "16", "32"),
    "a type of a constant": edit("tools.py", "WIDTH = 64", "WIDTH = 64.0"),
    "a statement": edit("tools.py", "    return _up(n, 16)", "    n = n + 1\n    return _up(n, 16)"),
    "a default": edit("host.py", "n: int = 2", "n: int = 3"),
    "a field's default": edit("host.py", "columns: int = 4", "columns: int = 5"),
    "a field": edit("host.py", "rows: int", "rows: int\n    more: int"),
    "no field": edit("host.py", "columns: int = 4", "columns: ClassVar[int] = 4"),
    "no error": edit("host.py", 'raise ValueError(f"rows: {self.rows}")', "return 0"),
    "a decorator": edit("host.py", "@dataclass", "@dataclass(frozen=True)"),
    "a decorator's argument": edit("kernels.py", '["n"]', '["p_x"]'),
    "a kernel's name": lambda files: {
        name: text.replace("double_kernel", "twice_kernel") for name, text in files.items()
    },
    "a parameter": lambda files: files | {"kernels.py": files["kernels.py"].replace("p_x", "p_y")},
    "a kernel's annotation": edit("kernels.py", ": tl.constexpr", ""),
    "an operator": edit("kernels.py", "b_x * 2", "b_x + 2"),
    "what an import binds": edit("host.py", "double_kernel as kernel", "never_used as kernel"),
    "what an import from outside binds": edit("host.py", "import math", "import cmath as math"),
    "what is done without a module": edit("host.py", "fast_kernel = None", "fast_kernel = 0"),
    "without which module": edit("host.py", "except ImportError", "except OSError"),
    "what nothing but the module changes": edit("tools.py", "WIDTH = 64", "WIDTH = 64\nWIDTH += 1"),
    "an item": edit("host.py", "MOST = 8", "MOST = [8]\nMOST[0] = 9"),
    "a call of a method": edit("host.py", "MOST = 8", "MOST = [8]\nMOST.append(9)"),
    "a default that a method hides": edit("host.py", "MOST=MOST", "MOST=WIDTH"),
}


@pytest.fixture
def small(tmp_path: Path) -> Callable[[Files], str]:
    """The meaning of ``launch`` in the small package, from its files."""

    def meaning(files: Files) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return Package("small", folder).meaning([Place("small.host", "launch")])

    return meaning


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_a_move_means_the_same(small, change):
    assert small(change(dict(SMALL))) == small(SMALL)


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_what_may_run_otherwise_means_something_else(small, change):
    assert small(change(dict(SMALL))) != small(SMALL)


def test_methods_may_be_in_any_order(small):
    two = "class Two:\n    a = 1\n    def first(self): return 1\n    def second(self): return 2\n"
    turned = "class Two:\n    a = 1\n    def second(self): return 2\n    def first(self): return 1\n"
    host = "from .two import Two\ndef launch(): return Two()\n"
    assert small({"host.py": host, "two.py": two}) == small({"host.py": host, "two.py": turned})


def test_constants_of_one_name_are_told_apart_by_who_reads_them(small):
    part = "from .{}_sizes import SIZE\ndef {}(): return _read()\ndef _read(): return SIZE\n"
    host = "from .a import a\nfrom .b import b\ndef launch(): return a(), b()\n"
    files = {"host.py": host, "a.py": part.format("a", "a"), "b.py": part.format("b", "b")}
    one = small(files | {"a_sizes.py": "SIZE = 1", "b_sizes.py": "SIZE = 2"})
    assert one != small(files | {"a_sizes.py": "SIZE = 2", "b_sizes.py": "SIZE = 1"})


def test_the_text_is_that_of_every_python(small):
    """Python's own ast.dump differs between versions."""
    assert small(SMALL) == "a7fb390606d77c52"


def test_a_root_that_is_no_definition_of_the_package_is_an_error():
    with pytest.raises(LookupError, match=r"gla_kernels\.plan\.apply\.nothing"):
        Package("gla_kernels", FOLDER).meaning([Place("gla_kernels.plan.apply", "nothing")])
    with pytest.raises(LookupError, match="cdiv"):
        Package("gla_kernels", FOLDER).meaning([Place("triton", "cdiv")])

"""Imports point one way, between packages and inside them, the specification stands on the standard library alone, and
``import gradspec`` is light.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gradspec"
FILES = sorted(SOURCE.rglob("*.py"))

PACKAGES = (
    "spec",
    "system",
    "domains",
    "graph",
    "ops",
    "transforms",
    "saving",
    "codegen",
    "runtime",
    "backends",
    "wiring",  # one module: what the packages above need of later ones
    "interop",
    "conformance",
    "verify",
    "",  # gradspec/__init__.py, which hands out all of the above
    "gallery",  # one module: references, in PyTorch
    "referee",
    "testing",
    "bench",
    "demo",
    "doctor",
    "cli",
    "__main__",
)
JUDGE = "gradspec.conformance"
JUDGES_PACKAGES = ("model", "cases", "oracle", "judge", "checks", "targets", "shrink", "campaign", "report")
"""The packages of the judge, in the order in which they build upon each other; ``command`` stands above them."""
LIBRARIES = ("torch", "jax", "onnx", "native", "user", "reference")
"""Folders of ``targets``, of which none knows another."""
FRAMEWORKS = {"numba", "llvmlite", "torch", "triton", "jax", "onnx", "onnxruntime"}
GPU = "gradspec.backends.triton."
"""Whose kernels take tensors of PyTorch; it is imported where there are some."""
NEVER = {"numba"}
COMPILER = {f"gradspec.codegen.{stem}" for stem in ("language", "instructions", "translation", "intrinsics", "formats")}
"""With the sources of kernels, what is imported only where a kernel is compiled."""
HEAVY = FRAMEWORKS | {"flint", "rich", "click"}


def module_name(file: Path) -> str:
    """``gradspec.spec.pool`` for a file, ``gradspec.spec.__init__`` for a package, so that its parent is itself."""
    return ".".join(("gradspec", *file.relative_to(SOURCE).with_suffix("").parts))


def package_of(module: str) -> str:
    """The first name below ``gradspec``; what is not a package (``gradspec.exact``, say) belongs to ``__init__``."""
    return next((name for name in module.split(".")[1:2] if name in PACKAGES), "")


def imported(node: ast.AST, module: str) -> list[str]:
    """The absolute names that one statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
        return [f"{source}.{alias.name}" for alias in node.names]
    return []


def run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when the module is imported: everything outside function bodies, and not what type
    checkers alone read."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (is_for_types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield child
            yield from run_on_import(child)


def violations(module: str, source: str) -> list[str]:
    """Every import in ``source`` that breaks a rule."""
    tree, package = ast.parse(source), package_of(module)
    anywhere = [name for node in ast.walk(tree) for name in imported(node, module)]
    on_import = [name for node in run_on_import(tree) for name in imported(node, module)]
    return [
        *(f"{module} imports {name}, which comes later" for name in anywhere if is_later(name, package)),
        *(f"{module} imports {name}, a later package of the judge" for name in anywhere if is_uphill(name, module)),
        *(f"{module} imports {name}, another library" for name in anywhere if is_another_library(name, module)),
        *(f"{module} imports {name}: standard library only" for name in anywhere if is_foreign(name, package)),
        *(f"{module} imports {name}: nobody does" for name in anywhere if top_name(name) in NEVER),
        *(f"{module} imports {name}: only inside functions" for name in on_import if is_framework(name, module)),
        *(f"{module} imports {name}: only kernels do" for name in anywhere if is_kernel(name, module)),
    ]


def is_later(name: str, package: str) -> bool:
    return top_name(name) == "gradspec" and PACKAGES.index(package_of(name)) > PACKAGES.index(package)


def is_uphill(name: str, module: str) -> bool:
    return judges_package(name) > judges_package(module) >= 0


def judges_package(name: str) -> int:
    """The place of a module among the packages of the judge; negative outside of it, the highest for the rest of it."""
    if not name.startswith(f"{JUDGE}."):
        return -1
    package = name.split(".")[2]
    return JUDGES_PACKAGES.index(package) if package in JUDGES_PACKAGES else len(JUDGES_PACKAGES)


def is_another_library(name: str, module: str) -> bool:
    ours, theirs = library_of(module), library_of(name)
    return ours is not None and theirs not in (None, ours)


def library_of(name: str) -> str | None:
    inside = name.removeprefix(f"{JUDGE}.targets.").split(".")[0]
    return inside if name.startswith(f"{JUDGE}.targets.") and inside in LIBRARIES else None


def is_foreign(name: str, package: str) -> bool:
    return package == "spec" and top_name(name) not in {"gradspec", *sys.stdlib_module_names}


def is_framework(name: str, module: str) -> bool:
    allowed = NEVER | ({"llvmlite"} if is_source(module) else set())
    if module.startswith(GPU):
        allowed |= {"torch", "triton"}
    return package_of(module) not in ("interop", "gallery") and top_name(name) in FRAMEWORKS - allowed


def is_kernel(name: str, module: str) -> bool:
    """Whether a host module imports what says how kernels are made, rather than what is passed to them."""
    return is_source(name) and not is_source(module)


def is_source(name: str) -> bool:
    """Whether a module, or what is imported from it, is the source of a kernel or of the compiler."""
    return top_name(name) == "gradspec" and ("kernels" in name.split(".") or not COMPILER.isdisjoint(prefixes(name)))


def prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def top_name(name: str) -> str:
    return name.split(".")[0]


def in_cycles(sources: dict[str, str]) -> set[str]:
    """The modules that import themselves by way of others, inside functions or for the type checker only too."""
    imports = {module: set(modules_imported(module, sources)) for module in sources}
    return {module for module in sources if module in reached(module, imports)}


def modules_imported(module: str, sources: dict[str, str]) -> Iterator[str]:
    """Modules, for names of modules and for names that modules hold."""
    for node in ast.walk(ast.parse(sources[module])):
        for name in imported(node, module):
            holder = name.rpartition(".")[0]
            yield from [m for m in (name, f"{name}.__init__", holder, f"{holder}.__init__") if m in sources][:1]


def reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """The modules that are imported by ``start``, by what it imports, and so on."""
    found: set[str] = set()
    pending = [start]
    while pending:
        new = imports[pending.pop()] - found
        found |= new
        pending += new
    return found


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_obey_the_rules(file):
    module = module_name(file)
    assert violations(module, file.read_text()) == []


def test_no_module_imports_itself_by_way_of_others():
    assert in_cycles({module_name(file): file.read_text() for file in FILES}) == set()


@pytest.mark.parametrize(
    "back",
    [
        "import a.x",
        "from a import x",
        "from .x import f",
        "def f():\n    from a.x import g",
        "if TYPE_CHECKING:\n    from a.x import f",
        "from a.z import f",
        "from a import f",
    ],
)
def test_a_cycle_is_seen(back):
    sources = {"a.x": "from a.y import f", "a.y": back, "a.z": "from .x import f", "a.__init__": "from .x import f"}
    assert {"a.x", "a.y"} <= in_cycles(sources) <= {"a.x", "a.y", "a.z", "a.__init__"}
    assert in_cycles(sources | {"a.y": "import os"}) == set()


def test_every_file_has_its_package():
    named = {file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in FILES}
    assert {"spec", "domains"} <= named <= {*PACKAGES, "__init__", "__main__", "folding", "library", "torch"}
    judge = SOURCE / "conformance"
    packages = {file.relative_to(judge).parts[0].removesuffix(".py") for file in judge.rglob("*.py")}
    assert packages == {*JUDGES_PACKAGES, "__init__", "command"}
    libraries = {folder.name for folder in (judge / "targets").iterdir() if (folder / "__init__.py").exists()}
    assert libraries == {*LIBRARIES}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gradspec.spec.pool", "import numpy"),
        ("gradspec.spec.pool", "def f():\n    from flint import fmpq"),
        ("gradspec.spec.pool", "from gradspec.domains.exact import rational"),
        ("gradspec.spec.pool", "from gradspec import domains"),
        ("gradspec.spec.pool", "from ..domains import exact"),
        ("gradspec.spec.__init__", "from ..domains import exact"),
        ("gradspec.domains.ball", "from gradspec import exact"),
        ("gradspec.domains.ball", "import gradspec"),
        ("gradspec.domains.ball", "if TYPE_CHECKING:\n    import gradspec.conformance.oracle"),
        ("gradspec.graph.ir", "def f():\n    from gradspec.ops.pointwise import add"),
        ("gradspec.runtime.compiled", "from gradspec.wiring import BACKENDS"),
        ("gradspec.saving.graphs", "from gradspec.runtime.compiled import run"),
        ("gradspec.system.processes", "from gradspec.graph.lru import LRUCache"),
        ("gradspec.conformance.oracle", "class A:\n    import torch.nn"),
        ("gradspec.codegen.cache", "from gradspec.runtime.task import Task"),
        ("gradspec.backends.cpu.pool.kernels.pool", "try:\n    import numba\nexcept ImportError:\n    pass"),
        ("gradspec.backends.cpu.pool.kernels.pool", "import torch"),
        ("gradspec.codegen.cache", "import llvmlite.binding"),
        ("gradspec.codegen.cache", "from gradspec.codegen import translation"),
        ("gradspec.backends.cpu.pool.plan", "from llvmlite import ir"),
        ("gradspec.backends.cpu.pool.plan", "def f():\n    from gradspec.backends.cpu.pool.kernels.pool import build"),
        ("gradspec.backends.cpu.pool.plan", "from .kernels import pool"),
        ("gradspec.runtime.job", "from gradspec.codegen.intrinsics import add_atomically"),
        ("gradspec.__init__", "import jax"),
        ("gradspec.__init__", "from gradspec.cli import main"),
        ("gradspec.conformance.model.case", "def f():\n    from gradspec.conformance.cases.data import drawn"),
        ("gradspec.conformance.model.target", "from gradspec.conformance import oracle"),
        ("gradspec.conformance.judge.verdicts", "from gradspec.conformance.checks import CHECKS"),
        ("gradspec.conformance.checks.__init__", "from ..targets import target_named"),
        ("gradspec.conformance.report.html", "from gradspec.conformance.command import perform"),
        ("gradspec.conformance.targets.torch.target", "from gradspec.conformance.targets.jax import target"),
    ],
)
def test_the_rules_see_a_violation(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gradspec.spec.pool", "import math\nfrom .tensor import Tensor\nfrom gradspec.spec import window"),
        ("gradspec.spec.__init__", "from .pool import max_pool"),
        ("gradspec.domains.ball", "import flint\nfrom gradspec import spec"),
        ("gradspec.conformance.targets", "def f():\n    import torch"),
        ("gradspec.interop.torch", "import torch"),
        ("gradspec.codegen.language", "from llvmlite import ir"),
        (
            "gradspec.backends.cpu.pool.kernels.pool",
            "from llvmlite import ir\nfrom gradspec.codegen.language import f32",
        ),
        ("gradspec.backends.cpu.pool.plan", "from gradspec.backends.cpu.pool.arguments import PoolArguments"),
        ("gradspec.backends.cpu.pool.plan", "from gradspec.codegen.records import Operand"),
        ("gradspec.codegen.cache", "def f():\n    import llvmlite.binding"),
        ("gradspec.cli", "from gradspec import demo, exact"),
        ("gradspec.conformance.checks.__init__", "from gradspec.conformance.cases.data import drawn"),
        ("gradspec.conformance.command", "from gradspec.conformance.report import html"),
        ("gradspec.conformance.targets.torch.target", "from gradspec.conformance.targets.program import Code"),
        ("gradspec.bench.contenders.xla", "from gradspec.conformance.targets.jax.target import function"),
    ],
)
def test_the_rules_let_the_rest_pass(module, source):
    assert violations(module, source) == []


def test_importing_gradspec_loads_nothing_heavy():
    script = "import sys, gradspec; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "gradspec.spec.pool" in loaded
    assert HEAVY.isdisjoint(map(top_name, loaded))

"""The package grows in types and not in lines: two limits that only a stated reason may raise."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

UNTYPED = 0.062
"""The share of parameters and results, outside the sources of kernels, that are ``Any``, or contain it, or are bare."""

LINES = 99_679
"""The lines of all ``*.py`` in ``src``."""

RAISING = "lower it by {advice}; to raise the limit in tests/test_budget.py, say why in a line of CHANGELOG.md"


def slots(tree: ast.AST) -> Iterator[ast.expr | None]:
    """The annotation of every parameter but ``self`` and ``cls``, and of every result; None where there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            yield from (p.annotation for p in parameters if p.arg not in ("self", "cls"))
            yield node.returns


def is_untyped(annotation: ast.expr | None) -> bool:
    return annotation is None or any(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(annotation))


def is_kernel_source(file: Path, source: Path) -> bool:
    return "kernels" in file.relative_to(source).parts or file.name == "pool_kernels.py"


def untyped_share(source: Path) -> float:
    files = [file for file in source.rglob("*.py") if not is_kernel_source(file, source)]
    found = [is_untyped(slot) for file in files for slot in slots(ast.parse(file.read_text()))]
    return sum(found) / len(found)


def line_count(source: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in source.rglob("*.py"))


def test_any_does_not_spread():
    share = untyped_share(SOURCE)
    advice = "naming types (Var, Operand, Box, an attribute record, object, a TypeAlias, a Protocol)"
    assert share <= UNTYPED, f"{share:.2%} of parameters and results are Any or bare: {RAISING.format(advice=advice)}"


def test_lines_do_not_grow():
    lines = line_count(SOURCE)
    advice = "removing what is no longer needed, or what is said twice"
    assert lines <= LINES, f"src has {lines:,} lines: {RAISING.format(advice=advice)}"


# --- the checks can fail ----------------------------------------------------------------------------------------------


def test_a_bare_parameter_and_any_are_counted(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine.py").write_text("def f(x): ...\n")
    (tmp_path / "typed.py").write_text("class A:\n    def f(self, x: int, *y: Any, z) -> list[Any]: ...\n")
    (tmp_path / "typed.pyi").write_text("def f(x: Any) -> Any: ...\n")
    assert untyped_share(tmp_path) == 3 / 4
    assert line_count(tmp_path) == 3

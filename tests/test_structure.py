"""Functions that one can see whole, and no two classes of one name: read from the source."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "gradspec"

LONGEST = 80

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def defined(source: Path) -> list[tuple[str, list[ast.stmt]]]:
    """Every file, and the functions and classes in it."""
    files = sorted(source.rglob("*.py"))
    return [(file.relative_to(source).as_posix(), [*_definitions(ast.parse(file.read_text()))]) for file in files]


def _definitions(node: ast.AST) -> Iterator[ast.stmt]:
    """Those among the statements below a node; expressions hold none."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, part, ())
        for child in below if isinstance(below, list) else ():
            yield from _definitions(child)


def long_functions(source: Path) -> dict[str, int]:
    """The lines of every function that has too many, from its ``def`` on, those of functions inside it among them."""
    found: Counter[str] = Counter()
    for file, nodes in defined(source):
        for node in nodes:
            if isinstance(node, Function) and (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST:
                found |= Counter({f"{file} {node.name}": lines})
    return dict(found)


def shared_class_names(source: Path) -> dict[str, int]:
    """How many classes there are of every name that several have."""
    classes = (node for _, nodes in defined(source) for node in nodes if isinstance(node, ast.ClassDef))
    counts = Counter(node.name for node in classes)
    return {name: count for name, count in counts.items() if count > 1}


def test_functions_can_be_seen_whole():
    assert long_functions(SOURCE) == {}


def test_no_two_classes_have_one_name():
    assert shared_class_names(SOURCE) == {}


# --- the checks can fail ----------------------------------------------------------------------------------------------


def function_of(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def indented(source: str) -> str:
    return "".join(f"    {line}\n" for line in source.splitlines())


def test_a_long_function_is_seen(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "short.py").write_text(function_of(LONGEST))
    (tmp_path / "long.py").write_text(function_of(LONGEST + 1) + function_of(2))
    (tmp_path / "room" / "inner.py").write_text("class A:\n" + indented("async " + function_of(LONGEST + 2)))
    assert long_functions(tmp_path) == {"long.py f": LONGEST + 1, "room/inner.py f": LONGEST + 2}


def test_a_class_name_that_is_shared_is_seen(tmp_path):
    (tmp_path / "a.py").write_text("class Shared:\n    class Inner: ...\nclass Alone: ...\n")
    (tmp_path / "b.py").write_text("def f():\n    class Shared: ...\n")
    (tmp_path / "c.py").write_text("class Inner: ...\ndef Alone(): ...\n")
    assert shared_class_names(tmp_path) == {"Shared": 2, "Inner": 2}

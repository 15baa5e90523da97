"""Names and sizes: no two classes of one name, no function that one cannot see whole."""

import ast
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gradspec"
ROOMS = ("conformance", "testing", "bench")
FILES = [file for room in ROOMS for file in sorted((SOURCE / room).rglob("*.py"))]
LONGEST = 80
"""Lines of a function; what needs more says why in ``LONGER``."""
LONGER: dict[str, str] = {}


def classes(text: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def long_functions(text: str) -> list[str]:
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= LONGEST]


def test_no_class_has_the_name_of_another():
    everywhere = Counter(name for file in SOURCE.rglob("*.py") for name in classes(file.read_text()))
    ours = {name for file in FILES for name in classes(file.read_text())}
    assert len(ours) > 100
    assert sorted(name for name in ours if everywhere[name] > 1) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_functions_can_be_seen_whole(file):
    assert set(long_functions(file.read_text())) <= LONGER.keys()


def test_what_is_too_long_or_named_twice_would_be_seen():
    body = "\n".join("    x = 1" for _ in range(LONGEST))
    assert long_functions(f"class A:\n    pass\ndef f():\n{body}\n") == ["f"]
    assert long_functions(f"def f():\n{body[10:]}\n") == []
    assert classes("class A:\n    class B:\n        pass\ndef f():\n    class A:\n        pass") == ["A", "B", "A"]

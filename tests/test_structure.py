"""Functions that one can see whole, and no two classes of one name: read from the source.

What is not so today is listed here. Nothing may be added to the lists, nothing listed may grow, and an entry that is no
longer needed must go.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "gradspec"

LONGEST = 80

LONG_FUNCTIONS = {
    "backends/cpu/kernels/compare.py comparison": 151,
    "backends/cpu/kernels/conv.py convolution": 251,
    "backends/cpu/kernels/patches.py staging": 105,
    "backends/cpu/kernels/resize.py _kernel": 106,
    "backends/cpu/kernels/soft.py soft_emission": 102,
    "backends/cpu/kernels/soft.py soft_reduction": 88,
    "backends/cpu/kernels/soft.py soft_rows": 145,
    "backends/cpu/kernels/softmax.py _softmax": 158,
    "backends/cpu/kernels/staging.py sender": 103,
    "backends/cpu/kernels/ties.py counting": 86,
    "backends/cpu/kernels/values.py value_rows": 291,
    "backends/cpu/kernels/windows.py walk": 198,
    "backends/cpu/kernels/winners.py winner_emission": 173,
    "backends/cpu/kernels/winners.py winner_rows": 206,
    "backends/cpu/kernels/winners.py winner_taps": 97,
}
"""Lines of each."""

SHARED_CLASS_NAMES = {
    "Axes": 2,
    "Axis": 2,
    "Binder": 3,
    "Bound": 2,
    "Box": 2,
    "Case": 2,
    "Choice": 2,
    "Compiled": 2,
    "Constants": 2,
    "Convolution": 2,
    "Decided": 2,
    "Entry": 2,
    "Form": 2,
    "Format": 2,
    "Function": 2,
    "Jax": 2,
    "Kind": 2,
    "Mistake": 2,
    "Module": 2,
    "Node": 2,
    "NotOfferedError": 2,
    "OnnxRuntime": 2,
    "Operators": 4,
    "Packing": 2,
    "Page": 2,
    "Plan": 2,
    "Plane": 2,
    "Problem": 2,
    "Product": 2,
    "Program": 2,
    "Request": 2,
    "Run": 2,
    "Selection": 2,
    "Settings": 2,
    "Shape": 2,
    "Step": 2,
    "Sums": 3,
    "Tables": 2,
    "Target": 2,
    "UserError": 2,
    "Verdict": 2,
    "Windows": 3,
    "Worker": 2,
    "_Loop": 2,
    "_Wanted": 2,
}
"""How many classes have each."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(source: Path) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(source.rglob("*.py")):
        yield file.relative_to(source).as_posix(), ast.parse(file.read_text())


def long_functions(source: Path) -> dict[str, int]:
    """The lines of every function that has too many, from its ``def`` on, those of functions inside it among them."""
    found: Counter[str] = Counter()
    for file, tree in parsed(source):
        for node in ast.walk(tree):
            if isinstance(node, Function) and (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST:
                found |= Counter({f"{file} {node.name}": lines})
    return dict(found)


def shared_class_names(source: Path) -> dict[str, int]:
    """How many classes there are of every name that several have."""
    classes = (node for _, tree in parsed(source) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    counts = Counter(node.name for node in classes)
    return {name: count for name, count in counts.items() if count > 1}


def faults(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """What is neither right nor listed as it is."""
    return [
        *(f"{name} is new: {n}" for name, n in found.items() if name not in allowed),
        *(f"{name} has grown to {n}" for name, n in found.items() if n > allowed.get(name, n)),
        *(f"{name} need no longer be listed" for name in allowed if name not in found),
    ]


def test_functions_can_be_seen_whole():
    assert faults(long_functions(SOURCE), LONG_FUNCTIONS) == []


def test_no_two_classes_have_one_name():
    assert faults(shared_class_names(SOURCE), SHARED_CLASS_NAMES) == []


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


def test_only_what_is_listed_as_it_is_passes():
    assert faults({"a": 90, "b": 80}, {"a": 90, "b": 100}) == []
    assert faults({"new": 90}, {}) == ["new is new: 90"]
    assert faults({"a": 91}, {"a": 90}) == ["a has grown to 91"]
    assert faults({}, {"a": 90}) == ["a need no longer be listed"]

"""Which rows of the tables run at once and which only where all are asked for; and that tests leave nothing behind."""

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gradspec.runtime import frame, memory

gc.disable()  # until all is collected

ROWS = {
    **dict.fromkeys(("backends", "bench", "interop", "verify", "conformance", "codegen", "referee", "fuzz"), 1),
    **dict.fromkeys(("runtime", "peers", "graph", "saving"), 2),
}
USUAL = 3
"""Of each test, so many rows run by default, spread evenly over its table; ``pytest -m exhaustive`` runs the others.
Rows of these folders are dear: a kernel is compiled or judged, a model imported, a process started.

``@pytest.mark.rows(2)`` says so of one test: these and no others. ``@pytest.mark.exhaustive`` puts off a whole test,
one whose law others show by default on less.
"""
UNCOUNTED = ("spec", "domains")
"""Folders of long loops in Python: counting lines triples their tests' time, and other tests run the same lines."""
ALWAYS = ("tie", "nan", "inf", "only", "asymmetric", "divisible", "straddl", "ceil", "dilated", "empty", "zero")
"""Words in the names of rows, of each of which one row runs by default."""


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Rows that are not asked for are not made: there are ten times as many as the others."""
    yield
    definition = metafunc.definition
    mark = definition.get_closest_marker("rows")
    rows = mark.args[0] if mark else ROWS.get(definition.path.parent.name, USUAL)
    table = [call for call in metafunc._calls if not is_exhaustive(call)]
    chosen = sample([call.id.lower() for call in table], rows, () if mark else ALWAYS)
    for i, call in enumerate(table):
        if i not in chosen:
            call.marks.append(pytest.mark.exhaustive.mark)
        elif i > min(chosen):
            call.marks.append(pytest.mark.no_cover.mark)  # few lines are run by these only, and counting takes long
    if table and metafunc.config.getoption("markexpr") == "not exhaustive":
        metafunc._calls[:] = [call for call in metafunc._calls if not is_exhaustive(call)]


def pytest_itemcollected(item):
    if item.path.parent.name in UNCOUNTED:
        item.add_marker(pytest.mark.no_cover)


def is_exhaustive(call):
    return any(mark.name == "exhaustive" for mark in call.marks)


def pytest_collection_finish():
    """What was imported and collected stays: looking through it for garbage costs a twentieth of the time, and copies
    of its pages in processes that are forked. What comes later is looked through seldom, or that costs an eighth."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # or what Triton's extension holds is told as leaked


def sample(names, rows=USUAL, always=ALWAYS):
    """The numbers of the rows that run by default, given their names.

    >>> sorted(sample(["plain"] * 15 + ["infinite"] + ["plain"] * 2, 6))
    [0, 3, 6, 9, 12, 15]
    >>> sorted(sample(["plain"] * 13 + ["infinite", "nan"] + ["plain"] * 3, 6))
    [0, 3, 6, 9, 12, 13, 14, 15]
    """
    if len(names) <= rows:
        return set(range(len(names)))
    chosen = {i * len(names) // rows for i in range(rows)}
    for word in always:
        with_it = [i for i, name in enumerate(names) if word in name]
        if with_it and chosen.isdisjoint(with_it):
            chosen.add(with_it[0])
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that leaves JAX in another mode fails itself, rather than one that comes after it."""
    before = jax_is_wide()
    yield
    assert jax_is_wide() == before, "the test changed jax_enable_x64 for those after it"


def jax_is_wide():
    jax = sys.modules.get("jax")
    return bool(jax and jax.config.jax_enable_x64)


@pytest.fixture
def filled_memory(monkeypatch):
    """Memory that nobody has written to holds large numbers. What a kernel does not write, or reads before it does,
    would often be zero, or the right result of the call before."""

    def filled(allocate):
        def allocated(*given, **named):
            array = allocate(*given, **named)
            array[...] = np.frombuffer(b"\x7f" * array.itemsize, array.dtype)[0]
            return array

        return allocated

    numpy = SimpleNamespace(**{**vars(np), "empty": filled(np.empty), "empty_like": filled(np.empty_like)})
    for module in (frame, memory):
        monkeypatch.setattr(module, "np", numpy)
    monkeypatch.setattr(frame, "empty", numpy.empty)

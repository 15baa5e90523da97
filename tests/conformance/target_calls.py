"""Calls for targets: shapes and attributes by name, data on which every result is decided by equality, and programs.

Numbers are small integers, so sums are exact in every format and order; those that are compared differ, so no tie needs
a rule.
"""

import json
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from gradspec.conformance.model.problem import DTYPES, INPUTS, SELECTIONS, Array, Call, Problem, Results
from gradspec.conformance.model.target import Target
from gradspec.conformance.oracle.expected import expected

SMALL = 4


def call_of(problem: Problem, mode: str = "value", seed: int = 0, variant: str = "plain") -> Call:
    random = np.random.default_rng(seed)
    dtype = DTYPES[problem.dtype]

    def numbers(shape: tuple[int, ...]) -> Array:
        return random.integers(-SMALL if problem.dtype != "u8" else 0, SMALL + 1, shape).astype(dtype)

    inputs = [None if shape is None else numbers(shape) for shape in problem.shapes]
    if problem.op in SELECTIONS:
        shape = problem.shapes[0]
        inputs = [random.permutation(prod(shape)).reshape(shape).astype(dtype)]
    if problem.op == "max_unpool":
        inputs[1] = _places(random, problem)
    output = expected(Call(problem, "value", tuple(inputs)))["y"].shape
    directions = [numbers(shape) for name, shape in zip(INPUTS[problem.op], problem.shapes, strict=True) if shape]
    return Call(
        problem,
        mode,
        tuple(inputs),
        tuple(directions) if mode in ("jvp", "second") else (),
        numbers(output) if mode in ("vjp", "second") else None,
        variant=variant,
        output=output,
    )


def _places(random: np.random.Generator, problem: Problem) -> Array:
    """Indices that differ within each plane."""
    shape, rank = problem.shapes[0], problem.rank
    cells, places = prod(problem.attributes["output_size"]), prod(shape[-rank:])
    planes = [random.permutation(cells)[:places] for _ in range(prod(shape[:-rank]))]
    return np.array(planes, np.int64).reshape(shape)


def wrong(target: Target, call: Call) -> dict[str, list[str]]:
    """The results that are not what the specification says, with the first differences."""
    results = target.run(call)
    assert results
    found = {}
    for name, meaning in expected(call).items():
        if name in results and meaning is not None:
            assert results[name].dtype == (np.int64 if name == "indices" else DTYPES[call.problem.dtype])
            judged = meaning.judge(results[name])
            if not judged.passed:
                found[name] = judged.failures()
    return found


def every_way(target: Target, call: Call) -> list[Call]:
    """The call in every variant that the target has."""
    variants = target.variants(call.problem, call.mode)
    return [replace(call, variant=variant) for variant in ("plain", *variants)]


RUN_EACH = """
import contextlib, io, json, runpy, sys
printed = []
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        runpy.run_path(path)
    printed.append(lines.getvalue().splitlines())
print(json.dumps(printed))
"""


def printed_by(programs: list[str], folder: Path) -> list[list[Array]]:
    """What programs print, one array a line; one process runs them all, each in names of its own."""
    paths = [folder / f"program{i}.py" for i in range(len(programs))]
    for path, text in zip(paths, programs, strict=True):
        path.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [[_read(line) for line in lines] for lines in json.loads(ran.stdout)]


def _read(line: str) -> Array:
    return np.array(json.loads(line.replace("nan", "NaN").replace("inf", "Infinity")))


def same(results: Results, printed: list[Array]) -> bool:
    """Whether the printed numbers are those of the results; programs print the shortest decimals of a dtype."""
    pairs = zip(results.values(), printed, strict=True)
    return all(np.array_equal(a.astype(b.dtype), b.reshape(a.shape), equal_nan=True) for a, b in pairs)

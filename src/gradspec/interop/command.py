"""What ``gradspec run`` and ``gradspec show`` do: a model from a file, on arrays from files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.show import ascii_only
from gradspec.interop.array_files import StoredArray, write_arrays
from gradspec.interop.model_files import RequestError, assigned, described, file_names, read_model
from gradspec.runtime.compiled import Compiled, Executable, Program, plan_graph
from gradspec.runtime.memory import nbytes
from gradspec.runtime.plan import Plan
from gradspec.runtime.threads import get_num_threads
from gradspec.system.machine import machine_bytes

SECONDS_OF_TIMING = 1.0


@dataclass(frozen=True)
class RunRequest:
    """The options of ``gradspec run`` as they were written."""

    model: str
    inputs: Sequence[str]
    output: str
    shapes: Sequence[str] = ()
    constants: Sequence[str] = ()
    tangents: Sequence[str] = ()
    cotangents: Sequence[str] = ()
    threads: int | None = None
    timed: bool = False


def perform(request: RunRequest) -> list[str]:
    """Carry out a request, and say what was done line by line. Everything is checked before any work."""
    graph = read_model(request.model, request.shapes, request.constants, request.inputs)
    files, derived, names = _asked(graph, request)
    _require_types(files)
    _require_suffix(request.output, names)
    plan, constants = plan_graph(derived)
    threads = request.threads or get_num_threads()
    _require_memory(plan, threads, files)
    arrays = [_zeros(v) if stored is None else stored.load() for v, stored in files.items()]
    run = Compiled(derived, Program(Executable(plan), constants), threads)
    results, seconds = _timed(run, arrays, SECONDS_OF_TIMING if request.timed else 0)
    write_arrays(request.output, dict(zip(names, results, strict=True)))
    return [
        f"{request.model}: {len(derived.nodes)} operators in {len(plan.steps)} steps",
        *_table(
            *(
                ("read", ascii_only(v.name), str(v.type), stored.place if stored else "zeros")
                for v, stored in files.items()
            ),
            *(("wrote", n, str(v.type), request.output) for n, v in zip(names, derived.outputs, strict=True)),
        ),
        f"{plan.memory(threads):,} bytes, {threads} thread{'s' * (threads > 1)}, {_seconds(seconds)}",
    ]


# --- what is asked for ------------------------------------------------------------------------------------------------

Files: TypeAlias = dict[Var, StoredArray | None]
"""Arrays by the variable that each is for; None for zeros."""


def _asked(graph: Graph, request: RunRequest) -> tuple[Files, Graph, list[str]]:
    """The array for each input of the graph to run; that graph, and the names of its results."""
    if request.tangents and request.cotangents:
        raise RequestError("--jvp and --vjp are two derivatives; ask for one of them at a time")
    inputs = assigned("--input", request.inputs, described(graph.inputs)).by_name
    _require_each(inputs, graph.inputs)
    outputs = [v.name for v in graph.outputs]
    if request.tangents:
        seeds = _seeds("--jvp", request.tangents, graph.inputs)
        derived, sources = graph.jvp(list(seeds)), list(seeds)
        outputs += [f"d{v.name}" for v in graph.outputs if v.type.is_float]
    elif request.cotangents:
        seeds = _seeds("--vjp", request.cotangents, graph.outputs)
        derived, sources = graph.vjp(), [v.name for v in graph.outputs if v.type.is_float]
        outputs += [f"ct_{v.name}" for v in graph.inputs if v.type.is_float]
    else:
        seeds, derived, sources = {}, graph, []
    stored = [inputs[v.name] for v in graph.inputs] + [seeds.get(name) for name in sources]
    return dict(zip(derived.inputs, stored, strict=True)), derived, file_names(outputs)


def _seeds(option: str, texts: Sequence[str], variables: Sequence[Var]) -> dict[str, StoredArray]:
    """Tangents or cotangents: of all floating-point variables, or of those that are named."""
    floats = [v for v in dict.fromkeys(variables) if v.type.is_float]
    found = assigned(option, texts, described(floats))
    missing = [v for v in floats if v.name not in found.by_name]
    if missing and found.in_order:
        raise RequestError(
            f"{option}: no file for {', '.join(map(repr, missing))}; name those that are meant: "
            f"{option} {floats[0].name}=FILE"
        )
    return {v.name: found.by_name[v.name] for v in floats if v.name in found.by_name}


def _require_each(found: Mapping[str, StoredArray], variables: Sequence[Var]) -> None:
    missing = [repr(v) for v in variables if v.name not in found]
    if missing:
        raise RequestError(
            f"no file is given for {', '.join(missing)}; add --input FILE.npy, --input NAME=FILE.npy, or an .npz file "
            "that holds them by name"
        )


def _require_types(files: Files) -> None:
    """Each array has the type of its variable, or one error is about all that have not."""
    given = [(v, a) for v, a in files.items() if a is not None]
    wrong = [(v, a) for v, a in given if (a.shape, a.dtype) != (v.shape, v.dtype.numpy)]
    if wrong:
        faults = [f"{a.place} holds {a.dtype} {a.shape}, and {v!r} is needed" for v, a in wrong]
        raise RequestError("\n  ".join(["the arrays do not fit the model:", *faults]))


def _zeros(var: Var) -> Array:
    return np.broadcast_to(np.zeros((), var.dtype.numpy), var.shape)


def _require_suffix(output: str, names: Sequence[str]) -> None:
    suffix = Path(output).suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise RequestError(f"--output {output}: expected the name of an .npy or .npz file")
    if suffix == ".npy" and len(names) > 1:
        raise RequestError(f"--output {output}: there are {len(names)} results, {', '.join(names)}; give an .npz file")
    if not Path(output).absolute().parent.is_dir():
        raise RequestError(f"--output {output}: there is no such folder")


# --- the run ----------------------------------------------------------------------------------------------------------


def _require_memory(plan: Plan, threads: int, files: Files) -> None:
    by_numpy = [step for step in (*plan.prologue, *plan.steps) if step.task is None and step.view is None]
    unplanned = sum(nbytes(v.type) for step in by_numpy for v in step.outputs)
    unplanned += sum(stored.nbytes for stored in files.values() if stored is not None and not stored.is_mapped)
    needed, there = plan.memory(threads) + unplanned, machine_bytes()
    if needed > there:
        raise RequestError(f"this run needs {needed:,} bytes of memory, and there are {there:,}; give smaller shapes")


def _timed(run: Compiled, arrays: Sequence[Array], seconds: float) -> tuple[Sequence[Any], list[float]]:
    """The results, and how long each call took: one call, or as many as fit into some time."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        started = time.perf_counter()
        results = run(*arrays)
        times.append(time.perf_counter() - started)
    return results if isinstance(results, tuple) else (results,), times


def _seconds(times: Sequence[float]) -> str:
    if len(times) == 1:
        return f"{times[0]:.3g} s"
    return f"{median(times[1:]):.3g} s (median of {len(times) - 1} calls after the first)"


def _table(*rows: tuple[str, ...]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(entry.ljust(w) for entry, w in zip(row, widths, strict=True)).rstrip() for row in rows]

"""What ``gradspec run`` and ``gradspec show`` do: a model from a file, on arrays from files."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.show import ascii_only
from gradspec.graph.types import bf16
from gradspec.interop import from_onnx
from gradspec.interop.weights import bind
from gradspec.runtime.compiled import Compiled, Executable, Program
from gradspec.runtime.memory import machine_bytes, nbytes
from gradspec.runtime.plan import Plan
from gradspec.runtime.run import planned
from gradspec.runtime.threads import get_num_threads
from gradspec.saving.files import regular_file, replacing
from gradspec.saving.graphs import load
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

SECONDS_OF_TIMING = 1.0
MOST_CHARACTERS = 100
"""Of a name in an archive."""


class RequestError(ValueError):
    """The options do not fit the model or each other; the message says what to do."""


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


def read_model(path: str, shapes: Sequence[str] = (), constants: Sequence[str] = ()) -> Graph:
    """The graph of an ONNX model, or of a file that ``graph.save`` wrote; ``constants`` fixes some of its inputs."""
    fixed = {name: read_array(file) for name, file in _pairs("--constant", constants)}
    if Path(path).suffix.lower() == ".onnx":
        return _read_onnx(path, {name: _sizes(text) for name, text in _pairs("--shape", shapes)}, fixed)
    if shapes:
        raise RequestError(f"--shape is for ONNX models; {path} is read as a saved graph, whose shapes are settled")
    graph = load(path)
    unknown = [name for name in fixed if name not in {v.name for v in graph.inputs}]
    if unknown:
        raise RequestError(f"--constant: nothing is called {', '.join(unknown)}; there are {_all(graph.inputs)}")
    return bind(graph, fixed)


def _read_onnx(path: str, shapes: Mapping[str, Any], constants: Mapping[str, Array]) -> Graph:
    """The graph of a model; where an error asks for an argument of ``gs.from_onnx``, it names the option as well."""
    try:
        return from_onnx(path, shapes, constants)
    except (ShapeError, UnsupportedError) as error:
        text = str(error).replace("…", "...")
        options = [option for argument, option in _OPTIONS.items() if f"{argument}={{" in text]
        raise type(error)("\n".join([text, *(f"on the command line: {option}" for option in options)])) from error


_OPTIONS = {"shapes": "--shape NAME=SIZE", "constants": "--constant NAME=FILE.npy"}
"""How the arguments of ``gs.from_onnx`` are written here."""


def perform(request: RunRequest) -> list[str]:
    """Carry out a request, and say what was done line by line. Everything is checked before any work."""
    graph = read_model(request.model, request.shapes, request.constants)
    files, derived, names = _asked(graph, request)
    arrays = _read(files)
    _require_suffix(request.output, names)
    plan, constants = planned(derived)
    threads = request.threads or get_num_threads()
    _require_memory(plan, threads)
    run = Compiled(derived, Program(Executable(plan), constants), threads)
    results, seconds = _timed(run, arrays, SECONDS_OF_TIMING if request.timed else 0)
    write_arrays(request.output, dict(zip(names, results, strict=True)))
    return [
        f"{request.model}: {len(derived.nodes)} operators in {len(plan.steps)} steps",
        *_table(
            *(("read", ascii_only(v.name), str(v.type), file or "zeros") for v, file in files.items()),
            *(("wrote", n, str(v.type), request.output) for n, v in zip(names, derived.outputs, strict=True)),
        ),
        f"{plan.memory(threads):,} bytes, {threads} thread{'s' * (threads > 1)}, {_seconds(seconds)}",
    ]


# --- what is asked for ------------------------------------------------------------------------------------------------

Files = dict[Var, str]
"""Files by the variable that each is for."""


def _asked(graph: Graph, request: RunRequest) -> tuple[dict[Var, str | None], Graph, list[str]]:
    """The file for each input of the graph to run, None for zeros; that graph, and the names of its results."""
    if request.tangents and request.cotangents:
        raise RequestError("--jvp and --vjp are two derivatives; ask for one of them at a time")
    inputs = _assigned("--input", request.inputs, graph.inputs)
    _require_each("--input", inputs, graph.inputs)
    outputs = [v.name for v in graph.outputs]
    if request.tangents:
        seeds = _seeds("--jvp", request.tangents, graph.inputs)
        derived, sources = graph.jvp([v.name for v in seeds]), list(seeds)
        outputs += [f"d{v.name}" for v in graph.outputs if v.type.is_float]
    elif request.cotangents:
        seeds = _seeds("--vjp", request.cotangents, graph.outputs)
        derived, sources = graph.vjp(), [v for v in graph.outputs if v.type.is_float]
        outputs += [f"ct_{v.name}" for v in graph.inputs if v.type.is_float]
    else:
        seeds, derived, sources = {}, graph, []
    paths = [inputs[v] for v in graph.inputs] + [seeds.get(v) for v in sources]
    return dict(zip(derived.inputs, paths, strict=True)), derived, _file_names(outputs)


def _seeds(option: str, texts: Sequence[str], variables: Sequence[Var]) -> Files:
    """Tangents or cotangents: of all floating-point variables, or of those that are named."""
    floats = [v for v in dict.fromkeys(variables) if v.type.is_float]
    found = _assigned(option, texts, floats)
    if len(found) < len(floats) and any(_name(text, floats) is None for text in texts):
        missing = ", ".join(repr(v) for v in floats if v not in found)
        raise RequestError(
            f"{option}: no file for {missing}; name those that are meant: {option} {floats[0].name}=FILE"
        )
    return {v: found[v] for v in floats if v in found}


def _assigned(option: str, texts: Sequence[str], variables: Sequence[Var]) -> Files:
    """The file for each variable: ``name=file``, or ``file`` alone for the first that is not named."""
    found: Files = {}
    for text in texts:
        var = _name(text, variables)
        if var is not None and var in found:
            raise RequestError(f"{option} {text}: {var.name} was given before; give one file for each")
        if var is not None:
            found[var] = text.removeprefix(f"{var.name}=")
    nameless = [text for text in texts if _name(text, variables) is None]
    _require_no_name(option, nameless, variables)
    free = [v for v in variables if v not in found]
    for text, var in zip_longest(nameless, free[: len(nameless)]):
        if var is None:
            raise RequestError(f"{option} {text}: there is nothing left to give this to; there are {_all(variables)}")
        found[var] = text
    return found


def _name(text: str, variables: Sequence[Var]) -> Var | None:
    """The variable that ``name=file`` names; a file name may have an equals sign too."""
    return next((v for v in variables if text.startswith(f"{v.name}=")), None)


def _require_no_name(option: str, texts: Sequence[str], variables: Sequence[Var]) -> None:
    """Each text is a file; one that is none, but has an equals sign, is taken for a name that does not exist."""
    for text in texts:
        name, equals, _ = text.partition("=")
        if equals and not Path(text).exists():
            raise RequestError(f"{option} {text}: nothing is called {name}; there are {_all(variables)}")


def _all(variables: Sequence[Var]) -> str:
    return ", ".join(map(repr, variables)) or "none"


def _require_each(option: str, found: Files, variables: Sequence[Var]) -> None:
    missing = [repr(v) for v in variables if v not in found]
    if missing:
        raise RequestError(
            f"no file is given for {', '.join(missing)}; add {option} FILE.npy, or {option} NAME=FILE.npy"
        )


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, value) in zip(texts, pairs, strict=True):
        if not (name and equals and value):
            raise RequestError(f"{option} {text}: expected NAME=VALUE")
    return [(name, value) for name, _, value in pairs]


def _sizes(text: str) -> int | tuple[int, ...]:
    """``8`` is a size, ``8,3,32,32`` a shape."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RequestError(f"--shape: {text!r} is neither a size, such as 8, nor a shape, such as 8,3,32,32") from None
    return sizes if "," in text else sizes[0]


def _file_names(names: Iterable[str]) -> list[str]:
    """Names that are different, short, and lead nowhere when an archive is unpacked; repeated ones are numbered."""
    stems = [re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:MOST_CHARACTERS] for name in names]
    taken, numbers = set(stems), {stem: count(2) for stem in stems}
    found: dict[str, None] = {}
    for stem in stems:
        numbered = (f"{stem}_{number}" for number in numbers[stem])
        plain = stem if stem not in found else next(name for name in numbered if name not in taken)
        taken.add(plain)
        found[plain] = None
    return list(found)


# --- arrays in files --------------------------------------------------------------------------------------------------


def read_array(path: str) -> Array:
    """The array of an .npy file, as it lies there. Nothing in the file is run, and no more is taken than it holds."""
    with regular_file(path) as file:
        if file.read(6) != b"\x93NUMPY":
            raise FormatError(f"{path} is not an .npy file; write one with np.save")
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # NumPy has no one class for what a damaged header may cause
        raise FormatError(f"{path} is damaged: {error}") from error


def _read(files: Mapping[Var, str | None]) -> list[Array]:
    """The arrays, each of the type that its variable has, or one error about all that are not."""
    arrays = {v: _read_as(v, file) for v, file in files.items()}
    wrong = [v for v, a in arrays.items() if (a.shape, a.dtype) != (v.shape, v.dtype.numpy)]
    if wrong:
        faults = [f"{files[v]} holds {arrays[v].dtype} {arrays[v].shape}, and {v!r} is needed" for v in wrong]
        raise RequestError("\n  ".join(["the arrays do not fit the model:", *faults]))
    return list(arrays.values())


def _read_as(var: Var, file: str | None) -> Array:
    if file is None:
        return np.broadcast_to(np.zeros((), var.dtype.numpy), var.shape)
    array = read_array(file)
    return _as_bfloat16(array) if var.dtype is bf16 else array


def _as_bfloat16(array: Array) -> Array:
    """NumPy's files have no name for this format and store its 16 bits."""
    return array.view(bf16.numpy) if array.dtype == np.dtype("V2") else array


def _require_suffix(output: str, names: Sequence[str]) -> None:
    suffix = Path(output).suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise RequestError(f"--output {output}: expected the name of an .npy or .npz file")
    if suffix == ".npy" and len(names) > 1:
        raise RequestError(f"--output {output}: there are {len(names)} results, {', '.join(names)}; give an .npz file")
    if not Path(output).absolute().parent.is_dir():
        raise RequestError(f"--output {output}: there is no such folder")


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """One array as .npy, or several as .npz, by name: the whole file or none."""
    with replacing(path) as partial:
        if Path(path).suffix.lower() == ".npy":
            (array,) = arrays.values()
            with partial.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            return
        with zipfile.ZipFile(partial, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


# --- the run ----------------------------------------------------------------------------------------------------------


def _require_memory(plan: Plan, threads: int) -> None:
    by_numpy = [step for step in (*plan.prologue, *plan.steps) if step.task is None and step.view is None]
    unplanned = sum(nbytes(v.type) for step in by_numpy for v in step.outputs)
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

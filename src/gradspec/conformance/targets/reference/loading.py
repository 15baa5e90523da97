"""References from what users have: functions and graphs of ours, modules and functions of PyTorch, JAX, ONNX files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.model.problem import Array
from gradspec.conformance.model.reference import Reference, Types
from gradspec.graph.graph import Graph
from gradspec.graph.types import DTYPES, TensorType, type_of
from gradspec.interop import from_jax, from_onnx
from gradspec.system.host import library_of
from gradspec.transforms.trace import trace

Inputs: TypeAlias = str | Sequence[Any] | Callable[[np.random.Generator], Sequence[Array]]
"""Types, one list of them or several; or a function that draws arrays."""


DRAWS, TRIES = 8, 8
"""Draws of inputs that tell which sizes there are, and draws that may pass until one has the sizes of a case."""


def reference_from(
    spec: Any, inputs: Inputs | None, params: str | Sequence[str] = "constants", array: str | None = None
) -> Reference:
    """The reference that a specification is, perhaps of the library ``array``, which it need not name.

    >>> reference = reference_from(lambda x: gs.relu(x), "f32[8,64]")
    >>> reference.problem(reference.types[0]).shapes
    ((8, 64),)
    """
    own = declared_by(spec, "inputs", None) if inputs is None else inputs
    if own is None:
        raise ValueError("spec was given without inputs; give the types of its arguments, such as 'f32[8,64],f32[64]'")
    types, draw = read_inputs(own)
    library = _library_of_reference(spec, types[0], array)
    drawn = None if draw is None else partial(draw_of_types, draw)
    found = Reference(named(spec), tracer(spec, params, library), types, drawn, trial_of(spec, library))
    found.library = library
    for one in found.types if draw is None else types[:1]:
        found.graph(one)  # or why there is none
    return found


def declared_by(spec: Any, name: str, default: Any) -> Any:
    """What a reference, or the function that a partial is made of, declares by an attribute."""
    return getattr(spec, name, getattr(getattr(spec, "func", None), name, default))


def _library_of_reference(spec: Any, types: Types, array: str | None) -> str:
    """The library that a specification is written in: one that it names, or else that which takes it.

    A function may know its library by the methods of its arguments alone, or name it in functions within it.
    """
    library = library_of(spec)
    if library != "gradspec" or not callable(spec) or isinstance(spec, Graph):
        return library
    try:
        trace(spec, *types)
    except Exception:  # of whatever library it is written in
        for other in (name for name in ("torch", "jax") if name in {*sys.modules, array}):
            with suppress(Exception):
                tracer(spec, library=other)(types)
                return other
    return library


def named(spec: Any) -> str:
    """What a specification is called: a word, for rows of tables."""
    if isinstance(spec, str | PathLike):
        return Path(spec).stem
    own = declared_by(spec, "__name__", type(spec).__name__)
    return "reference" if own in ("<lambda>", "Graph", "Sequential") else str(own)


# --- inputs -----------------------------------------------------------------------------------------------------------


def read_inputs(inputs: Inputs) -> tuple[list[Types], Callable[[np.random.Generator], Sequence[Array]] | None]:
    """Lists of types, and the function that draws arrays, if one was given.

    >>> read_inputs("f32[8,64], i64[8]; f32[1,3], i64[1]")[0]
    [(f32[8, 64], i64[8]), (f32[1, 3], i64[1])]
    """
    if isinstance(inputs, str):
        return [_read_types(part) for part in inputs.split(";")], None
    if callable(inputs):
        drawn = (_types_of(inputs(np.random.default_rng(seed))) for seed in range(DRAWS))
        return list(dict.fromkeys(drawn)), inputs
    given = list(inputs)
    if not given:
        raise ValueError("inputs is empty; give the types of the reference's arguments, such as [gs.f32[8, 64]]")
    lists = given if isinstance(given[0], list | tuple) else [given]
    return [tuple(map(_as_type, one)) for one in lists], None


def _types_of(arrays: Sequence[Array]) -> Types:
    return tuple(type_of(np.asarray(array)) for array in arrays)


def draw_of_types(
    draw: Callable[[np.random.Generator], Sequence[Array]], rng: np.random.Generator, types: Types
) -> list[Array]:
    """Arrays of given types, as a function draws them that may draw other sizes, too."""
    shapes = [t.shape for t in types]
    for source in (*[rng] * TRIES, *map(np.random.default_rng, range(DRAWS))):
        arrays = [np.asarray(array) for array in draw(source)]
        if [array.shape for array in arrays] == shapes:
            return [array.astype(t.dtype.numpy, copy=False) for array, t in zip(arrays, types, strict=True)]
    raise ValueError(f"inputs has drawn no arrays of {', '.join(map(str, types))} again; let it depend on rng alone")


def _as_type(value: Any) -> TensorType:
    if isinstance(value, TensorType):
        return value
    if isinstance(value, str):
        (found,) = _read_types(value)
        return found
    if hasattr(value, "__array__"):
        return type_of(np.asarray(value))
    raise TypeError(f"{value!r} is not the type of an input; give one such as gs.f32[8, 64], or 'f32[8,64]'")


def _read_types(text: str) -> Types:
    found = []
    for part in filter(None, (piece.strip(" ,") for piece in text.replace("]", "]|").split("|"))):
        name, bracket, sizes = part.partition("[")
        dtype, numbers = DTYPES.get(name.strip()), sizes.removesuffix("]").replace("()", "")
        cells = [size.strip() for size in numbers.split(",") if size.strip()]
        if dtype is None or not bracket or not part.endswith("]") or not all(c.isdecimal() for c in cells):
            known = ", ".join(DTYPES)
            raise ValueError(f"{part!r} is not a type; write one such as f32[8,64], with a dtype of {known}")
        found.append(dtype[tuple(map(int, cells))])
    if not found:
        raise ValueError(f"{text!r} names no types; write them such as f32[8,64],f32[64]")
    return tuple(found)


# --- specifications ---------------------------------------------------------------------------------------------------


def tracer(
    spec: Any, params: str | Sequence[str] = "constants", library: str | None = None
) -> Callable[[Types], Graph]:
    """The function from types to the graph of a specification, of a library where that is known."""
    if isinstance(spec, Graph):
        return lambda types: _same(spec, types)
    if isinstance(spec, str | PathLike):
        return lambda types: from_onnx(spec, shapes=_shapes(str(spec), types))
    library = library or library_of(spec)
    if library == "torch":
        from gradspec.interop.torch.reference import torch_tracer

        return torch_tracer(spec, params)
    if library == "jax":
        return lambda types: from_jax(spec, *types)
    if not callable(spec):
        raise TypeError(
            f"{spec!r} is not a specification; give a function of gs, PyTorch or JAX, a module, a graph or an ONNX file"
        )
    return lambda types: trace(spec, *types)


def trial_of(spec: Any, library: str | None = None) -> Callable[[Types], object] | None:
    """A call of a reference of PyTorch on zeros, which says at once what it does not take."""
    if isinstance(spec, Graph | str | PathLike) or (library or library_of(spec)) != "torch":
        return None
    from gradspec.interop.torch.reference import torch_trial

    return torch_trial(spec)


def _same(graph: Graph, types: Types) -> Graph:
    if tuple(v.type for v in graph.inputs) != types:
        raise ValueError("the graph has types of its own; give the function that it was traced from for others")
    return graph


def _shapes(path: str, types: Types) -> dict[str, tuple[int, ...]]:
    names = [v.name for v in from_onnx(path).inputs]
    return {name: t.shape for name, t in zip(names, types, strict=True)}

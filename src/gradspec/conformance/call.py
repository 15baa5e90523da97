"""What a target is asked: an operator on given shapes, in one mode, on given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gradspec.spec.errors import FormatError

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Results: TypeAlias = dict[str, Array]
"""Arrays by the names of `Problem.results`; a target may leave out what it does not give."""

MODES = ("value", "jvp", "vjp", "second")
LAYOUTS = ("contiguous", "channels_last", "non_contiguous")
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
FLOATS = ("f16", "bf16", "f32", "f64")

INPUTS: dict[str, tuple[str, ...]] = {
    "max_pool": ("x",),
    "avg_pool": ("x",),
    "smooth_max_pool": ("x",),
    "adaptive_max_pool": ("x",),
    "adaptive_avg_pool": ("x",),
    "global_max_pool": ("x",),
    "global_avg_pool": ("x",),
    "conv": ("x", "weight", "bias"),
    "conv_transpose": ("x", "weight", "bias"),
    "max_unpool": ("x", "indices"),
    "unfold": ("x",),
    "fold": ("x",),
}
"""The operators that are judged, with their inputs as the specification orders them."""

SELECTIONS = ("max_pool", "adaptive_max_pool", "global_max_pool")
"""Operators that choose one of their cells: they take integers, and give indices."""


@dataclass(frozen=True)
class Problem:
    """All of a call but its numbers: the operator, the shapes and dtype of its inputs, and its settled attributes.

    ``attributes`` are those of ``gs.spec``: one number per axis, padding as pairs, defaults left out or spelled out.
    ``rank`` is the number of spatial axes.
    """

    op: str
    rank: int
    shapes: tuple[Shape | None, ...]
    attributes: Mapping[str, Any]
    dtype: str = "f32"

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The names of the inputs that are there and have derivatives."""
        names = zip(INPUTS[self.op], self.shapes, strict=True)
        return tuple(name for name, shape in names if shape is not None and name != "indices")

    def results(self, mode: str) -> tuple[str, ...]:
        """The names of what a mode gives.

        ``second`` is the VJP of the VJP: the cotangents of its inputs and of its cotangent, given one for each result.
        """
        if mode == "value":
            return ("y", "indices") if self.op in SELECTIONS else ("y",)
        if mode == "jvp":
            return ("dy",)
        return tuple(f"{'grad' if mode == 'vjp' else 'second'}_{name}" for name in self.differentiable) + (
            ("second_g",) if mode == "second" else ()
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "rank": self.rank,
            "shapes": [None if shape is None else list(shape) for shape in self.shapes],
            "attributes": dict(self.attributes),
            "dtype": self.dtype,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Problem:
        shapes = tuple(None if shape is None else tuple(shape) for shape in data["shapes"])
        attributes = {name: _tuples(value) for name, value in data["attributes"].items()}
        return Problem(data["op"], data["rank"], shapes, attributes, data["dtype"])


@dataclass(frozen=True)
class Call:
    """A problem with its numbers, in one mode.

    ``directions`` are, one for each differentiable input, the tangents of a JVP, or in mode ``second`` the cotangents
    of the VJP's results. ``layout`` says how the arrays lie in memory; `laid_out` puts them so. ``variant`` names one
    of the target's own ways to make the same call.
    """

    problem: Problem
    mode: str
    inputs: tuple[Array | None, ...]
    directions: tuple[Array, ...] = ()
    cotangent: Array | None = None
    layout: str = "contiguous"
    variant: str = "plain"
    output: Shape = field(default=())
    """The shape of the operator's value."""

    def named(self) -> dict[str, Array]:
        """The inputs that are there, by name."""
        pairs = zip(INPUTS[self.problem.op], self.inputs, strict=True)
        return {name: array for name, array in pairs if array is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem.to_json(),
            "mode": self.mode,
            "inputs": [None if array is None else array_to_json(array) for array in self.inputs],
            "directions": [array_to_json(array) for array in self.directions],
            "cotangent": None if self.cotangent is None else array_to_json(self.cotangent),
            "layout": self.layout,
            "variant": self.variant,
            "output": list(self.output),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Call:
        return Call(
            Problem.from_json(data["problem"]),
            data["mode"],
            tuple(None if array is None else array_from_json(array) for array in data["inputs"]),
            tuple(map(array_from_json, data["directions"])),
            None if data["cotangent"] is None else array_from_json(data["cotangent"]),
            data["layout"],
            data["variant"],
            tuple(data["output"]),
        )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def array_to_json(array: Array) -> dict[str, Any]:
    """Every number as its shortest decimal, which reads back as the same number; what is not finite as a word.

    >>> array_to_json(np.float32([0.1, np.nan, -0.0]))["cells"]
    [0.10000000149011612, 'nan', -0.0]
    """
    name = next(name for name, dtype in DTYPES.items() if dtype == array.dtype)
    cells = array.ravel().astype(np.float64).tolist() if name in FLOATS else array.ravel().tolist()
    words = [cell if isinstance(cell, int) or np.isfinite(cell) else str(cell) for cell in cells]
    return {"dtype": name, "shape": list(array.shape), "cells": words}


def array_from_json(data: Mapping[str, Any]) -> Array:
    """The array that `array_to_json` described.

    >>> array_from_json(array_to_json(np.float16([[1.5, -np.inf]]))).tolist()
    [[1.5, -inf]]
    """
    if data["dtype"] not in DTYPES:
        raise FormatError(f"dtype {data['dtype']!r} is not known; use one of {', '.join(DTYPES)}")
    wide = np.float64 if data["dtype"] in FLOATS else np.int64
    return np.array(data["cells"], wide).astype(DTYPES[data["dtype"]]).reshape(data["shape"])


def laid_out(array: Array, layout: str, rank: int) -> Array:
    """The same numbers in memory of another order: channels fastest, or with gaps between all cells.

    >>> laid_out(np.zeros((2, 3, 4)), "channels_last", 1).strides, laid_out(np.zeros((4,)), "non_contiguous", 1).strides
    ((96, 8, 24), (16,))
    """
    if layout == "contiguous" or array.ndim == 0 or (layout == "channels_last" and array.ndim <= rank):
        return np.asarray(array, order="C")
    if layout == "channels_last":
        channel = array.ndim - rank - 1
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, channel, -1)), -1, channel)
    gaps = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
    view = gaps[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array
    return view

"""The emitters by operator name, and what all of them share: small formats computed in float32, empty results.

An operator without an emitter, or one that its emitter declines, is written as what it decomposes into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

import gradspec.interop.onnx.emit as families
from gradspec.graph.builder import Builder
from gradspec.graph.ir import Node
from gradspec.interop.onnx.emit.emitter import FLOAT32, Emitter, OnnxValue, stored_once
from gradspec.ops.core import decomposed
from gradspec.transforms.simplify import simplify

Results = OnnxValue | tuple[OnnxValue, ...] | None

Emit = Callable[..., Results]
"""``emit(emitter, attributes, *operands)`` gives the operator's outputs; None if ONNX has none for these operands."""

Written = TypeVar("Written", bound=Emit)

SMALL_FLOATS = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}

_EMITTERS: dict[str, Emit] = {}


def emits(name: str, *, moves: bool = False) -> Callable[[Written], Written]:
    """The decorated function writes this operator.

    float16 and bfloat16 are computed in float32 and rounded once, as kernels do it, unless the operator only ``moves``
    numbers.
    """

    def register(emit: Written) -> Written:
        _EMITTERS[name] = emit if moves else _widen(emit)
        return emit

    return register


def emits_each(rows: Mapping[str, Emit], *, moves: bool = False) -> None:
    """Register the emitters of a table by the names of their operators."""
    for name, emit in rows.items():
        emits(name, moves=moves)(emit)


def _widen(emit: Emit) -> Emit:
    def wide(e: Emitter, attrs: Any, *operands: OnnxValue) -> Results:
        return emit(e, attrs, *(e.cast(v, FLOAT32) if v.dtype in SMALL_FLOATS else v for v in operands))

    return wide


@cache
def emitters() -> dict[str, Emit]:
    """Every emitter, by the name of its operator."""
    for module in iter_modules(families.__path__, f"{families.__name__}."):
        import_module(module.name)
    return _EMITTERS


def emit(e: Emitter, node: Node, operands: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
    """The outputs of a node, each with the shape and dtype of its variable."""
    if all(v.type.size == 0 for v in node.outputs):
        return tuple(e.full(v.shape, 0, v.dtype.numpy) for v in node.outputs)
    write = emitters().get(node.op.name)
    results = None if write is None else write(e, node.attrs, *operands)
    if results is None:
        results = _emit_parts(e, node, operands)
    written = (results,) if isinstance(results, OnnxValue) else results
    return tuple(e.cast(v, var.dtype.numpy) for v, var in zip(written, node.outputs, strict=True))


def _emit_parts(e: Emitter, node: Node, operands: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
    """The outputs of a node, by what it decomposes into."""
    builder = Builder()
    inputs = [builder.input(v.type) for v in node.inputs]
    graph = simplify(builder.build(decomposed(node.op, node.attrs, inputs), allow_unused=True))
    values = dict(zip(graph.inputs, operands, strict=True))
    values |= {v: e.expand(e.constant(stored_once(array)), array.shape) for v, array in graph.constants.items()}
    for part in graph.nodes:
        values |= zip(part.outputs, emit(e, part, [values[v] for v in part.inputs]), strict=True)
    return tuple(values[v] for v in graph.outputs)

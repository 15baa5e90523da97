"""How each operator of ONNX is written in gradspec's, by its name; every handler knows all versions of its operator."""

from gradspec.interop.onnx.node import Handler, Signature
from gradspec.interop.onnx.nodes import (
    attention,
    cast,
    constant,
    control,
    conv,
    fused,
    indexing,
    layout,
    linear,
    microsoft,
    norm,
    pointwise,
    pool,
    quantize,
    reduce,
    resize,
    select,
)

ROOMS = (
    *(attention, constant, cast, control, conv, fused, indexing, layout, linear, microsoft),
    *(norm, pointwise, pool, quantize, reduce, resize, select),
)

HANDLERS: dict[str, Handler] = {name: handler for room in ROOMS for name, handler in room.HANDLERS.items()}
"""By the name of the operator, with its domain in front if that is not ONNX's own."""

FOREIGN: dict[str, Signature] = attention.SIGNATURES | fused.SIGNATURES | microsoft.SIGNATURES
"""Operators that ONNX has no record of, by their name with the domain in front if that is not ONNX's own."""

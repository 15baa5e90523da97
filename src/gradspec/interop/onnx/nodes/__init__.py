"""How each operator of ONNX is written in gradspec's, by its name; every handler knows all versions of its operator."""

from gradspec.interop.onnx.node import Handler
from gradspec.interop.onnx.nodes import (
    cast,
    constant,
    control,
    conv,
    indexing,
    layout,
    linear,
    norm,
    pointwise,
    pool,
    reduce,
    resize,
    select,
)

HANDLERS: dict[str, Handler] = {
    name: handler
    for room in (constant, cast, control, conv, indexing, layout, linear, norm, pointwise, pool, reduce, resize, select)
    for name, handler in room.HANDLERS.items()
}

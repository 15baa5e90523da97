"""Operators that work cell by cell. Operands of different shapes are broadcast first, by a node of its own."""

from __future__ import annotations

from typing import Any

from gradspec.graph.builder import apply, operands
from gradspec.graph.later import provides
from gradspec.graph.op import NoAttributes, Op
from gradspec.ops.layout import broadcast_to
from gradspec.ops.rules import broadcast_shape, leading_batch, pointwise_spec, same_types

NONE = NoAttributes()


def _binary(op: Op, a: Any, b: Any) -> Any:
    a, b = operands(a, b)
    shape = broadcast_shape(op.name, a.shape, b.shape)
    return apply(op, NONE, broadcast_to(a, shape), broadcast_to(b, shape))


# --- arithmetic ------------------------------------------------------------------------------------------------------

NEG = Op(
    "neg",
    NoAttributes,
    types=same_types("neg"),
    spec=pointwise_spec(lambda _, x: -x),
    batch=leading_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: -cotangents[0],
)


@provides("neg")
def neg(x: Any) -> Any:
    """−x.

    >>> import numpy as np
    >>> neg(np.float32([1, -2])).tolist()
    [-1.0, 2.0]
    """
    return apply(NEG, NONE, x)


ADD = Op(
    "add",
    NoAttributes,
    types=same_types("add"),
    spec=pointwise_spec(lambda _, a, b: a + b),
    batch=leading_batch,
    linear="jointly",
    jvp=lambda attrs, primals, tangents: ([primals[0] + primals[1]], [_sum_of(*tangents)]),
    transpose=lambda attrs, cotangents, types, i: cotangents[0],
)


def _sum_of(a: Any, b: Any) -> Any:
    return a if b is None else b if a is None else a + b


@provides("add")
def add(a: Any, b: Any) -> Any:
    """a + b.

    >>> import numpy as np
    >>> add(np.float32([1, 2]), 10.0).tolist()
    [11.0, 12.0]
    """
    return _binary(ADD, a, b)


SUB = Op(
    "sub",
    NoAttributes,
    types=same_types("sub"),
    spec=pointwise_spec(lambda _, a, b: a - b),
    batch=leading_batch,
    linear="jointly",
    jvp=lambda attrs, primals, tangents: ([primals[0] - primals[1]], [_difference_of(*tangents)]),
    transpose=lambda attrs, cotangents, types, i: -cotangents[0] if i else cotangents[0],
)


def _difference_of(a: Any, b: Any) -> Any:
    return a if b is None else -b if a is None else a - b


@provides("sub")
def sub(a: Any, b: Any) -> Any:
    """a − b.

    >>> import numpy as np
    >>> sub(np.float32([1, 2]), 1.0).tolist()
    [0.0, 1.0]
    """
    return _binary(SUB, a, b)


MUL = Op(
    "mul",
    NoAttributes,
    types=same_types("mul"),
    spec=pointwise_spec(lambda _, a, b: a * b),
    batch=leading_batch,
    linear="each",
    transpose=lambda attrs, cotangents, operands, i: cotangents[0] * operands[1 - i],
)


@provides("mul")
def mul(a: Any, b: Any) -> Any:
    """a · b.

    >>> import numpy as np
    >>> mul(np.float32([1, 2]), 3.0).tolist()
    [3.0, 6.0]
    """
    return _binary(MUL, a, b)


def _div_jvp(attrs: Any, primals: Any, tangents: Any) -> Any:
    (a, b), (da, db) = primals, tangents
    quotient = a / b
    return [quotient], [_difference_of(None if da is None else da / b, None if db is None else quotient * (db / b))]


DIV = Op(
    "div",
    NoAttributes,
    types=same_types("div"),
    spec=pointwise_spec(lambda _, a, b: a / b),
    batch=leading_batch,
    jvp=_div_jvp,
    transpose=lambda attrs, cotangents, operands, i: cotangents[0] / operands[1],
)


@provides("div")
def div(a: Any, b: Any) -> Any:
    """a / b.

    >>> import numpy as np
    >>> div(np.float32([1, 2]), 2.0).tolist()
    [0.5, 1.0]
    """
    return _binary(DIV, a, b)

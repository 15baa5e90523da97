"""Means and softmaxes, which JAX writes out, as the operators that they are.

An operator's tolerance is that of the whole, in whatever way a kernel computes it, and its graph is shorter to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gradspec.graph.ir import Op, Var
from gradspec.interop.compose import log_sum_exp
from gradspec.interop.jax.primitives.operands import uniform
from gradspec.ops.layout import TRANSPOSE
from gradspec.ops.pointwise import ABS, DETACH, EXP, LOG, SUB
from gradspec.ops.pool import MAX_POOL
from gradspec.ops.reduce import log_softmax, mean, softmax
from gradspec.ops.shape import BROADCAST_TO, RESHAPE, SUM, reshape

SPREAD = (BROADCAST_TO, RESHAPE)


def quotient(a: Var, b: Var) -> Any:
    """``Σx / n`` as a mean, ``exp z / Σ exp z`` as a softmax; None for others."""
    total = _made(_before(a, RESHAPE), SUM)
    if total is not None and uniform(b) == prod(total.inputs[0].shape[i] for i in total.attrs.axes):
        return reshape(mean(total.inputs[0], total.attrs.axes), a.shape)
    exp = _made(a, EXP)
    axis = None if exp is None else _axis_of_sum(b, a)
    return None if exp is None or axis is None else softmax(_without_shift(exp.inputs[0], axis), axis)


def difference(a: Var, b: Var) -> Any:
    """``z − log Σ exp z`` as a log-softmax; None for others."""
    log, exp = _made(_before(b, *SPREAD), LOG), _logged(b)
    if exp is None or exp.inputs[0] is not a:
        return None
    beside = _before(b, BROADCAST_TO)
    axis = _axis_of_sum(reshape(log.inputs[0], beside.shape), exp.outputs[0])
    return None if axis is None else log_softmax(_without_shift(a, axis), axis)


def total(a: Var, b: Var) -> Any:
    """``log Σ exp(x − s) + s`` for one ``s`` of each row, as what it is without; None for others."""
    for log, shift in ((a, b), (b, a)):
        exp = _logged(log)
        shifted = None if exp is None else _made(exp.inputs[0], SUB)
        if shifted is not None and _before(shifted.inputs[1], *SPREAD) is _before(shift, RESHAPE):
            (x, s), axes = shifted.inputs, _sum_before_log(log).attrs.axes
            if _before(s, BROADCAST_TO).shape == _beside(x, axes):
                return reshape(log_sum_exp(x, axes, False), log.shape)
    return None


def _logged(x: Var) -> Any:
    """The node that gave the exponentials of whose sums ``x`` holds logarithms."""
    node = _sum_before_log(x)
    return None if node is None else _made(node.inputs[0], EXP)


def _sum_before_log(x: Var) -> Any:
    log = _made(_before(x, *SPREAD), LOG)
    return None if log is None else _made(_before(log.inputs[0], *SPREAD, ABS), SUM)


def _made(x: Var, op: Op) -> Any:
    """The node that gave ``x``, if it is of this operator."""
    node = x.owner.maker(x)
    return node if node is not None and node.op is op else None


def _before(x: Var, *ops: Op) -> Var:
    """What ``x`` was before these operators."""
    node = x.owner.maker(x)
    return _before(node.inputs[0], *ops) if node is not None and node.op in ops else x


def _axis_of_sum(total: Var, cells: Var) -> int | None:
    """The axis over which ``total`` is the sum of ``cells``, each row's beside it; None if it is not."""
    node = _made(_before(total, *SPREAD), SUM)
    if node is None or node.inputs[0] is not cells or len(node.attrs.axes) != 1:
        return None
    (axis,) = node.attrs.axes
    return axis if _before(total, BROADCAST_TO).shape == _beside(cells, node.attrs.axes) else None


def _beside(x: Var, axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of what has one number for each row."""
    return tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))


def _without_shift(x: Var, axis: int) -> Var:
    """``x`` before the largest number of each row was taken away from it, which softmaxes do themselves."""
    node = _made(x, SUB)
    if node is None or _before(node.inputs[1], BROADCAST_TO).shape != _beside(x, (axis,)):
        return x
    largest = _made(_before(node.inputs[1], *SPREAD, DETACH), MAX_POOL)
    is_of_x = largest is not None and _before(largest.inputs[0], TRANSPOSE) is node.inputs[0]
    return node.inputs[0] if is_of_x else x

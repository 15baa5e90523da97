"""Losses, and the linear pair behind the cross entropy: taking one cell per label, and putting it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import INDEXED, Op, Operand, Var
from gradspec.graph.types import TensorType, require_integers
from gradspec.ops.gather import GATHER_ROWS, SCATTER_ROWS, moved
from gradspec.ops.layout import AlongAxis
from gradspec.ops.pointwise import neg
from gradspec.ops.reduce import log_softmax, mean
from gradspec.ops.rules import applying, recorded_axis
from gradspec.ops.shape import axis_batch, sum
from gradspec.spec import loss as spec
from gradspec.spec.window import whole_number


def _reduced(losses: Var, reduction: str) -> Var:
    return mean(losses) if reduction == "mean" else sum(losses) if reduction == "sum" else losses


def mse_loss(input: Operand, target: Operand, reduction: str = "mean") -> Var:
    """``(input − target)²``, its mean (the default), sum or, with ``"none"``, every cell. The shapes are equal.

    >>> float(mse_loss(np.float32([1, 4]), np.float32([0, 2])))
    2.5
    """
    spec.require_reduction(reduction)
    input, target = operands(input, target)
    with applying("mse_loss", input, target):
        spec.require_equal_shapes(input.shape, target.shape)
    difference = input - target
    return _reduced(difference * difference, reduction)


# --- take_label and put_label -----------------------------------------------------------------------------------------


def _require_labels(labels: TensorType, shape: tuple[int, ...], axis: int) -> None:
    require_integers("labels", labels, "gs.convert(labels, gs.i64) converts class numbers")
    spec.require_label_shape(shape, labels.shape, axis)


def _take_label_types(attrs: AlongAxis, x: TensorType, labels: TensorType) -> tuple[TensorType]:
    _require_labels(labels, x.shape, recorded_axis("take_label", attrs.axis, x.ndim))
    return (TensorType(x.dtype, labels.shape),)


def _take_label_transpose(attrs: AlongAxis, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
    x, labels = operands_
    return apply(PUT_LABEL, PutLabel(attrs.axis, x.shape[attrs.axis]), cotangents[0], labels)


TAKE_LABEL = Op(
    "take_label",
    AlongAxis,
    types=_take_label_types,
    spec=lambda attrs, x, labels: (spec.take_label(x, labels, attrs.axis),),
    batch=axis_batch,
    linear="jointly",
    sums=INDEXED,
    transpose=_take_label_transpose,
    decompose=lambda attrs, x, labels: (apply(GATHER_ROWS, AlongAxis(x.ndim - 1), moved(x, attrs.axis, -1), labels),),
)


@dataclass(frozen=True)
class PutLabel:
    """The axis of classes in the result, and how many there are."""

    axis: int
    size: int


def _put_label_types(attrs: PutLabel, x: TensorType, labels: TensorType) -> tuple[TensorType]:
    axis = recorded_axis("put_label", attrs.axis, x.ndim + 1)
    shape = (*x.shape[:axis], whole_number("the number of classes", attrs.size, 0), *x.shape[axis:])
    _require_labels(labels, shape, axis)
    return (TensorType(x.dtype, shape),)


def _decompose_put_label(attrs: PutLabel, x: Var, labels: Var) -> tuple[Var]:
    nothing = x.owner.zeros(TensorType(x.dtype, (*x.shape, attrs.size)))
    return (moved(apply(SCATTER_ROWS, AlongAxis(x.ndim), nothing, labels, x), -1, attrs.axis),)


PUT_LABEL = Op(
    "put_label",
    PutLabel,
    types=_put_label_types,
    spec=lambda attrs, x, labels: (spec.put_label(x, labels, attrs.axis, attrs.size),),
    batch=axis_batch,
    linear="jointly",
    sums=INDEXED,
    transpose=lambda attrs, cotangents, operands, i: apply(
        TAKE_LABEL, AlongAxis(attrs.axis), cotangents[0], operands[1]
    ),
    decompose=_decompose_put_label,
)


def cross_entropy(logits: Operand, labels: Operand, reduction: str = "mean") -> Var:
    """``−log softmax(logits)[label]``, its mean (the default), sum or, with ``"none"``, one for each label.

    Logits are ``(C,)``, ``(N, C)`` or ``(N, C, d₁, …)``, labels integers of the same shape without the class axis. A
    label outside 0 … C−1 is an error when the graph runs.

    >>> cross_entropy(np.float64([[0, 0], [0, 1000]]), [1, 0], "none").round(6).tolist()
    [0.693147, 1000.0]
    """
    spec.require_reduction(reduction)
    logits, labels = operands(logits, labels if isinstance(labels, Var) else np.asarray(labels))
    with applying("cross_entropy", logits, labels):
        axis = spec.class_axis(logits.shape)
    return _reduced(neg(apply(TAKE_LABEL, AlongAxis(axis), log_softmax(logits, axis), labels)), reduction)

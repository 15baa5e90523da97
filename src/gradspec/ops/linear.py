"""Products of matrices, linear layers and the affine map of batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Attributes, JvpResult, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, require_floats, require_sums
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.layout import transpose
from gradspec.ops.pointwise import abs, exact_number, sqrt
from gradspec.ops.rules import broadcast_shape, require_count, rounded_number
from gradspec.ops.shape import broadcast_to, leading_batch, reshape, with_leading_axis
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.errors import ShapeError
from gradspec.spec.linear import batch_norm as batch_norm_spec
from gradspec.spec.linear import product, swap_last
from gradspec.spec.tensor import Tensor


def biased_jvp(op: Callable[[], Op], spread_bias: Callable[..., Var]) -> Callable[..., JvpResult]:
    """The JVP of a product of two operands, plus a bias if there is a third: ``da·b + a·db + dbias``.

    The tangent of the bias joins the last product, so that they are rounded together.
    """

    def rule(attrs: Attributes, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
        (a, b, *_), (da, db, *dbias) = primals, tangents
        products = [(da, b)] * (da is not None) + [(a, db)] * (db is not None)
        moving = [bias for bias in dbias if bias is not None]
        output = apply(op(), attrs, *primals)
        if not products:
            return [output], [spread_bias(attrs, moving[0], output)]
        tangent = apply(op(), attrs, *products[-1], *moving)
        for factors in products[:-1]:
            tangent = apply(op(), attrs, *factors) + tangent
        return [output], [tangent]

    return rule


def merge_batch(x: Var, axis: int) -> Var:
    """The batch axis moved in front of ``axis`` and merged with it."""
    n, *sizes = x.shape
    moved = transpose(x, (*range(1, axis), 0, *range(axis, x.ndim)))
    sizes[axis - 1] *= n
    return reshape(moved, sizes)


def split_batch(x: Var, axis: int, parts: tuple[int, int]) -> Var:
    """``merge_batch`` undone: ``axis`` split in two, the first of which becomes the leading axis."""
    split = reshape(x, (*x.shape[:axis], *parts, *x.shape[axis + 1 :]))
    return transpose(split, (axis, *range(axis), *range(axis + 1, split.ndim)))


# --- matmul ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """Which of the two matrices are read transposed."""

    transpose_a: bool = False
    transpose_b: bool = False


def _swapped(shape: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _matmul_types(attrs: Product, a: TensorType, b: TensorType, *bias: TensorType) -> tuple[TensorType]:
    require_count("matmul", (a, b, *bias), 2, 3)
    dtype = require_sums("matmul", a, b, *bias)
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(f"matmul needs matrices with equal leading axes, not {a} and {b}")
    (*lead, rows, inner), (*_, height, columns) = (
        _swapped(a.shape, attrs.transpose_a),
        _swapped(b.shape, attrs.transpose_b),
    )
    if inner != height:
        raise ShapeError(f"matmul sums over {inner} numbers of {a} but {height} of {b}; they must be equal")
    if bias and bias[0].shape != (*lead, columns):
        raise ShapeError(f"matmul: the bias is {bias[0]}; one number per column, {(*lead, columns)}, is needed")
    return (TensorType(dtype, (*lead, rows, columns)),)


def _matmul_spec(attrs: Product, a: Tensor, b: Tensor, bias: Tensor | None = None) -> tuple[Tensor]:
    left = swap_last(a) if attrs.transpose_a else a
    right = swap_last(b) if attrs.transpose_b else b
    return (product(left, right, bias),)


def _matmul_transpose(attrs: Product, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
    """From ``y = a·b``: ``da = g·bᵀ`` and ``db = aᵀ·g``, each transposed once more if the operand was read so."""
    (g,), (a, b) = cotangents, operands_[:2]
    if i == 2:
        return sum_over(g, -2)
    if i == 0:
        pair, flags = (
            ((b, g), (attrs.transpose_b, True)) if attrs.transpose_a else ((g, b), (False, not attrs.transpose_b))
        )
    else:
        pair, flags = (
            ((g, a), (True, attrs.transpose_a)) if attrs.transpose_b else ((a, g), (not attrs.transpose_a, False))
        )
    return apply(MATMUL, Product(*flags), *pair)


def _matmul_batch(op: Op, attrs: Product, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """A batch of left matrices for one right matrix is one tall matrix; otherwise every operand gets the axis."""
    a, *others = operands_
    if any(batched[1:]) or a.ndim > 3 or attrs.transpose_a:
        return leading_batch(op, attrs, operands_, batched)
    n, rows, inner = a.shape
    tall = apply(op, attrs, reshape(a, (n * rows, inner)), *others)
    return (reshape(tall, (n, rows, tall.shape[-1])),)


def _inner(attrs: Product, a: TensorType, b: TensorType, *bias: TensorType) -> int:
    return a.shape[-2 if attrs.transpose_a else -1] + len(bias)


def _spread_columns(attrs: Product, bias: Var, like: Var) -> Var:
    return broadcast_to(reshape(bias, (*bias.shape[:-1], 1, bias.shape[-1])), like.shape)


MATMUL: Op = Op(
    "matmul",
    Product,
    types=_matmul_types,
    spec=_matmul_spec,
    batch=_matmul_batch,
    sums=Sums(max_roundings=_inner, factors=(0, 1), bias=2, coefficient_quantum=ones, kind="matmul"),
    jvp=biased_jvp(lambda: MATMUL, _spread_columns),
    transpose=_matmul_transpose,
)


def matmul(a: Operand, b: Operand) -> Var:
    """The product of matrices over the last two axes, for every index of the leading axes, which broadcast.

    A vector is a row on the left and a column on the right, and its axis is dropped from the result. Integers have 32
    or 64 bits, and wrap around.

    >>> matmul(np.float32([[1, 2], [3, 4]]), np.float32([1, 10])).tolist()
    [21.0, 43.0]
    """
    a, b = operands(a, b)
    if not a.shape or not b.shape:
        raise ShapeError(f"matmul needs at least one axis on each side, not shapes {a.shape} and {b.shape}; use mul")
    left = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
    y = _rows_times(left, right) if right.ndim == 2 else _stacks_times(left, right)
    lead, matrix = y.shape[:-2], y.shape[-2:]
    return reshape(y, (*lead, *matrix[: a.ndim > 1], *matrix[1 : 1 + (b.ndim > 1)]))


def _rows_times(a: Var, b: Var, *bias: Var, transpose_b: bool = False) -> Var:
    """All rows of ``a`` times one matrix."""
    rows = reshape(a, (prod(a.shape[:-1]), a.shape[-1]))
    y = apply(MATMUL, Product(transpose_b=transpose_b), rows, b, *bias)
    return reshape(y, (*a.shape[:-1], y.shape[-1]))


def _stacks_times(a: Var, b: Var) -> Var:
    lead = broadcast_shape("matmul", a.shape[:-2], b.shape[:-2])
    return apply(MATMUL, Product(), broadcast_to(a, lead + a.shape[-2:]), broadcast_to(b, lead + b.shape[-2:]))


def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Var:
    """``x·weightᵀ + bias`` over the last axis: x ``(..., C)``, weight ``(M, C)``, bias ``(M,)`` or None.

    >>> linear(np.float32([1, 2]), np.float32([[1, 10], [0, 1]]), np.float32([100, 0])).tolist()
    [121.0, 2.0]
    """
    x, weight, *rest = operands(x, weight, *(() if bias is None else (bias,)))
    if not x.shape or len(weight.shape) != 2:
        raise ShapeError(
            f"linear needs x (..., C) and a weight (M, C), not shapes {x.shape} and {weight.shape}; "
            "give x at least one axis and the weight two"
        )
    return _rows_times(x, weight, *rest, transpose_b=True)


# --- batch normalisation ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchNorm:
    """What is added to the variance, and which of the two optional operands follow it."""

    eps: float
    weight: bool
    bias: bool


T = TypeVar("T")


def _named(attrs: BatchNorm, operands_: Sequence[T]) -> tuple[T, T, T, T | None, T | None]:
    """x, mean, variance, weight and bias; None for what there is not."""
    x, mean, var, *rest = operands_
    return x, mean, var, rest[0] if attrs.weight else None, rest[-1] if attrs.bias else None


def _batch_norm_types(attrs: BatchNorm, x: TensorType, *statistics: TensorType) -> tuple[TensorType]:
    require_count("batch_norm", (x, *statistics), 3 + attrs.weight + attrs.bias)
    require_floats("batch_norm", x, *statistics)
    if x.ndim < 2:
        raise ShapeError(f"batch_norm needs x (N, C, ...), not {x}")
    for t in statistics:
        if t.shape != x.shape[1:2]:
            raise ShapeError(f"batch_norm: {t} does not hold one number for each of the {x.shape[1]} channels of {x}")
    return (x,)


def _batch_norm_spec(attrs: BatchNorm, *tensors: Tensor) -> tuple[Tensor]:
    return (batch_norm_spec(*_named(attrs, tensors), attrs.eps),)


def _batch_norm_jvp(attrs: BatchNorm, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    """With ``r = 1/√(var + eps)`` and ``z = (x − mean)·r``: ``(dx − dmean − z·r·dvar/2)·r·weight + z·dweight + dbias``.

    The operator itself gives ``z``, and ``r`` as the ``z`` of ones, so that eps is the same number in all of them.
    """
    x, mean, var, weight, _ = _named(attrs, primals)
    dx, dmean, dvar, dweight, dbias = _named(attrs, tangents)
    plain = BatchNorm(attrs.eps, weight=False, bias=False)
    normal = apply(BATCH_NORM, plain, x, mean, var)
    ones = np.broadcast_to(np.ones((), var.dtype.numpy), (1, *var.shape))
    scale = apply(BATCH_NORM, plain, var.owner.share(ones, "one"), var.owner.zeros(mean.type), var)

    def across(v: Var) -> Var:
        """One number per channel, along the channel axis of x."""
        return reshape(v, (x.shape[1], *(1,) * (x.ndim - 2)))

    moved = [] if dx is None else [dx]
    moved += [] if dmean is None else [-across(dmean)]
    moved += [] if dvar is None else [-(normal * across(dvar * reshape(scale, var.shape) * 0.5))]
    terms = [] if dbias is None else [across(dbias)]
    if moved:
        through = _total(moved) * across(scale)
        terms.append(through if weight is None else through * across(weight))
    if dweight is not None:
        terms.append(normal * across(dweight))
    return [apply(BATCH_NORM, attrs, *primals)], [broadcast_to(_total(terms), x.shape)]


def _total(terms: Sequence[Var]) -> Var:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def _batch_norm_batch(op: Op, attrs: BatchNorm, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """The batch is merged with the samples, or, if the statistics have one of their own, with the channels."""
    x, *statistics = operands_
    if not any(batched[1:]):
        n, samples, *rest = x.shape
        return (reshape(apply(op, attrs, reshape(x, (n * samples, *rest)), *statistics), x.shape),)
    x, *statistics = with_leading_axis(operands_, batched)
    merged = apply(op, attrs, merge_batch(x, 2), *(merge_batch(v, 1) for v in statistics))
    return (split_batch(merged, 1, (x.shape[0], x.shape[2])),)


@dataclass(frozen=True)
class _Slope(BatchNorm):
    """Without what is added: ``x · weight / √(var + eps)``."""


def _batch_norm_terms(attrs: BatchNorm, x: TensorType, *statistics: TensorType) -> int:
    """One each for ``var + eps``, ``x − mean``, the quotient, the weight and the bias; eight more for the root, or its
    inverse, and the other order of products and differences, ``x·s + (bias − mean·s)``."""
    return 13 + rounded_number(attrs.eps, x.dtype)


def _batch_norm_absolute(attrs: BatchNorm, *operands_: Var) -> Var:
    """A variance below 0, from which eps might be lost, makes it NaN."""
    x, mean, var, weight, bias = _named(attrs, operands_)
    var = var + 0.0 * sqrt(var)
    if isinstance(attrs, _Slope):
        nothing = mean.owner.zeros(mean.type) if isinstance(mean, Var) else np.zeros_like(mean)
        return batch_norm(x, nothing, var, None if weight is None else abs(weight), eps=attrs.eps)
    weight, bias = (None if v is None else abs(v) for v in (weight, bias))
    return batch_norm(x, -abs(mean), var, weight, bias, attrs.eps)


def _batch_norm_transpose(attrs: BatchNorm, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
    """Of ``x``, in which it is affine."""
    _, mean, var, weight, _ = _named(attrs, operands_)
    return batch_norm(cotangents[0], mean.owner.zeros(mean.type), var, weight, eps=attrs.eps)


def _batch_norm_box(node: BoundedNode, *boxes: Box) -> Box:
    """For statistics that are not known exactly, from the ends of all operands."""
    x, mean, var, weight, bias = _named(node.attrs, boxes)
    shape = (node.stored.shape[1], *(1,) * (node.stored.ndim - 2))

    def across(box: Box) -> list[Var]:
        return [reshape(end, shape) for end in box.ends]

    low_mean, high_mean = across(mean)
    roots = [reshape(sqrt(v + node.attrs.eps + 0.0 * sqrt(var.lower)), shape) for v in var.ends]
    sizes = [*(abs(end) for end in x.ends), *(abs(end) for end in (low_mean, high_mean))]
    values = [d / root for d in (x.lower - high_mean, x.upper - low_mean) for root in roots]
    mass = _total(sizes) / roots[0]
    if weight is not None:
        values = [v * w for v in values for w in across(weight)]
        mass = mass * _total([abs(w) for w in across(weight)])
    if bias is not None:
        values = [v + b for v in values for b in across(bias)]
        mass = mass + _total([abs(b) for b in across(bias)])
    hull = node.hull(values)
    margin = node.blur(mass, _batch_norm_terms(node.attrs, node.stored) + 8)
    return node.between(hull.lower - margin, hull.upper + margin)


def _decompose_batch_norm(attrs: BatchNorm, *operands_: Var) -> tuple[Var]:
    x, *statistics = operands_
    along = (x.shape[1], *(1,) * (x.ndim - 2))
    x, mean, var, weight, bias = _named(attrs, (x, *(reshape(v, along) for v in statistics)))
    normal = (x - mean) / sqrt(var + exact_number(attrs.eps, x))
    scaled = normal if weight is None else normal * weight
    return (scaled if bias is None else scaled + bias,)


BATCH_NORM: Op = Op(
    "batch_norm",
    BatchNorm,
    types=_batch_norm_types,
    spec=_batch_norm_spec,
    batch=_batch_norm_batch,
    jvp=_batch_norm_jvp,
    decompose=_decompose_batch_norm,
    sums=Sums(
        max_roundings=_batch_norm_terms,
        factors=(0,),
        fixed=(1, 2, 3, 4),
        absolute=_batch_norm_absolute,
        linear=lambda attrs: _Slope(attrs.eps, attrs.weight, attrs.bias),
    ),
    enclosure=_batch_norm_box,
    transpose=_batch_norm_transpose,
)


def batch_norm(
    x: Operand,
    running_mean: Operand,
    running_var: Operand,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Var:
    """``(x − mean) / √(var + eps) · weight + bias`` with given statistics, one per channel of ``x (N, C, ...)``.

    >>> batch_norm(np.float32([[5], [1]]), np.float32([1]), np.float32([4]), eps=0.0).tolist()
    [[2.0], [0.0]]
    """
    optional = [v for v in (weight, bias) if v is not None]
    attrs = BatchNorm(float(eps), weight is not None, bias is not None)
    return apply(BATCH_NORM, attrs, x, running_mean, running_var, *optional)

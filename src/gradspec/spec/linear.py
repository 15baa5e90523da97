"""Products of matrices, linear layers, and batch normalisation with given statistics.

Sums run over the inner axis in order, from zero; a bias comes last.
"""

from __future__ import annotations

from math import prod

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import Scalar, dot, embed, sqrt
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, require_shape, tensor


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[i, j] = Σ_k a[i, k]·b[k, j] + bias[j]`` for every index of the leading axes, which are equal."""
    (*lead, rows, inner), columns = a.shape, b.shape[-1]
    zero = a.zero * b.zero

    def cell(p: list[Scalar], q: list[Scalar], i: int, j: int) -> Scalar:
        return dot(zero, p[i * inner : (i + 1) * inner], q[j::columns])

    places = [(i, j) for i in range(rows) for j in range(columns)]
    planes = [[cell(p, q, i, j) for i, j in places] for p, q in zip(a.planes(2), b.planes(2), strict=True)]
    if bias is not None:
        biases = zip(planes, bias.planes(1), strict=True)
        planes = [[v + row[j] for v, (_, j) in zip(plane, places, strict=True)] for plane, row in biases]
    return Tensor((*lead, rows, columns), (v for plane in planes for v in plane)).stored()


def swap_last(a: Tensor) -> Tensor:
    """Every matrix transposed."""
    *lead, rows, columns = a.shape
    cells = (plane[i * columns + j] for plane in a.planes(2) for j in range(columns) for i in range(rows))
    return Tensor((*lead, columns, rows), cells)


def matmul(a: TensorLike, b: TensorLike) -> Tensor:
    """The product over the last two axes, for every index of the leading axes, which broadcast.

    A vector is a row on the left and a column on the right, and its axis is dropped from the result.

    >>> matmul([[1, 2], [3, 4]], [1, 10]).tolist()
    [21, 43]
    """
    a, b = tensor(a), tensor(b)
    if not a.ndim or not b.ndim:
        raise ShapeError(f"matmul needs at least one axis on each side, not shapes {a.shape} and {b.shape}")
    left = a.reshape(1, *a.shape) if a.ndim == 1 else a
    right = b.reshape(*b.shape, 1) if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError(f"matmul sums over the last axis of {a.shape} and the first or last but one of {b.shape}")
    lead = _common(left.shape[:-2], right.shape[:-2])
    y = product(_stacked(left, lead), _stacked(right, lead))
    rows, columns = y.shape[-2:]
    return y.reshape(*lead, *(rows,) * (a.ndim > 1), *(columns,) * (b.ndim > 1))


def _common(a: Index, b: Index) -> Index:
    """The shape that both broadcast to."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ShapeError(f"the leading axes {a} and {b} do not broadcast; sizes must be equal or 1")
    return tuple(n if m == 1 else m for m, n in pairs)


def _stacked(t: Tensor, lead: Index) -> Tensor:
    """Matrices repeated along the leading axes."""
    own = (1,) * (len(lead) - t.ndim + 2) + t.shape[:-2]
    planes = t.planes(2)
    places = (tuple(0 if n == 1 else i for i, n in zip(index, own, strict=True)) for index in indices(lead))
    return Tensor(lead + t.shape[-2:], (v for place in places for v in planes[flat(place, own)]))


def linear(x: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """``x·weightᵀ + bias`` over the last axis: x ``(..., C)``, weight ``(M, C)``, bias ``(M,)`` or None.

    >>> linear([1, 2], [[1, 10], [0, 1]], [100, 0]).tolist()
    [121, 2]
    """
    x, w = tensor(x), tensor(weight)
    if not x.ndim or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"linear needs x (..., C) and a weight (M, C), not shapes {x.shape} and {w.shape}")
    *lead, inner = x.shape
    b = None if bias is None else tensor(bias)
    if b is not None:
        require_shape("bias", b, w.shape[:1])
    return product(x.reshape(prod(lead), inner), swap_last(w), b).reshape(*lead, w.shape[0])


def batch_norm(
    x: TensorLike,
    running_mean: TensorLike,
    running_var: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x − mean) / √(var + eps) · weight + bias`` with given statistics, one per channel of ``x (N, C, ...)``.

    >>> batch_norm([[5.0], [1.0]], [1.0], [4.0], eps=0.0).tolist()
    [[2.0], [0.0]]
    """
    x, mean, var = tensor(x), tensor(running_mean), tensor(running_var)
    w, b = (None if t is None else tensor(t) for t in (weight, bias))
    if x.ndim < 2:
        raise ShapeError(f"batch_norm needs x (N, C, ...), not shape {x.shape}")
    for name, t in (("running_mean", mean), ("running_var", var), ("weight", w), ("bias", b)):
        if t is not None:
            require_shape(name, t, x.shape[1:2])
    roots = [sqrt(v + embed(v, eps)) for v in var.cells]

    def value(v: Scalar, c: int) -> Scalar:
        normal = (v - mean.cells[c]) / roots[c]
        scaled = normal if w is None else normal * w.cells[c]
        return scaled if b is None else scaled + b.cells[c]

    planes = x.planes(x.ndim - 2)
    return Tensor(x.shape, (value(v, i % x.shape[1]) for i, plane in enumerate(planes) for v in plane)).stored()

"""Losses, and the linear pair behind the cross entropy: taking one cell per label, and putting it back."""

from __future__ import annotations

from numbers import Integral

from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
from gradspec.spec.reduce import log_softmax, mean, sum
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, tensor

REDUCTIONS = ("mean", "sum", "none")


def mse_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """``(input − target)²``, its mean (the default), sum or, with ``"none"``, every cell.

    >>> mse_loss([1.0, 4.0], [0.0, 2.0]).tolist()
    2.5
    """
    a, b = tensor(input), tensor(target)
    require_equal_shapes(a.shape, b.shape)
    squares = ((p - q) * (p - q) for p, q in zip(a.cells, b.cells, strict=True))
    return _reduced(Tensor(a.shape, squares), reduction)


def cross_entropy(logits: TensorLike, labels: TensorLike, reduction: str = "mean") -> Tensor:
    """``−log softmax(logits)[label]``, its mean (the default), sum or, with ``"none"``, one for each label.

    Logits are ``(C,)``, ``(N, C)`` or ``(N, C, d₁, …)``, labels integers of the same shape without the class axis.

    >>> cross_entropy([[0.0, 0.0], [0.0, 1000.0]], [1, 0], "none").map(lambda v: round(v, 6)).tolist()
    [0.693147, 1000.0]
    """
    logits, labels = tensor(logits), tensor(labels)
    axis = class_axis(logits.shape)
    return _reduced(take_label(log_softmax(logits, axis), labels, axis).map(lambda v: -v), reduction)


def take_label(x: TensorLike, labels: TensorLike, axis: int = -1) -> Tensor:
    """The cell of ``x`` that each label names along ``axis``; labels have the shape of ``x`` without it.

    >>> take_label([[10, 11, 12], [20, 21, 22]], [2, 0]).tolist()
    [12, 20]
    """
    x, labels = tensor(x), tensor(labels)
    at = normal_axis("take_label", axis, x.ndim)
    require_label_shape(x.shape, labels.shape, at)
    places = zip(indices(labels.shape), labels.cells, strict=True)
    classes = x.shape[at]
    return Tensor(labels.shape, (x.cells[flat(_insert(i, at, _label(c, classes)), x.shape)] for i, c in places))


def put_label(x: TensorLike, labels: TensorLike, axis: int, size: int) -> Tensor:
    """The transpose of ``take_label``: zeros, with ``size`` of them along ``axis``, and ``x`` where the labels say.

    >>> put_label([12, 20], [2, 0], 1, 3).tolist()
    [[0, 0, 12], [20, 0, 0]]
    """
    x, labels = tensor(x), tensor(labels)
    at = normal_axis("put_label", axis, x.ndim + 1)
    shape = _insert(x.shape, at, size)
    require_label_shape(shape, labels.shape, at)
    wanted = {i: _label(c, size) for i, c in zip(indices(labels.shape), labels.cells, strict=True)}
    zero = x.zero
    cells = ((i[:at] + i[at + 1 :], i[at]) for i in indices(shape))
    return Tensor(shape, (x.cells[flat(i, x.shape)] if wanted[i] == c else zero for i, c in cells))


def _insert(index: Index, at: int, entry: int) -> Index:
    return (*index[:at], entry, *index[at:])


def _label(label: Scalar, classes: int) -> int:
    if isinstance(label, bool) or not isinstance(label, Integral):
        raise DTypeError(f"the label {label!r} is a {type(label).__name__}; labels are integers")
    number = int(label)
    if not 0 <= number < classes:
        raise label_outside(number, classes)
    return number


def label_outside(label: int, classes: int) -> ValueError:
    return ValueError(
        f"the label {label} names none of the {classes} classes; labels go from 0 to {classes - 1}"
        if classes
        else f"the label {label} cannot be chosen among 0 classes"
    )


def require_label_shape(shape: Index, labels: Index, axis: int) -> None:
    expected = (*shape[:axis], *shape[axis + 1 :])
    if labels != expected:
        raise ShapeError(
            f"labels of shape {labels} do not fit {shape}, whose classes lie on axis {axis}; "
            f"give one label for each place of the shape {expected}"
        )


def require_equal_shapes(a: Index, b: Index) -> None:
    if a != b:
        raise ShapeError(
            f"mse_loss: the input has shape {a} and the target {b}; make them equal, by broadcast_to or reshape"
        )


def class_axis(logits: Index) -> int:
    """The first axis of one sample, the second of a batch."""
    if not logits:
        raise ShapeError("cross_entropy: the logits are a scalar; an axis of classes is needed: (C,) or (N, C, …)")
    return min(len(logits) - 1, 1)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    require_reduction(reduction)
    return mean(losses) if reduction == "mean" else sum(losses) if reduction == "sum" else losses.stored()


def require_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f'reduction={reduction!r} is not known; use "mean" (the default), "sum" or "none"')

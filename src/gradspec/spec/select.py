"""Comparisons, whose results are true or false, and the choice between two tensors by such results.

A comparison with a NaN is false. Enclosures must decide it: no truth value encloses both.
"""

from __future__ import annotations

from gradspec.spec.errors import AmbiguityError
from gradspec.spec.pointwise import cellwise
from gradspec.spec.scalar import Scalar, ends
from gradspec.spec.tensor import Tensor, TensorLike


def greater(a: TensorLike, b: TensorLike) -> Tensor:
    """Whether ``a > b``.

    >>> greater([1, 2, 3], [2, 2, 2]).tolist()
    [False, False, True]
    """
    return cellwise("greater", _is_greater, a, b)


def equal(a: TensorLike, b: TensorLike) -> Tensor:
    """Whether ``a = b``.

    >>> equal([1, 2, 3], [2, 2, 2]).tolist()
    [False, True, False]
    """
    return cellwise("equal", _is_equal, a, b)


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """``a`` where the condition is true, ``b`` elsewhere; what is not chosen takes no part.

    >>> where([True, False], [1, 2], [10, 20]).tolist()
    [1, 20]
    """
    return cellwise("where", lambda is_true, p, q: p if is_true else q, _truths(condition), a, b)


def _truths(condition: TensorLike) -> TensorLike:
    """An array of booleans as a tensor of Python's."""
    is_array = getattr(getattr(condition, "dtype", None), "kind", None) == "b"
    return Tensor(condition.shape, map(bool, condition.flat)) if is_array else condition


def _is_greater(a: Scalar, b: Scalar) -> bool:
    (a_low, a_high), (b_low, b_high) = ends(a), ends(b)
    return _decided(certain=bool(a_low > b_high), possible=bool(a_high > b_low), a=a, b=b)


def _is_equal(a: Scalar, b: Scalar) -> bool:
    (a_low, a_high), (b_low, b_high) = ends(a), ends(b)
    certain = bool(a_low == b_high and a_high == b_low)
    return _decided(certain, certain or bool(_at_most(a_low, b_high) and _at_most(b_low, a_high)), a, b)


def _at_most(a: Scalar, b: Scalar) -> Scalar:
    return a < b or a == b


def _decided(certain: bool, possible: bool, a: Scalar, b: Scalar) -> bool:
    if possible and not certain:
        raise AmbiguityError(f"{a} and {b} may compare either way; give narrower enclosures")
    return certain

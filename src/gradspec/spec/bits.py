"""Integers by their bits: two's complement, of as many bits as there are.

Kernels keep the bits of the dtype and wrap around. No dtype has more than 64, so a shift by more, or by a negative
count, moves every bit out.
"""

from __future__ import annotations

import operator

from gradspec.spec.pointwise import cellwise
from gradspec.spec.tensor import Tensor, TensorLike

BITS = 64


def bitwise_and(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that both have.

    >>> bitwise_and([12, -1], [10, 5]).tolist()
    [8, 5]
    """
    return cellwise("bitwise_and", operator.and_, a, b)


def bitwise_or(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that either has.

    >>> bitwise_or([12, -8], [10, 5]).tolist()
    [14, -3]
    """
    return cellwise("bitwise_or", operator.or_, a, b)


def bitwise_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that one of them has and the other has not.

    >>> bitwise_xor([12, -1], [10, 5]).tolist()
    [6, -6]
    """
    return cellwise("bitwise_xor", operator.xor, a, b)


def left_shift(a: TensorLike, count: TensorLike) -> Tensor:
    """``a · 2^count``; 0 if every bit is moved out.

    >>> left_shift([3, -3, 3], [2, 2, -1]).tolist()
    [12, -12, 0]
    """
    return cellwise("left_shift", lambda n, count: n << count if 0 <= count < BITS else 0, a, count)


def right_shift(a: TensorLike, count: TensorLike) -> Tensor:
    """``a / 2^count`` rounded down, which is 0 or −1 if every bit is moved out.

    >>> right_shift([12, -13, -13], [2, 2, -1]).tolist()
    [3, -4, -1]
    """
    return cellwise("right_shift", lambda n, count: n >> (count if 0 <= count < BITS else BITS), a, count)

"""How many numbers meet in one sum, which bounds the roundings that one of them can meet."""

from math import gcd, prod

from gradspec.spec.window import AxisWindow, Regular, Window


def most_cells(window: Window) -> int:
    """The cells that the largest window reads, at most.

    >>> from gradspec.spec.window import regular
    >>> most_cells(regular((8, 8), (3, 3), 2))
    9
    """
    return prod(_cells(axis) for axis in window.axes)


def most_windows(window: Window) -> int:
    """The windows that read one cell, at most.

    >>> from gradspec.spec.window import regular
    >>> most_windows(regular((8, 8), (3, 3), 2))
    4
    """
    return prod(_readers(axis) for axis in window.axes)


def _cells(axis: AxisWindow) -> int:
    if isinstance(axis, Regular):
        return min(axis.kernel, axis.size)
    return min(axis.size, -(-axis.size // axis.outputs) + 1)


def _readers(axis: AxisWindow) -> int:
    """Windows that read one cell read it by taps that lie ``stride / gcd(stride, dilation)`` apart."""
    if isinstance(axis, Regular):
        return min(axis.outputs, -(-axis.kernel // (axis.stride // gcd(axis.stride, axis.dilation))))
    return min(axis.outputs, -(-axis.outputs // axis.size) + 1)

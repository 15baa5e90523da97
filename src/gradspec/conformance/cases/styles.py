"""Axes drawn for a purpose: simple ones, in which one mistake shows alone, and those at which kernels change their way.

A style is the name of such a purpose:

``simple``         three cells and more, any kernels and strides together, paddings that differ between sides in half
``three_taps``     a kernel of three along the last axis, and other kernels along the others
``wide_window``    a kernel of 8 to 13 along the last axis, where maxima are found in runs of runs
``nothing_read``   an axis all of whose windows lie in padding
``strided``        padded axes of stride 2 or 3, with channels enough for one of them to hold special numbers
``long_channels``  sums over so many channels that they are added up in chunks
``block``          few cells, beside one axis that is made long; most take attributes at their defaults
``heavy``          gradients of weights of so many products that they are added up in pieces
"""

from __future__ import annotations

import numpy as np

from gradspec.conformance.cases.axes import DrawnAxis

CHANNELS = {"strided": ((4, 5), (5, 4), (4, 4), (6, 4)), "long_channels": ((64, 2), (80, 1)), "heavy": ((8, 8),)}
"""Channels in and out of a convolution, where a style decides."""
HEAVY_SAMPLES = 8
_LONGEST = {1: 12, 2: 8, 3: 6, 4: 4}
_WIDEST = {1: 5, 2: 5, 3: 3, 4: 2}
TRIES = 50


def drawn_axes(
    rng: np.random.Generator, style: str, family: str, rank: int, small: bool, ceil: bool
) -> list[DrawnAxis]:
    """An axis for each of ``rank``; ``small`` ones have few windows.

    >>> [axis.kernel >= 8 for axis in drawn_axes(np.random.default_rng(0), "wide_window", "sliding", 2, False, False)]
    [False, True]
    """
    if style == "block":
        style = str(rng.choice(["block", "stride_one", "side_by_side", "same"]))
    styles = ["simple" if style in ("three_taps", "wide_window", "nothing_read") else style] * rank
    if style == "nothing_read":
        styles[int(rng.integers(rank))] = style
    else:
        styles[-1] = style
    longest = 5 if small else _LONGEST[rank]
    if family == "adaptive":
        return [_adaptive_axis(rng, name, longest) for name in styles]
    if family == "whole":
        return [DrawnAxis(int(rng.integers(3, longest + 1)) * (3 if rank == 1 else 1)) for _ in styles]
    widest = 3 if small else _WIDEST[rank]
    return [_sliding_axis(rng, name, longest, widest, family == "transposed", ceil) for name in styles]


def _adaptive_axis(rng: np.random.Generator, style: str, longest: int) -> DrawnAxis:
    n = int(rng.integers(16, 28) if style == "wide_window" else rng.integers(3, longest + 1))
    bins = int(rng.integers(1, 3) if style == "wide_window" else rng.integers(1, n + 2))
    return DrawnAxis(n, outputs=bins)


def _sliding_axis(
    rng: np.random.Generator, style: str, longest: int, widest: int, transposed: bool, ceil: bool
) -> DrawnAxis:
    """A first axis that has a window; tries are many more than it takes."""
    for _ in range(TRIES):
        n, k, s, lo, hi, d = _numbers(rng, style, longest, widest)
        extent, extra = d * (k - 1) + 1, int(rng.integers(max(s, d))) if transposed and rng.random() < 0.3 else 0
        slack = n + lo + hi - extent
        size = (n - 1) * s - lo - hi + extent + extra
        if transposed and size >= 1:
            return DrawnAxis(n, k, s, lo, hi, d, extra, n)
        if not transposed and slack >= 0:
            count = slack // s + 1
            return DrawnAxis(n, k, s, lo, hi, d, 0, count + int(ceil and slack % s != 0 and count * s < n + lo))
    return DrawnAxis(5, 2, outputs=5 if transposed else 4)


def _numbers(rng: np.random.Generator, style: str, longest: int, widest: int) -> tuple[int, int, int, int, int, int]:
    """Size, kernel, stride, both paddings and dilation."""
    if style in ("stride_one", "side_by_side"):  # defaults of a convolution, and of a pooling
        k = int(rng.choice([1, 2, 3, 3]))
        return k + 1, k, 1 if style == "stride_one" else k, 0, 0, 1
    if style == "same":  # as most networks have it, also with a stride of two
        return int(rng.integers(2, 5)), 3, int(rng.integers(1, 3)), 1, 1, 1
    if style == "block":
        k = int(rng.integers(1, 4))
        return int(rng.integers(2, 5)), k, int(rng.integers(1, 3)), *_sides(rng, k), int(rng.choice([1, 1, 2]))
    if style == "heavy":
        return int(rng.integers(22, 27)), 3, 1, 1, 1, 1
    if style == "nothing_read":
        n = int(rng.integers(2, 6))
        return n, 2, 1, 1, 1, n + 1
    n = int(rng.integers(3, longest + 1))
    if style == "wide_window":
        k = int(rng.integers(8, 14))
        return k + n, k, int(rng.integers(1, 3)), *_sides(rng, k), 1
    if style == "three_taps":
        return n + 2, 3, int(rng.integers(1, 3)), *_sides(rng, 3), 1
    if style == "long_channels":
        return n, 3, 1, *_sides(rng, 3), 1
    k = int(rng.integers(1, widest + 1))
    if style == "strided":
        k = max(k, 3)
        return min(n, 5), k, int(rng.integers(2, 4)), int(rng.integers(1, k)), int(rng.integers(1, k)), 1
    return n, k, int(rng.integers(1, 4)), *_sides(rng, k), int(rng.choice([1, 1, 1, 1, 2]))


def _sides(rng: np.random.Generator, k: int) -> tuple[int, int]:
    """Paddings of up to half the kernel, or up to all but one of its cells; the same in half of the axes."""
    most = k // 2 if rng.random() < 0.7 else k - 1
    lo, hi = (int(side) for side in rng.integers(0, most + 1, 2))
    return (lo, hi) if rng.random() < 0.5 else (lo, lo)

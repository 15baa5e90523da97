"""Products of matrices, and convolution with any order of axes."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from jax import numpy as jnp

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.interop.jax.primitives.layout import padded
from gradspec.interop.jax.primitives.operands import inverse, to_dtype
from gradspec.ops.conv import WRITE, Convolution, conv
from gradspec.ops.einsum import einsum
from gradspec.ops.layout import getitem, transpose
from gradspec.ops.shape import reshape

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def _dot_general(a: Var, b: Var, *, dimension_numbers: Any, preferred_element_type: Any) -> Any:
    """The axes of the result: those of the batch, the others of ``a``, the others of ``b``.

    Products in a wider dtype are those of the converted numbers. The precision says how a device may round.
    """
    (inner_a, inner_b), (batch_a, batch_b) = dimension_numbers
    names_a, names_b = list(ascii_lowercase[: a.ndim]), list(ascii_uppercase[: b.ndim])
    for i, j in zip((*inner_a, *batch_a), (*inner_b, *batch_b), strict=True):
        names_b[j] = names_a[i]
    batch = [names_a[i] for i in batch_a]
    free = [c for c in (*names_a, *names_b) if (c in names_a) != (c in names_b)]
    common = preferred_element_type or jnp.promote_types(a.dtype.numpy, b.dtype.numpy)
    wide = [to_dtype(v, common) for v in (a, b)]
    return einsum(f"{''.join(names_a)},{''.join(names_b)}->{''.join([*batch, *free])}", *wide)


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(
    x: Var,
    w: Var,
    *,
    window_strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
) -> Any:
    """With the axes in gradspec's order: batch, channels, space; groups of the batch become groups of channels."""
    x, w = (to_dtype(v, preferred_element_type) for v in (x, w))
    x, w = transpose(x, dimension_numbers.lhs_spec), transpose(w, dimension_numbers.rhs_spec)
    if (parts := batch_group_count) > 1:
        n, channels, *sizes = x.shape
        split = reshape(x, (parts, n // parts, channels, *sizes))
        x = reshape(transpose(split, (1, 0, *range(2, split.ndim))), (n // parts, parts * channels, *sizes))
    groups = feature_group_count * parts
    y = _transposed(x, w, padding, lhs_dilation, rhs_dilation, groups) if set(window_strides) <= {1} else None
    if y is None:
        ends = [(lo, hi, gap - 1) for (lo, hi), gap in zip(padding, lhs_dilation, strict=True)]
        if any(lo < 0 or hi < 0 or gap for lo, hi, gap in ends):
            x, padding = padded(x, [(0, 0, 0), (0, 0, 0), *ends]), ((0, 0),) * len(padding)
        y = conv(x, w, None, window_strides, padding, rhs_dilation, groups)
    return transpose(y, inverse(dimension_numbers.out_spec))


def _transposed(x: Var, w: Var, padding: Pairs, gaps: Sizes, dilation: Sizes, groups: int) -> Any:
    """A convolution of what is spaced out by ``s``, as a transposed one; None if it is not spaced out, or is not one.

    Output ``o`` meets ``x[i]·w[k]`` where ``o + d·k − lo = i·s``. With the kernel read backwards, ``k = K−1−k'``, that
    is ``i·s + d·k' = o + p`` for ``p = d·(K−1) − lo``: cell ``o`` of a plane that is padded by ``p``, tap ``k'`` of
    its window ``i``.
    """
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    pads = tuple((r - lo, r - hi) for r, (lo, hi) in zip(reach, padding, strict=True))
    if set(gaps) <= {1} or any(n < 0 for pair in pads for n in pair):
        return None
    outputs = x.shape[2:]
    sizes = tuple(
        (n - 1) * s + 1 + lo + hi - r for n, s, (lo, hi), r in zip(outputs, gaps, padding, reach, strict=True)
    )
    if min((*sizes, *outputs)) < 1:
        return None
    attrs = Convolution(sizes, w.shape[2:], gaps, pads, dilation, outputs, groups)
    m, c, *kernel = w.shape
    by_group = transpose(reshape(w, (groups, m // groups, c, *kernel)), (0, 2, 1, *range(3, w.ndim + 1)))
    turned = (slice(None), slice(None), *[slice(None, None, -1)] * len(kernel))
    return apply(WRITE, attrs, x, getitem(reshape(by_group, (groups * c, m // groups, *kernel)), turned))


RULES: dict[str, Callable[..., Any]] = {"dot_general": _dot_general, "conv_general_dilated": _conv}

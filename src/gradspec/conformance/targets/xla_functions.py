"""The function of JAX that a problem calls, and what JAX's documentation leaves out.

JAX has no pooling layers of its own. Its users write them with ``lax.reduce_window``, as ``flax.linen.pooling`` does: a
maximum starts from −∞, and an average is a sum divided by the number of cells, which is the user's own division. That
composition is what is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.call import DTYPES, FLOATS, SELECTIONS, Problem
from gradspec.conformance.targets.source import DTYPE_TEXT
from gradspec.conformance.targets.windows import lead, output_padding, windows
from gradspec.conformance.targets.written import Apply, Expression, Infix, Name

CHANNELS_LAST = "channels_last"
VMAP = "vmap"
LHS_DILATION = "lhs_dilation"
EAGER = "eager"
BATCHED = ("conv", "conv_transpose", "unfold")
"""Operators that JAX defines for exactly one batch axis."""

LETTERS = "TDHW"
X, WEIGHT, BIAS = Name("x"), Name("weight"), Name("bias")


def function(problem: Problem, variant: str = "plain") -> Expression:
    """What a user of JAX writes for a problem that is offered; under ``vmap`` it is for one sample.

    >>> from gradspec.conformance.targets.written import source
    >>> source(function(Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "stride": (1,)})))
    'lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), ((0, 0), (0, 0)))'
    """
    return _FUNCTIONS[problem.op](problem, variant)


# --- pooling ----------------------------------------------------------------------------------------------------------


def _reduced(problem: Problem, cells: Expression, start: Any, combine: str, axes: int) -> Expression:
    """``lax.reduce_window`` with windows of one cell on the ``axes`` that come first."""
    seen, ones = windows(problem), (1,) * axes
    dilated = any(step != 1 for step in seen.dilation)
    return Apply(
        "lax.reduce_window",
        (cells, start, Name(combine), ones + seen.kernel, ones + seen.stride, ((0, 0),) * axes + seen.padding),
        {"window_dilation": ones + seen.dilation} if dilated else {},
    )


def _leading(problem: Problem, variant: str) -> int:
    return len(lead(problem)) - (variant == VMAP)


def _max_pool(problem: Problem, variant: str) -> Expression:
    lowest: Expression = Name("-jnp.inf")
    if problem.dtype not in FLOATS:
        lowest = Apply(DTYPE_TEXT[problem.dtype], (int(np.iinfo(DTYPES[problem.dtype]).min),))
    return _reduced(problem, X, lowest, "lax.max", _leading(problem, variant))


def _avg_pool(problem: Problem, variant: str) -> Expression:
    axes = _leading(problem, variant)
    total, divisor = _reduced(problem, X, 0.0, "lax.add", axes), problem.attributes.get("divisor_override")
    if divisor is not None:
        return Infix(total, "/", divisor)
    if problem.attributes.get("count_include_pad", True):
        return Infix(total, "/", prod(windows(problem).kernel))
    # Sixteen bits do not count far, and the average is a number of x's dtype.
    ones = Apply("jnp.ones", (Name("x.shape"), Name("jnp.float32")))
    counts = _reduced(problem, ones, 0.0, "lax.add", axes)
    return Infix(total, "/", Apply("lax.convert_element_type", (counts, Name("x.dtype"))))


def _global(name: str) -> Callable[[Problem, str], Expression]:
    def pooled(problem: Problem, variant: str) -> Expression:
        keep = bool(problem.attributes.get("keepdims", True))
        settings = {"axis": tuple(range(-problem.rank, 0)), **({"keepdims": True} if keep else {})}
        return Apply(name, (X,), settings)

    return pooled


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(problem: Problem, variant: str) -> Expression:
    seen = windows(problem)
    applied = _Convolution("lax.conv_general_dilated", WEIGHT, (seen.stride, seen.padding), _spread(problem))
    return _placed(problem, variant, applied)


def _conv_transpose(problem: Problem, variant: str) -> Expression:
    """``lax.conv_transpose``, which has neither groups nor output padding; with those, the input is dilated instead."""
    extra, seen = output_padding(problem), windows(problem)
    if variant != LHS_DILATION and has_transpose(problem):
        consistent = {"transpose_kernel": True, "use_consistent_padding": True, **_spread(problem)}
        return _placed(
            problem, variant, _Convolution("lax.conv_transpose", WEIGHT, (seen.stride, seen.padding), consistent)
        )
    ends = zip(seen.overhang, seen.padding, extra, strict=True)
    pads = tuple((reach - lo, reach - hi + more) for reach, (lo, hi), more in ends)
    dilated = ((1,) * problem.rank, pads, seen.stride)
    turned = _Convolution("lax.conv_general_dilated", _turned(problem), dilated, _spread(problem))
    return _placed(problem, variant, turned)


def has_transpose(problem: Problem) -> bool:
    """Whether ``lax.conv_transpose`` says all of a transposed convolution."""
    return problem.attributes.get("groups", 1) == 1 and not any(output_padding(problem))


def _spread(problem: Problem) -> dict[str, Any]:
    dilation = windows(problem).dilation
    return {"rhs_dilation": dilation} if any(step != 1 for step in dilation) else {}


def _turned(problem: Problem) -> Expression:
    """The weight ``(C, M / groups, *kernel)`` as one of ``(M, C / groups, *kernel)``, its kernel turned round."""
    channels, per_group, *kernel = problem.shapes[1] or ()
    groups, axes = problem.attributes.get("groups", 1), tuple(range(2, 2 + problem.rank))
    flipped = Apply("jnp.flip", (WEIGHT, axes))
    if groups == 1:
        return Apply("jnp.swapaxes", (flipped, 0, 1))
    split = Apply("jnp.reshape", (flipped, (groups, channels // groups, per_group, *kernel)))
    swapped = Apply("jnp.swapaxes", (split, 1, 2))
    return Apply("jnp.reshape", (swapped, (groups * per_group, channels // groups, *kernel)))


@dataclass(frozen=True)
class _Convolution:
    """A call of a convolution, but for its input and how that is laid out."""

    name: str
    weight: Expression
    arguments: tuple[Any, ...]
    settings: dict[str, Any]


def _placed(problem: Problem, variant: str, call: _Convolution) -> Expression:
    """The convolution on ``x`` as the variant lays it out, with the bias."""
    axes, groups = LETTERS[-problem.rank :], problem.attributes.get("groups", 1)
    order = f"N{axes}C" if variant == CHANNELS_LAST else f"NC{axes}"
    settings = dict(call.settings)
    if variant == CHANNELS_LAST or call.name == "lax.conv_transpose":
        settings["dimension_numbers"] = (order, f"OI{axes}", order)
    if groups != 1:
        settings["feature_group_count"] = groups
    x = {CHANNELS_LAST: Apply("jnp.moveaxis", (X, 1, -1)), VMAP: Apply("jnp.expand_dims", (X, 0))}.get(variant, X)
    y: Expression = Apply(call.name, (x, call.weight, *call.arguments), settings)
    if problem.shapes[2] is not None:
        ones = () if variant == CHANNELS_LAST else (1,) * problem.rank
        y = Infix(y, "+", Apply("jnp.reshape", (BIAS, (-1, *ones))) if ones else BIAS)
    back = {CHANNELS_LAST: Apply("jnp.moveaxis", (y, -1, 1)), VMAP: Apply("jnp.squeeze", (y, 0))}
    return back.get(variant, y)


def _unfold(problem: Problem, variant: str) -> Expression:
    seen = windows(problem)
    x = Apply("jnp.expand_dims", (X, 0)) if variant == VMAP else X
    patches = Apply("lax.conv_general_dilated_patches", (x, seen.kernel, seen.stride, seen.padding), _spread(problem))
    columns = Apply("lax.collapse", (patches, 2))
    return Apply("jnp.squeeze", (columns, 0)) if variant == VMAP else columns


_FUNCTIONS: dict[str, Callable[[Problem, str], Expression]] = {
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "global_max_pool": _global("jnp.max"),
    "global_avg_pool": _global("jnp.mean"),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "unfold": _unfold,
}


# --- what is not offered ----------------------------------------------------------------------------------------------


def undocumented(problem: Problem, mode: str) -> str | None:
    """Why JAX's documentation has no such call; None where it has.

    >>> undocumented(Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "ceil_mode": True}), "value")
    'lax.reduce_window has no ceil_mode'
    """
    return next(_reasons(problem, mode), None)


def _reasons(problem: Problem, mode: str) -> Iterator[str]:
    op, given = problem.op, problem.attributes
    if op not in _FUNCTIONS:
        yield f"JAX has no {op}"
        return
    if op in BATCHED and len(lead(problem)) != 1:
        yield f"{op} is documented for one batch axis"
    if given.get("ceil_mode"):
        yield "lax.reduce_window has no ceil_mode"
    if op == "max_pool" and mode in ("vjp", "second") and any(step != 1 for step in windows(problem).dilation):
        yield "VJP not implemented for select_and_gather (MaxPool) with window dilation"
    if mode != "value" and given.get("ties", "first") != "first":
        yield "JAX documents no rule for ties"
    if problem.dtype not in FLOATS and mode != "value":
        yield "integers have no derivatives"
    if problem.dtype not in FLOATS and op not in SELECTIONS:
        yield f"{op} of integers would divide or round them"

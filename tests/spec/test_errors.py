"""Every error: what raises it, and that its message says what was given, what was expected and what to do.

One table of calls. The last test checks that it reaches every ``raise`` of these modules.
"""

from __future__ import annotations

import ast
import math
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import arb

import gradspec as gs
from gradspec.domains import Ball, Format, Interval
from gradspec.spec import Tensor
from gradspec.spec.scalar import (
    atan,
    cos,
    erf,
    exp,
    floor,
    hull,
    log,
    log1p,
    nearest_integer,
    normal_cdf,
    normal_density,
    power,
    sin,
    sqrt,
    tanh,
)
from gradspec.spec.window import stated

SHAPE, DTYPE, UNSUPPORTED = gs.ShapeError, gs.DTypeError, gs.UnsupportedError
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Mistake:
    """A call, the error it must raise, and patterns that must all occur in the message."""

    what: str
    call: Callable[[], object]
    error: type[Exception]
    patterns: tuple[str, ...]


class Untouched:
    """A scalar that cannot be computed with: geometry is checked before any work."""

    def __init__(self, value: object = None) -> None:
        self.value = value

    def _touched(self, *_: object) -> None:
        raise AssertionError("an operator computed before it had checked its arguments")

    __add__ = __mul__ = __truediv__ = __gt__ = __neg__ = _touched

    def __eq__(self, other: object) -> bool:
        return self.value == other

    __hash__ = None


def cells(*shape: int) -> Tensor:
    return Tensor(shape, [Untouched() for _ in range(math.prod(shape))])


# --- geometry: every operator that has the argument, in every mode ---------------------------------------------------

POOLED: dict[str, Tensor] = {"x": cells(2, 5)}
CONVOLVED: dict[str, Tensor] = {"x": cells(2, 5), "weight": cells(3, 2, 2), "bias": cells(3)}
CROPPED: dict[str, Tensor] = {"x": cells(2, 5), "weight": cells(2, 3, 2), "bias": cells(3)}
OPERATORS: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {
    "max_pool": (POOLED, {"kernel_size": (2,)}),
    "avg_pool": (POOLED, {"kernel_size": (2,)}),
    "smooth_max_pool": ({"x": Tensor((2, 5), [1.0] * 10)}, {"kernel_size": (2,), "beta": 1.0}),
    "unfold": (POOLED, {"kernel_size": (2,)}),
    "fold": ({"x": cells(4, 4)}, {"kernel_size": (2,), "output_size": (5,)}),
    "conv": (CONVOLVED, {}),
    "conv_transpose": (CROPPED, {}),
    "adaptive_max_pool": (POOLED, {"output_size": (2,)}),
    "adaptive_avg_pool": (POOLED, {"output_size": (2,)}),
    "global_max_pool": (POOLED, {"rank": 1}),
    "global_avg_pool": (POOLED, {"rank": 1}),
    "max_unpool": ({"x": cells(2, 2)}, {"indices": [[0, 1], [2, 3]], "output_size": (5,)}),
    "max_gather": (POOLED, {"indices": [[0, 1], [2, 3]], "rank": 1}),
}
KERNELS = ("max_pool", "avg_pool", "smooth_max_pool", "unfold", "fold")
SLIDING = (*KERNELS, "conv", "conv_transpose")
CONVOLUTIONS = ("conv", "conv_transpose")
NO_STRINGS = tuple(name for name in SLIDING if name != "conv_transpose")
MAXIMA = ("max_pool", "adaptive_max_pool", "global_max_pool")
AVERAGES = ("avg_pool", "adaptive_avg_pool", "global_avg_pool")


def in_every_mode(
    operators: tuple[str, ...], error: type[Exception], patterns: tuple[str, ...], **changed: Any
) -> list:
    """The value, JVP and VJP of each operator with some arguments changed."""
    return [
        Mistake(
            f"{name}{mode}({', '.join(f'{k}={v!r}'[:40] for k, v in changed.items())})",
            lambda name=name, mode=mode: invoke(name, mode, changed),
            error,
            patterns,
        )
        for name in operators
        for mode in ("", "_jvp", "_vjp")
    ]


def invoke(name: str, mode: str, changed: dict[str, Any]) -> object:
    inputs, options = OPERATORS[name]
    inputs = {**inputs, **{k: v for k, v in changed.items() if k in inputs}}
    others = {**options, **{k: v for k, v in changed.items() if k not in inputs}}
    extra: dict[str, Any] = {}
    if mode == "_jvp":
        extra = {f"d{k}": v for k, v in inputs.items()}
    elif mode == "_vjp":
        extra = {"g": cells(1)}  # never reached: the mistake comes first
    return getattr(gs.spec, name + mode)(**{**inputs, **extra, **others})


WRONG_INTS = [
    # value, what the message says of it
    (0, "is 0; give an int of at least 1"),
    (-3, "is -3; give an int of at least 1"),
    (True, "is True, a bool; give an int of at least 1"),
    (1.0, "is 1.0, a float; give an int of at least 1"),
    ("2", "is '2', a str; give an int of at least 1"),
]

GEOMETRY = [
    *(
        mistake
        for value, says in WRONG_INTS
        for name, operators in (
            ("kernel_size", KERNELS),
            ("stride", SLIDING),
            ("dilation", SLIDING),
            ("output_size", ("adaptive_max_pool", "adaptive_avg_pool", "max_unpool", "fold")),
        )
        for mistake in in_every_mode(operators, SHAPE, (f"{name} on spatial axis 0", says), **{name: (value,)})
    ),
    *in_every_mode(CONVOLUTIONS, SHAPE, ("stride on spatial axis 0 is None", "give an int of at least 1"), stride=None),
    *in_every_mode(
        SLIDING, SHAPE, (r"stride=\(1, 1\) gives 2 entries for 1 spatial axes", "one per axis"), stride=(1, 1)
    ),
    *in_every_mode(SLIDING, SHAPE, (r"dilation=\(1, 1\) gives 2 entries", "one per axis"), dilation=(1, 1)),
    *in_every_mode(SLIDING, SHAPE, (r"padding=\(1, 1\) gives 2 entries", "one per axis"), padding=(1, 1)),
    *in_every_mode(SLIDING, SHAPE, ("padding on spatial axis 0 is -1", "an int of at least 0"), padding=-1),
    *in_every_mode(SLIDING, SHAPE, ("padding on spatial axis 0 is -2", "an int of at least 0"), padding=((0, -2),)),
    *in_every_mode(SLIDING, SHAPE, ("padding on spatial axis 0 is True, a bool", "an int"), padding=True),
    *in_every_mode(
        SLIDING, SHAPE, (r"padding on spatial axis 0 is \(1, 2, 3\)", r"a pair \(lo, hi\)"), padding=((1, 2, 3),)
    ),
    *in_every_mode(NO_STRINGS, SHAPE, ("padding='full' is not known", '"same", "valid"'), padding="full"),
    *in_every_mode(("conv_transpose",), SHAPE, ("padding='same' has no meaning", "cells to crop"), padding="same"),
    *in_every_mode(
        ("max_pool", "avg_pool", "smooth_max_pool", "unfold", "adaptive_max_pool", "global_avg_pool", *CONVOLUTIONS),
        SHAPE,
        ("spatial axis 0 has size 0", "at least one cell", "leading axes may be empty"),
        x=Tensor((2, 0), []),
    ),
    *in_every_mode(
        KERNELS,
        SHAPE,
        ("spatial axis 0: a window of 6 cells", "kernel 6, dilation 1", "padded axis of 5", "size 5", "smaller window"),
        kernel_size=(6,),
    ),
    *in_every_mode(
        (*KERNELS, "conv"),
        SHAPE,
        ("a window of 7 cells", "kernel 2, dilation 6", "padded axis of 6", "padding 0 and 1", "more padding"),
        dilation=6,
        padding=((0, 1),),
    ),
    *in_every_mode(
        ("max_pool", "avg_pool", "smooth_max_pool"),
        SHAPE,
        ("a window of 90 cells", "padded axis of 5"),
        kernel_size=(90,),
        stride=2,
        ceil_mode=True,
    ),
    *in_every_mode(
        KERNELS, SHAPE, ("kernel_size=2 does not say how many axes", r"a tuple", "1d, 2d or 3d"), kernel_size=2
    ),
    *in_every_mode(
        ("adaptive_max_pool", "adaptive_avg_pool", "max_unpool"),
        SHAPE,
        ("output_size=2 does not say how many axes", "a tuple", "1d, 2d or 3d"),
        output_size=2,
    ),
    *in_every_mode(
        ("global_max_pool", "global_avg_pool", "max_gather"), SHAPE, ("rank is -1; give an int of at least 0",), rank=-1
    ),
    *in_every_mode(("global_max_pool", "global_avg_pool", "max_gather"), SHAPE, ("rank is True, a bool",), rank=True),
    *in_every_mode(
        ("global_max_pool", "global_avg_pool"), SHAPE, ("rank is '1', a str; give an int",), rank="1", keepdims=False
    ),
    # wrong rank
    *in_every_mode(
        ("max_pool", "avg_pool", "smooth_max_pool"),
        SHAPE,
        (r"shape \(2, 5\) has 2 axes", "3 spatial axes need at least 3", r"lay it out as \(\.\.\., \*spatial\)"),
        kernel_size=(1, 1, 1),
    ),
    *in_every_mode(
        ("unfold",), SHAPE, ("2 spatial axes need at least 3", r"\(\.\.\., C, \*spatial\)"), kernel_size=(1, 1)
    ),
    *in_every_mode(CONVOLUTIONS, SHAPE, (r"shape \(5,\) has 1 axes", r"\(\.\.\., C, \*spatial\)"), x=cells(5)),
    *in_every_mode(("adaptive_max_pool", "adaptive_avg_pool"), SHAPE, ("need at least 3",), output_size=(1, 1, 1)),
    *in_every_mode(("global_max_pool", "global_avg_pool", "max_gather"), SHAPE, ("need at least 3",), rank=3),
    *in_every_mode(("max_unpool",), SHAPE, (r"shape \(2, 2\) has 2 axes", "need at least 3"), output_size=(5, 5, 5)),
]

# --- channels, groups, bias, output padding ---------------------------------------------------------------------------

CHANNELS = [
    *in_every_mode(
        ("conv",),
        SHAPE,
        (
            "x has 2 channels",
            r"weight of shape \(3, 4, 2\) with groups=1 reads 4",
            r"\(C_out, C_in / groups, \*kernel\)",
        ),
        weight=cells(3, 4, 2),
    ),
    *in_every_mode(
        ("conv",), SHAPE, ("x has 2 channels", "groups=2 reads 4"), weight=cells(4, 2, 2), bias=cells(4), groups=2
    ),
    *in_every_mode(
        ("conv_transpose",),
        SHAPE,
        ("x has 2 channels", r"weight of shape \(3, 2, 2\) reads 3", r"\(C_in, C_out / groups, \*kernel\)"),
        weight=cells(3, 2, 2),
    ),
    *in_every_mode(CONVOLUTIONS, SHAPE, ("groups=5 does not divide the 2 channels of x", "choose a divisor"), groups=5),
    *in_every_mode(
        ("conv",), SHAPE, ("groups=2 does not divide the 3 channels of weight",), weight=cells(3, 1, 2), groups=2
    ),
    *in_every_mode(CONVOLUTIONS, SHAPE, ("groups is 0; give an int of at least 1",), groups=0),
    *in_every_mode(CONVOLUTIONS, SHAPE, ("groups is True, a bool",), groups=True),
    *in_every_mode(CONVOLUTIONS, SHAPE, (r"bias has shape \(2,\)", r"per output channel, shape \(3,\)"), bias=cells(2)),
    *in_every_mode(CONVOLUTIONS, SHAPE, (r"bias has shape \(3, 1\)", r"shape \(3,\)"), bias=cells(3, 1)),
    *in_every_mode(CONVOLUTIONS, SHAPE, (r"the weight has shape \(3,\)", "two channel axes"), weight=cells(3)),
    *in_every_mode(("conv",), SHAPE, ("kernel_size on spatial axis 0 is 0",), weight=Tensor((3, 2, 0), [])),
    *in_every_mode(("conv_transpose",), SHAPE, ("kernel_size on spatial axis 0 is 0",), weight=Tensor((2, 3, 0), [])),
    *in_every_mode(
        ("conv_transpose",),
        SHAPE,
        ("spatial axis 0: output_padding 2 must be smaller than the stride 2 or the dilation 1",),
        output_padding=2,
        stride=2,
    ),
    *in_every_mode(("conv_transpose",), SHAPE, ("output_padding on spatial axis 0 is -1",), output_padding=-1),
    *in_every_mode(
        ("conv_transpose",),
        SHAPE,
        ("spatial axis 0: the transposed convolution would have 0 cells", "size 5", "padding 3 and 3", "less padding"),
        padding=3,
    ),
    Mistake(
        "more windows stated than fit",
        lambda: stated((5,), (2,), (1,), ((0, 0),), (1,), (5,)),
        SHAPE,
        ("spatial axis 0: 5 windows", "span 6 cells, but the padded axis has 5", "state fewer windows"),
    ),
    Mistake(
        "conv_jvp without the bias's tangent",
        lambda: gs.spec.conv_jvp([[1]], [[[1]]], [1], [[1]], [[[1]]], None),
        SHAPE,
        ("bias and its tangent go together", "None for both"),
    ),
    Mistake(
        "conv_transpose_jvp with a tangent of no bias",
        lambda: gs.spec.conv_transpose_jvp([[1]], [[[1]]], None, [[1]], [[[1]]], [1]),
        SHAPE,
        ("bias and its tangent go together", "None for both"),
    ),
]

# --- tangents and cotangents have the shape of what they belong to ---------------------------------------------------

X, IDX = np.ones((2, 5)), [[0, 1], [2, 3]]
W, B, V = np.ones((3, 2, 2)), np.ones(3), np.ones((2, 3, 2))


def wrong_shape(call: Callable[[], object], name: str, given: tuple, needed: tuple) -> Mistake:
    patterns = (rf"{name} has shape {re.escape(str(given))}", rf"{re.escape(str(needed))} is needed", "of that shape")
    return Mistake(f"{name} of shape {given} for {needed}", call, SHAPE, patterns)


DERIVATIVES = [
    *(
        wrong_shape(lambda f=f, o=o: getattr(gs.spec, f"{f}_jvp")(X, np.ones((2, 4)), **o), "tangent", (2, 4), (2, 5))
        for f, o in [
            ("max_pool", {"kernel_size": (2,)}),
            ("avg_pool", {"kernel_size": (2,)}),
            ("smooth_max_pool", {"kernel_size": (2,), "beta": 1.0}),
            ("adaptive_max_pool", {"output_size": (2,)}),
            ("adaptive_avg_pool", {"output_size": (2,)}),
            ("global_max_pool", {"rank": 1}),
            ("global_avg_pool", {"rank": 1}),
            ("unfold", {"kernel_size": (2,)}),
        ]
    ),
    *(
        wrong_shape(lambda f=f, o=o: getattr(gs.spec, f"{f}_vjp")(X, np.ones((2, 9)), **o), "cotangent", (2, 9), needed)
        for f, o, needed in [
            ("max_pool", {"kernel_size": (2,)}, (2, 2)),
            ("avg_pool", {"kernel_size": (2,)}, (2, 2)),
            ("smooth_max_pool", {"kernel_size": (2,), "beta": 1.0}, (2, 2)),
            ("adaptive_max_pool", {"output_size": (3,)}, (2, 3)),
            ("adaptive_avg_pool", {"output_size": (3,)}, (2, 3)),
            ("global_max_pool", {"rank": 1}, (2, 1)),
            ("global_avg_pool", {"rank": 1}, (2, 1)),
            ("unfold", {"kernel_size": (2,)}, (4, 4)),
        ]
    ),
    wrong_shape(lambda: gs.spec.global_max_pool_vjp(X, np.ones(9), 1, False), "cotangent", (9, 1), (2, 1)),
    wrong_shape(lambda: gs.spec.fold_jvp(np.ones((4, 4)), np.ones((4, 3)), (5,), (2,)), "tangent", (4, 3), (4, 4)),
    wrong_shape(lambda: gs.spec.fold_vjp(np.ones((4, 4)), np.ones((2, 4)), (5,), (2,)), "cotangent", (2, 4), (2, 5)),
    wrong_shape(lambda: gs.spec.max_unpool_jvp(IDX, IDX, X, (5,)), "tangent", (2, 5), (2, 2)),
    wrong_shape(lambda: gs.spec.max_unpool_vjp(IDX, IDX, X, (6,)), "cotangent", (2, 5), (2, 6)),
    wrong_shape(lambda: gs.spec.max_gather_jvp(X, IDX, IDX, 1), "tangent", (2, 2), (2, 5)),
    wrong_shape(lambda: gs.spec.max_gather_vjp(X, IDX, X, 1), "cotangent", (2, 5), (2, 2)),
    wrong_shape(lambda: gs.spec.conv_jvp(X, W, B, X[:1], W, B), "tangent of x", (1, 5), (2, 5)),
    wrong_shape(lambda: gs.spec.conv_jvp(X, W, B, X, V, B), "tangent of weight", (2, 3, 2), (3, 2, 2)),
    wrong_shape(lambda: gs.spec.conv_jvp(X, W, B, X, W, B[:2]), "tangent of bias", (2,), (3,)),
    wrong_shape(lambda: gs.spec.conv_vjp(X, W, B, X), "cotangent", (2, 5), (3, 4)),
    wrong_shape(lambda: gs.spec.conv_transpose_jvp(X, V, B, X[:1], V, B), "tangent of x", (1, 5), (2, 5)),
    wrong_shape(lambda: gs.spec.conv_transpose_jvp(X, V, B, X, W, B), "tangent of weight", (3, 2, 2), (2, 3, 2)),
    wrong_shape(lambda: gs.spec.conv_transpose_jvp(X, V, B, X, V, B[:2]), "tangent of bias", (2,), (3,)),
    wrong_shape(lambda: gs.spec.conv_transpose_vjp(X, V, B, X), "cotangent", (2, 5), (3, 6)),
    wrong_shape(lambda: gs.spec.smooth_max_pool_jvp_jvp(X, X[:1], X, (2,), beta=1.0), "first tangent", (1, 5), (2, 5)),
    wrong_shape(lambda: gs.spec.smooth_max_pool_jvp_jvp(X, X, X[:1], (2,), beta=1.0), "second tangent", (1, 5), (2, 5)),
    wrong_shape(lambda: gs.spec.smooth_max_pool_jvp_vjp(X, X[:1], X, (2,), beta=1.0), "tangent", (1, 5), (2, 5)),
    wrong_shape(lambda: gs.spec.smooth_max_pool_jvp_vjp(X, X, X, (2,), beta=1.0), "cotangent", (2, 5), (2, 2)),
    wrong_shape(lambda: gs.interval.tensor([1, 2], [3]), "upper", (1,), (2,)),
    wrong_shape(lambda: gs.dual(gs.exact).tensor([1, 2], [3]), "tangent", (1,), (2,)),
]

# --- other arguments of operators ------------------------------------------------------------------------------------

ARGUMENTS = [
    *in_every_mode(MAXIMA, ValueError, ("ties='last' is not known", '"first"', '"all" or "split"'), ties="last"),
    *(
        mistake
        for value in (0, 0.0, Fraction(0), True, "2", np.int64(0))
        for mistake in in_every_mode(
            ("avg_pool",),
            SHAPE,
            (
                re.escape(f"divisor_override={value!r}"),
                "not a number other than 0",
                "None to divide by the window's size",
            ),
            divisor_override=value,
        )
    ),
    *(
        mistake
        for value in (0, 0.0, NAN, INF, -INF, "1", None, True)
        for mistake in in_every_mode(
            ("smooth_max_pool",),
            ValueError,
            (re.escape(f"beta={value!r}"), "a finite number other than 0", r"such as beta=1\.0"),
            beta=value,
        )
    ),
    *(
        Mistake(
            f"beta={beta} in {domain}",
            lambda beta=beta, domain=domain: gs.spec.smooth_max_pool(domain.tensor([1]), (1,), beta=beta),
            ValueError,
            (re.escape(f"beta={beta!r} becomes {rounded}"), "choose a beta it can hold"),
        )
        for beta, domain, rounded in [
            (1e-30, gs.ieee("f16"), "0.0"),
            (1e6, gs.ieee("f16"), "inf"),
            (1e300, gs.ieee("f32"), "inf"),
        ]
    ),
    *in_every_mode(
        ("smooth_max_pool",),
        ValueError,
        ("padding_mode='reflect' is not known", '"zeros"', '"ignore"'),
        padding_mode="reflect",
    ),
    *(
        Mistake(
            f"{dtype.__name__} {name}{mode}",
            lambda name=name, mode=mode, dtype=dtype: getattr(gs.spec, name + mode)(
                np.ones((2, 2), dtype), *[np.ones((2, 2))] * bool(mode), **OPERATORS[name][1]
            ),
            DTYPE,
            ("divides", dtype.__name__, "cannot hold the quotient", "floating-point dtype", "number system"),
        )
        for dtype in (np.int8, np.uint8, np.int32, np.int64)
        for name in (*AVERAGES, "smooth_max_pool")
        for mode in ("", "_jvp", "_vjp")
    ),
    Mistake(
        "an integer cotangent",
        lambda: gs.spec.avg_pool_vjp([1.0, 2.0], np.array([1]), (2,)),
        DTYPE,
        ("average pooling divides", "int64", "floating-point dtype"),
    ),
    Mistake(
        "an integer tangent",
        lambda: gs.spec.avg_pool_jvp([1.0, 2.0], np.array([1, 2]), (2,)),
        DTYPE,
        ("average pooling divides", "int64", "floating-point dtype"),
    ),
    *in_every_mode(
        ("max_unpool", "max_gather"),
        SHAPE,
        (r"indices have shape \(3, 2\)", r"\(2, 2\) is needed"),
        indices=[[0, 1]] * 3,
    ),
    *in_every_mode(
        ("max_unpool", "max_gather"),
        SHAPE,
        (r"index 5 lies outside the plane \(5,\)", "0 to 4, or -1"),
        indices=[[0, 5], [0, 0]],
    ),
    *in_every_mode(
        ("max_unpool", "max_gather"), SHAPE, ("an index is -2; give an int of at least -1",), indices=[[0, -2], [0, 0]]
    ),
    *in_every_mode(("max_unpool", "max_gather"), SHAPE, ("an index is 1.0, a float",), indices=[[0, 1.0], [0, 0]]),
    *(
        Mistake(
            f"fold{mode} of columns {shape}",
            lambda mode=mode, shape=shape: invoke("fold", mode, {"x": cells(*shape)}),
            SHAPE,
            (
                rf"columns of shape {re.escape(str(shape))} do not fold onto \(5,\)",
                r"\(\.\.\., C·2, 4\)",
                "2 taps and 4 windows",
            ),
        )
        for mode in ("", "_jvp", "_vjp")
        for shape in ((3, 4), (4, 3), (4,))
    ),
]

# --- tensors, windows and the ranked names ---------------------------------------------------------------------------

TENSORS = [
    Mistake(
        "ragged rows",
        lambda: gs.spec.tensor([[1], [1, 2]]),
        SHAPE,
        (r"\[\(1,\), \(2,\)\]", "every row the same length"),
    ),
    Mistake("rows and numbers", lambda: gs.spec.tensor([1, [2]]), SHAPE, ("rows of different shapes", "same length")),
    Mistake("None", lambda: gs.spec.tensor(None), DTYPE, ("None is not a tensor", "list or an array")),
    *(
        Mistake(
            f"bool array of {name}",
            lambda name=name: getattr(gs.spec, name)(np.ones((2, 2), bool), **OPERATORS[name][1]),
            DTYPE,
            ("array of bool", "add up", "convert"),
        )
        for name in AVERAGES
    ),
    Mistake(
        "argument of a 2d name",
        lambda: gs.spec.max_pool2d([[1]], 1, kernel=1),
        TypeError,
        (r"^max_pool2d\(\) got an unexpected keyword argument 'kernel'",),
    ),
    Mistake("too few scalars", lambda: Tensor((2, 2), [1]), SHAPE, ("1 scalars", r"shape \(2, 2\), which holds 4")),
    Mistake("reshape", lambda: Tensor((2,), [1, 2]).reshape(3), SHAPE, ("2 scalars", r"shape \(3,\), which holds 3")),
    Mistake("index", lambda: Tensor((2, 2), [1] * 4)[0, 2], IndexError, (r"index \(0, 2\)", r"shape \(2, 2\)")),
    Mistake("short index", lambda: Tensor((2, 2), [1] * 4)[0], IndexError, (r"index \(0,\)", r"shape \(2, 2\)")),
    Mistake(
        "adaptive",
        lambda: gs.spec.adaptive((3, 3), (2,)),
        SHAPE,
        ("gives 1 entries for 2 spatial axes", "one per axis"),
    ),
    Mistake(
        "2d kernel",
        lambda: gs.spec.max_pool2d([[1]], (1,)),
        SHAPE,
        (r"max_pool2d: kernel_size=\(1,\)", "one int, or 2"),
    ),
    Mistake(
        "3d output",
        lambda: gs.spec.adaptive_avg_pool3d([[[1]]], (1, 1)),
        SHAPE,
        ("adaptive_avg_pool3d", "or 3 of them"),
    ),
    Mistake(
        "2d weight",
        lambda: gs.spec.conv2d([[[1]]], [[[1]]]),
        SHAPE,
        (r"conv2d: the weight has shape \(1, 1, 1\)", "two channel axes and 2 kernel axes"),
    ),
    Mistake("no such operator", lambda: gs.spec.max_pool4d, AttributeError, ("gradspec.spec", "max_pool4d")),
    Mistake("no such name", lambda: gs.nothing, AttributeError, ("gradspec", "nothing")),
]

# --- number systems ---------------------------------------------------------------------------------------------------

TRANSCENDENTAL = (exp, log, log1p, tanh, sin, cos, atan, erf, normal_cdf, normal_density)
WIDE = gs.interval.tensor([0, 1], [2, 3])

SYSTEMS = [
    Mistake(
        "NaN as a rational", lambda: gs.exact.scalar(NAN), UNSUPPORTED, ("nan is not a rational", r"gs\.ieee\('f64'\)")
    ),
    Mistake(
        "infinity as a rational", lambda: gs.exact.tensor([1, INF]), UNSUPPORTED, ("inf is not a rational", r"gs\.ieee")
    ),
    Mistake("a numeral", lambda: gs.exact.scalar("one"), DTYPE, ("'one', a str", r'"1/3" or "0\.1"')),
    Mistake("no number", lambda: gs.exact.scalar(None), DTYPE, ("None, a NoneType", "an int, a float, a Fraction")),
    Mistake(
        "a ball as a rational", lambda: gs.exact.scalar(arb(1) / 3), UNSUPPORTED, ("is a ball", r"gs\.ball\(bits\)")
    ),
    Mistake(
        "a Ball as a rational",
        lambda: gs.exact.scalar(gs.ball(9).scalar("1/3")),
        UNSUPPORTED,
        ("single number", r"\.mid\(\)"),
    ),
    Mistake(
        "an interval as a rational", lambda: gs.exact.scalar(WIDE[0]), UNSUPPORTED, (r"\[0\.0, 2\.0\]", r"\.lo, \.hi")
    ),
    Mistake(
        "an interval as a float", lambda: float(WIDE[0]), ValueError, (r"\[0\.0, 2\.0\]", r"\.lo, \.hi or \.width")
    ),
    *(
        Mistake(
            f"{function.__name__} of {kind}",
            lambda function=function, x=x: function(x),
            UNSUPPORTED,
            (f"{function.__name__}.*1/2", "not a rational number", r"gs\.ball\(128\)", r"gs\.ieee\('f64'\)"),
        )
        for function in TRANSCENDENTAL
        for kind, x in (("a Fraction", Fraction(1, 2)), ("a rational", gs.exact.scalar("1/2")))
    ),
    Mistake(
        "smooth max of rationals",
        lambda: gs.spec.smooth_max_pool(gs.exact.tensor([1, 2]), (2,), beta=1),
        UNSUPPORTED,
        (r"exp\(-1\) is not a rational", r"gs\.ball\(128\)"),
    ),
    Mistake(
        "smooth max of Fractions",
        lambda: gs.spec.smooth_max_pool([Fraction(1), Fraction(2)], (2,), beta=1),
        UNSUPPORTED,
        ("exp of the rational -1", r"gs\.ball\(128\)", "float"),
    ),
    *(
        Mistake(
            f"{function.__name__} of a complex number",
            lambda function=function, constants=constants: function(1j, *constants),
            UNSUPPORTED,
            (f"{function.__name__} is not defined on complex", r"gs\.ieee", r"gs\.ball", r"gs\.interval"),
        )
        for function, *constants in (*((f,) for f in TRANSCENDENTAL), (sqrt,), (power, 2), (floor,), (nearest_integer,))
    ),
    Mistake(
        "a root that is no rational",
        lambda: sqrt(gs.exact.scalar(2)),
        UNSUPPORTED,
        (r"sqrt\(2\) is not a rational number", r"gs\.ball\(128\)"),
    ),
    Mistake(
        "0 to a negative power",
        lambda: power(Fraction(0), -1),
        ZeroDivisionError,
        ("0 to the power -1", "division by zero"),
    ),
    Mistake(
        "log1p below minus one",
        lambda: log1p(Interval(-2.0, 1.0)),
        ValueError,
        (r"log1p of \[-2\.0, 1\.0\]", "not real", "narrow"),
    ),
    Mistake(
        "root below zero",
        lambda: sqrt(Interval(-1.0, 1.0)),
        ValueError,
        (r"\[-1\.0, 1\.0\] to the power 1/2", "not real", "narrow"),
    ),
    Mistake(
        "negative power of an interval with zero",
        lambda: power(Interval(-1.0, 1.0), -1),
        ZeroDivisionError,
        (r"\[-1\.0, 1\.0\] to the power -1", "contains zero", "narrow"),
    ),
    Mistake(
        "hull of floats",
        lambda: hull(1.0, 2.0),
        UNSUPPORTED,
        ("float is not an enclosure", r"gs\.interval or gs\.ball"),
    ),
    Mistake(
        "NaN in an interval", lambda: gs.interval.scalar(NAN), ValueError, ("NaN is not in any interval", r"gs\.ieee")
    ),
    Mistake(
        "NaN as an end", lambda: Interval(NAN, 1.0), ValueError, (r"\[nan, 1\.0\] is no interval", "lower one first")
    ),
    Mistake("ends swapped", lambda: gs.interval.tensor([2], [1]), ValueError, (r"\[2\.0, 1\.0\]", "lower one first")),
    Mistake(
        "division by an interval with zero",
        lambda: gs.interval.scalar(1) / Interval(-1.0, 1.0),
        ZeroDivisionError,
        (r"\[1\.0, 1\.0\] / \[-1\.0, 1\.0\]", "contains zero", "narrow"),
    ),
    Mistake(
        "log below zero",
        lambda: log(Interval(-1.0, 1.0)),
        ValueError,
        (r"log of \[-1\.0, 1\.0\]", "not real", "narrow"),
    ),
    *(
        Mistake(f"NaN ball: {what}", make, ValueError, ("a ball became NaN", "proves nothing", r"gs\.ieee"))
        for what, make in {
            "NaN": lambda: gs.ball(53).scalar(NAN),
            "1/0": lambda: gs.ball(53).scalar(1) / 0,
            "0·∞": lambda: gs.ball(53).scalar(0) * INF,
            "∞−∞": lambda: gs.ball(53).scalar(INF) - INF,
            "log": lambda: log(gs.ball(53).scalar(-1)),
            "arb": lambda: Ball(arb("nan"), 53),
        }.items()
    ),
    *(
        Mistake(
            f"ball({bits!r})",
            lambda bits=bits: gs.ball(bits),
            ValueError,
            (re.escape(f"ball({bits!r})"), "at least 2", r"ball\(128\)"),
        )
        for bits in (1, 0, 64.0, True, "64")
    ),
    Mistake("format", lambda: gs.ieee("f8"), ValueError, ("'f8' is not known", "f16, bf16, f32, f64", "or a Format")),
    Mistake("accumulator", lambda: gs.ieee("f16", accumulate="f31"), ValueError, ("'f31' is not known",)),
    Mistake(
        "long format",
        lambda: gs.ieee(Format("x", 40, 127)),
        UNSUPPORTED,
        ("precision=40", "at most 25 bits", r"gs\.ball"),
    ),
    Mistake("wide format", lambda: gs.ieee(Format("x", 8, 999)), UNSUPPORTED, ("emax=999", "at most 255")),
    Mistake(
        "two formats",
        lambda: gs.ieee("f16").scalar(1) + gs.ieee("f32").scalar(1),
        TypeError,
        (r"gs\.ieee\('f16'\) and gs\.ieee\('f32'\) do not mix", "convert one"),
    ),
    Mistake("dual over a number", lambda: gs.dual(1), TypeError, (r"dual\(1\)", r"gs\.dual\(gs\.exact\)")),
    *(
        Mistake(
            f"a plain {domain} and a dual one",
            lambda domain=domain: domain.scalar(1) * gs.dual(domain).scalar(1),
            DTYPE,
            ("a Dual", "one number system"),
        )
        for domain in (gs.interval, gs.ball(53), gs.ieee("f32"))
    ),
    *(
        Mistake(
            f"strict {mode} of overlapping intervals",
            lambda mode=mode, other=other: getattr(gs.spec, f"max_pool_{mode}")(WIDE, other, (2,), strict=True),
            gs.AmbiguityError,
            ("cells 0, 1 of a window may each win", "narrower enclosures", "leave out strict=True"),
        )
        for mode, other in (("jvp", WIDE), ("vjp", gs.interval.tensor([1])))
    ),
    Mistake(
        "indices of overlapping intervals",
        lambda: gs.spec.max_pool(WIDE, (2,), return_indices=True),
        gs.AmbiguityError,
        ("cells 0, 1 of a window may each win", "narrower enclosures", "without its index"),
    ),
]

SPECIFICATION = (
    "__init__",
    "conv",
    "pool",
    "ranked",
    "scalar",
    "smooth_pool",
    "tensor",
    "unfold",
    "unpool",
    "window",
)
"""The modules whose errors are all in the table, besides those of the number systems."""

MISTAKES = [*GEOMETRY, *CHANNELS, *DERIVATIVES, *ARGUMENTS, *TENSORS, *SYSTEMS]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_the_error_and_what_it_says(mistake: Mistake) -> None:
    with pytest.raises(mistake.error) as caught:
        mistake.call()
    assert type(caught.value) is mistake.error
    for pattern in mistake.patterns:
        assert re.search(pattern, str(caught.value)), f"{pattern!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_calls_are_right_but_for_the_mistake(name: str) -> None:
    """With numbers in place of untouchable cells and nothing changed, value and JVP run."""
    inputs, options = OPERATORS[name]
    numbers = {k: Tensor(v.shape, [1.0] * len(v.cells)) for k, v in inputs.items()}
    getattr(gs.spec, name)(**numbers, **options)
    getattr(gs.spec, f"{name}_jvp")(**numbers, **{f"d{k}": v for k, v in numbers.items()}, **options)


def test_errors_belong_to_the_families_python_users_expect() -> None:
    assert issubclass(gs.ShapeError, ValueError)
    assert issubclass(gs.DTypeError, TypeError)
    assert issubclass(gs.UnsupportedError, NotImplementedError)
    assert issubclass(gs.AmbiguityError, ValueError)


def test_every_raise_is_in_the_table() -> None:
    package = Path(gs.__file__).parent
    raises = {
        (str(file), node.lineno)
        for file in (*(package / "domains").glob("*.py"), *(package / "spec" / f"{name}.py" for name in SPECIFICATION))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Raise)
    }
    reached = set()
    for mistake in MISTAKES:
        try:
            mistake.call()
        except mistake.error as error:
            reached |= {(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)}
    assert raises - reached == set()

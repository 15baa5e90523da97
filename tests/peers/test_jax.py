"""Agreement with JAX in four dimensions, where PyTorch stops: asymmetric padding, dilation, groups, output padding."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from math import inf, lcm, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from peers.agreement import MODES, Pair, Peer, check_selection, check_sum, reals, whole_numbers

RANK = 4
SIZES = (4, 3, 5, 3)
PLANES = (1, 2)
SPATIAL = tuple(range(-RANK, 0))

Options = Mapping[str, Any]
Function = Callable[..., Any]


# Compiling takes all the time, so each derivative is compiled once per function, whole and unoptimised.
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@cache
def compiled_call(function: Function) -> Function:
    return compiled(function)


@cache
def compiled_jvp(function: Function) -> Function:
    return compiled(lambda primals, tangents: jax.jvp(function, primals, tangents))


@cache
def compiled_vjp(function: Function) -> Function:
    return compiled(lambda primals, g: jax.vjp(function, *primals)[1](g))


JAX = Peer(
    jnp.asarray,
    call=lambda f, *primals: compiled_call(f)(*primals),
    jvp=lambda f, primals, tangents: compiled_jvp(f)(primals, tangents),
    vjp=lambda f, *primals: (None, lambda g: compiled_vjp(f)(primals, g)),
)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def every(table: Mapping[str, Options]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("options", table.values(), ids=table)


# --- pooling ----------------------------------------------------------------------------------------------------------

POOLS: dict[str, Options] = {
    "stride defaults to the kernel": {"kernel_size": (2, 1, 2, 3)},
    "overlapping, strides differ": {"kernel_size": (2, 2, 3, 1), "stride": (1, 1, 2, 3)},
    "same, strides differ": {"kernel_size": (2, 1, 4, 2), "stride": (3, 2, 3, 1), "padding": "same"},
    "asymmetric padding": {
        "kernel_size": (2, 2, 3, 2),
        "stride": (2, 1, 3, 2),
        "padding": ((1, 0), (0, 1), (2, 0), (1, 1)),
    },
}
DILATED: dict[str, Options] = {
    "dilation": {"kernel_size": (2, 2, 2, 1), "stride": (1, 1, 2, 1), "dilation": (3, 1, 2, 1)},
    "dilation, same": {
        "kernel_size": (2, 2, 3, 2),
        "stride": (1, 2, 3, 1),
        "dilation": (2, 1, 2, 2),
        "padding": "same",
    },
    "dilation and asymmetric padding": {
        "kernel_size": (2, 2, 2, 2),
        "stride": (1, 2, 1, 1),
        "padding": ((0, 1), (1, 0), (0, 0), (1, 0)),
        "dilation": (2, 2, 3, 2),
    },
}
PADDED_WIDE: dict[str, Options] = {
    "padding wider than the kernel": {"kernel_size": (1, 2, 2, 2), "stride": (2, 2, 3, 1), "padding": ((2, 1),) * RANK},
}


def distinct() -> np.ndarray:
    return np.random.default_rng(0).permutation(prod(PLANES + SIZES)).reshape(*PLANES, *SIZES) - 9.5


def per_axis(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * RANK


def reduce_window(x: jax.Array, options: Options, initial: float, combine: Any) -> jax.Array:
    padding = options.get("padding", "valid")
    return lax.reduce_window(
        x,
        initial,
        combine,
        (1, 1, *options["kernel_size"]),
        (1, 1, *per_axis(options.get("stride", options["kernel_size"]))),
        padding.upper() if isinstance(padding, str) else ((0, 0), (0, 0), *padding),
        window_dilation=(1, 1, *per_axis(options.get("dilation", 1))),
    )


def windows(x: jax.Array, options: Options) -> jax.Array:
    """``(*lead, *outputs, *kernel)``, gathered from planes padded with −∞."""
    kernel, dilation = options["kernel_size"], per_axis(options.get("dilation", 1))
    stride, padding = per_axis(options.get("stride", kernel)), options.get("padding", "valid")
    widths = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(SIZES, widths, stride, padding.upper())
    padded = jnp.pad(x, ((0, 0), (0, 0), *padding), constant_values=-inf)
    places = []
    for axis, (n, w, k, s, d) in enumerate(zip(padded.shape[2:], widths, kernel, stride, dilation, strict=True)):
        starts, taps = np.arange(0, n - w + 1, s), np.arange(k) * d
        others = [i for i in range(2 * RANK) if i not in (axis, RANK + axis)]
        places.append(np.expand_dims(np.add.outer(starts, taps), others))
    return padded[(..., *places)]


@every(POOLS | DILATED)
def test_maximum_without_ties(options):
    def theirs(x: jax.Array) -> jax.Array:
        return reduce_window(x, options, -inf, lax.max)

    offered = ("value", "jvp") if "dilation" in options else MODES  # a dilated maximum has no transpose in JAX
    check_selection(JAX, Pair("max_pool", options, theirs, (distinct(),)), *offered)


@every(POOLS | DILATED)
def test_maximum_with_split_ties(options):
    """JAX shares the derivative of ``max`` evenly among equal cells; multiples of every count divide exactly."""
    x = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (*PLANES, *SIZES))

    def theirs(x: jax.Array) -> jax.Array:
        return jnp.max(windows(x, options), axis=SPATIAL)

    every_count = range(1, prod(options["kernel_size"]) + 1)
    pair = Pair("max_pool", {**options, "ties": "split"}, theirs, (x,))
    check_selection(JAX, pair, *MODES, multiples_of=lcm(*every_count))


DIVISORS = {"taps": {}, "real cells": {"count_include_pad": False}, "given": {"divisor_override": 5}}


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        pytest.param(options, counted, id=f"{name}, {counted}")
        for name, options in (POOLS | DILATED | PADDED_WIDE).items()
        for counted in (DIVISORS if "padding" in options else ["taps"])
    ],
)
def test_average(options, counted):
    def theirs(x: jax.Array) -> jax.Array:
        cells = reduce_window(jnp.ones_like(x), options, 0.0, lax.add)
        divisor = {"taps": prod(options["kernel_size"]), "real cells": jnp.maximum(cells, 1), "given": 5}[counted]
        return reduce_window(x, options, 0.0, lax.add) / divisor

    check_sum(JAX, Pair("avg_pool", {**options, **DIVISORS[counted]}, theirs, (reals(*PLANES, *SIZES),)), *MODES)


@pytest.mark.parametrize("keepdims", [True, False], ids=["kept", "flat"])
def test_global_pooling(keepdims):
    attributes, spread = {"rank": RANK, "keepdims": keepdims}, {"axis": SPATIAL, "keepdims": keepdims}
    check_selection(JAX, Pair("global_max_pool", attributes, partial(jnp.max, **spread), (distinct(),)), *MODES)
    check_sum(JAX, Pair("global_avg_pool", attributes, partial(jnp.mean, **spread), (distinct(),)), *MODES)


# --- convolution ------------------------------------------------------------------------------------------------------

SHAPES = {"lead": (2,), "channels": 2, "outputs": 4, "kernel": (2, 1, 3, 2), "bias": True}
CONVS: dict[str, Options] = {
    "valid, strides differ": {"padding": "valid", "stride": (2, 1, 1, 3)},
    "asymmetric padding": {"padding": ((1, 0), (0, 1), (0, 2), (1, 1))},
    "dilation, no bias": {"dilation": (3, 1, 2, 2), "bias": False},
    "same, strides differ": {"padding": "same", "stride": (3, 2, 2, 1), "dilation": (2, 1, 1, 2)},
    "groups": {"channels": 4, "groups": 2, "stride": (1, 2, 1, 1), "padding": ((0, 1), (0, 0), (1, 0), (0, 0))},
    "depthwise": {"groups": 2, "outputs": 2, "dilation": (1, 1, 2, 1)},
    "empty batch": {"lead": (0,)},
}
TRANSPOSED: dict[str, Options] = {
    **{name: options for name, options in CONVS.items() if not isinstance(options.get("padding"), str)},
    "output padding": {
        "stride": (2, 3, 1, 2),
        "padding": ((1, 0), (0, 1), (2, 1), (0, 0)),
        "output_padding": (1, 2, 0, 1),
    },
    "output padding beyond the stride": {"stride": 1, "dilation": (3, 1, 2, 1), "output_padding": (2, 0, 1, 0)},
}


def plus_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    return y if bias is None else y + bias.reshape(-1, *(1,) * RANK)


def jax_conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Any = 1,
    padding: Any = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> jax.Array:
    y = lax.conv_general_dilated(
        x,
        weight,
        per_axis(stride),
        padding.upper() if isinstance(padding, str) else padding,
        rhs_dilation=per_axis(dilation),
        feature_group_count=groups,
    )
    return plus_bias(y, bias)


def jax_conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Any = 1,
    padding: Any = ((0, 0),) * RANK,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> jax.Array:
    """A convolution of the stride-dilated input with the flipped kernel, padded by what the kernel overhangs."""
    kernel, spread, extra = weight.shape[2:], per_axis(dilation), per_axis(output_padding)
    overhang = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
    pads = [(o - lo, o - hi + e) for o, (lo, hi), e in zip(overhang, padding, extra, strict=True)]
    by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
    flipped = jnp.flip(by_group.reshape(-1, weight.shape[0] // groups, *kernel), range(2, 2 + RANK))
    y = lax.conv_general_dilated(x, flipped, (1,) * RANK, pads, per_axis(stride), spread, feature_group_count=groups)
    return plus_bias(y, bias)


def convolution(operator: str, options: Options) -> Pair:
    shapes = {name: options.get(name, default) for name, default in SHAPES.items()}
    attributes = {name: value for name, value in options.items() if name not in SHAPES}
    channels, outputs, groups = shapes["channels"], shapes["outputs"], options.get("groups", 1)
    between = (outputs, channels // groups) if operator == "conv" else (channels, outputs // groups)
    inputs = (
        reals(*shapes["lead"], channels, *SIZES, seed=1),
        reals(*between, *shapes["kernel"], seed=2),
        reals(outputs, seed=3) if shapes["bias"] else None,
    )
    theirs = jax_conv if operator == "conv" else jax_conv_transpose
    return Pair(operator, attributes, partial(theirs, **attributes), inputs)


@every(CONVS)
def test_convolution(options):
    check_sum(JAX, convolution("conv", options), *MODES)


@every(TRANSPOSED)
def test_transposed_convolution(options):
    check_sum(JAX, convolution("conv_transpose", options), *MODES)


@every(DILATED | PADDED_WIDE)
def test_unfold(options):
    """``conv_general_dilated_patches`` multiplies by ones and zeros, which is exact."""
    attributes = {"stride": options["kernel_size"], "padding": "valid", "dilation": 1, **options}

    def theirs(x: jax.Array) -> jax.Array:
        padding = attributes["padding"]
        patches = lax.conv_general_dilated_patches(
            x,
            attributes["kernel_size"],
            per_axis(attributes["stride"]),
            padding.upper() if isinstance(padding, str) else padding,
            rhs_dilation=per_axis(attributes["dilation"]),
        )
        return patches.reshape(*patches.shape[:2], -1)

    check_selection(JAX, Pair("unfold", attributes, theirs, (whole_numbers(*PLANES, *SIZES),)), *MODES)

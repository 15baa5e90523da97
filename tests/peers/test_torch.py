"""Agreement with PyTorch in one, two and three dimensions.

A case is written for three axes and cut to the rank under test, so every option is tested at every rank.
Where PyTorch has no such operator (dilated averages, smooth maxima, unfolding on one and three axes), the reference is
built on its strided windows, ``Tensor.unfold``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from gradspec import spec
from peers.agreement import (
    MODES,
    UNIT_ROUNDOFF,
    Pair,
    Peer,
    assert_identical,
    check_selection,
    check_sum,
    check_within,
    directions,
    plain,
    reals,
    whole_numbers,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel lengths:UserWarning",  # about speed
)

TORCH = Peer(torch.from_numpy, lambda f, *primals: f(*primals), torch.func.jvp, torch.func.vjp)
PLANES = (1, 2)
SIZES = (7, 6, 5)

Options = Mapping[str, Any]

every_mode = pytest.mark.parametrize("mode", MODES)
every_rank = pytest.mark.parametrize("rank", [1, 2, 3])
every_lead = pytest.mark.parametrize("lead", [(2,), (0, 2)], ids=["no batch", "empty batch"])
every_keepdims = pytest.mark.parametrize("keepdims", [True, False], ids=["kept", "flat"])


def every(*tables: tuple[str, Mapping[str, Options]]) -> pytest.MarkDecorator:
    cases = [pytest.param(op, options, id=f"{op}: {name}") for op, table in tables for name, options in table.items()]
    return pytest.mark.parametrize(("operator", "options"), cases)


def cut(options: Options, rank: int) -> dict[str, Any]:
    """Options written for three axes, for the first ``rank`` of them."""
    return {name: value[:rank] if isinstance(value, tuple) else value for name, value in options.items()}


def torch_operator(name: str, rank: int) -> Callable[..., Any]:
    return getattr(functional, f"{name}{rank}d")


def pooling(operator: str, options: Options, rank: int, x: np.ndarray) -> Pair:
    attributes = cut(options, rank)
    return Pair(operator, attributes, partial(torch_operator(operator, rank), **attributes), (x,))


def global_pooling(reduction: str, keepdims: bool, rank: int, x: np.ndarray) -> Pair:
    def theirs(x: torch.Tensor) -> torch.Tensor:
        y = torch_operator(f"adaptive_{reduction}_pool", rank)(x, (1,) * rank)
        return y if keepdims else y.reshape(x.shape[:-rank])

    return Pair(f"global_{reduction}_pool", {"rank": rank, "keepdims": keepdims}, theirs, (x,))


def windows(x: torch.Tensor, options: Options, fill: float = 0.0, beyond: float = 0.0) -> torch.Tensor:
    """``(*lead, *outputs, *kernel)``, padded with ``fill``; ``beyond`` fills what ceil_mode reads past the padding."""
    kernel = options["kernel_size"]
    rank, sizes = len(kernel), x.shape[-len(kernel) :]
    stride, padding, dilation = (
        value if isinstance(value, tuple) else (value,) * rank
        for value in (options.get("stride", kernel), options.get("padding", 0), options.get("dilation", 1))
    )
    x = functional.pad(x, [p for p in reversed(padding) for _ in ("lo", "hi")], value=fill)
    if options.get("ceil_mode", False):
        x = functional.pad(x, [side for s in reversed(stride) for side in (0, s - 1)], value=beyond)
    axes = range(x.ndim - rank, x.ndim)
    for axis, n, k, s, p, d in zip(axes, sizes, kernel, stride, padding, dilation, strict=True):
        starting_inside = -(-(n + p) // s)
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        x = x.narrow(axis, 0, min(x.shape[axis], starting_inside))
    return x


WINDOWS: dict[str, Options] = {
    "stride defaults to the kernel": {"kernel_size": (3, 2, 2)},
    "overlapping, strides differ": {"kernel_size": (3, 2, 4), "stride": (2, 1, 3)},
    "gaps between windows": {"kernel_size": (1, 2, 1), "stride": (3, 3, 2)},
    "padding": {"kernel_size": (3, 4, 2), "stride": (1, 2, 1), "padding": (1, 2, 1)},
    "one window": {"kernel_size": (7, 6, 5)},
    "ceil_mode adds a clipped window": {"kernel_size": (2, 3, 2), "stride": 2, "ceil_mode": True},
    "ceil_mode clips inside the padding": {
        "kernel_size": (5, 3, 4),
        "stride": (4, 3, 3),
        "padding": (2, 1, 2),
        "ceil_mode": True,
    },
    "ceil_mode drops a window that starts past the input": {
        "kernel_size": (3, 2, 3),
        "stride": (4, 4, 3),
        "padding": 1,
        "ceil_mode": True,
    },
}
DILATED: dict[str, Options] = {
    "dilation": {"kernel_size": (3, 2, 2), "stride": (1, 2, 1), "dilation": (3, 2, 1)},
    "dilation and padding": {
        "kernel_size": (3, 2, 4),
        "stride": (2, 1, 1),
        "padding": (1, 1, 2),
        "dilation": (2, 3, 1),
    },
    "dilation, padding and ceil_mode": {
        "kernel_size": (2, 3, 2),
        "stride": (4, 2, 2),
        "padding": 1,
        "dilation": (3, 2, 3),
        "ceil_mode": True,
    },
}
BINS: dict[str, Options] = {
    "sizes that divide": {"output_size": (7, 3, 1)},
    "sizes that do not divide": {"output_size": (5, 4, 3)},
    "more bins than cells": {"output_size": (9, 13, 6)},
    "one bin": {"output_size": (1, 1, 1)},
    "axes kept as they are": {"output_size": (3, None, None)},
}


# --- the maximum ------------------------------------------------------------------------------------------------------


def distinct(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape) - 9.5


def tied(*shape: int) -> np.ndarray:
    """Many equal maxima, zeros of both signs, and windows of nothing but −∞."""
    return np.random.default_rng(0).choice([-inf, -inf, -1.0, -0.0, 0.0, 1.0], shape)


every_data = pytest.mark.parametrize("data", [distinct, tied])
every_maximum = every(("max_pool", WINDOWS | DILATED), ("adaptive_max_pool", BINS))


@every_mode
@every_rank
@every_data
@every_maximum
def test_maximum(operator, options, data, rank, mode):
    check_selection(TORCH, pooling(operator, options, rank, data(*PLANES, *SIZES[:rank])), mode)


@every_rank
@every_maximum
def test_value_among_nans(operator, options, rank):
    x = np.random.default_rng(0).choice(
        [nan, -inf, 0.0, 1.0, inf], (*PLANES, *SIZES[:rank]), p=[0.1, 0.3, 0.3, 0.2, 0.1]
    )
    check_selection(TORCH, pooling(operator, options, rank, x), "value")


def values_and_indices(operator: str, rank: int, x: np.ndarray, attributes: Options) -> tuple[list[np.ndarray], ...]:
    """Ours and theirs."""
    ours = getattr(spec, operator)(plain(x), **attributes, return_indices=True)
    theirs = torch_operator(operator, rank)(torch.from_numpy(x), **attributes, return_indices=True)
    return [np.array(y.tolist()) for y in ours], [y.numpy() for y in theirs]


@every_rank
@every_data
@every_maximum
def test_indices(operator, options, data, rank):
    x = data(*PLANES, *SIZES[:rank])
    for ours, theirs in zip(*values_and_indices(operator, rank, x, cut(options, rank)), strict=True):
        assert_identical(ours, theirs)


@every_rank
@every(("max_pool", WINDOWS | DILATED))
def test_indices_of_integers(operator, options, rank):
    x = np.random.default_rng(0).choice(np.array([-128, -128, -128, 5, 127], np.int8), (*PLANES, *SIZES[:rank]))
    for ours, theirs in zip(*values_and_indices(operator, rank, x, cut(options, rank)), strict=True):
        assert_identical(ours, theirs)


@every_mode
@every_rank
@every_keepdims
@every_data
def test_global_maximum(data, keepdims, rank, mode):
    check_selection(TORCH, global_pooling("max", keepdims, rank, data(*PLANES, *SIZES[:rank])), mode)


@every_mode
@every_rank
@every_lead
@every(("max_pool", {"padding": WINDOWS["padding"]}), ("adaptive_max_pool", {"bins": BINS["sizes that do not divide"]}))
def test_leading_axes_of_the_maximum(operator, options, lead, rank, mode):
    check_selection(TORCH, pooling(operator, options, rank, tied(*lead, *SIZES[:rank])), mode)


@every_mode
@every_rank
@pytest.mark.parametrize("sizes", [(6, 4, 8), SIZES], ids=["sizes that divide", "sizes that do not divide"])
def test_unpool_without_duplicates(sizes, rank, mode):
    sizes = sizes[:rank]
    _, (values, indices) = values_and_indices("max_pool", rank, distinct(*PLANES, *sizes), {"kernel_size": (2,) * rank})
    check_selection(TORCH, unpooling(values, indices, (2,) * rank, sizes), mode)


def unpooling(x: np.ndarray, indices: np.ndarray, kernel: tuple[int, ...], sizes: tuple[int, ...]) -> Pair:
    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch_operator("max_unpool", len(sizes))(x, torch.from_numpy(indices), kernel, output_size=sizes)

    return Pair("max_unpool", {"output_size": sizes}, theirs, (x,), (indices,))


@every_mode
@every_rank
def test_gather_with_duplicates(rank, mode):
    indices = np.random.default_rng(0).integers(0, np.prod(SIZES[:rank]), (*PLANES, *(3,) * rank))
    places = torch.from_numpy(indices)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).gather(2, places.flatten(2)).reshape(places.shape)

    pair = Pair("max_gather", {"rank": rank}, theirs, (distinct(*PLANES, *SIZES[:rank]),), (indices,))
    check_selection(TORCH, pair, mode)


# --- the average ------------------------------------------------------------------------------------------------------

AVERAGES: dict[str, Options] = {
    f"{name}, {divisor or 'default divisor'}": options | divisor
    for name, options in WINDOWS.items()
    for divisor in ({}, {"count_include_pad": False}, {"divisor_override": 5})
}


@every_mode
@every_rank
@every(("avg_pool", AVERAGES))
def test_average(operator, options, rank, mode):
    pair = pooling(operator, options, rank, reals(*PLANES, *SIZES[:rank]))
    if rank == 1 and "divisor_override" in options:
        pair = replace(pair, theirs=partial(average_on_two_axes, attributes=pair.attributes))
    check_sum(TORCH, pair, mode)


def average_on_two_axes(x: torch.Tensor, attributes: Options) -> torch.Tensor:
    """``avg_pool1d`` with a divisor, which only ``avg_pool2d`` takes."""
    beside = {"kernel_size": 1, "stride": 1, "padding": 0}
    sizes = {n: (beside[n], v[0] if isinstance(v, tuple) else v) for n, v in attributes.items() if n in beside}
    return functional.avg_pool2d(x.unsqueeze(-2), **{**attributes, **sizes}).squeeze(-2)


@every_mode
@every_rank
@pytest.mark.parametrize("divisor", [{}, {"count_include_pad": False}, {"divisor_override": 5}], ids=str)
@every(("avg_pool", DILATED))
def test_dilated_average(operator, options, divisor, rank, mode):
    attributes, kernel_axes = cut(options, rank), tuple(range(-rank, 0))
    ones = torch.ones(SIZES[:rank], dtype=torch.float64)
    counted = windows(ones, attributes, fill=float(divisor.get("count_include_pad", True))).sum(kernel_axes)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return windows(x, attributes).sum(kernel_axes) / divisor.get("divisor_override", counted)

    check_sum(TORCH, Pair(operator, attributes | divisor, theirs, (reals(*PLANES, *SIZES[:rank]),)), mode)


@every_mode
@every_rank
@every(("adaptive_avg_pool", BINS))
def test_adaptive_average(operator, options, rank, mode):
    check_sum(TORCH, pooling(operator, options, rank, reals(*PLANES, *SIZES[:rank])), mode)


@every_mode
@every_rank
@every_keepdims
def test_global_average(keepdims, rank, mode):
    check_sum(TORCH, global_pooling("avg", keepdims, rank, reals(*PLANES, *SIZES[:rank])), mode)


@every_mode
@every_rank
@every_lead
@every(("avg_pool", {"padding": WINDOWS["padding"]}), ("adaptive_avg_pool", {"bins": BINS["sizes that do not divide"]}))
def test_leading_axes_of_the_average(operator, options, lead, rank, mode):
    check_sum(TORCH, pooling(operator, options, rank, reals(*lead, *SIZES[:rank])), mode)


# --- the smooth maximum -----------------------------------------------------------------------------------------------
# Let M bound |β·xᵢ| and N the number of terms. Both sides exponentiate a number that is off by at most 4M·u (from β·x
# and x − c, or from their product), and both use functions good to one unit in the last place, 2u. So a power is off by
# a relative (4M + 2)u and their sum by (4M + N + 1)u; the logarithm makes that absolute and adds 2·log N·u; dividing by
# β and adding the pivot add (M + 2·log N)u. As log N ≤ N/e, β·y is off by less than 8(N + M)u, hence a weight
# exp(β·x − β·y) by a relative 16(N + M)u, a sum of weighted terms by 20(N + M)u of their absolute sum, and the second
# derivative, weights times differences from a weighted mean, by 40(N + M)u of its absolute terms. Two computations
# differ by at most twice as much.

SMOOTH: dict[str, Options] = {
    f"{name}, beta {beta}, {mode}": options | {"beta": beta, "padding_mode": mode}
    for name, options in (WINDOWS | DILATED).items()
    for beta in (2.5, -1.5)
    for mode in (("zeros", "ignore") if "padding" in options else ("zeros",))
}


def smooth(operator: str, options: Options, rank: int) -> tuple[Pair, float]:
    """The pair, and ``(N + M)·u``."""
    attributes, kernel_axes, beta = cut(options, rank), tuple(range(-rank, 0)), options["beta"]
    nothing = -inf if beta > 0 else inf
    padding = 0.0 if options["padding_mode"] == "zeros" else nothing

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(beta * windows(x, attributes, padding, nothing), kernel_axes) / beta

    x = reals(*PLANES, *SIZES[:rank])
    return Pair(operator, attributes, theirs, (x,)), (x.size + np.max(np.abs(beta * x))) * UNIT_ROUNDOFF


@every_mode
@every_rank
@every(("smooth_max_pool", SMOOTH))
def test_smooth_maximum(operator, options, rank, mode):
    pair, u = smooth(operator, options, rank)
    (dx,), g = directions(TORCH, pair, reals)
    if mode == "value":
        bound = 16 * u / abs(options["beta"])
    else:
        bound = 40 * u * TORCH.run(mode, pair.theirs, pair.inputs, [np.abs(dx)], np.abs(g))[0]
    check_within(TORCH, pair, mode, ([dx], g), [bound])


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@every_rank
@every(("smooth_max_pool", SMOOTH))
def test_second_derivative_of_the_smooth_maximum(operator, options, rank, mode):
    first, u = smooth(operator, options, rank)
    x, along = first.inputs[0], reals(*first.inputs[0].shape, seed=4)
    pair = Pair(
        f"{operator}_jvp",
        first.attributes,
        lambda x: TORCH.jvp(first.theirs, (x,), (torch.from_numpy(along),))[1],
        (x,),
        (along,),
    )
    (dx,), g = directions(TORCH, pair, reals)

    def mean(v: np.ndarray) -> np.ndarray:
        return TORCH.run("jvp", first.theirs, [x], [v], None)[0]

    def spread(g: np.ndarray) -> np.ndarray:
        return TORCH.run("vjp", first.theirs, [x], (), g)[0]

    u_abs, v_abs, g_abs = np.abs(along), np.abs(dx), np.abs(g)
    if mode == "jvp":
        scale = mean(u_abs * v_abs) + mean(u_abs) * mean(v_abs)
    else:
        scale = spread(g_abs) * u_abs + spread(g_abs * mean(u_abs))
    check_within(TORCH, pair, mode, ([dx], g), [80 * u * abs(options["beta"]) * scale])


# --- windows as columns -----------------------------------------------------------------------------------------------

COLUMNS: dict[str, Options] = {
    name: {"stride": 1} | options for name, options in (WINDOWS | DILATED).items() if "ceil_mode" not in options
}


def torch_unfold(x: torch.Tensor, options: Options) -> torch.Tensor:
    rank = len(options["kernel_size"])
    if rank == 2:
        return functional.unfold(x, **options)
    cells = windows(x, options)
    columns = cells.movedim(tuple(range(2, 2 + rank)), tuple(range(-rank, 0)))
    return columns.reshape(x.shape[0], x.shape[1] * np.prod(options["kernel_size"]), -1)


def torch_fold(columns: torch.Tensor, options: Options, sizes: tuple[int, ...]) -> torch.Tensor:
    if len(sizes) == 2:
        return functional.fold(columns, sizes, **options)
    channels = columns.shape[1] // np.prod(options["kernel_size"])
    plane = torch.zeros(columns.shape[0], channels, *sizes, dtype=torch.float64)
    return torch.func.vjp(lambda x: torch_unfold(x, options), plane)[1](columns)[0]


@every_mode
@every_rank
@every(("unfold", COLUMNS))
def test_unfold(operator, options, rank, mode):
    attributes = cut(options, rank)
    pair = Pair(
        operator, attributes, partial(torch_unfold, options=attributes), (whole_numbers(*PLANES, *SIZES[:rank]),)
    )
    check_selection(TORCH, pair, mode)


@every_mode
@every_rank
@every(("fold", COLUMNS))
def test_fold(operator, options, rank, mode):
    attributes, sizes = cut(options, rank), SIZES[:rank]
    columns = whole_numbers(*torch_unfold(torch.zeros(*PLANES, *sizes), attributes).shape)
    theirs = partial(torch_fold, options=attributes, sizes=sizes)
    check_selection(TORCH, Pair(operator, attributes | {"output_size": sizes}, theirs, (columns,)), mode)


# --- convolution ------------------------------------------------------------------------------------------------------

SHAPES = {"lead": (2,), "sizes": (6, 5, 4), "channels": 4, "outputs": 6, "kernel": (3, 2, 2), "bias": True}
CONVS: dict[str, Options] = {
    "defaults": {},
    "no bias": {"bias": False},
    "strides differ": {"stride": (3, 1, 2)},
    "padding wider than the kernel": {"padding": (4, 1, 3)},
    "dilation": {"dilation": (2, 4, 3)},
    "stride, padding and dilation": {"stride": (2, 3, 1), "padding": (1, 2, 1), "dilation": (2, 1, 3)},
    "kernel of one cell": {"kernel": (1, 1, 1), "stride": (2, 1, 3), "padding": 1},
    "kernel over everything": {"sizes": (4, 3, 2), "kernel": (4, 3, 2)},
    "groups": {"groups": 2, "stride": (2, 1, 1), "padding": 1},
    "depthwise": {"groups": 4, "outputs": 4, "dilation": (2, 1, 1)},
    "depthwise, two outputs per channel": {"groups": 4, "outputs": 8, "bias": False},
    "same": {"kernel": (3, 5, 1), "padding": "same"},
    "same, even kernel": {"kernel": (4, 2, 2), "padding": "same"},
    "same, dilation": {"kernel": (4, 3, 2), "padding": "same", "dilation": (3, 2, 1)},
    "valid": {"padding": "valid", "stride": (2, 3, 1)},
    "no batch": {"lead": (), "padding": 1},
    "empty batch": {"lead": (0,), "padding": 1},
}
TRANSPOSED: dict[str, Options] = {
    **{name: options for name, options in CONVS.items() if not isinstance(options.get("padding"), str)},
    "padding wider than the kernel": {"padding": (4, 3, 2), "stride": 3},
    "output padding": {"stride": (3, 2, 4), "output_padding": (2, 1, 3), "padding": (0, 1, 2)},
    "output padding beyond the stride": {"stride": (1, 2, 1), "dilation": (3, 4, 2), "output_padding": (2, 3, 1)},
    "output padding and groups": {"groups": 2, "stride": 2, "output_padding": 1, "outputs": 4},
}


def convolution(operator: str, options: Options, rank: int) -> Pair:
    shapes = {name: options.get(name, default) for name, default in SHAPES.items()}
    attributes = cut({name: value for name, value in options.items() if name not in SHAPES}, rank)
    channels, outputs, groups = shapes["channels"], shapes["outputs"], options.get("groups", 1)
    between = (outputs, channels // groups) if operator == "conv" else (channels, outputs // groups)
    x = reals(*shapes["lead"], channels, *shapes["sizes"][:rank], seed=1)
    weight = reals(*between, *shapes["kernel"][:rank], seed=2)
    bias = reals(outputs, seed=3) if shapes["bias"] else None
    return Pair(operator, attributes, partial(torch_operator(operator, rank), **attributes), (x, weight, bias))


@every_mode
@every_rank
@every(("conv", CONVS), ("conv_transpose", TRANSPOSED))
def test_convolution(operator, options, rank, mode):
    check_sum(TORCH, convolution(operator, options, rank), mode)


# --- where the conventions differ -------------------------------------------------------------------------------------


def on_first_axis(values: list[float], rank: int) -> np.ndarray:
    """One plane whose other axes have one cell."""
    return np.array(values).reshape(1, 1, -1, *(1,) * (rank - 1))


def both(pair: Pair, mode: str, *along: Any) -> tuple[list[float], list[float]]:
    """Our numbers and theirs."""
    ours, theirs = pair.ours(mode, *along), TORCH.run(mode, pair.theirs, pair.inputs, *along)
    return ours[0].ravel().tolist(), theirs[0].ravel().tolist()


@every_rank
@pytest.mark.parametrize("operator", ["max_pool", "adaptive_max_pool"])
def test_the_first_nan_wins_here_and_the_last_there(operator, rank):
    x, size = on_first_axis([1.0, nan, 2.0, nan, inf], rank), whole_axis(operator, 5, rank)
    (_, our_index), (_, their_index) = values_and_indices(operator, rank, x, size)
    assert (our_index.item(), their_index.item()) == (1, 3)

    pair = pooling(operator, size, rank, x)
    along = [on_first_axis([1.0, 2.0, 3.0, 4.0, 5.0], rank)], on_first_axis([7.0], rank)
    assert both(pair, "jvp", *along) == ([2], [4])
    assert both(pair, "vjp", *along) == ([0, 7, 0, 0, 0], [0, 0, 0, 7, 0])


def whole_axis(operator: str, size: int, rank: int) -> Options:
    """One window over ``size`` cells of the first axis."""
    return {"output_size": (1,) * rank} if "adaptive" in operator else {"kernel_size": (size, 1, 1)[:rank]}


@every_rank
def test_a_window_of_padding_alone_is_zero_here_and_minus_infinity_there(rank):
    """PyTorch's index then lies outside the plane, where its backward pass would write."""
    options = cut({"kernel_size": (2, 1, 1), "stride": 1, "padding": (1, 0, 0), "dilation": (3, 1, 1)}, rank)
    ours, theirs = values_and_indices("max_pool", rank, on_first_axis([5.0, 6.0], rank), options)
    assert [y.item() for y in ours] == [0, -1]
    assert [y.item() for y in theirs] == [-inf, 2]


@every_rank
def test_unpooling_adds_where_two_windows_chose_one_cell_and_overwrites_there(rank):
    x, indices = on_first_axis([3.0, 5.0], rank), on_first_axis([1, 1], rank)
    ours, theirs = both(unpooling(x, indices, (2, 1, 1)[:rank], (4, 1, 1)[:rank]), "value", (), None)
    assert ours == [0, 8, 0, 0]
    assert theirs in ([0, 3, 0, 0], [0, 5, 0, 0])


NEGATIVE, POSITIVE = True, False
ZEROS: dict[str, tuple[bool, bool | None]] = {
    "max_pool": (NEGATIVE, NEGATIVE),
    "adaptive_max_pool": (NEGATIVE, NEGATIVE),
    "avg_pool": (POSITIVE, POSITIVE),
    "adaptive_avg_pool": (POSITIVE, POSITIVE),
    "max_unpool": (POSITIVE, NEGATIVE),
    "conv": (POSITIVE, None),
    "conv_transpose": (POSITIVE, None),
    "conv with a bias": (POSITIVE, None),
    "conv_transpose with a bias": (POSITIVE, None),
}


@every_rank
@pytest.mark.parametrize("name", ZEROS)
def test_the_sign_of_a_zero_made_of_negative_zeros(name, rank):
    """A selection keeps the sign; a sum starts at 0, so it is positive.

    PyTorch unpools by assignment, and leaves the sign of a convolution, None above, to its matrix library, which may
    start at the first product or at the bias.
    """
    operator, zeros = name.removesuffix(" with a bias"), on_first_axis([-0.0, -0.0], rank)
    if operator == "max_unpool":
        pair = unpooling(zeros, on_first_axis([0, 1], rank), (1,) * rank, (2, 1, 1)[:rank])
    elif "pool" in operator:
        pair = pooling(operator, whole_axis(operator, 2, rank), rank, zeros)
    else:
        bias = None if name == operator else np.array([-0.0])
        pair = Pair(operator, {}, torch_operator(operator, rank), (zeros, np.ones_like(zeros), bias))
    for result, sign in zip(both(pair, "value", (), None), ZEROS[name], strict=True):
        assert not np.any(result)
        assert sign is None or np.all(np.signbit(result) == sign)


# --- the table itself -------------------------------------------------------------------------------------------------

INPUTS = {"x", "weight", "bias"}
TESTED_APART = {"return_indices"}
ABSENT_FROM_TORCH = {"ties"}


@pytest.mark.parametrize(
    ("operator", "table"),
    [
        ("max_pool", WINDOWS | DILATED),
        ("avg_pool", AVERAGES | DILATED),
        ("smooth_max_pool", SMOOTH),
        ("adaptive_max_pool", BINS),
        ("adaptive_avg_pool", BINS),
        ("conv", CONVS),
        ("conv_transpose", TRANSPOSED),
        ("unfold", COLUMNS),
    ],
)
def test_every_option_has_a_case(operator, table):
    options = set(inspect.signature(getattr(spec, operator)).parameters) - INPUTS - TESTED_APART - ABSENT_FROM_TORCH
    assert options <= {name for case in table.values() for name in case}

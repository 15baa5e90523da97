"""What the operators do at the edges: ties, NaN, signed zeros, infinities, windows of padding, empty tensors, rank 0.

Every expectation is written out by hand from the definition, never taken from a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from domains.floats import same_bits
from gradspec.spec.tensor import Tensor, tensor

INF, NAN = math.inf, math.nan
TIES = ("first", "all", "split")

FLOATS = {"float": float, "float32": np.float32, "f16": gs.ieee("f16").scalar, "f64": gs.ieee("f64").scalar}
SYSTEMS = {
    **FLOATS,
    "Fraction": Fraction,
    "exact": gs.exact.scalar,
    "ball": gs.ball(60).scalar,
    "interval": gs.interval.scalar,
    "dual": gs.dual(gs.exact).scalar,
}
every_float = pytest.mark.parametrize("number", FLOATS.values(), ids=FLOATS)
every_system = pytest.mark.parametrize("number", SYSTEMS.values(), ids=SYSTEMS)


def plain(value: Any) -> float:
    return float(value.value if isinstance(value, gs.domains.Dual) else value)


def assert_cells(result: Any, expected: Any) -> None:
    wanted = tensor(expected)
    assert result.shape == wanted.shape
    got = list(map(plain, result.cells))
    assert all(map(same_bits, got, map(float, wanted.cells))), f"{got} is not {wanted.tolist()}"


# --- 2. the maximum: who wins, and who ties ---------------------------------------------------------------------------

WINDOWS = [
    # the window, its value, the places that tie, winner first
    ("one cell", [5], 5, [0]),
    ("increasing", [1, 2, 3], 3, [2]),
    ("largest in an earlier column of a later row", [[1, 2], [4, 3]], 4, [2]),
    ("largest in the middle of a row", [[1, 5, 3]], 5, [1]),
    ("a tie within one row", [[0, 3, 3]], 3, [1, 2]),
    ("a tie across rows", [[1, 3], [3, 2]], 3, [1, 2]),
    ("a tie of all cells", [[2, 2], [2, 2]], 2, [0, 1, 2, 3]),
    ("a tie below zero", [-7, -2, -2], -2, [1, 2]),
    ("0.0 before −0.0", [0.0, -0.0, -1.0], 0.0, [0, 1]),
    ("−0.0 before 0.0", [-0.0, 0.0, -1.0], -0.0, [0, 1]),
    ("a NaN after numbers", [1.0, NAN, 2.0], NAN, [1]),
    ("a NaN before numbers", [NAN, 1.0, 2.0], NAN, [0]),
    ("a NaN against +∞", [INF, NAN, -INF], NAN, [1]),
    ("NaNs tie, and the first wins", [5.0, NAN, 1.0, NAN], NAN, [1, 3]),
    ("only NaNs", [NAN, NAN], NAN, [0, 1]),
    ("+∞ ties with +∞", [INF, 1.0, INF], INF, [0, 2]),
    ("−∞ loses to any number", [-INF, -6e4, -INF], -6e4, [1]),
    ("all −∞", [-INF, -INF, -INF], -INF, [0, 1, 2]),
]
each_window = pytest.mark.parametrize(("cells", "value", "tied"), [w[1:] for w in WINDOWS], ids=[w[0] for w in WINDOWS])
# Rationals and enclosures have neither NaN nor infinities, and one zero.
IN_SYSTEMS = [
    pytest.param(cells, value if name in FLOATS else value + 0.0, tied, number, id=f"{name}: {what}")
    for what, cells, value, tied in WINDOWS
    for name, number in SYSTEMS.items()
    if name in FLOATS or all(map(math.isfinite, tensor(cells).cells))
]


def max_forms(x: Tensor) -> dict[str, tuple[Any, ...]]:
    """The same single window as a regular, adaptive and global pool."""
    return {"max_pool": (x.shape,), "adaptive_max_pool": ((1,) * x.ndim,), "global_max_pool": (x.ndim,)}


@pytest.mark.parametrize(("cells", "value", "tied", "number"), IN_SYSTEMS)
def test_value_and_index_of_a_maximum(cells: Any, value: float, tied: list[int], number: Callable) -> None:
    x = tensor(cells).map(number)
    for name, arguments in max_forms(x).items():
        assert_cells(getattr(gs.spec, name)(x, *arguments), Tensor((1,) * x.ndim, [value]))
    for name in ("max_pool", "adaptive_max_pool"):
        _, indices = getattr(gs.spec, name)(x, *max_forms(x)[name], return_indices=True)
        assert indices.cells == tied[:1]


@every_float
@pytest.mark.parametrize("ties", TIES)
@each_window
def test_derivatives_of_a_maximum(cells: Any, value: float, tied: list[int], ties: str, number: Callable) -> None:
    x = tensor(cells).map(number)
    tangents = [float(3**i) for i in range(len(x.cells))]  # every sum of some of them is different
    seen = [tangents[i] for i in tied]
    tangent = {"first": seen[0], "all": sum(seen), "split": sum(seen) / len(seen)}[ties]
    share = 12 / len(tied) if ties == "split" else 12
    received = [share if i in (tied[:1] if ties == "first" else tied) else 0 for i in range(len(tangents))]
    dx, g = Tensor(x.shape, map(number, tangents)), Tensor((1,) * x.ndim, [number(12.0)])
    exactly = float(number(tangent))
    for name, arguments in max_forms(x).items():
        assert_cells(getattr(gs.spec, f"{name}_jvp")(x, dx, *arguments, ties=ties), Tensor(g.shape, [exactly]))
        assert_cells(getattr(gs.spec, f"{name}_vjp")(x, g, *arguments, ties=ties), Tensor(x.shape, received))


def test_global_max_pooling_takes_the_first_of_a_tie_unless_told_otherwise() -> None:
    x, g = [[1, 3], [3, 2]], [[6.0]]
    for ties, expected in [("first", [[0, 6], [0, 0]]), ("all", [[0, 6], [6, 0]]), ("split", [[0, 3], [3, 0]])]:
        assert_cells(gs.spec.global_max_pool_vjp(x, g, ties=ties), expected)
    assert_cells(gs.spec.global_max_pool_vjp(x, g), [[0, 6], [0, 0]])


@every_system
@pytest.mark.parametrize("low", [-3, -2000])
def test_padding_never_competes(low: int, number: Callable) -> None:
    x = tensor([low, low - 1]).map(number)
    assert_cells(gs.spec.max_pool(x, (2,), 1, 1), [low, low, low - 1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_arrays_have_maxima_and_indices(dtype: type) -> None:
    least = np.iinfo(dtype).min
    x = np.array([[least, least + 1, least + 1, least]], dtype)
    value, indices = gs.spec.max_pool(x, (2,), 1, 1, return_indices=True)
    assert value.tolist() == [[least, least + 1, least + 1, least + 1, least]]
    assert indices.tolist() == [[0, 1, 1, 2, 3]]
    assert {type(v) for v in value.cells} == {dtype}


# --- 2. indices number the cells of the spatial plane ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "winner", "expected"),
    [
        ((4,), (2,), 2),
        ((3, 4), (1, 2), 6),
        ((3, 4), (2, 3), 11),
        ((2, 3, 4), (1, 2, 0), 20),
        ((2, 2, 2, 2), (1, 0, 1, 1), 11),
    ],
)
def test_indices_are_row_major_places_in_the_plane(shape: tuple, winner: tuple, expected: int) -> None:
    x = np.zeros((2, 3, *shape))  # leading axes do not count
    x[(..., *winner)] = 1
    _, indices = gs.spec.max_pool(x, shape, return_indices=True)
    assert set(indices.cells) == {expected}


def test_indices_ignore_padding_and_follow_dilation() -> None:
    x = [[0, 9, 1], [2, 3, 4], [8, 5, 7]]
    assert gs.spec.max_pool(x, (2, 2), 2, 1, return_indices=True)[1].tolist() == [[0, 1], [6, 8]]
    assert gs.spec.max_pool(x, (2, 2), 1, 0, 2, return_indices=True)[1].tolist() == [[6]]


# --- windows that see only padding ------------------------------------------------------------------------------------

ONE_CELL = {"kernel_size": (2,), "stride": 2, "padding": 4}  # over one cell: padding, padding, the cell first, padding
PADDED_ONLY = [0, 1, 3]


def one_cell_case(number: Callable) -> tuple[Tensor, Tensor, Tensor]:
    return tensor([3]).map(number), tensor([5]).map(number), tensor([1, 10, 100, 1000]).map(number)


@every_system
@pytest.mark.parametrize("ties", TIES)
def test_a_maximum_of_padding_is_zero_and_drops_its_cotangent(ties: str, number: Callable) -> None:
    x, dx, g = one_cell_case(number)
    value, indices = gs.spec.max_pool(x, **ONE_CELL, return_indices=True, ties=ties)
    assert_cells(value, [0, 0, 3, 0])
    assert indices.tolist() == [-1, -1, 0, -1]
    assert_cells(gs.spec.max_pool_jvp(x, dx, **ONE_CELL, ties=ties), [0, 0, 5, 0])
    assert_cells(gs.spec.max_pool_vjp(x, g, **ONE_CELL, ties=ties), [100])


@every_system
@pytest.mark.parametrize(
    ("options", "share"),
    [({"count_include_pad": True}, 2), ({"count_include_pad": False}, 1), ({"divisor_override": 4}, 4)],
    ids=["include", "exclude", "override"],
)
def test_an_average_of_padding_is_zero_and_drops_its_cotangent(options: dict, share: int, number: Callable) -> None:
    x, dx, g = one_cell_case(number)
    assert_cells(gs.spec.avg_pool(x, **ONE_CELL, **options), [0, 0, 3 / share, 0])
    assert_cells(gs.spec.avg_pool_jvp(x, dx, **ONE_CELL, **options), [0, 0, 5 / share, 0])
    assert_cells(gs.spec.avg_pool_vjp(x, g, **ONE_CELL, **options), [100 / share])


@every_float
@pytest.mark.parametrize("beta", [2.0, -0.5])
def test_a_smooth_maximum_of_padding(beta: float, number: Callable) -> None:
    """Padding zeros make log(n)/β of n taps; left out, nothing is left and the value is 0. Neither has a derivative."""
    x, dx, g = one_cell_case(number)
    zeros = gs.spec.smooth_max_pool(x, **ONE_CELL, beta=beta)
    ignored = gs.spec.smooth_max_pool(x, **ONE_CELL, beta=beta, padding_mode="ignore")
    for window in PADDED_ONLY:
        assert math.isclose(plain(zeros[window]), math.log(2) / beta, rel_tol=1e-3)
    assert_cells(ignored, [0, 0, 3, 0])
    for mode, weight in (("zeros", 1 / (1 + math.exp(-3 * beta))), ("ignore", 1.0)):
        options = {**ONE_CELL, "beta": beta, "padding_mode": mode}
        tangents = list(map(plain, gs.spec.smooth_max_pool_jvp(x, dx, **options).cells))
        assert [tangents[window] for window in PADDED_ONLY] == [0, 0, 0]
        assert math.isclose(tangents[2], 5 * weight, rel_tol=1e-2)
        assert math.isclose(plain(gs.spec.smooth_max_pool_vjp(x, g, **options)[0]), 100 * weight, rel_tol=1e-2)


@pytest.mark.parametrize(
    ("operator", "options"),
    [("max_pool", {}), ("avg_pool", {}), ("smooth_max_pool", {"beta": 1.0, "padding_mode": "ignore"})],
)
def test_a_tangent_of_padding_is_zero_in_the_system_of_the_tangents(operator: str, options: dict) -> None:
    tangents = getattr(gs.spec, f"{operator}_jvp")([3.0], gs.interval.tensor([5]), **ONE_CELL, **options)
    assert {type(t) for t in tangents.cells} == {gs.domains.Interval}


@every_system
def test_a_convolution_of_padding_is_the_bias(number: Callable) -> None:
    x, w, b = (tensor(t).map(number) for t in ([[3]], [[[2, 7]]], [1]))
    assert_cells(gs.spec.conv(x, w, b, stride=2, padding=4), [[1, 1, 7, 1]])


# --- 1. windows: padding without limit, ceil_mode, "same" and adaptive bins ------------------------------------------


def test_padding_may_exceed_half_the_kernel() -> None:
    assert_cells(gs.spec.max_pool([4], (1,), 1, 2), [0, 0, 4, 0, 0])
    assert_cells(gs.spec.avg_pool([4], (1,), 1, ((0, 3),)), [4, 0, 0, 0])
    assert_cells(gs.spec.conv([[4]], [[[1, 10]]], padding=((3, 0),)), [[0, 0, 40]])


DIVISORS = [
    # size, kernel, stride, (lo, hi), dilation → (real cells, taps below size + hi) of each window, rounding up
    ((4, 3, 2, (0, 0), 1), [(3, 3), (2, 2)]),
    ((4, 3, 2, (1, 1), 1), [(2, 3), (3, 3), (1, 2)]),
    ((4, 3, 2, (0, 1), 1), [(3, 3), (2, 3)]),
    ((5, 2, 3, (0, 0), 1), [(2, 2), (2, 2)]),
    ((2, 1, 3, (0, 0), 1), [(1, 1)]),  # the added window would start at 3, beyond the axis: dropped
    ((4, 2, 3, (0, 2), 1), [(2, 2), (1, 2)]),  # it would start inside the upper padding: dropped
    ((4, 3, 2, (0, 2), 1), [(3, 3), (2, 3)]),  # it would start exactly where the upper padding does: dropped
    ((3, 3, 2, (1, 2), 1), [(2, 3), (2, 3)]),
    ((5, 2, 2, (0, 0), 3), [(2, 2), (1, 1)]),
    ((2, 4, 3, (0, 0), 1), [(2, 2)]),  # wider than the axis, and rounding up still yields one
    ((3, 2, 2, (2, 0), 1), [(0, 2), (2, 2), (1, 1)]),
]


@every_system
@pytest.mark.parametrize(("geometry", "counts"), DIVISORS, ids=str)
def test_divisors_with_ceil_mode(geometry: tuple, counts: list[tuple[int, int]], number: Callable) -> None:
    n, k, s, pad, d = geometry
    x = tensor([6] * n).map(number)
    window = {"kernel_size": (k,), "stride": s, "padding": (pad,), "dilation": d, "ceil_mode": True}
    averages = {
        True: [6 * real / taps for real, taps in counts],
        False: [6 * real / max(real, 1) for real, _ in counts],
    }
    for include, expected in averages.items():
        assert_cells(gs.spec.avg_pool(x, **window, count_include_pad=include), expected)
    assert_cells(gs.spec.avg_pool(x, **window, divisor_override=3), [2 * real for real, _ in counts])


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pads"),
    [
        (5, 3, 1, 1, (1, 1)),
        (5, 2, 1, 1, (0, 1)),  # the odd cell goes to the upper side
        (5, 4, 2, 1, (1, 2)),
        (6, 3, 2, 1, (0, 1)),
        (7, 3, 2, 2, (2, 2)),
        (4, 1, 3, 1, (0, 0)),
    ],
)
def test_same_padding_keeps_the_size_over_the_stride(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> None:
    x = list(range(1, size + 1))
    options = {"kernel_size": (kernel,), "stride": stride, "dilation": dilation}
    same_padded = gs.spec.max_pool(x, **options, padding="same")
    assert same_padded.shape == (math.ceil(size / stride),)
    assert same_padded == gs.spec.max_pool(x, **options, padding=(pads,))


@pytest.mark.parametrize(
    ("size", "bins", "sums"),
    [
        (5, 3, [3, 14, 24]),  # 1+2, 2+4+8, 8+16
        (7, 5, [3, 6, 28, 48, 96]),
        (4, 2, [3, 12]),
        (2, 5, [1, 1, 3, 2, 2]),  # more bins than cells
        (3, None, [1, 2, 4]),
        (4, 1, [15]),
    ],
)
def test_adaptive_bins_run_from_floor_to_ceiling(size: int, bins: int | None, sums: list[int]) -> None:
    """Powers of two: the sum of a bin names its cells. Times the number of its cells, an average is that sum."""
    x = gs.exact.tensor([2**i for i in range(size)])
    averages = gs.spec.adaptive_avg_pool(x, (bins,)).cells
    assert [str(a * bin(total).count("1")) for a, total in zip(averages, sums, strict=True)] == list(map(str, sums))
    assert gs.spec.adaptive_max_pool(x, (bins,)) == [2 ** (total.bit_length() - 1) for total in sums]


# --- 4. the smooth maximum --------------------------------------------------------------------------------------------

SMOOTH_SPECIALS = [
    # cells, sign of β, value, weights
    ([1.0, NAN, 2.0], 1, NAN, [NAN, NAN, NAN]),
    ([INF, NAN], -1, NAN, [NAN, NAN]),
    ([INF, 1.0, INF], 1, INF, [0.5, 0.0, 0.5]),
    ([INF, -INF], 1, INF, [1.0, 0.0]),
    ([-INF, -INF], 1, -INF, [0.5, 0.5]),
    ([-INF, 3.0], 1, 3.0, [0.0, 1.0]),
    ([-INF, 1.0, -INF], -1, -INF, [0.5, 0.0, 0.5]),
    ([INF, -INF], -1, -INF, [0.0, 1.0]),
    ([INF, INF], -1, INF, [0.5, 0.5]),
    ([INF, 3.0], -1, 3.0, [0.0, 1.0]),
    ([7.0], 1, 7.0, [1.0]),
    ([7.0], -1, 7.0, [1.0]),
]


@every_float
@pytest.mark.parametrize("size", [1.0, 0.25, 1000.0])
@pytest.mark.parametrize(("cells", "sign", "value", "weights"), SMOOTH_SPECIALS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_smooth_maximum_of_special_values(
    cells: list, sign: int, value: float, weights: list, size: float, number: Callable
) -> None:
    x, options = tensor(cells).map(number), {"kernel_size": (len(cells),), "beta": sign * size}
    assert_cells(gs.spec.smooth_max_pool(x, **options), [value])
    assert_cells(gs.spec.smooth_max_pool_vjp(x, tensor([1.0]).map(number), **options), weights)
    for i, weight in enumerate(weights):
        unit = tensor([float(i == j) for j in range(len(cells))]).map(number)
        assert_cells(gs.spec.smooth_max_pool_jvp(x, unit, **options), [weight])


def real_smooth_maximum(cells: list[float], beta: float) -> float:
    """``log Σ exp(β·x) / β`` as it is written, without a pivot: balls do not overflow."""
    domain = gs.ball(2000)
    b = domain.scalar(beta)
    powers = [gs.spec.scalar.exp(b * domain.scalar(x)) for x in cells]
    return float(gs.spec.scalar.log(sum(powers[1:], powers[0])) / b)


@pytest.mark.parametrize("cells", [[1e308, -1e308], [-1.7e308, 1.7e308, 1.7e308], [1e308, 1e308], [1e-320, -1e-320]])
@pytest.mark.parametrize("beta", [1e-308, 3e-308, 1e-300, 1.0, -1.0, -2e-308])
def test_smooth_maximum_where_differences_overflow(cells: list[float], beta: float) -> None:
    if all(abs(beta * x) > 1e7 for x in cells):
        extreme = max(cells) if beta > 0 else min(cells)
        expected = extreme + math.log(cells.count(extreme)) / beta
    else:
        expected = real_smooth_maximum(cells, beta)
    for number in (float, gs.ieee("f64").scalar):
        got = plain(gs.spec.smooth_max_pool(tensor(cells).map(number), (len(cells),), beta=beta)[0])
        assert got == expected or math.isclose(got, expected, rel_tol=1e-12)


@pytest.mark.parametrize("beta", [1e308, -1e308, 1.7976931348623157e308])
def test_smooth_maximum_with_a_huge_beta_is_the_extreme(beta: float) -> None:
    cells = [-1e308, 0.0, 1e308]
    assert_cells(gs.spec.smooth_max_pool(cells, (3,), beta=beta), [max(cells) if beta > 0 else min(cells)])


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_smooth_maximum_where_differences_overflow_in_a_small_format(name: str) -> None:
    domain = gs.ieee(name)
    largest = float(gs.domains.FORMATS[name].largest)
    beta = float(domain.scalar(1 / largest)) or 2.0**-24
    got = float(gs.spec.smooth_max_pool(domain.tensor([largest, -largest]), (2,), beta=beta)[0])
    assert got == INF or math.isclose(got, real_smooth_maximum([largest, -largest], beta), rel_tol=2e-2)
    weights = gs.spec.smooth_max_pool_vjp(domain.tensor([largest, -largest]), domain.tensor([1]), (2,), beta=beta)
    odds = math.exp(2 * beta * largest)
    assert math.isclose(float(weights[0]), odds / (1 + odds), rel_tol=2e-2)
    assert math.isclose(float(weights[1]), 1 / (1 + odds), rel_tol=2e-2)


@every_float
@pytest.mark.parametrize("beta", [1.0, 0.5, -1.0])
def test_equal_cells_rise_by_the_logarithm_of_their_number(beta: float, number: Callable) -> None:
    y = plain(gs.spec.smooth_max_pool(tensor([3.0] * 4).map(number), (4,), beta=beta)[0])
    assert math.isclose(y, 3 + math.log(4) / beta, rel_tol=1e-3)


def test_padding_zeros_take_part_in_a_border_window() -> None:
    """As β grows the window tends to max(0, real cells); left out, to the real cells alone."""
    options = {"kernel_size": (2,), "stride": 1, "padding": 1, "beta": 1e4}
    assert_cells(gs.spec.smooth_max_pool([-5.0], **options), [0, 0])
    assert_cells(gs.spec.smooth_max_pool([-5.0], **options, padding_mode="ignore"), [-5, -5])


def test_beta_is_rounded_to_the_compute_format() -> None:
    x = [0.5, 0.25, 3.0]
    for domain, rounded in [
        (gs.ieee("f16"), float(np.float16(0.1))),
        (gs.ieee("f16", accumulate="f32"), float(np.float32(0.1))),
        (gs.ieee("f32"), float(np.float32(0.1))),
    ]:
        given = gs.spec.smooth_max_pool(domain.tensor(x), (3,), beta=0.1)
        assert given == gs.spec.smooth_max_pool(domain.tensor(x), (3,), beta=rounded)
    narrow, wide = (gs.spec.smooth_max_pool(d.tensor(x), (3,), beta=0.1)[0] for d in (gs.ieee("f16"), gs.ieee("f64")))
    beta = float(np.float16(0.1))
    assert math.isclose(float(narrow), real_smooth_maximum(x, beta), rel_tol=2e-3)
    assert math.isclose(float(wide), real_smooth_maximum(x, 0.1), rel_tol=1e-15)


# --- 5. global pooling keeps its axes as ones or drops them -----------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["global_max_pool", "global_avg_pool"])
def test_global_pooling_keeps_or_drops_the_pooled_axes(name: str, rank: int) -> None:
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    kept = (*x.shape[: 4 - rank], *(1,) * rank)
    axes = tuple(range(4 - rank, 4))
    expected = x.max(axes) if "max" in name else x.mean(axes)
    value, jvp, vjp = (getattr(gs.spec, name + mode) for mode in ("", "_jvp", "_vjp"))
    for keepdims, shape in ((True, kept), (False, x.shape[: 4 - rank])):
        y = value(x, rank, keepdims)
        assert y.shape == jvp(x, x, rank, keepdims).shape == shape
        assert y.cells == list(expected.flat)
        assert vjp(x, np.ones(shape), rank, keepdims).shape == x.shape
    assert value(x).shape == (2, 3, 1, 1)


# --- 6. convolution ---------------------------------------------------------------------------------------------------


@every_float
@pytest.mark.parametrize("weight", [INF, -INF, NAN])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_non_finite_weight_over_a_padded_cell_gives_nan(weight: float, number: Callable) -> None:
    x, w, one, zero = (tensor(t).map(number) for t in ([[1.0, 2.0]], [[[weight, 1.0]]], [[1.0, 1.0]], [[[0.0, 0.0]]]))
    padded = {"padding": ((1, 0),)}
    assert_cells(gs.spec.conv(x, w, **padded), [[NAN, weight]])
    assert_cells(gs.spec.conv_jvp(x, w, None, one, zero, None, **padded), [[NAN, weight]])
    dx, _, _ = gs.spec.conv_vjp(x, w, None, one, **padded)
    assert_cells(dx, [[weight, 1.0]])  # the input's cotangent never meets padding


@every_float
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_non_finite_cotangent_over_a_padded_cell_makes_the_weight_gradient_nan(number: Callable) -> None:
    x, w, g = (tensor(t).map(number) for t in ([[1.0]], [[[1.0, 1.0]]], [[INF]]))
    assert_cells(gs.spec.conv_vjp(x, w, None, g, padding=((1, 0),))[1], [[[NAN, INF]]])


@every_system
def test_a_convolution_without_input_channels_is_the_bias(number: Callable) -> None:
    x, w, b = Tensor((2, 0, 3), []), Tensor((2, 0, 2), []), tensor([5, 7]).map(number)
    assert_cells(gs.spec.conv(x, w, b), [[[5, 5], [7, 7]]] * 2)
    assert_cells(gs.spec.conv_jvp(x, w, b, x, w, b), [[[5, 5], [7, 7]]] * 2)
    g = tensor([[[1, 2], [3, 4]]] * 2).map(number)
    dx, dw, db = gs.spec.conv_vjp(x, w, b, g)
    assert (dx.shape, dw.shape) == ((2, 0, 3), (2, 0, 2))
    assert_cells(db, [6, 14])
    assert gs.spec.conv(x, w).tolist() == [[[0, 0], [0, 0]]] * 2


@every_system
def test_a_transposed_convolution_without_input_channels_is_the_bias(number: Callable) -> None:
    x, w, b = Tensor((0, 2), []), Tensor((0, 2, 2), []), tensor([5, 7]).map(number)
    assert_cells(gs.spec.conv_transpose(x, w, b), [[5, 5, 5], [7, 7, 7]])
    dx, dw, db = gs.spec.conv_transpose_vjp(x, w, b, tensor([[1, 2, 3]] * 2).map(number))
    assert (dx.shape, dw.shape) == ((0, 2), (0, 2, 2))
    assert_cells(db, [6, 6])


def test_a_convolution_without_output_channels_is_empty() -> None:
    x, w = tensor([[1, 2, 3]]), Tensor((0, 1, 2), [])
    assert gs.spec.conv(x, w).shape == (0, 2)
    assert gs.spec.conv(x, w, []).shape == (0, 2)
    dx, dw, db = gs.spec.conv_vjp(x, w, [], Tensor((0, 2), []))
    assert_cells(dx, [[0, 0, 0]])
    assert (dw.shape, db.shape) == ((0, 1, 2), (0,))


def test_without_a_bias_there_is_no_bias_gradient() -> None:
    assert gs.spec.conv_vjp([[1, 2]], [[[1]]], None, [[1, 1]])[2] is None
    assert gs.spec.conv_transpose_vjp([[1, 2]], [[[1]]], None, [[1, 1]])[2] is None


# --- 7. the order of sums is part of the meaning ----------------------------------------------------------------------

BIG = 1e16  # adding 1 to it changes nothing


@pytest.mark.parametrize("number", [float, np.float64, gs.ieee("f64").scalar], ids=["float", "float64", "ieee"])
def test_sums_run_over_channels_then_the_kernel_and_the_bias_comes_last(number: Callable) -> None:
    def conv(x: list, w: list, b: list) -> float:
        return plain(gs.spec.conv(*(tensor(t).map(number) for t in (x, w, b)))[0, 0])

    assert conv([[BIG, 1.0], [-BIG, 1.0]], [[[1.0, 1.0], [1.0, 1.0]]], [0.0]) == 1.0  # 2 if the kernel ran outermost
    assert conv([[BIG, -BIG]], [[[1.0, 1.0]]], [1.0]) == 1.0  # 0 if the bias came first
    assert conv([[BIG, 1.0, -BIG]], [[[1.0, 1.0, 1.0]]], [0.0]) == 0.0  # 1 if the sum were compensated


@every_float
def test_sums_start_from_zero(number: Callable) -> None:
    negative_zero = tensor([-0.0]).map(number)
    assert_cells(gs.spec.avg_pool(negative_zero, (1,)), [0.0])
    assert_cells(gs.spec.conv(negative_zero.reshape(1, 1), tensor([[[1.0]]]).map(number)), [[0.0]])
    assert_cells(gs.spec.max_pool(negative_zero, (1,)), [-0.0])


# --- unpooling: −1 names no cell, and a cell named twice receives twice ----------------------------------------------


@every_system
def test_gather_and_scatter_at_indices(number: Callable) -> None:
    plane, columns, indices = tensor([10, 20, 30, 40]).map(number), tensor([1, 2, 3]).map(number), [3, -1, 3]
    assert_cells(gs.spec.max_gather(plane, indices, 1), [40, 0, 40])
    assert_cells(gs.spec.max_gather_jvp(plane, indices, plane, 1), [40, 0, 40])
    assert_cells(gs.spec.max_gather_vjp(plane, indices, columns, 1), [0, 0, 0, 4])
    assert_cells(gs.spec.max_unpool(columns, indices, (4,)), [0, 0, 0, 4])
    assert_cells(gs.spec.max_unpool_jvp(columns, indices, columns, (4,)), [0, 0, 0, 4])
    assert_cells(gs.spec.max_unpool_vjp(columns, indices, plane, (4,)), [40, 0, 40])


def test_gathering_at_the_winners_is_the_maximum() -> None:
    x = [[[1.0, NAN], [3.0, 2.0]], [[-1.0, -0.0], [0.0, -INF]]]
    options = {"kernel_size": (2, 2), "stride": 1, "padding": 1}
    value, indices = gs.spec.max_pool(x, **options, return_indices=True)
    assert_cells(gs.spec.max_gather(x, indices, 2), value)


# --- nothing to compute: empty batches, zero channels, rank 0 --------------------------------------------------------

EMPTY = [
    # operator, input shapes, options, output shape
    ("max_pool", [(0, 3, 3)], {"kernel_size": (2, 2)}, (0, 1, 1)),
    ("max_pool", [(2, 0, 4)], {"kernel_size": (2,)}, (2, 0, 2)),
    ("avg_pool", [(0, 3, 3)], {"kernel_size": (2, 2)}, (0, 1, 1)),
    ("smooth_max_pool", [(0, 3)], {"kernel_size": (2,), "beta": 1.0}, (0, 1)),
    ("adaptive_max_pool", [(0, 5)], {"output_size": (2,)}, (0, 2)),
    ("adaptive_avg_pool", [(3, 0, 5)], {"output_size": (2,)}, (3, 0, 2)),
    ("global_max_pool", [(0, 3, 3)], {}, (0, 1, 1)),
    ("global_avg_pool", [(0, 3, 3)], {"keepdims": False}, (0,)),
    ("conv", [(0, 2, 3), (4, 2, 2), (4,)], {}, (0, 4, 2)),
    ("conv", [(3, 0, 3), (0, 0, 2), (0,)], {}, (3, 0, 2)),
    ("conv_transpose", [(0, 2, 3), (2, 4, 2), (4,)], {}, (0, 4, 4)),
    ("unfold", [(0, 2, 3)], {"kernel_size": (2,)}, (0, 4, 2)),
    ("unfold", [(0, 3)], {"kernel_size": (2,)}, (0, 2)),
    ("fold", [(0, 4, 2)], {"kernel_size": (2,), "output_size": (3,)}, (0, 2, 3)),
    ("fold", [(0, 2)], {"kernel_size": (2,), "output_size": (3,)}, (0, 3)),
    ("max_unpool", [(0, 2)], {"indices": Tensor((0, 2), []), "output_size": (3,)}, (0, 3)),
    ("max_gather", [(0, 3)], {"indices": Tensor((0, 2), []), "rank": 1}, (0, 2)),
]


@pytest.mark.parametrize(("operator", "shapes", "options", "output"), EMPTY, ids=lambda v: str(v)[:60])
def test_empty_batches_and_channels_give_empty_results(
    operator: str, shapes: list, options: dict, output: tuple
) -> None:
    names = ["x", "weight", "bias"][: len(shapes)]
    inputs = {name: np.ones(shape) for name, shape in zip(names, shapes, strict=True)}
    tangents = {f"d{name}": array for name, array in inputs.items()}
    value, jvp, vjp = (getattr(gs.spec, operator + mode) for mode in ("", "_jvp", "_vjp"))
    assert value(**inputs, **options).shape == output
    assert jvp(**inputs, **tangents, **options).shape == output
    cotangents = vjp(**inputs, g=np.ones(output), **options)
    parts = cotangents if isinstance(cotangents, tuple) else (cotangents,)
    assert [part.shape for part in parts] == shapes
    assert all(cell == 0 for part in parts for cell in part.cells)


RANK_ZERO = [
    # operator, inputs, options, value: every cell is its own window
    ("max_pool", ([3, -5],), {"kernel_size": ()}, [3, -5]),
    ("avg_pool", ([3, -5],), {"kernel_size": ()}, [3, -5]),
    ("smooth_max_pool", ([3.0, -5.0],), {"kernel_size": (), "beta": 2.0}, [3, -5]),
    ("adaptive_max_pool", ([3, -5],), {"output_size": ()}, [3, -5]),
    ("adaptive_avg_pool", ([3, -5],), {"output_size": ()}, [3, -5]),
    ("global_max_pool", ([3, -5],), {"rank": 0}, [3, -5]),
    ("global_avg_pool", ([3, -5],), {"rank": 0}, [3, -5]),
    ("conv", ([3, -5], [[1, 2], [0, 1]], [100, 200]), {}, [93, 195]),  # a matrix, a vector and a bias
    ("conv_transpose", ([3, -5], [[1, 2], [0, 1]], [100, 200]), {}, [103, 201]),
    ("unfold", ([3, -5],), {"kernel_size": ()}, [[3], [-5]]),
    ("fold", ([[3], [-5]],), {"kernel_size": (), "output_size": ()}, [3, -5]),
    ("max_gather", ([3, -5],), {"indices": [0, -1], "rank": 0}, [3, 0]),
    ("max_unpool", ([3, -5],), {"indices": [0, -1], "output_size": ()}, [3, 0]),
]


@pytest.mark.parametrize(("operator", "inputs", "options", "value"), RANK_ZERO, ids=[row[0] for row in RANK_ZERO])
def test_rank_zero_has_one_window_per_cell(operator: str, inputs: tuple, options: dict, value: list) -> None:
    result = getattr(gs.spec, operator)(*inputs, **options)
    assert_cells(result, value)


def test_a_bare_scalar_is_a_tensor() -> None:
    assert gs.spec.max_pool(7, ()).tolist() == 7
    assert gs.spec.max_pool_vjp(7, 2.0, ()).tolist() == 2.0

"""Convolution, matrix products, batch normalisation and resizing beyond the laws: peers, precision, memory, errors."""

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax
from torch.nn import functional

import gradspec as gs
from gradspec.backends.numpy import windows as kernels
from gradspec.graph.builder import apply
from gradspec.graph.graph import check
from gradspec.ops.conv import READ, Convolution
from gradspec.ops.unfold import UNFOLD, StatedWindows
from peers.agreement import plain, reals, whole_numbers

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel lengths:UserWarning",  # about speed
)


# --- PyTorch: value, JVP and every gradient --------------------------------------------------------------------------


@dataclass(frozen=True)
class Same:
    """Two functions that should agree; on whole numbers exactly, unless the operator divides."""

    id: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    divides: bool = False

    def arrays(self, seed: int) -> list[np.ndarray]:
        draw = whole_numbers if not self.divides else lambda *shape, seed: np.abs(reals(*shape, seed=seed)) + 0.1
        return [draw(*shape, seed=seed + i) for i, shape in enumerate(self.shapes)]

    def compare(self, ours: Any, theirs: Any) -> None:
        assert ours.dtype == np.float64
        tolerance = 1e-13 if self.divides else 0
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=tolerance, atol=tolerance, strict=True)


CONV_OPTIONS = {
    "plain": {},
    "stride": {"stride": (2, 3, 1)},
    "padding": {"padding": (2, 0, 1), "stride": (3, 1, 2)},
    "dilation": {"dilation": (2, 1, 2), "padding": (1, 1, 0)},
    "groups": {"groups": 2, "padding": (1, 0, 2)},
    "same": {"padding": "same", "dilation": (1, 2, 1)},
    "valid": {"padding": "valid", "stride": 2},
}
TRANSPOSE_OPTIONS = {
    "plain": {},
    "stride": {"stride": (2, 3, 1)},
    "output padding": {"stride": (3, 2, 2), "output_padding": (2, 1, 0), "padding": (1, 0, 1)},
    "dilation": {"dilation": (2, 1, 3), "output_padding": (1, 0, 2)},
    "groups": {"groups": 2, "stride": 2, "padding": 1},
}


def cut(options: dict[str, Any], rank: int) -> dict[str, Any]:
    """Options for three axes, cut to ``rank``."""
    return {name: value[:rank] if isinstance(value, tuple) else value for name, value in options.items()}


def convolutions(rank: int) -> list[Same]:
    x, kernel = (2, 4, *(6, 5, 4)[:rank]), (2, 3, 2)[:rank]
    rows = []
    for name, options in CONV_OPTIONS.items():
        options = cut(options, rank)
        weight = (6, 4 // options.get("groups", 1), *kernel)
        functions = [partial(f, **options) for f in (getattr(gs, f"conv{rank}d"), getattr(functional, f"conv{rank}d"))]
        rows += [
            Same(f"conv{rank}d {name}", *functions, (x, weight, (6,))),
            Same(f"conv{rank}d {name}, no bias or batch", *functions, (x[1:], weight)),
        ]
    return rows


def transposed_convolutions(rank: int) -> list[Same]:
    x, kernel = (2, 4, *(3, 4, 2)[:rank]), (3, 2, 4)[:rank]
    rows = []
    for name, options in TRANSPOSE_OPTIONS.items():
        options, operator = cut(options, rank), f"conv_transpose{rank}d"
        functions = [partial(f, **options) for f in (getattr(gs, operator), getattr(functional, operator))]
        channels = 3 * options.get("groups", 1)
        rows += [
            Same(f"{operator} {name}", *functions, (x, (4, 3, *kernel), (channels,))),
            Same(f"{operator} {name}, no bias or batch", *functions, (x[1:], (4, 3, *kernel))),
        ]
    return rows


FOLDED = {"kernel_size": (2, 3), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
COLUMNS = [
    Same("unfold", partial(gs.unfold, **FOLDED), partial(functional.unfold, **FOLDED), ((2, 3, 5, 6),)),
    Same("unfold2d", partial(gs.unfold2d, kernel_size=2), partial(functional.unfold, kernel_size=2), ((2, 3, 3),)),
    Same(
        "fold",
        partial(gs.fold, output_size=(5, 6), **FOLDED),
        partial(functional.fold, output_size=(5, 6), **FOLDED),
        ((2, 18, 6),),
    ),
]

PRODUCTS = [
    Same(f"matmul {a} {b}", gs.matmul, torch.matmul, (a, b))
    for a, b in [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((2, 5, 3), (3, 4)),
        ((5, 3), (2, 3, 4)),
        ((2, 1, 5, 3), (6, 3, 4)),
        ((2, 5, 3), (3,)),
        ((3,), (2, 3, 4)),
        ((2, 0), (0, 3)),
    ]
] + [
    Same(f"linear {shapes}", gs.linear, functional.linear, shapes)
    for shapes in [((2, 3), (4, 3), (4,)), ((2, 2, 3), (4, 3)), ((3,), (4, 3), (4,)), ((0, 3), (4, 3), (4,))]
]


def their_batch_norm(x, mean, var, weight=None, bias=None, *, eps):
    """PyTorch gives no gradient of the statistics, so its own formula is written out."""
    spread = (1, -1, *(1,) * (x.ndim - 2))
    mean, var, weight, bias = (None if t is None else t.reshape(spread) for t in (mean, var, weight, bias))
    y = (x - mean) * torch.rsqrt(var + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


NORMS = [
    Same(
        f"batch_norm {x} {count}",
        partial(gs.batch_norm, eps=eps),
        partial(their_batch_norm, eps=eps),
        (x, *((x[1],),) * count),
        divides=True,
    )
    for x, count, eps in [((4, 3), 2, 1e-5), ((2, 3, 4), 3, 0.1), ((2, 2, 3, 2), 4, 1e-5), ((1, 2, 2, 2, 2), 4, 0.0)]
]

TORCH_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
RESIZED = [
    Same(
        f"resize {mode} {sizes} to {size}",
        partial(gs.resize, size=size, mode=mode, **corners),
        partial(
            functional.interpolate,
            size=size,
            mode="nearest" if mode == "nearest" else TORCH_MODES[len(size)],
            **corners,
        ),
        ((2, 2, *sizes),),
        divides=mode == "linear",
    )
    for sizes, size in [((5,), (8,)), ((8,), (3,)), ((4, 6), (7, 4)), ((3, 1), (1, 5)), ((2, 3, 4), (4, 3, 2))]
    for mode, corners in [
        ("nearest", {}),
        ("linear", {"align_corners": False}),
        ("linear", {"align_corners": True}),
    ]
]


def scaled(n: int, mode: str, scale: float) -> Same:
    """Torch counts positions by the factor it was given, not by the sizes that this comes to."""
    step = 1 / Fraction(scale)
    ours, theirs = {
        "nearest": ({"step": step}, "nearest"),
        "nearest-exact": ({"step": step, "start": step / 2}, "nearest-exact"),
        "linear": ({"mode": "linear", "step": step}, "linear"),
    }[mode]
    return Same(
        f"resize {mode} {n} by {scale}",
        partial(gs.resize, size=(int(n * scale),), **ours),
        partial(functional.interpolate, scale_factor=scale, mode=theirs),
        ((2, 2, n),),
        divides=mode == "linear",
    )


SCALED = [
    *(
        scaled(n, mode, by)
        for n, by in ((5, 1.5), (7, 0.375), (3, 2.6))
        for mode in ("nearest", "nearest-exact", "linear")
    ),
    Same(
        "resize nearest-exact to sizes",
        partial(gs.resize, size=(3, 4), step=(Fraction(5, 3), 0.5), start=(Fraction(5, 6), 0.25)),
        partial(functional.interpolate, size=(3, 4), mode="nearest-exact"),
        ((1, 2, 5, 2),),
    ),
]

WITH_TORCH = [
    *(row for rank in (1, 2, 3) for row in convolutions(rank) + transposed_convolutions(rank)),
    *COLUMNS,
    *PRODUCTS,
    *NORMS,
    *RESIZED,
    *SCALED,
]


@pytest.mark.parametrize("case", WITH_TORCH, ids=lambda case: case.id)
def test_values_and_derivatives_are_those_of_torch(case):
    inputs, tangents = case.arrays(0), case.arrays(10)
    theirs, their_tangent = torch.func.jvp(
        case.theirs, tuple(map(torch.from_numpy, inputs)), tuple(map(torch.from_numpy, tangents))
    )
    ours, our_tangent = gs.jvp(case.ours, inputs, tangents)
    case.compare(ours, theirs)
    case.compare(our_tangent, their_tangent)
    cotangent = replace(case, shapes=(ours.shape,)).arrays(20)[0]
    _, pullback = gs.vjp(case.ours, *inputs)
    _, their_pullback = torch.func.vjp(case.theirs, *map(torch.from_numpy, inputs))
    for a, b in zip(pullback(cotangent), their_pullback(torch.from_numpy(cotangent)), strict=True):
        case.compare(a, b)


@pytest.mark.parametrize("case", [*COLUMNS, *PRODUCTS, *NORMS, *RESIZED], ids=lambda case: case.id)
def test_the_specification_takes_the_same_arguments(case):
    function = case.ours if isinstance(case.ours, partial) else partial(case.ours)
    inputs = case.arrays(0)
    result = getattr(gs.spec, function.func.__name__)(*map(plain, inputs), **function.keywords)
    case.compare(np.array(result.cells, float).reshape(result.shape), case.theirs(*map(torch.from_numpy, inputs)))


def test_batch_norm_is_torchs_own():
    x, mean, var, weight, bias = (np.abs(reals(*s, seed=i)) for i, s in enumerate([(2, 3, 4), *((3,),) * 4]))
    theirs = functional.batch_norm(*map(torch.from_numpy, (x, mean, var, weight, bias)), training=False, eps=1e-3)
    np.testing.assert_allclose(gs.batch_norm(x, mean, var, weight, bias, 1e-3), theirs, rtol=1e-13)


# --- JAX in four dimensions ------------------------------------------------------------------------------------------

FOUR = {
    "plain": {},
    "strided, padded": {"stride": (2, 1, 3, 1), "padding": ((1, 0), (0, 2), (1, 1), (0, 0))},
    "dilated groups": {"dilation": (1, 2, 1, 1), "padding": ((0, 0), (1, 1), (0, 0), (0, 1)), "groups": 2},
}


def jax_conv(x, w, stride=(1,) * 4, padding=((0, 0),) * 4, dilation=(1,) * 4, groups=1):
    layout = lax.ConvDimensionNumbers(*(tuple(range(6)),) * 3)
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, dimension_numbers=layout, feature_group_count=groups
    )


@pytest.mark.parametrize("options", FOUR.values(), ids=FOUR)
def test_four_axes_agree_with_jax(options):
    """Convolution and its gradients; its input gradient is the transposed convolution, so that has four axes too."""
    x, w = whole_numbers(2, 2, 4, 3, 5, 3), whole_numbers(4, 2 // options.get("groups", 1), 2, 2, 3, 2, seed=1)
    with jax.enable_x64(True):
        theirs, their_pullback = jax.vjp(partial(jax_conv, **options), x, w)
        g = whole_numbers(*theirs.shape, seed=2)
        their_dx, their_dw = their_pullback(g)
    ours, pullback = gs.vjp(partial(gs.conv, **options), x, w)
    dx, dw = pullback(g)
    np.testing.assert_array_equal(ours, theirs, strict=True)
    np.testing.assert_array_equal(dx, their_dx, strict=True)
    np.testing.assert_array_equal(dw, their_dw, strict=True)


# --- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True], ids=["one bias", "a batch of biases"])
@pytest.mark.parametrize(
    ("function", "weight"),
    [(gs.conv, (1, 2)), (gs.conv_transpose, (2, 1)), (gs.linear, (1, 2))],
    ids=["conv", "conv_transpose", "linear"],
)
def test_half_precision_rounds_once_with_the_bias(function, weight, batched):
    """2048 + 1 + 1 is 2050, which float16 holds; the sum without the bias, 2049, it does not."""
    graph = gs.trace(function, gs.f16[2], gs.f16[weight], gs.f16[1])
    bias = np.float16([[1], [3]]) if batched else np.float16([1])
    graph = graph.batch(2, [None, None, 0]) if batched else graph
    result = graph(np.float16([2048, 1]), np.ones(weight, np.float16), bias)
    assert result.tolist() == ([[2050.0], [2052.0]] if batched else [2050.0])


def test_a_bias_tangent_is_rounded_with_its_product():
    graph = gs.trace(gs.linear, gs.f16[2], gs.f16[1, 2], gs.f16[1]).jvp(["x", "bias"])
    x, w = np.float16([0, 0]), np.float16([[1, 1]])
    assert graph(x, w, np.float16([0]), np.float16([2048, 1]), np.float16([1]))[1].tolist() == [2050.0]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_sample_does_not_depend_on_its_batch(groups):
    x, w = reals(5, 4, 9, 8).astype(np.float32), reals(6, 4 // groups, 3, 2, seed=1).astype(np.float32)
    graph = gs.trace(partial(gs.conv, padding=1, groups=groups), gs.f32[1, 4, 9, 8], gs.f32[w.shape])
    together = gs.conv(x, w, padding=1, groups=groups)
    spread = gs.conv_transpose(together, w, padding=1, groups=groups)
    for i in range(len(x)):
        assert np.array_equal(graph(x[i : i + 1], w)[0], together[i])
        assert np.array_equal(gs.conv_transpose(together[i], w, padding=1, groups=groups), spread[i])


@pytest.mark.parametrize("bytes_", [1, 2_000, 20_000])
@pytest.mark.parametrize("shape", [(3, 4, 7), (2, 2, 4, 6, 5)], ids=str)
def test_small_workspaces_change_nothing(monkeypatch, bytes_, shape):
    """Whole numbers, whose sums are exact in every order, so every way of cutting the work gives one result."""
    rank = len(shape) - 2 if len(shape) == 3 else 2
    x = whole_numbers(*shape)
    w = whole_numbers(4, shape[-1 - rank] // 2, *(3, 2)[:rank], seed=1)
    function = partial(gs.conv, stride=2, padding=2, groups=2)

    def everything():
        y, pullback = gs.vjp(function, x, w)
        return y, *pullback(whole_numbers(*y.shape, seed=2))

    expected = everything()
    monkeypatch.setattr(kernels, "WORKSPACE", bytes_)
    for a, b in zip(everything(), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_columns_stay_small():
    """All columns at once would take 75 MB."""
    x, w = np.ones((8, 16, 128, 128), np.float32), np.ones((1, 16, 3, 3), np.float32)
    tracemalloc.start()
    try:
        gs.conv(x, w)
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def test_padding_zeros_take_part():
    """A non-finite weight or cotangent that meets a padded cell gives NaN; one that meets none does not."""
    x, w = np.ones((1, 3)), np.array([[[np.inf, 1.0]]])
    y, pullback = gs.vjp(partial(gs.conv, padding=((1, 0),)), x, w)
    assert np.isnan(y).tolist() == [[True, False, False]]
    assert np.isnan(pullback(np.array([[np.inf, 0, 0]]))[1]).tolist() == [[[True, False]]]


def test_resizing_passes_by_what_has_no_weight():
    x = np.array([1.0, np.inf, 3.0, np.nan])
    same = gs.resize(x, (4,), "linear")
    assert np.array_equal(same, x, equal_nan=True)
    assert gs.resize(x, (2,), "linear", align_corners=True)[0] == 1.0


def test_places_that_are_usual_are_not_recorded():
    usual = gs.trace(lambda x: gs.resize(x, (4,), "linear"), gs.f32[3])
    given = gs.trace(lambda x: gs.resize(x, (4,), "linear", step=0.75, start=-0.125), gs.f32[3])
    assert str(usual) == str(given)
    unusual = gs.trace(lambda x: gs.resize(x, (4,), "linear", step=Fraction(2, 3)), gs.f32[3])
    assert "align_corners=False, step=((2, 3),), start=((-1, 6),))" in str(unusual)


def test_places_fit_in_64_bits():
    with pytest.raises(gs.ShapeError, match="not a quotient of 64-bit integers; round it"):
        gs.resize(np.zeros(3), (2,), step=1e-9)


# --- graphs ----------------------------------------------------------------------------------------------------------


def test_batched_weights_fold_into_groups():
    graph = gs.trace(partial(gs.conv, groups=2), gs.f64[4, 5], gs.f64[2, 2, 3]).batch(3)
    (node,) = [n for n in check(graph).nodes if n.op is READ]
    assert node.attrs.groups == 6
    assert [v.shape for v in node.inputs] == [(12, 5), (6, 2, 3)]


def test_a_batch_of_samples_is_a_leading_axis():
    graph = gs.trace(gs.conv, gs.f64[4, 5], gs.f64[2, 4, 3]).batch(3, [0, None])
    assert [n.op for n in graph.nodes] == [READ]


@pytest.mark.parametrize("function", [gs.conv, gs.conv_transpose])
def test_an_empty_batch_of_weights(function):
    graph = gs.trace(function, gs.f64[2, 4], gs.f64[2, 2, 3], gs.f64[2]).batch(0)
    assert graph(*(np.zeros((0, *v.shape[1:])) for v in graph.inputs)).shape[0] == 0


def test_third_derivatives_of_a_bilinear_map_vanish():
    graph = gs.trace(gs.conv, gs.f64[1, 4], gs.f64[1, 1, 2]).jvp(["x", "weight"])
    second = graph.jvp(["x", "weight"])
    third = second.jvp(["x", "weight"])
    args = [whole_numbers(*v.shape, seed=i) for i, v in enumerate(third.inputs)]
    assert not np.any(third(*args)[-1])
    assert np.any(second(*args[: len(second.inputs)])[-1])


def test_matmul_operator_mixes_arrays_and_variables():
    matrix = whole_numbers(3, 3)
    graph = gs.trace(lambda x: matrix @ x @ matrix, gs.f64[3, 3])
    x = whole_numbers(3, 3, seed=1)
    assert np.array_equal(graph(x), matrix @ x @ matrix)


# --- errors ----------------------------------------------------------------------------------------------------------

ERRORS = {
    "channels": (gs.conv, [(3, 5), (2, 4, 2)], {}, r"conv\(x: f64\[3, 5\], .*x has 3 channels"),
    "groups": (gs.conv, [(3, 5), (2, 1, 2)], {"groups": 2}, "groups=2 does not divide the 3 channels of x"),
    "bias": (gs.conv, [(1, 5), (2, 1, 2), (3,)], {}, r"bias has shape \(3,\)"),
    "stride 0": (gs.conv, [(1, 5), (2, 1, 2)], {"stride": 0}, "stride on spatial axis 0 is 0"),
    "wide kernel": (gs.conv, [(1, 5), (2, 1, 6)], {}, "wider than the padded axis"),
    "no kernel": (gs.conv, [(5,), (2,)], {}, "needs two channel axes"),
    "no channel axis": (gs.conv, [(5,), (2, 1, 2)], {}, "need at least 2"),
    "conv2d": (gs.conv2d, [(1, 5), (2, 1, 2)], {}, "conv2d: .*2 kernel axes"),
    "transposed padding": (gs.conv_transpose, [(1, 5), (1, 1, 2)], {"padding": "same"}, "no meaning"),
    "output padding": (gs.conv_transpose, [(1, 5), (1, 1, 2)], {"output_padding": 1}, "must be smaller"),
    "transposed channels": (gs.conv_transpose, [(2, 5), (1, 1, 2)], {}, r"conv_transpose\(x: .*reads 1"),
    "unfold an int": (gs.unfold, [(1, 5)], {"kernel_size": 2}, "give a tuple"),
    "fold": (gs.fold, [(4, 5)], {"kernel_size": (2,), "output_size": (3,)}, r"does not fold onto \(3,\)"),
    "inner sizes": (gs.matmul, [(2, 3), (2, 3)], {}, "sums over 3 numbers .* but 2"),
    "leading axes": (gs.matmul, [(2, 1, 3), (3, 3, 2)], {}, "do not broadcast"),
    "scalar": (gs.matmul, [(), (2,)], {}, "at least one axis"),
    "linear weight": (gs.linear, [(3,), (3,)], {}, "give x at least one axis and the weight two"),
    "linear bias": (gs.linear, [(3,), (2, 3), (3,)], {}, "one number per column"),
    "statistics": (gs.batch_norm, [(2, 3), (2,), (3,)], {}, "one number for each of the 3 channels"),
    "no channels": (gs.batch_norm, [(3,), (3,), (3,)], {}, r"needs x \(N, C"),
    "resize to 0": (gs.resize, [(3,)], {"size": (0,)}, r"resize\(x: f64\[3\]\): size on spatial axis 0"),
    "resize nothing": (gs.resize, [(0,)], {"size": (2,)}, "at least one cell"),
    "mode": (gs.resize, [(3,)], {"size": (2,), "mode": "cubic"}, 'give "nearest" or "linear"'),
    "corners": (gs.resize, [(3,)], {"size": (2,), "align_corners": True}, "only"),
    "corners and steps": (
        gs.resize,
        [(3,)],
        {"size": (2,), "mode": "linear", "align_corners": True, "step": 1},
        "give one of them",
    ),
    "rounding": (gs.resize, [(3,)], {"size": (2,), "rounding": "up"}, "one of floor, ceil, half_down, half_up"),
    "linear rounding": (gs.resize, [(3,)], {"size": (2,), "mode": "linear", "rounding": "ceil"}, "only"),
    "steps": (gs.resize, [(3,)], {"size": (2,), "step": (1, 2)}, "step has 2 numbers for 1 axes"),
    "step": (gs.resize, [(3,)], {"size": (2,), "step": np.inf}, "step on axis 0 is inf; give a finite number"),
    "start": (gs.resize, [(3,)], {"size": (2,), "start": True}, "start on axis 0 is True; give a finite number"),
}


@pytest.mark.parametrize(("function", "shapes", "options", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_say_what_is_wrong(function, shapes, options, message):
    with pytest.raises(gs.ShapeError, match=message):
        gs.trace(partial(function, **options), *(gs.f64[s] for s in shapes))


@pytest.mark.parametrize(("function", "shapes", "options", "message"), ERRORS.values(), ids=ERRORS)
def test_the_specification_refuses_the_same(function, shapes, options, message):
    arrays = (plain(np.zeros(s)) for s in shapes)
    with pytest.raises(gs.ShapeError):
        getattr(gs.spec, function.__name__)(*arrays, **options)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(gs.conv_transpose, [(1, 3), (1, 1, 2)]), (partial(gs.resize, size=(2,)), [(3,)])],
    ids=["conv_transpose", "resize"],
)
def test_integers_are_refused(function, shapes):
    with pytest.raises(gs.DTypeError, match="floating-point"):
        gs.trace(function, *(gs.i64[s] for s in shapes))


def test_mixed_dtypes_are_refused():
    with pytest.raises(gs.DTypeError, match="one dtype"):
        gs.trace(gs.matmul, gs.f32[2, 2], gs.f64[2, 2])


GEOMETRY = Convolution((5,), (2,), (1,), ((0, 0),), (1,), (4,), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": (5,)}, "span 6 cells, but the padded axis has 5"),
        ({"stride": (0,)}, "stride on spatial axis 0 is 0"),
        ({"kernel": (2, 2)}, "need at least 3"),
        ({"padding": ((-1, 1),)}, "padding on spatial axis 0"),
        ({"groups": 0}, "groups is 0"),
        ({"groups": 3}, "does not divide"),
        ({"sizes": (6,)}, "does not end in"),
        ({"dilation": (True,)}, "a bool"),
    ],
    ids=str,
)
def test_a_record_that_states_nonsense_is_refused(change, message):
    """Such records come from damaged files, not from ``conv``."""
    with pytest.raises(gs.ShapeError, match=message):
        apply(READ, replace(GEOMETRY, **change), np.zeros((2, 5)), np.zeros((1, 2, 2)))


def test_a_record_with_too_few_columns_is_refused():
    with pytest.raises(gs.ShapeError, match=r"\(3,\) windows are stated, but \(4,\) fit"):
        apply(UNFOLD, StatedWindows((5,), (2,), (1,), ((0, 0),), (1,), (3,)), np.zeros((2, 5)))


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_result_too_large_for_its_format_is_infinite_without_a_warning(backend):
    x, w = np.full((1, 1, 4), 300, np.float16), np.full((1, 1, 3), 300, np.float16)
    run = gs.compile(gs.trace(gs.conv, gs.f16[x.shape], gs.f16[w.shape]), backend=backend)
    assert np.isposinf(run(x, w)).all()

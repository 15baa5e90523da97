"""Pointwise chains on the CPU: operators, chains, layouts, thread counts, ranges.

Operators whose results IEEE 754 fixes agree with the NumPy backend bit for bit, the others with the specification to a
few units in the last place, and chains with their operators one by one bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.backends import numpy as numpy_backend
from gradspec.backends.cpu.pointwise.arguments import BLOCK_BYTES
from gradspec.backends.cpu.pointwise.plan import LOWERINGS, PointwiseProgram, epilogue_function
from gradspec.codegen.records import Block, address, block_address
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import TensorType
from gradspec.ops import pointwise as ops
from gradspec.ops.convert import Conversion
from gradspec.ops.core import operators
from gradspec.ops.linear import BatchNorm
from gradspec.ops.lp_pool import AbsPower
from gradspec.runtime import threads
from gradspec.runtime.task import Task, Work

WIDTHS = ["f16", "f32", "f64"]
"""A format of each width: for the memory that they take, the format does not matter."""
FORMATS = {"f16": gs.f16, "bf16": gs.bf16, "f32": gs.f32, "f64": gs.f64}
INTEGERS = {"i8": gs.i8, "u8": gs.u8, "i32": gs.i32, "i64": gs.i64}
DTYPES = FORMATS | INTEGERS | {"bool": gs.boolean}
HUGE, TINY = 1e300, 1e-310
ATTRIBUTES: dict[str, list[Any]] = {
    **{name: [ops.NONE] for name in ("neg", "abs", "sqrt", "floor", "round", "relu", "detach")},
    **{name: [ops.NONE] for name in ("add", "sub", "mul", "div", "maximum", "minimum", "max_share", "gate")},
    "scale": [ops.Factor(x) for x in (0.1, -3.0, 0.0, -0.0, HUGE, TINY)],
    "leaky_relu": [ops.NegativeSlope(x) for x in (0.01, -2.0, 0.0, -0.0, HUGE, TINY)],
    "clamp": [ops.ClampRange(*b) for b in ((-1.0, 0.1), (None, 0.1), (-0.1, None), (0.0, -0.0), (-HUGE, HUGE))],
    "within": [ops.ClampRange(*b) for b in ((-1.0, 0.1), (None, 0.1), (-0.1, None), (0.0, -0.0), (-HUGE, HUGE))],
    "step": [ops.Levels(*x) for x in ((0.0, 0.0, 1.0), (-1.0, -0.0, 0.1), (HUGE, TINY, -HUGE))],
    "abs_power": [AbsPower(q, signed) for q in (0.0, 1.0, 2.0) for signed in (False, True) if (q, signed) != (2, True)],
}
SMOOTH: dict[str, list[Any]] = {
    **{name: [ops.NONE] for name in ("exp", "log", "tanh", "sigmoid", "silu", "normal_cdf", "normal_density")},
    "softplus": [ops.Beta(x) for x in (1.0, 3.0, -0.1)],
    "gelu": [ops.Approximation(x) for x in ("none", "tanh")],
    "abs_power": [*(AbsPower(q, signed) for q in (0.3, -1.0, 3.0) for signed in (False, True)), AbsPower(2.0, True)],
}
BINARY = {"add", "sub", "mul", "div", "maximum", "minimum", "max_share", "gate", "greater", "equal", "trunc_divide"}
OF_INTEGERS = ("maximum", "minimum", "detach", "neg", "abs", "relu", "add", "sub", "mul", "trunc_divide")
INSTRUCTIONS = [(name, attrs) for name, records in ATTRIBUTES.items() for attrs in records]
COMPARISONS = [(name, ops.NONE) for name in ("greater", "equal")]
SMOOTH_INSTRUCTIONS = [(name, attrs) for name, records in SMOOTH.items() for attrs in records]


def specials(dtype: np.dtype) -> np.ndarray:
    """Zeros, kinks, infinities, NaN, and the ends of the subnormal, normal and finite numbers, of either sign."""
    if dtype.kind in "bui":
        return whole_specials(dtype)
    info = ml_dtypes.finfo(dtype)
    sizes = [0.0, 0.1, 0.5, 1.0, 1 + info.eps, 3.0, info.smallest_subnormal, info.tiny, info.max, np.inf, np.nan]
    near = np.nextafter(np.asarray([info.tiny, info.max], dtype), dtype.type(0))
    return np.concatenate([np.asarray(sizes, dtype), near, -np.asarray(sizes, dtype), -near])


def whole_specials(dtype: np.dtype) -> np.ndarray:
    """Zero, one, the ends, and what is next to them."""
    if dtype.kind == "b":
        return np.array([False, True])
    info = np.iinfo(dtype)
    return np.array([info.min, info.min + 1, -1 % (info.max + 1), 0, 1, 2, 100, info.max - 1, info.max], dtype)


@np.errstate(over="ignore", invalid="ignore")
def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Numbers of every size, one in four of them special."""
    ordinary = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)
    return np.where(rng.random(shape) < 0.25, rng.choice(specials(dtype), shape), ordinary.astype(dtype))


# --- the reference ----------------------------------------------------------------------------------------------------

ZEROS: dict[str, Callable[..., Any]] = {"maximum": lambda a, b: a + b, "minimum": lambda a, b: -(-a - b)}
"""Which zero is the larger or smaller: 0 exceeds −0. NumPy leaves that to the processor."""


@np.errstate(all="ignore")
def reference(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every node by the NumPy backend, one after the other; smooth ones by tasks of their own."""
    values = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        operands = [values[v] for v in node.inputs]
        if (node.op.name, node.attrs) in SMOOTH_INSTRUCTIONS:
            values[node.outputs[0]] = alone(node, operands)
            continue
        (result,) = numpy_backend.apply(node.op, node.attrs, *operands)
        if node.op.name in ZEROS and node.outputs[0].type.is_float:
            both_zero = (operands[0] == 0) & (operands[1] == 0)
            result = np.where(both_zero, ZEROS[node.op.name](*operands), result)
        values[node.outputs[0]] = result
    return [values[v] for v in graph.outputs]


def alone(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    graph = one_node(node.op.name, node.attrs, node.outputs[0].type)
    (result,) = results(graph, [np.ascontiguousarray(a) for a in operands])
    return result


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """Bit for bit, but for the sign and payload of a NaN."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    bits = f"u{wanted.itemsize}"
    same = (found.copy().view(bits) == wanted.copy().view(bits)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), (found[~same], wanted[~same])


# --- carrying out a task ----------------------------------------------------------------------------------------------

GUARD = 4096


@cache
def lowered(graph: Graph) -> Task | None:
    """One task for a graph, which is then bound to arrays of different layouts."""
    return LOWERINGS[graph.nodes[0].op.name].task(Work(graph.nodes, tuple(dict.fromkeys(graph.outputs))))


def carry_out(graph: Graph, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], count: int = 1) -> None:
    """The graph by its task, in one piece or on ``count`` threads; nothing behind the workspace is written."""
    task = lowered(graph)
    assert task is not None
    assert task.workspace % 64 == 0
    values = dict(zip((*graph.inputs, *graph.outputs), (*arrays, *outputs), strict=True))
    block, units, _ = task.bind(*(values[v] for v in (*task.inputs, *task.outputs)))
    assert units == task.units
    workspace = np.full(task.workspace * count + GUARD, 0xFF, np.uint8)
    if count == 1:
        task.function(block_address(block), 0, task.units, address(workspace))
    else:
        threads.run(task.function, block_address(block), task.units, address(workspace), task.workspace, count)
    assert (workspace[task.workspace * count :] == 0xFF).all()


def results(graph: Graph, arrays: Sequence[np.ndarray], count: int = 1) -> list[np.ndarray]:
    outputs = [np.empty(v.shape, v.dtype.numpy) for v in graph.outputs]
    carry_out(graph, arrays, outputs, count)
    return outputs


@cache
def one_node(name: str, attrs: Any, type: TensorType) -> Graph:
    builder = gs.Builder()
    operands = [builder.input(type, letter) for letter in ("ab" if name in BINARY else "a")]
    return builder.build(builder.apply(operators()[name], attrs, *operands))


def test_every_lowered_operator_is_tested():
    assert {*ATTRIBUTES, *SMOOTH, *OF_INTEGERS, "batch_norm", "greater", "equal", "where", "convert"} == set(LOWERINGS)


@pytest.mark.rows(len(FORMATS))
@pytest.mark.parametrize("format", FORMATS)
def test_special_values(format):
    for name, attrs in INSTRUCTIONS + COMPARISONS:
        assert_right_on_pairs(name, attrs, FORMATS[format])


def assert_right_on_pairs(name, attrs, dtype):
    values = specials(dtype.numpy)
    pairs = np.array(list(product(values, values)), values.dtype).T.copy()
    graph = one_node(name, attrs, dtype[pairs.shape[1]])
    arrays = list(pairs[: len(graph.inputs)])
    assert_same_bits(*results(graph, arrays), *reference(graph, arrays))


@pytest.mark.parametrize("format", FORMATS)
def test_products_and_sums_are_rounded_one_by_one(format):
    type = FORMATS[format][64]
    graph = gs.trace(lambda a, b, c: a * b + c, type, type, type)
    a = np.random.default_rng(1).uniform(1, 2, 64).astype(type.dtype.numpy)
    c = -(a * a)
    assert not results(graph, [a, a, c])[0].any()


@pytest.mark.rows(len(INTEGERS))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    """They wrap around."""
    for name in (*OF_INTEGERS, "greater", "equal"):
        assert_right_on_pairs(name, ops.NONE, INTEGERS[dtype])


@pytest.mark.parametrize("name", ["maximum", "minimum", "equal", "detach"])
def test_truth_values(name):
    pairs = np.array([[False, False, True, True], [False, True, False, True]])
    graph = one_node(name, ops.NONE, gs.boolean[4])
    arrays = list(pairs[: len(graph.inputs)])
    assert_same_bits(*results(graph, arrays), *reference(graph, arrays))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_chosen_is_chosen_bit_for_bit(dtype):
    values = specials(DTYPES[dtype].numpy)
    a, b = np.array(list(product(values, values)), values.dtype).T.copy()
    truths = np.random.default_rng(2).random(a.size) < 0.5
    graph = gs.trace(gs.where, gs.boolean[a.size], DTYPES[dtype][a.size], DTYPES[dtype][a.size])
    assert_same_bits(*results(graph, [truths, a, b]), np.where(truths, a, b))


# --- conversion -------------------------------------------------------------------------------------------------------


def convertible(dtype: np.dtype) -> np.ndarray:
    """Numbers around the ends of every integer type, and around the middles of neighbours in every shorter format."""
    ends = np.array([2.0**n for n in (7, 8, 15, 16, 31, 32, 63)])
    middles = np.array([1 + 2.0**-8, 1 + 2.0**-11, 1 + 2.0**-24, 65519.0, 65520.0, 2.0**-25, 3.39e38, 3.4e38])
    steps = 1 + np.array([-(2.0**-52), 0.0, 2.0**-52, 2.0**-30, -(2.0**-30)])
    near = (np.concatenate([ends, ends - 0.5, ends - 1, ends + 0.5, middles])[:, None] * steps).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        floats = np.concatenate([near, -near]).astype(dtype if dtype.kind not in "bui" else np.float64)
    if dtype.kind not in "bui":
        return np.concatenate([floats, specials(dtype)])
    info = np.iinfo(np.int8 if dtype.kind == "b" else dtype)
    powers = [2**n + d for n in range(0, 64, 3) for d in (-1, 0, 1)] + [
        2**n + 2 ** (n - 8) + d for n in (28, 60) for d in (-1, 0, 1)
    ]
    whole = [sign * n for n in powers for sign in (-1, 1) if info.min <= sign * n <= info.max]
    return np.concatenate([np.array(whole).astype(dtype), specials(dtype)])


@pytest.mark.rows(len(DTYPES))
@pytest.mark.parametrize("source", DTYPES)
def test_conversions(source):
    """Of numbers in a row, and of every second one."""
    x = convertible(DTYPES[source].numpy)
    for target, array in product(DTYPES, (x, np.repeat(x, 2)[::2])):
        graph = conversion(source, target, x)
        assert_same_bits(*results(graph, [array]), *reference(graph, [array]))


def conversion(source: str, target: str, x: np.ndarray) -> Graph:
    builder = gs.Builder()
    operand = builder.input(DTYPES[source][x.shape], "x")
    return builder.build(builder.apply(operators()["convert"], Conversion(target), operand))


# --- smooth operators -------------------------------------------------------------------------------------------------

ROUNDOFFS = {"tanh": 3.0, "sigmoid": 3.0, "silu": 4.0, "softplus": 3.0, "abs_power": 4.0, "normal_density": 4.0}
"""The relative error in units of the roundoff, where it is not 2: 8 of the normal distribution."""


def magnified(name: str, attrs: Any, x: float) -> float:
    """How much a rounding before the exponential is magnified: by its argument, where that is not ``x`` itself."""
    if name == "softplus":
        return abs(attrs.beta * x)
    if name == "gelu" and attrs.approximate == "tanh":
        return min(5 * abs(1.6 * x * (1 + 0.045 * x * x)), 1e4)
    return 0.0


def allowed(name: str, attrs: Any, x: float, exact: float, dtype: np.dtype) -> float:
    """The error of a result that is computed in float32 or float64 and rounded once if its format is another."""
    computed = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    roundoffs = 8.0 if name in {"normal_cdf", "gelu"} else ROUNDOFFS.get(name, 2.0)
    relative = (roundoffs + magnified(name, attrs, x)) * float(computed.eps) / 2
    smallest = 3 * max(1.0, abs(x)) * float(computed.smallest_subnormal)  # a factor of x may be subnormal
    error = relative * abs(exact) + smallest
    if dtype.itemsize == 2:
        info = ml_dtypes.finfo(dtype)
        error += max(float(info.eps) / 2 * (abs(exact) + error), float(info.smallest_subnormal) / 2)
    return error


def arguments(name: str, dtype: np.dtype) -> np.ndarray:
    """Finite numbers: small and large, near 1 and in the tails of exponentials."""
    rng = np.random.default_rng(len(name))
    tail = {np.dtype(np.float64): 750.0, np.dtype(np.float16): 20.0}.get(dtype, 110.0)
    ranges = [(-2, 2), (-10, 10), (-40, 40), (-tail, tail), (0.7, 1.4), (-1e-4, 1e-4)]
    values = np.concatenate([rng.uniform(*ends, 60) for ends in ranges] + [specials(dtype).astype(np.float64)])
    values = values.astype(dtype)
    values = values[np.isfinite(values) & (np.abs(values) < 1e4)]
    return values[values > 0] if name == "log" else values[values != 0] if name == "abs_power" else values


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("name", "attrs"), SMOOTH_INSTRUCTIONS)
def test_smooth_operators_agree_with_the_specification(name, attrs, format):
    dtype = FORMATS[format].numpy
    x = arguments(name, dtype)
    (found,) = results(one_node(name, attrs, FORMATS[format][x.size]), [x])
    (balls,) = operators()[name].spec(attrs, gs.ball(160).tensor(x.astype(float).tolist()))
    largest = float(ml_dtypes.finfo(dtype).max)
    for a, got, ball in zip(x.astype(float).tolist(), found.astype(float).tolist(), balls.cells, strict=True):
        exact = float(ball.mid())
        error = allowed(name, attrs, a, exact, dtype)
        if np.isinf(got):
            assert abs(exact) + error >= largest, (a, got, exact)
        else:
            assert abs(got - exact) <= error, (a, got, exact, abs(got - exact) / error)


def kind_of(x: float) -> str:
    size = "zero" if x == 0 else "infinite" if np.isinf(x) else "finite"
    return "NaN" if np.isnan(x) else f"-{size}" if x < 0 else size


@pytest.mark.rows(len(FORMATS))
@pytest.mark.parametrize("format", FORMATS)
def test_smooth_operators_at_zero_infinity_and_nan(format):
    dtype = FORMATS[format].numpy
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0], dtype)
    for name, attrs in SMOOTH_INSTRUCTIONS:
        (found,) = results(one_node(name, attrs, FORMATS[format][x.size]), [x])
        with np.errstate(all="ignore"):
            (wanted,) = numpy_backend.apply(operators()[name], attrs, x)
        assert [*map(kind_of, found.astype(float))] == [*map(kind_of, wanted.astype(float))], name
        eps = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=4 * eps, err_msg=name)


@pytest.mark.parametrize("format", FORMATS)
def test_results_that_are_exact(format):
    def at(name: str, *values: float) -> list[float]:
        x = np.array(values, FORMATS[format].numpy)
        return results(one_node(name, ops.NONE, FORMATS[format][x.size]), [x])[0].astype(float).tolist()

    assert at("exp", 0.0, -0.0) == [1.0, 1.0]
    assert at("log", 1.0) == [0.0]
    assert at("sigmoid", 0.0, -0.0) == [0.5, 0.5]
    assert at("normal_cdf", 0.0, -0.0) == [0.5, 0.5]
    tiny = float(ml_dtypes.finfo(FORMATS[format].numpy).tiny)
    assert at("tanh", tiny, -tiny, 20.0, -20.0) == [tiny, -tiny, 1.0, -1.0]
    assert [str(y) for y in at("tanh", 0.0, -0.0)] == ["0.0", "-0.0"]


# --- batch normalisation ----------------------------------------------------------------------------------------------


def normalised(type: TensorType, attrs: BatchNorm, after: bool) -> Graph:
    """A batch norm, alone or between other operators."""
    builder = gs.Builder()
    operands = [builder.input(type), *(builder.input(type.dtype[type.shape[1]]) for _ in range(2))]
    operands += [builder.input(type.dtype[type.shape[1]]) for there in (attrs.weight, attrs.bias) if there]
    table = operators()
    if after:
        (scaled,) = builder.apply(table["scale"], ops.Factor(0.7), operands[0])
        (y,) = builder.apply(table["batch_norm"], attrs, scaled, *operands[1:])
        return builder.build(builder.apply(table["maximum"], ops.NONE, y, operands[0]))
    return builder.build(builder.apply(table["batch_norm"], attrs, *operands))


def statistics(rng: np.random.Generator, graph: Graph, stride: int) -> list[np.ndarray]:
    """Means, variances, weights and biases, every ``stride``-th number of an array."""
    found = []
    for i, v in enumerate(graph.inputs[1:]):
        parent = rng.standard_normal(v.shape[0] * stride).astype(v.dtype.numpy)
        found.append((np.abs(parent) if i == 1 else parent)[::stride])
    return found


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("layout", ["C", "channels last", "transposed"])
@pytest.mark.parametrize(
    "shape", [(5, 3), (2, 1, 4), (1, 4, 1, 1), (2, 3, 4, 5), (3, 70, 7, 5), (2, 9, 40, 40)], ids=str
)
def test_batch_norms_are_those_of_numpy(shape, layout, format):
    """Bit for bit, in any layout, in a chain and in ranges, with and without weight and bias."""
    type, rng = FORMATS[format][shape], np.random.default_rng(prod(shape))
    for weight, bias, after, stride in product((False, True), (False, True), (False, True), (1, 2)):
        graph = normalised(type, BatchNorm(1e-5, weight, bias), after)
        arrays = [laid_out(rng, layout, shape, type.dtype.numpy), *statistics(rng, graph, stride)]
        wanted = reference(graph, arrays)
        outputs = [np.empty_like(arrays[0])]
        carry_out(graph, arrays, outputs, 2)
        assert_same_bits(*outputs, *wanted)
        in_ranges(graph, arrays, outputs, cuts(rng, prod(shape), BLOCK_BYTES // type.dtype.numpy.itemsize), 1)
        assert_same_bits(*outputs, *wanted)


# --- layouts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A view of an array of another shape."""

    parent: Callable[[tuple[int, ...]], tuple[int, ...]]
    view: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


LAYOUTS = {
    "C": Layout(lambda s: s, lambda p, s: p),
    "transposed": Layout(lambda s: s[::-1], lambda p, s: p.T),
    "channels last": Layout(
        lambda s: (*s[:1], *s[2:], *s[1:2]), lambda p, s: p if p.ndim < 3 else np.moveaxis(p, -1, 1)
    ),
    "reversed": Layout(lambda s: s, lambda p, s: p[..., *(slice(None, None, -1),) * p.ndim]),
    "sliced": Layout(
        lambda s: tuple(2 * n + 1 for n in s),
        lambda p, s: p[..., *(slice(1, 1 + 2 * n, 2) for n in s)],
    ),
    "padded rows": Layout(
        lambda s: (*s[:-1], *(n + 5 for n in s[-1:])), lambda p, s: p[..., 2 : 2 + s[-1]] if s else p
    ),
}
REPEATED = {
    "one number": Layout(lambda s: (), np.broadcast_to),
    "first axis repeated": Layout(lambda s: (*(1 for _ in s[:1]), *s[1:]), np.broadcast_to),
    "last axis repeated": Layout(lambda s: (*s[:-1], *(1 for _ in s[-1:])), np.broadcast_to),
    "per channel": Layout(lambda s: tuple(n if i == 1 else 1 for i, n in enumerate(s)), np.broadcast_to),
}
READABLE = LAYOUTS | REPEATED
SHAPES = [
    (),
    (0,),
    (1,),
    (3, 0, 2),
    (BLOCK_BYTES // 8 - 1,),
    (BLOCK_BYTES // 8 + 1,),
    (BLOCK_BYTES // 4 - 1,),
    (BLOCK_BYTES // 4,),
    (BLOCK_BYTES // 4 + 1,),
    (1, 5, 1),
    (2, 3, 4, 5),
    (7, 1, 11, 31),
    (3, 64, 7, 5),
    (2, 3, 2, 2, 3, 2, 5),
]


def laid_out(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    layout = READABLE[name]
    return layout.view(numbers(rng, layout.parent(shape), dtype), shape)


def chain_of(type: TensorType) -> Graph:
    """Two outputs, one of which the other reads, and one intermediate value."""

    def chain(a: Var, b: Var) -> tuple[Var, Var]:
        difference = a - b
        return difference, gs.maximum(gs.scale(difference, 0.3), b) * a

    return gs.trace(chain, type, type)


@pytest.mark.parametrize("format", WIDTHS)
@pytest.mark.parametrize("layout", READABLE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_is_read(shape, layout, format):
    type, rng = FORMATS[format][shape], np.random.default_rng(prod(shape))
    graph = chain_of(type)
    for names in ((layout, "C"), ("C", layout), (layout, layout), ("one number", layout)):
        arrays = [laid_out(rng, name, shape, type.dtype.numpy) for name in names]
        for found, wanted in zip(results(graph, arrays), reference(graph, arrays), strict=True):
            assert_same_bits(found, wanted)


@pytest.mark.parametrize("format", WIDTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_is_written_and_nothing_beside_it(shape, layout, format):
    type, rng = FORMATS[format][shape], np.random.default_rng(prod(shape))
    dtype, form, graph = type.dtype.numpy, LAYOUTS[layout], chain_of(type)
    for inputs, second in ((layout, "C"), ("C", layout)):
        arrays = [laid_out(rng, inputs, shape, dtype) for _ in range(2)]
        parent = np.full(form.parent(shape), -7, dtype)
        wanted = parent.copy()
        outputs = [form.view(parent, shape), laid_out(rng, second, shape, dtype)]
        carry_out(graph, arrays, outputs)
        first, other = reference(graph, arrays)
        form.view(wanted, shape)[...] = first
        assert_same_bits(parent, wanted)
        assert_same_bits(outputs[1], other)


# --- chains -----------------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Operators of earlier values, of which several may be returned."""
    type = draw(st.sampled_from(list(FORMATS.values())))[draw(st.sampled_from(SHAPES))]
    builder = gs.Builder()
    values = [builder.input(type) for _ in range(draw(st.integers(1, 3)))]
    chosen = st.sampled_from(INSTRUCTIONS) | st.sampled_from(SMOOTH_INSTRUCTIONS)
    for name, attrs in draw(st.lists(chosen, min_size=1, max_size=25)):
        operands = [values[draw(st.integers(0, len(values) - 1))] for _ in range(2 if name in BINARY else 1)]
        values += builder.apply(operators()[name], attrs, *operands)
    made = values[len(builder._inputs) :]
    outputs = {made[-1], *draw(st.lists(st.sampled_from(made), max_size=3))}
    return builder.build(sorted(outputs, key=made.index), allow_unused=True)


@settings(max_examples=150, deadline=None)
@given(chains(), st.data())
def test_chains(graph, data):
    type = graph.outputs[0].type
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    read = [data.draw(st.sampled_from(list(READABLE))) for _ in graph.inputs]
    written = [data.draw(st.sampled_from(list(LAYOUTS))) for _ in graph.outputs]
    arrays = [laid_out(rng, name, type.shape, type.dtype.numpy) for name in read]
    outputs = [laid_out(rng, name, type.shape, type.dtype.numpy) for name in written]
    carry_out(graph, arrays, outputs, data.draw(st.integers(1, 3)))
    for found, wanted in zip(outputs, reference(graph, arrays), strict=True):
        assert_same_bits(found, wanted)


@st.composite
def mixed_chains(draw: st.DrawFn) -> Graph:
    """Numbers of one dtype, truth values, and converted numbers of others; several values may be returned."""
    dtype, shape = draw(st.sampled_from(list(DTYPES.values()))), draw(st.sampled_from(SHAPES))
    builder, table = gs.Builder(), operators()
    foreign = draw(st.sampled_from(list(DTYPES.values())))
    numbers, truths = [builder.input(dtype[shape])], [builder.input(gs.boolean[shape])]
    others = [builder.input(foreign[shape])]
    made = []
    for kind in draw(st.lists(st.integers(0, 7), min_size=1, max_size=15)):
        a, b, test, truth = (
            values[draw(st.integers(0, len(values) - 1))] for values in (numbers, numbers, truths, truths)
        )
        name, attrs, operands = [
            ("equal", ops.NONE, (a, b)),
            ("equal" if dtype == gs.boolean else "greater", ops.NONE, (a, b)),
            ("where", ops.NONE, (test, a, b)),
            ("convert", Conversion(dtype.name), (test,)),
            ("convert", Conversion("bool"), (a,)),
            ("minimum", ops.NONE, (test, truth)),
            ("maximum" if dtype == gs.boolean else "add", ops.NONE, (a, b)),
            ("convert", Conversion(dtype.name), (others[0],)),
        ][kind]
        (value,) = builder.apply(table[name], attrs, *operands)
        made.append(value)
        (truths if value.dtype == gs.boolean else numbers).append(value)
    outputs = {made[-1], *draw(st.lists(st.sampled_from(made), max_size=3))}
    return builder.build(sorted(outputs, key=made.index), allow_unused=True)


@settings(max_examples=150, deadline=None)
@given(mixed_chains(), st.data())
def test_chains_of_several_dtypes(graph, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = graph.outputs[0].shape
    read = [data.draw(st.sampled_from(list(READABLE))) for _ in graph.inputs]
    written = [data.draw(st.sampled_from(list(LAYOUTS))) for _ in graph.outputs]
    arrays = [laid_out(rng, name, shape, v.dtype.numpy) for name, v in zip(read, graph.inputs, strict=True)]
    outputs = [laid_out(rng, name, shape, v.dtype.numpy) for name, v in zip(written, graph.outputs, strict=True)]
    carry_out(graph, arrays, outputs, data.draw(st.integers(1, 3)))
    for found, wanted in zip(outputs, reference(graph, arrays), strict=True):
        assert_same_bits(found, wanted)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("layout", READABLE)
def test_results_do_not_depend_on_the_number_of_threads(layout, count):
    type, rng = gs.f32[5, 40, 33], np.random.default_rng(7)
    arrays = [laid_out(rng, layout, type.shape, np.dtype(np.float32)) for _ in range(2)]
    graph = chain_of(type)
    for alone, together in zip(results(graph, arrays), results(graph, arrays, count), strict=True):
        assert_same_bits(together, alone)


def test_long_chains_with_many_values_at_once():
    """No limit on instructions or registers stands in the way of a chain."""

    def chain(x: Var) -> Var:
        values = [x]
        for i in range(300):
            values.append(gs.abs(values[-1] - x) if i % 3 else gs.scale(values[-1], 1.5))
        total = x
        for value in values:
            total = total + value
        return total

    graph = gs.trace(chain, gs.f64[1000])
    arrays = [np.random.default_rng(3).standard_normal(1000)]
    assert_same_bits(*results(graph, arrays), *reference(graph, arrays))


def test_registers_are_used_again():
    def chain(x: Var, length: int) -> Var:
        for _ in range(length):
            x = gs.abs(gs.neg(x))
        return x

    short, long = (lowered(gs.trace(lambda x, n=n: chain(x, n), gs.f32[4])) for n in (4, 100))
    assert short.workspace == long.workspace


# --- cut up by the caller ---------------------------------------------------------------------------------------------


def embedded(program: PointwiseProgram, arrays: Sequence[np.ndarray]) -> bytes:
    """The arguments of a program as another kernel passes them on."""
    strides = [tuple(s // a.itemsize for s in a.strides) for a in arrays]
    return Block(program.arguments(strides)).at([address(a) for a in arrays])


def in_ranges(
    graph: Graph, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], ends: Sequence[int], how_many: int
) -> None:
    """The graph by calls for the cells between ``ends``; of the first ``how_many`` inputs only these are there."""
    program = PointwiseProgram(
        Work(graph.nodes, tuple(dict.fromkeys(graph.outputs))), graph.inputs[how_many:], given=graph.inputs[:how_many]
    )
    block = embedded(program, [*arrays[how_many:], *outputs])
    workspace = np.full(program.workspace + GUARD, 0xFF, np.uint8)
    function = epilogue_function(graph.outputs[0].dtype)
    for start, end in pairwise(ends):
        rows = [np.ravel(a)[start:end].copy() for a in arrays[:how_many]]
        workspace[: 8 * how_many].view(np.int64)[:] = [address(row) for row in rows]
        function(block_address(block), start, end - start, address(workspace))
    assert (workspace[program.workspace :] == 0xFF).all()


def cuts(rng: np.random.Generator, size: int, most: int) -> list[int]:
    """Ends of consecutive ranges of at most that many cells."""
    ends = {0, size, *rng.integers(0, size + 1, 3).tolist()}
    return sorted(ends | set(range(0, size, most)))


@pytest.mark.parametrize("format", WIDTHS)
@pytest.mark.parametrize("layout", READABLE)
@pytest.mark.parametrize("shape", [(1, 5, 1), (2, 3, 4, 5), (3, 64, 7, 5)], ids=str)
def test_ranges_make_up_the_whole(shape, layout, format):
    """Of an operand that the caller gives and one in any layout, into outputs of any layout."""
    type, rng = FORMATS[format][shape], np.random.default_rng(prod(shape))
    dtype, graph = type.dtype.numpy, chain_of(type)
    arrays = [laid_out(rng, name, shape, dtype) for name in ("C", layout)]
    written = layout if layout in LAYOUTS else "C"
    for how_many in (1, 2):
        outputs = [laid_out(rng, name, shape, dtype) for name in (written, "C")]
        in_ranges(graph, arrays, outputs, cuts(rng, prod(shape), BLOCK_BYTES // dtype.itemsize), how_many)
        for found, wanted in zip(outputs, reference(graph, arrays), strict=True):
            assert_same_bits(found, wanted)


def test_what_the_caller_gives_can_be_an_output():
    builder = gs.Builder()
    x = builder.input(gs.f32[40])
    graph = builder.build([x, builder.apply(operators()["relu"], ops.NONE, x)[0]])
    values = numbers(np.random.default_rng(4), (40,), np.dtype(np.float32))
    outputs = [np.empty(40, np.float32) for _ in range(2)]
    in_ranges(graph, [values], outputs, [0, 7, 40], how_many=1)
    assert_same_bits(outputs[0], values)
    assert_same_bits(outputs[1], np.where(values <= 0, np.float32(0), values))


@pytest.mark.parametrize("returned", [False, True])
def test_results_can_be_left_where_the_caller_says(returned):
    """Of ``relu(−x)``, which later instructions read, and which may be an output as well."""
    builder = gs.Builder()
    x = builder.input(gs.f32[40])
    (negative,) = builder.apply(operators()["neg"], ops.NONE, x)
    (left,) = builder.apply(operators()["relu"], ops.NONE, negative)
    (last,) = builder.apply(operators()["add"], ops.NONE, left, x)
    graph = builder.build([left, last])
    program = PointwiseProgram(Work(graph.nodes, (left, last) if returned else (last,)), (), given=(x, left))
    values, row = numbers(np.random.default_rng(4), (40,), np.dtype(np.float32)), np.empty(40, np.float32)
    outputs = [np.empty(40, np.float32) for _ in range(1 + returned)]
    block, workspace = embedded(program, outputs), np.zeros(program.workspace, np.uint8)
    workspace[:16].view(np.int64)[:] = [address(values), address(row)]
    epilogue_function(gs.f32)(block_address(block), 0, 40, address(workspace))
    wanted = reference(graph, [values])
    for found, expected in zip((row, *outputs[::-1]), (wanted[0], *wanted[::-1]), strict=False):
        assert_same_bits(found, expected)


# --- in a compiled graph ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", ["value", "jvp", "vjp"])
def test_compiled_graphs_agree_with_the_numpy_backend(mode, format):
    """Chains between other steps, in derivatives, and with broadcast operands and constants."""
    dtype = FORMATS[format]

    def network(x: Var, bias: Var) -> Var:
        shifted = gs.leaky_relu(x * 0.7 + gs.broadcast_to(bias, x.shape), 0.1)
        return gs.clamp(gs.avg_pool(shifted, (2, 2)), -0.5, 0.5) / 3.0 - gs.abs(gs.max_pool(shifted, (2, 2)))

    graph = gs.trace(network, dtype[2, 3, 6, 8], dtype[1, 3, 1, 1])
    graph = {"value": lambda: graph, "jvp": graph.jvp, "vjp": graph.vjp}[mode]()
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs]
    found, wanted = (gs.compile(graph, backend=backend)(*arrays) for backend in ("cpu", "numpy"))
    for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, wanted)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_chain_is_one_step():
    run = gs.compile(lambda x, y: gs.relu(x * y + 1.0) - x, gs.f32[4, 5], gs.f32[4, 5])
    assert [[node.op.name for node in step.nodes] for step in run.plan.steps] == [["mul", "add", "relu", "sub"]]


PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": gs.matmul,
    "conv": lambda a, b: gs.conv1d(a, gs.transpose(b, (1, 0, 2))[..., :3], padding=1),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_masks_and_comparisons_run_in_the_step_that_makes_what_they_read(name, format):
    """And choose among the bits that the product alone has: a number, truth values and a converted array are read."""
    product, dtype, rng = PRODUCTS[name], FORMATS[format], np.random.default_rng(6)
    a, b = (rng.standard_normal((6, 6, 6)).astype(dtype.numpy) for _ in range(2))
    mask, counts = np.tril(np.ones((6, 6), bool)), rng.integers(-3, 3, (6, 6, 1))

    def masked(a: Var, b: Var, mask: Var, counts: Var) -> tuple[Var, Var, Var]:
        y = product(a, b)
        return gs.where(mask, y, -np.inf), gs.greater(y, 0.0), y + gs.convert(counts, dtype)

    types = [dtype[a.shape], dtype[b.shape], gs.boolean[mask.shape], gs.i64[counts.shape]]
    run, (y,) = gs.compile(masked, *types), (gs.compile(product, *types[:2])(a, b),)
    (last,) = [step for step in run.plan.steps if step.task is not None and len(step.nodes) > 1]
    assert {"where", "greater"} < {node.op.name for node in last.nodes}
    assert all(step.task or step.view for step in run.plan.steps)
    wanted = np.where(mask, y, dtype.numpy.type(-np.inf)), y > 0, y + counts.astype(dtype.numpy)
    for found, expected in zip(run(a, b, mask, counts), wanted, strict=True):
        assert_same_bits(found, expected)


def test_comparisons_of_different_dtypes_are_steps_of_their_own():
    def inside(x: Var, n: Var) -> Var:
        return gs.minimum(gs.greater(x, 0.0), gs.less(n, 4))

    x, n = np.float32([-1, 1, np.nan, 2]), np.int64([3, 4, 3, 3])
    run = gs.compile(inside, gs.f32[4], gs.i64[4])
    assert all(step.task for step in run.plan.steps)
    assert run(x, n).tolist() == [False, False, False, True]


@pytest.mark.parametrize("repeated_first", [False, True])
def test_results_are_laid_out_like_the_first_operand_unless_that_repeats_cells(repeated_first):
    x = np.ones((2, 5, 6, 3), np.float32).transpose(0, 3, 1, 2)
    bias = np.broadcast_to(np.ones((1, 3, 1, 1), np.float32), x.shape)
    run = gs.compile(gs.add, gs.f32[x.shape], gs.f32[x.shape])
    result = run(bias, x) if repeated_first else run(x, bias)
    assert result.strides == (np.empty(x.shape, np.float32) if repeated_first else x).strides

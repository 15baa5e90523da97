"""Convolutions and products to compile: geometries, numbers, an independent reference, and memory with fences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

import gradspec as gs
from backends.pooling import LAYOUTS, REPEATED, Fenced
from gradspec.conformance import Arithmetic
from gradspec.conformance.oracle.tolerance import error_of, parts_error
from gradspec.domains import rational
from gradspec.graph.builder import apply_all
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType, dtype_of
from gradspec.ops.conv import BY_NAME, ROLES, Convolution
from gradspec.runtime import compiled, frame, memory, plan

Shape = tuple[int, ...]
Arrays = Sequence[np.ndarray]
FLOATS = {t.name: t for t in (gs.f32, gs.f64, gs.f16, gs.bf16)}
NARROW = (gs.f16, gs.bf16)
COLUMNS = (*range(1, 51), 63, 64, 65, 95, 96, 97, 127, 128, 129)
"""With every remainder of a register tile, and both sides of its multiples."""


# --- numbers ----------------------------------------------------------------------------------------------------------

Numbers = Callable[[np.random.Generator, Shape, np.dtype], np.ndarray]


def whole(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Small integers, whose sums are exact in every order."""
    return rng.integers(-3, 4, shape).astype(dtype)


def rough(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Full significands over many exponents: nearly every sum rounds, and none overflows."""
    return (rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """One cell in twelve is an infinity, a NaN, or a zero of either sign."""
    unlike = rng.choice(np.asarray([np.inf, -np.inf, np.nan, 0.0, -0.0]).astype(dtype), shape)
    return np.where(rng.random(shape) < 1 / 12, unlike, rough(rng, shape, dtype))


def huge(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Products of two of these overflow, nearly do, or cancel each other."""
    largest = {2: 15 if dtype == np.float16 else 127, 4: 127, 8: 1023}[dtype.itemsize]
    return _of_size(rng, shape, dtype, largest / 2)


def tiny(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Products of two of these are subnormal, or vanish; some cells are the smallest numbers there are."""
    smallest = {2: -24 if dtype == np.float16 else -133, 4: -149, 8: -1074}[dtype.itemsize]
    least = np.asarray(2.0**smallest).astype(dtype)
    return np.where(rng.random(shape) < 1 / 8, least, _of_size(rng, shape, dtype, smallest / 2))


def _of_size(rng: np.random.Generator, shape: Shape, dtype: np.dtype, exponent: float) -> np.ndarray:
    near = int(exponent) + rng.integers(-4, 2, shape)
    return np.ldexp(rng.uniform(1, 2, shape) * rng.choice([-1.0, 1.0], shape), near).astype(dtype)


def wild_here_and_there(array: np.ndarray) -> np.ndarray:
    """NaN, +∞ and −∞ in the first, a middle and the last cell."""
    changed = array.copy()
    for i, wild in enumerate((np.nan, np.inf, -np.inf)[: array.size]):
        changed.flat[i * (array.size - 1) // 2] = wild
    return changed


# --- one of the three operators on stated extents ---------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """The trilinear form: its windows and groups, the leading axes of ``x`` and ``g``, and their channels."""

    attrs: Convolution
    lead: Shape = ()
    x_channels: int = 1
    g_channels: int = 1

    @property
    def shapes(self) -> Mapping[str, Shape]:
        a = self.attrs
        return {
            "x": (*self.lead, self.x_channels, *a.sizes),
            "g": (*self.lead, self.g_channels, *a.outputs),
            "w": (self.g_channels, self.x_channels // a.groups, *a.kernel),
        }

    def operands(self, name: str, bias: bool = False) -> list[Shape]:
        """The shapes that the operator takes."""
        *roles, result = ROLES[name]
        channels = self.x_channels if result == "x" else self.g_channels
        return [*(self.shapes[role] for role in roles), *[(channels,)] * bias]

    def graph(self, name: str, dtype: DType, bias: bool = False, weight: np.ndarray | None = None) -> Graph:
        """A graph of one node; the second operand is a constant if it is given."""
        builder = gs.Builder()
        first, second, *rest = self.operands(name, bias)
        x = builder.input(dtype[first])
        w = builder.input(dtype[second]) if weight is None else builder.const(weight)
        rest = [builder.input(dtype[shape]) for shape in rest]
        return builder.build(builder.apply(BY_NAME[name], self.attrs, x, w, *rest))

    def __str__(self) -> str:
        a = self.attrs
        parts = {"s": a.stride, "p": a.padding, "d": a.dilation, "g": a.groups, "o": a.outputs}
        return f"{self.shapes['x']}*{self.shapes['w']} " + " ".join(f"{key}{value}" for key, value in parts.items())


def form(
    sizes: Shape,
    kernel: Shape,
    stride: int | Shape = 1,
    padding: Any = 0,
    dilation: int | Shape = 1,
    *,
    lead: Shape = (),
    channels: tuple[int, int] = (1, 1),
    groups: int = 1,
    unread: int = 0,
) -> Form:
    """A form with as many outputs as fit, less ``unread`` of them on every axis where one is left."""
    rank = len(sizes)
    steps, gaps = ((n,) * rank if isinstance(n, int) else n for n in (stride, dilation))
    pads = ((padding, padding),) * rank if isinstance(padding, int) else padding
    fit = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (low, high) in zip(sizes, kernel, steps, gaps, pads, strict=True)
    ]
    outputs = tuple(max(1, n - unread) for n in fit)
    return Form(Convolution(sizes, kernel, steps, pads, gaps, outputs, groups), lead, *channels)


def reference(form: Form, name: str, first: np.ndarray, second: np.ndarray, bias: Any = None) -> np.ndarray:
    """The result of an operator, tap after tap, in the numbers that it is given: int64, or float64."""
    a, (*roles, result) = form.attrs, ROLES[name]
    known = dict(zip(roles, (first, second), strict=True))
    samples, groups = prod(form.lead), a.groups
    inner, outer, dtype = form.x_channels // groups, form.g_channels // groups, first.dtype

    def padded(x: np.ndarray) -> np.ndarray:
        grouped = x.reshape(samples, groups, inner, *a.sizes)
        return np.pad(grouped, ((0, 0), (0, 0), (0, 0), *a.padding))

    x = padded(known["x"]) if "x" in known else padded(np.zeros(form.shapes["x"], dtype))
    w = np.array(known.get("w", np.zeros(form.shapes["w"], dtype))).reshape(groups, outer, inner, *a.kernel)
    g = known.get("g", np.zeros(form.shapes["g"], dtype)).reshape(samples, groups, outer, prod(a.outputs)).copy()
    for tap in np.ndindex(*a.kernel):
        steps = zip(tap, a.dilation, a.stride, a.outputs, strict=True)
        place = (..., *(slice(d * k, d * k + s * (n - 1) + 1, s) for k, d, s, n in steps))
        cells = x[place].reshape(samples, groups, inner, prod(a.outputs))
        if result == "g":
            g += np.einsum("ngco,gmc->ngmo", cells, w[(..., *tap)])
        elif result == "x":
            x[place] += np.einsum("ngmo,gmc->ngco", g, w[(..., *tap)]).reshape(x[place].shape)
        else:
            w[(..., *tap)] = np.einsum("ngmo,ngco->gmc", g, cells)
    real = (..., *(slice(low, low + n) for n, (low, _) in zip(a.sizes, a.padding, strict=True)))
    found = {"g": g, "w": w, "x": x[real]}[result].reshape(form.shapes[result])
    return found if bias is None else found + bias.reshape(-1, *(1,) * a.rank)


def drawn(shapes: Iterable[Shape], numbers: Numbers, dtype: DType, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [numbers(rng, shape, dtype.numpy) for shape in shapes]


def check_whole(form: Form, name: str, dtype: DType, bias: bool = False, seed: int = 0) -> None:
    """One operator on integers: the result that NumPy has in int64, rounded once."""
    arrays = drawn(form.operands(name, bias), whole, dtype, seed)
    found = gs.compile(form.graph(name, dtype, bias))(*arrays)
    assert_equal(found, integer_result(form, name, arrays), form, name, dtype)


def integer_result(form: Form, name: str, arrays: Arrays) -> np.ndarray:
    return reference(form, name, *(a.astype(np.int64) for a in arrays))


# --- layers that the oracle knows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """``gs.conv`` or ``gs.conv_transpose`` with its arguments; the shape of a bias is None where there is none."""

    id: str
    operator: str
    shapes: tuple[Shape | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operands(self) -> list[Shape]:
        return [shape for shape in self.shapes if shape is not None]

    def __call__(self, *operands: Any) -> Any:
        return getattr(gs, self.operator)(*operands, **self.attributes)

    def graph(self, mode: str, dtype: DType) -> Graph:
        value = gs.trace(lambda x, w, *b: self(x, w, *b), *(dtype[shape] for shape in self.operands))
        return MODES[mode](value)

    def with_batch(self, *lead: int) -> "Layer":
        x, *others = self.shapes
        core = len(others[0]) - 1
        return replace(self, shapes=((*lead, *x[len(x) - core :]), *others))

    def meanings(self, mode: str, arrays: Arrays) -> list[Any]:
        """What the graph of a mode returns, by the oracle; the value comes first, as in graphs."""
        count = len(self.operands)
        missing = [None] * (3 - count)
        primals, others = [*arrays[:count], *missing], list(arrays[count:])
        found = [gs.conformance.meaning(self.operator, *primals, **self.attributes)]
        if mode == "jvp":
            found.append(gs.conformance.meaning(f"{self.operator}_jvp", *primals, *others, *missing, **self.attributes))
        elif mode == "vjp":
            found += gs.conformance.meaning(f"{self.operator}_vjp", *primals, *others, **self.attributes)
        return [meaning for meaning in found if meaning is not None]

    def tangent_parts(self, arrays: Arrays) -> list[Any]:
        """The two products that a tangent is the sum of."""
        count = len(self.operands)
        (x, w, *_), (dx, dw, *db) = arrays[:count], arrays[count:]
        meaning = gs.conformance.meaning
        return [
            meaning(self.operator, dx, w, None, **self.attributes),
            meaning(self.operator, x, dw, *(db or [None]), **self.attributes),
        ]


MODES: Mapping[str, Callable[[Graph], Graph]] = {
    "value": lambda graph: graph,
    "jvp": lambda graph: graph.jvp(),
    "vjp": lambda graph: graph.vjp(),
}


def inputs(graph: Graph, numbers: Numbers, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [numbers(rng, v.shape, v.dtype.numpy) for v in graph.inputs]


def several(result: Any) -> tuple[np.ndarray, ...]:
    return result if isinstance(result, tuple) else (result,)


# --- what is right ----------------------------------------------------------------------------------------------------


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    """But for the signs and payloads of NaNs, which no rule fixes."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), context
    same = (bits(found) == bits(wanted)) | (np.isnan(found) & np.isnan(wanted))
    wrong = np.argwhere(~same)
    assert not len(wrong), (
        *map(str, context),
        len(wrong),
        wrong[:3].tolist(),
        found[tuple(wrong[0])],
        wanted[tuple(wrong[0])],
    )


def assert_equal(found: np.ndarray, exact: np.ndarray, *context: Any) -> None:
    """Exact numbers, rounded once to the format of ``found``; zeros have no sign."""
    wanted = exact.astype(np.float64).astype(found.dtype)
    assert found.shape == wanted.shape, (*map(str, context), found.shape, wanted.shape)
    wrong = np.argwhere(found != wanted)
    assert not len(wrong), (*map(str, context), wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_permitted(meaning: Any, found: np.ndarray, *context: Any) -> None:
    judgement = meaning.judge(found)
    assert judgement.passed, (*map(str, context), judgement.failures())


def assert_same_kinds(found: np.ndarray, exact: np.ndarray, *context: Any) -> None:
    """NaN, +∞ and −∞ where the exact numbers have them, and nowhere else."""
    have, wanted = (np.where(np.isfinite(a), 0.0, a) for a in (found.astype(np.float64), exact))
    wrong = np.argwhere((have != wanted) & ~(np.isnan(have) & np.isnan(wanted)))
    assert not len(wrong), (*map(str, context), wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_near(found: np.ndarray, multiply: Callable[..., np.ndarray], arrays: Arrays, *context: Any) -> None:
    """Finite results within twice the tolerance of sums, about which ``multiply`` says everything in float64.

    Twice, because float64 rounds too. For judging the few finite cells beside many that are not, without the oracle.
    """
    wide = [a.astype(np.float64) for a in arrays]
    with np.errstate(invalid="ignore"):
        wanted = multiply(*wide)
    sizes = [np.where(np.isfinite(a), np.abs(a), 0.0) for a in wide]
    mass, terms = multiply(*sizes), multiply(*(np.ones_like(a) for a in wide))
    arithmetic = Arithmetic.of(dtype_of(found).name)
    unit, stored = 2.0**-arithmetic.accumulate.precision, 2.0**-arithmetic.storage.precision
    allowed = 2 * (terms * unit * mass + stored * np.abs(wanted) + float(arithmetic.storage.tiniest))
    with np.errstate(invalid="ignore"):
        wrong = np.argwhere(np.isfinite(wanted) & ~(np.abs(found.astype(np.float64) - wanted) <= allowed))
    assert not len(wrong), (*map(str, context), wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_sum_of_parts(parts: Sequence[Any], found: np.ndarray, *context: Any) -> None:
    """Finite parts that are each stored in 16 bits, and their sum too; a few cells of a large array are looked at."""
    assert np.isfinite(found.astype(np.float64)).all(), context
    arithmetic = Arithmetic.of(dtype_of(found).name)
    for place in np.random.default_rng(0).permutation(found.size)[:12].tolist():
        facts = [part.facts_at(place, arithmetic) for part in parts]
        exact, got = sum(f.value for f in facts), rational(float(found.ravel()[place]))
        error = parts_error([(f.value, error_of(f, arithmetic)) for f in facts], arithmetic.storage)
        assert abs(got - exact) <= error, (*map(str, context), place, float(got), float(exact), float(error))


# --- which backend ran ------------------------------------------------------------------------------------------------


def require_no_numpy(graph: Graph) -> None:
    """No step of a graph is left to NumPy."""
    assert "numpy" not in str(gs.compile(graph).plan), graph


def fused(graph: Graph) -> list[str]:
    """The operators of each step that computes, as the plan shows them; views and packing do not."""
    steps = gs.compile(graph).plan.steps
    return [" ".join(node.op.name for node in step.nodes) for step in steps if step.nodes and step.task is not None]


def step_by_step(graph: Graph, arrays: Arrays) -> list[np.ndarray]:
    """Every node by itself, as an operator on arrays."""
    graph = graph.simplify()
    values = {**graph.constants, **dict(zip(graph.inputs, arrays, strict=True))}
    for node in graph.nodes:
        results = apply_all(node.op, node.attrs, *(values[v] for v in node.inputs))
        values.update(zip(node.outputs, results, strict=True))
    return [values[v] for v in graph.outputs]


def assert_fused_as_unfused(graph: Graph, arrays: Arrays, *context: Any) -> None:
    whole_graph, alone = several(gs.compile(graph)(*arrays)), step_by_step(graph, arrays)
    for i, (one, other) in enumerate(zip(whole_graph, alone, strict=True)):
        assert_same_bits(one, np.asarray(other), *context, i)


# --- layouts and memory -----------------------------------------------------------------------------------------------


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers in another layout; where cells share memory, the first of them everywhere."""
    form = {**LAYOUTS, **REPEATED}[layout]
    parent = np.zeros(form.parent(array.shape), array.dtype)
    if array.size == 0:
        return form.view(parent, array.shape)
    if layout in REPEATED:
        parent[...] = array[tuple(slice(0, n) for n in parent.shape)]
    else:
        form.view(parent, array.shape)[...] = array
    return form.view(parent, array.shape)


def share_everything(monkeypatch: Any) -> None:
    """However short a step is, all threads share it."""
    monkeypatch.setattr(plan, "NANOSECONDS_PER_THREAD", 1e-6)


def fence_frames(monkeypatch: Any, fenced: Fenced) -> None:
    """Let arenas, workspaces and packed constants end, or begin, where a page does that nobody may touch."""

    def fenced_bytes(size: int) -> np.ndarray:
        return fenced.bytes(memory.aligned(size))[:size]

    for module in (compiled, frame):
        monkeypatch.setattr(module, "aligned_bytes", fenced_bytes)


def run_fenced(graph: Graph, arrays: Arrays, fenced: Fenced) -> tuple[np.ndarray, ...]:
    """The results of a graph whose inputs and outputs lie at fences; frames must have been fenced before."""
    run = gs.compile(graph)
    outs = tuple(fenced.copy(np.zeros(v.shape, v.dtype.numpy)) for v in graph.outputs)
    found = run(*map(fenced.copy, arrays), out=outs[0] if len(outs) == 1 else outs)
    return several(found)


def pairs_of_layouts() -> list[tuple[str, str]]:
    return list(product({**LAYOUTS, **REPEATED}, {**LAYOUTS, **REPEATED}))

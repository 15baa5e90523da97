"""A plain fuzzer of gradspec's own kernels: ``python -m gradspec.testing.fuzz --seconds 60``.

Operators, geometries, groups, layouts, dtypes, modes and numbers of threads are drawn uniformly, and inputs are small
integers, so that every sum is exact in any order and every result must equal that of PyTorch, of JAX and of the
specification, bit by bit. Every eighth trial is a random chain of operators, compiled and compared with NumPy.

The judge (``gradspec check``) looks where kernels are known to go wrong. The fuzzer knows nothing, and shares nothing
with it: what the judge's generator forgets, this finds. A trial follows from its number alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.util import find_spec
from itertools import count
from math import lcm, prod
from multiprocessing import cpu_count, get_context
from operator import gt
from time import monotonic
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

import gradspec as gs

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]
Reference: TypeAlias = Callable[["Trial", Sequence[Array], Sequence[Array]], "list[Array] | None"]
"""The results of a trial on inputs and directions, or None where a library does not offer it."""

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
EPSILONS = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}
LAYOUTS = ("contiguous", "channels_last", "gaps", "reversed", "transposed", "turned")
MODES = ("value", "value", "vjp", "vjp", "jvp")
WINDOWED = ("conv", "conv_transpose", "max_pool", "avg_pool", "unfold")
BINNED = ("adaptive_max_pool", "adaptive_avg_pool", "global_max_pool", "global_avg_pool")
OPERATORS = (*WINDOWED[:4] * 3, "unfold", *BINNED)
AVERAGES = ("avg_pool", "adaptive_avg_pool", "global_avg_pool")
MOST_WORK, SPEC_WORK, JAX_EVERY, CHAIN_EVERY = 1 << 16, 4_000, 40, 8
"""The most products of a trial, the most that the specification is asked for where another library was, and how often
there are JAX, which compiles each geometry, and chains."""
DEVICE_UNITS = 32.0
"""How far averages on a device may be off, in units of the last place of the largest result."""


# --- what is drawn ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One call: an operator on shapes, with everything that decides how it is carried out."""

    number: int
    op: str
    rank: int
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, Any]
    dtype: str
    layout: str
    mode: str
    threads: int
    step: int
    """Inputs are multiples of it, so that averages are whole."""
    work: int

    def __call__(self, *inputs: object) -> Any:
        return getattr(gs, self.op)(*inputs, **self.attributes)


def draw(number: int) -> Trial:
    """The trial of a number; geometries without a window, or too large ones, are drawn again.

    >>> draw(7) == draw(7)
    True
    """
    rng = np.random.default_rng(number)
    while True:
        trial = _draw_once(number, rng)
        if trial is not None and trial.work <= MOST_WORK:
            return trial


def _draw_once(number: int, rng: np.random.Generator) -> Trial | None:
    op, rank = str(rng.choice(OPERATORS)), int(rng.choice([1, 2, 2, 2, 3, 4]))
    dtype, layout, mode = (str(rng.choice(names)) for names in (list(DTYPES), LAYOUTS, MODES))
    lead = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
    drawn = (_windows if op in WINDOWED else _bins)(op, rank, rng, lead)
    if drawn is None:
        return None
    shapes, attributes, work, divisor = drawn
    if op in AVERAGES:  # the largest sum must fit the significand
        largest = divisor * 3 * work // max(1, prod(shapes[0][: len(shapes[0]) - rank]))
        if largest >= 1 << 53:
            return None
        dtype = "f64" if divisor > 1 and (largest >= 1 << 24 or dtype in ("f16", "bf16")) else dtype
    return Trial(number, op, rank, shapes, attributes, dtype, layout, mode, int(rng.integers(1, 4)), divisor, work)


def _each(rng: np.random.Generator, rank: int, low: int, high: int) -> Shape:
    """A number for every axis; the same for all in half of the draws."""
    numbers = rng.integers(low, high + 1, rank)
    return tuple(int(n) for n in (numbers[:1].repeat(rank) if rng.random() < 0.5 else numbers))


Drawn: TypeAlias = "tuple[tuple[Shape, ...], dict[str, Any], int, int] | None"
"""Shapes, attributes, products, and what inputs must be multiples of."""


def _windows(op: str, rank: int, rng: np.random.Generator, lead: Shape) -> Drawn:
    kernel = _each(rng, rank, 1, 4 if rank < 3 else 3)
    stride, dilation = _each(rng, rank, 1, 4), _each(rng, rank, 1, 3) if rng.random() < 0.5 else (1,) * rank
    sizes = tuple(int(n) for n in rng.integers(1, 14 if rank < 3 else 7, rank))
    if rng.random() < 0.7:  # beyond one vector, and one tile
        sizes = (*sizes[:-1], int(rng.integers(1, 90 if rank < 3 else 30)))
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    is_half = op.endswith("pool") and rng.random() < 0.8  # as PyTorch wants it
    low = tuple(int(rng.integers(0, n // 2 + 1 if is_half else n + 1)) for n in extent)
    high = low if rng.random() < 0.6 else tuple(int(rng.integers(0, n + 1)) for n in extent)
    attributes: dict[str, Any] = {"stride": stride, "padding": tuple(zip(low, high, strict=True)), "dilation": dilation}
    sides = zip(sizes, extent, stride, low, high, strict=True)
    outputs = tuple((n + a + b - e) // s + 1 for n, e, s, a, b in sides)
    if op.startswith("conv"):
        return _convolution(op, rng, lead, sizes, kernel, outputs, attributes)
    if min(outputs) < 1:
        return None
    shape = (*lead, int(rng.integers(1, 20)), *sizes)
    attributes = {"kernel_size": kernel, **attributes}
    work = prod(shape[: len(lead) + 1]) * prod(outputs) * prod(kernel)
    if op == "unfold":
        return (shape,), attributes, work, 1
    attributes["ceil_mode"] = bool(rng.random() < 0.3)
    if op == "max_pool":
        if rng.random() < 0.2:
            attributes["ties"] = "all"
        return (shape,), attributes, work, 1
    kind = rng.integers(3)
    if kind:
        attributes["divisor_override"] = int(rng.choice([1, 2, 4, -1]))
        return (shape,), attributes, work, 1
    attributes["count_include_pad"] = bool(rng.integers(2))
    return (shape,), attributes, work, prod(lcm(*range(1, k + 1)) for k in kernel)


def _convolution(
    op: str,
    rng: np.random.Generator,
    lead: Shape,
    sizes: Shape,
    kernel: Shape,
    outputs: Shape,
    attributes: dict[str, Any],
) -> Drawn:
    groups = int(rng.choice([1, 1, 2, 3, 7]))
    inner, outer = (int(rng.choice([1, 1, 1, 2, 5, 9, 17])) for _ in range(2))
    attributes["groups"] = groups
    weight = (groups * outer, inner, *kernel)
    if op == "conv_transpose":
        weight = (groups * inner, outer, *kernel)
        axes = list(
            zip(sizes, kernel, attributes["stride"], attributes["dilation"], attributes["padding"], strict=True)
        )
        extra = tuple(int(rng.integers(0, max(s, d))) for _, _, s, d, _ in axes)
        attributes["output_padding"] = extra
        outputs = tuple((n - 1) * s + d * (k - 1) + 1 - sum(p) + extra[i] for i, (n, k, s, d, p) in enumerate(axes))
    if min(outputs) < 1:
        return None
    shapes: tuple[Shape, ...] = ((*lead, groups * inner, *sizes), weight)
    if rng.random() < 0.5:
        shapes = (*shapes, (groups * outer,))
    return shapes, attributes, prod(lead) * groups * inner * outer * prod(kernel) * max(prod(outputs), prod(sizes)), 1


def _bins(op: str, rank: int, rng: np.random.Generator, lead: Shape) -> Drawn:
    lead = (*lead, int(rng.integers(1, 20)))
    sizes = tuple(int(n) for n in rng.integers(1, 25 if rank < 3 else 7, rank))
    shape = (*lead, *sizes)
    if op.startswith("global"):
        attributes = {"rank": rank, "keepdims": bool(rng.integers(2))}
        return (shape,), attributes, prod(shape), prod(sizes) if "avg" in op else 1
    bins = tuple(int(n) for n in rng.integers(1, [n + 2 for n in sizes]))
    longest = [max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in zip(sizes, bins, strict=True)]
    step = prod(lcm(*range(1, n + 1)) for n in longest) if "avg" in op else 1
    return (shape,), {"output_size": bins}, prod(lead) * prod(bins) * prod(longest), step


def numbers(trial: Trial) -> tuple[list[Array], list[Array]]:
    """The inputs, and the directions: tangents of all inputs, or the cotangent of the value."""
    rng, low = np.random.default_rng([trial.number, 1]), trial.dtype in ("f16", "bf16")
    graph = graph_of(trial)
    shapes = [v.shape for v in (graph.outputs if trial.mode == "vjp" else graph.inputs) if v.type.is_float]
    most = 2 if low else 3

    def whole(shape: Shape, step: int = trial.step) -> Array:
        array = rng.integers(-most, most + 1, shape) * step
        return np.asarray(array, np.float64).astype(DTYPES[trial.dtype])

    inputs = [whole(shape) for shape in trial.shapes]
    if "max" in trial.op and rng.random() < 0.5:  # without ties
        cells = rng.permutation(prod(trial.shapes[0])).reshape(trial.shapes[0])
        inputs = [(cells % 251 - 125).astype(DTYPES[trial.dtype])]
    return inputs, [whole(shape) for shape in shapes] if trial.mode != "value" else []


def place(array: Array, layout: str, rank: int) -> Array:
    """The same numbers, elsewhere in memory."""
    if layout == "channels_last" and array.ndim > rank:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -1 - rank, -1)), -1, -1 - rank)
    if layout == "gaps":
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 77, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed":
        turned = (slice(None, None, -1),) * array.ndim
        return np.ascontiguousarray(array[turned])[turned]
    if layout == "turned" and array.ndim > 1:  # the last two axes
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.ascontiguousarray(array.T).T if layout == "transposed" else array


def graph_of(trial: Trial) -> gs.Graph:
    dtype = getattr(gs, trial.dtype)
    return gs.trace(trial, *(dtype[shape] for shape in trial.shapes))


# --- who computes it --------------------------------------------------------------------------------------------------


def run_compiled(trial: Trial, inputs: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
    """The results of our kernels, in arrays that hold something else before: the value, tangent or cotangents."""
    graph = graph_of(trial)
    derived = {"value": lambda: graph, "jvp": graph.jvp, "vjp": graph.vjp}[trial.mode]()
    placed = [place(a, trial.layout, trial.rank) if a.ndim else a for a in (*inputs, *directions)]
    run = gs.compile(derived, threads=trial.threads)
    results = [np.full(v.shape, 77, v.dtype.numpy) for v in run.plan.outputs]
    run(*placed, out=results[0] if len(results) == 1 else tuple(results))
    return results if trial.mode == "value" else results[len(graph.outputs) :]


def run_on_device(device: str, trial: Trial, inputs: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
    """The same of our kernels on tensors of a device."""
    import torch

    module, kinds = gs.to_torch(graph_of(trial)), {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}

    def sent(array: Array) -> Any:
        tensor = torch.from_numpy(np.ascontiguousarray(array, np.float64)).to(
            device, kinds.get(trial.dtype, torch.bfloat16)
        )
        if trial.layout == "channels_last" and tensor.ndim > trial.rank:
            return tensor.movedim(-1 - trial.rank, -1).contiguous().movedim(-1, -1 - trial.rank)
        if trial.layout == "gaps" and tensor.ndim:
            return tensor.repeat_interleave(2, -1)[..., ::2]
        if trial.layout == "turned" and tensor.ndim > 1:
            return tensor.mT.contiguous().mT
        return tensor.T.contiguous().T if trial.layout == "transposed" and tensor.ndim == 2 else tensor

    results = _differentiate(module, [sent(a) for a in inputs], [sent(a) for a in directions], trial.mode)
    return [result.detach().double().cpu().numpy() for result in results]


def _differentiate(
    function: Callable[..., Any], inputs: Sequence[Any], directions: Sequence[Any], mode: str
) -> list[Any]:
    """The value, tangent or cotangents of a function of tensors."""
    import torch

    if mode == "jvp":
        return [torch.func.jvp(function, tuple(inputs), tuple(directions))[1]]
    if mode == "value":
        return [function(*inputs)]
    active = [tensor.detach().requires_grad_() for tensor in inputs]
    return list(torch.autograd.grad(function(*active), active, directions[0]))


def run_torch(trial: Trial, inputs: Sequence[Array], directions: Sequence[Array]) -> list[Array] | None:
    """PyTorch in float64, where its own function takes the geometry; paddings that differ are added before."""
    import torch
    from torch.nn import functional

    given, sides = dict(trial.attributes), ()
    if trial.rank > 3 or given.pop("ties", "first") != "first" or inputs[0].ndim < trial.rank + 1:
        return None
    name, rank = trial.op, trial.rank
    if name.startswith("global"):
        name, given = name.replace("global", "adaptive"), {"output_size": (1,) * rank}
        if not trial.attributes["keepdims"]:
            return None
    if "padding" in given:
        pads = given["padding"]
        if name == "conv" or all(a == b for a, b in pads):
            sides = () if all(a == b for a, b in pads) else tuple(n for pair in pads[::-1] for n in pair)
            given["padding"] = (0,) * rank if sides else tuple(a for a, _ in pads)
        else:
            return None
    if name == "avg_pool" and (set(given.pop("dilation")) != {1} or (rank == 1 and "divisor_override" in given)):
        return None
    padding = given.get("padding", ())
    if name.endswith("pool") and any(2 * p > k for p, k in zip(padding, given.get("kernel_size", ()), strict=True)):
        return None
    if name == "unfold" and rank != 2:
        return None
    # Of a dilated window in padding alone, the gradient is written beyond the plane, which may be the end of the array;
    # where any dilated window is padded, max_pool3d gives wrong winners.
    reach = (1, 1, 1) if rank == 3 else inputs[0].shape[-rank:]
    if name == "max_pool" and max(padding) > 0 and any(map(gt, given["dilation"], reach)):
        return None
    function = getattr(functional, name if name == "unfold" else f"{name}{rank}d")
    core = rank + 1

    def call(*tensors: Any) -> Any:
        x, *others = tensors
        flat = x.reshape(-1, *x.shape[x.ndim - core :])
        y = function(functional.pad(flat, sides) if sides else flat, *others, **given)
        return y.reshape(*x.shape[: x.ndim - core], *y.shape[1:])

    tensors, moving = ([torch.from_numpy(a.astype(np.float64)) for a in some] for some in (inputs, directions))
    try:
        return [result.detach().numpy() for result in _differentiate(call, tensors, moving, trial.mode)]
    except (RuntimeError, ValueError, NotImplementedError):  # geometries and modes that PyTorch refuses
        return None


def run_jax(trial: Trial, inputs: Sequence[Array], directions: Sequence[Array]) -> list[Array] | None:
    """JAX, for convolutions and maxima of the first tied cell: they take every padding and rank."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    rank, given = trial.rank, trial.attributes
    if trial.op not in ("conv", "max_pool") or given.get("ceil_mode") or given.get("ties", "first") != "first":
        return None
    core = rank + 1

    def call(x: Any, *others: Any) -> Any:
        flat = x.reshape(-1, *x.shape[x.ndim - core :])
        sizes = {"window_strides": given["stride"], "padding": given["padding"]}
        if trial.op == "conv":
            weight, *bias = others
            y = jax.lax.conv_general_dilated(
                flat, weight, rhs_dilation=given["dilation"], feature_group_count=given["groups"], **sizes
            )
            y = y + bias[0].reshape(-1, *(1,) * rank) if bias else y
        else:
            ones = (1, 1)
            y = jax.lax.reduce_window(
                flat,
                -np.inf,
                jax.lax.max,
                (*ones, *given["kernel_size"]),
                (*ones, *given["stride"]),
                ((0, 0), (0, 0), *given["padding"]),
                window_dilation=(*ones, *given["dilation"]),
            )
            y = jax.numpy.where(y == -np.inf, 0, y)
        return y.reshape(*x.shape[: x.ndim - core], *y.shape[1:])

    with jax.enable_x64(True):
        arrays, moving = ([jax.numpy.asarray(a, np.float64) for a in some] for some in (inputs, directions))
        if trial.mode == "value":
            return [np.asarray(call(*arrays))]
        if trial.mode == "jvp":
            return [np.asarray(jax.jvp(call, arrays, moving)[1])]
        if trial.op == "max_pool" and set(given["dilation"]) != {1}:
            return None
        return [np.asarray(a) for a in jax.vjp(call, *arrays)[1](moving[0])]


def run_specification(trial: Trial, inputs: Sequence[Array], directions: Sequence[Array]) -> list[Array]:
    """The specification, in integers or rational numbers.

    >>> trial = Trial(0, "max_pool", 1, ((1, 3),), {"kernel_size": (2,)}, "f32", "contiguous", "value", 1, 1, 3)
    >>> run_specification(trial, [np.float32([[1, 3, 2]])], [])
    [array([[3.]])]
    """
    embed = gs.exact.tensor if trial.op in AVERAGES else _integers
    operands, moving = ([embed(a.astype(np.int64)) for a in arrays] for arrays in (inputs, directions))
    if trial.op.startswith("conv"):
        operands, moving = (
            [*some, *[None] * (3 - len(some))] if len(some) > 1 else some for some in (operands, moving)
        )
    function = getattr(gs.spec, trial.op + ("" if trial.mode == "value" else f"_{trial.mode}"))
    results = function(*operands, *moving, **trial.attributes)
    return [
        np.array([float(c) for c in t.cells], np.float64).reshape(t.shape) for t in _as_list(results) if t is not None
    ]


def _integers(array: Array) -> Any:
    """A tensor of Python's integers."""
    return gs.spec.Tensor(array.shape, array.ravel().tolist())


def _as_list(results: object) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


# --- one trial --------------------------------------------------------------------------------------------------------

REFERENCES: dict[str, Reference] = {"torch": run_torch, "jax": run_jax, "spec": run_specification}


@dataclass(frozen=True)
class TrialOutcome:
    """What became of a trial: who agreed, and what was wrong, if anything was."""

    number: int
    op: str
    agreed: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    """Libraries that differ from the specification, which we agree with."""
    failure: str = ""


def differs(got: Sequence[Array], wanted: Sequence[Array], dtype: str, units: float = 0.0) -> str:
    """Where results first differ from exact ones, rounded once, by more than so many units of the largest's last place.

    >>> differs([np.float32([1, 2])], [np.float64([1, 3])], "f32")
    'result 0 at (1,) is 2.0, not 3.0 (1 of 2 differ)'
    """
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape:
            return f"result {i} has shape {a.shape}, not {b.shape}"
        right = b.astype(DTYPES[dtype]).astype(np.float64)
        found = a.astype(np.float64)
        slack = EPSILONS[dtype] * np.abs(right).max(initial=0.0)
        wrong = np.argwhere((found != right) & (~(np.abs(found - right) <= units * slack) if units else True))
        if len(wrong):
            where = tuple(int(n) for n in wrong[0])
            return f"result {i} at {where} is {float(a[where])}, not {right[where]} ({len(wrong)} of {a.size} differ)"
    return ""


def attempt(number: int, device: str = "cpu", libraries: Sequence[str] = tuple(REFERENCES)) -> TrialOutcome:
    """Run the trial of a number and compare it with every library that takes it."""
    if number % CHAIN_EVERY == 0 and device == "cpu":
        return attempt_chain(number)
    return attempt_trial(draw(number), device, libraries)


def attempt_trial(trial: Trial, device: str = "cpu", libraries: Sequence[str] = tuple(REFERENCES)) -> TrialOutcome:
    """The same of a trial that is given."""
    number, (inputs, directions) = trial.number, numbers(trial)
    run = run_compiled if device == "cpu" else partial(run_on_device, device)
    # Kernels of devices multiply by the inverse of a divisor, which rounds where it is no power of two.
    units = 0.0 if device == "cpu" or trial.step == 1 else DEVICE_UNITS
    try:
        got = run(trial, inputs, directions)
    except Exception as error:
        if device != "cpu" and isinstance(error, gs.UnsupportedError):
            return TrialOutcome(number, trial.op)
        return TrialOutcome(number, trial.op, failure=f"{trial}\n  raises {type(error).__name__}: {error}")
    agreed, peers = list[str](), list[str]()
    for name in libraries:
        is_costly = number % JAX_EVERY != 1 if name == "jax" else name == "spec" and trial.work > SPEC_WORK and agreed
        wanted = None if is_costly else REFERENCES[name](trial, inputs, directions)
        if wanted is None:
            continue
        problem = differs(got, wanted, trial.dtype, units)
        if problem and name != "spec":
            wanted = run_specification(trial, inputs, directions)
            if not differs(got, wanted, trial.dtype, units):
                peers.append(name)
                continue
        if problem:
            return TrialOutcome(number, trial.op, failure=f"{trial}\n  against {name}: {problem}")
        agreed.append(name)
    return TrialOutcome(number, trial.op, tuple(agreed), tuple(peers))


# --- chains of operators ----------------------------------------------------------------------------------------------


def draw_chain(number: int) -> tuple[gs.Graph, list[Array]]:
    """A graph of a few operators on one array, one behind the other, and its inputs."""
    rng = np.random.default_rng([number, 2])
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(3, 12)), int(rng.integers(3, 30)))

    def whole(*sizes: int) -> Array:
        return rng.integers(-2, 3, sizes).astype(np.float64)

    def step(x: gs.Var) -> gs.Var:
        _, c, h, w = x.shape
        other, k = int(rng.integers(1, 5)), int(rng.integers(1, min(h, w, 3) + 1))
        stride, padding = int(rng.integers(1, 3)), int(rng.integers(0, k // 2 + 1))
        choices: list[Callable[[], gs.Var]] = [
            lambda: gs.conv2d(x, whole(other, c, k, k), stride=stride, padding=padding),
            lambda: gs.conv2d(x, whole(c, 1, k, k), whole(c), padding=padding, groups=c),
            lambda: gs.conv_transpose2d(x, whole(c, other, k, k), stride=stride),
            lambda: gs.max_pool2d(x, k, stride, padding),
            lambda: gs.avg_pool2d(x, k, stride, padding, divisor_override=1),
            lambda: gs.adaptive_max_pool2d(x, (max(1, h // 2), max(1, w // 3))),
            lambda: gs.relu(x),
            lambda: gs.abs(x) - whole(c, 1, 1),
            lambda: gs.clamp(x, -3.0, 4.0),
            lambda: x + gs.maximum(x, 1.0),
            lambda: gs.concat([x, -x], 1),
            lambda: gs.transpose(x, (0, 1, 3, 2)),
            lambda: gs.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))),
            lambda: x[:, :, ::-1, 1::stride] if w > 1 else x,
            lambda: gs.matmul(x, whole(w, other + 2)),
            lambda: gs.broadcast_to(gs.sum(x, axis=1, keepdims=True), x.shape),
            lambda: gs.where(gs.greater(x, 0.0), x, gs.minimum(x, -2.0)),
        ]
        return choices[rng.integers(len(choices))]()

    def chain(x: gs.Var) -> gs.Var:
        for _ in range(int(rng.integers(2, 7))):
            x = step(x)
            if prod(x.shape) > 1 << 14:
                break
        return gs.clamp(x, -1e6, 1e6)

    graph = gs.trace(chain, gs.f64[shape])
    mode = str(rng.choice(MODES))
    derived = {"value": lambda: graph, "jvp": graph.jvp, "vjp": graph.vjp}[mode]()
    return derived, [whole(*v.shape) for v in derived.inputs]


def attempt_chain(number: int) -> TrialOutcome:
    """Compare a chain of operators, compiled, with NumPy."""
    graph, inputs = draw_chain(number)
    try:
        got, wanted = (
            [np.asarray(a) for a in _as_list(gs.compile(graph, backend=name)(*inputs))] for name in ("cpu", "numpy")
        )
        problem = differs(got, wanted, "f64")
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    failure = f"chain {number}: {problem}\n{graph}" if problem else ""
    return TrialOutcome(number, "chain", () if problem else ("numpy",), failure=failure)


# --- many trials ------------------------------------------------------------------------------------------------------


@dataclass
class FuzzTally:
    """What many trials came to."""

    seed: int
    trials: int
    agreed: Counter[str]
    peers: Counter[str]
    failures: list[str]
    unchecked: int = 0
    """Trials that a device does not support, or no library takes."""

    def enter(self, outcomes: Sequence[TrialOutcome]) -> None:
        """Count the outcomes of a part."""
        for outcome in outcomes:
            self.trials += bool(outcome.op)
            self.unchecked += bool(outcome.op) and not (outcome.agreed or outcome.peers or outcome.failure)
            self.agreed.update(outcome.agreed)
            self.peers.update(outcome.peers)
            if outcome.failure:
                self.failures.append(f"trial {outcome.number}: {outcome.failure}")

    def __str__(self) -> str:
        counts = ", ".join(f"{n:,} with {name}" for name, n in self.agreed.most_common())
        lines = [f"seed {self.seed}: {self.trials:,} trials, equal: {counts}"]
        lines += [f"{name} differs from the specification in {n}" for name, n in self.peers.most_common()]
        lines += [f"{self.unchecked} were compared with nobody"] if self.unchecked else []
        return "\n".join([*lines, *self.failures[:10], f"{len(self.failures)} wrong"])


def _part(first: int, length: int, device: str, libraries: Sequence[str]) -> list[TrialOutcome]:
    return [attempt(first + i, device, libraries) for i in range(length)]


class FuzzProcess:
    """A process that runs one part of the trials at a time. One that is lost is replaced."""

    def __init__(self, part: Callable[..., list[TrialOutcome]]) -> None:
        self.part = part
        self.pool = self._start()
        self.first = 0
        self.running: Future[list[TrialOutcome]] | None = None

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"))

    def submit(self, first: int) -> None:
        self.first, self.running = first, self.pool.submit(self.part, first)

    def collect(self) -> list[TrialOutcome]:
        """The outcomes of the part that was submitted last.

        A lost process may be another library's doing, so its trials run again beside the specification alone.
        """
        running, self.running = self.running, None
        if running is None:
            return []
        try:
            return running.result()
        except BrokenProcessPool:
            self.pool = self._start()
        try:
            alone = self.pool.submit(self.part, self.first, libraries=["spec"]).result()
            return [
                *alone,
                TrialOutcome(self.first, "", peers=("the process was lost, and with it another library, which",)),
            ]
        except BrokenProcessPool:
            self.pool = self._start()
            return [TrialOutcome(self.first, "", failure="a trial from this number on ends the process")]


def fuzz(
    seed: int | None = None,
    *,
    seconds: float | None = None,
    trials: int | None = None,
    jobs: int = 1,
    device: str = "cpu",
    libraries: Sequence[str] | None = None,
    part: int = 20,
) -> FuzzTally:
    """Run trials for so many seconds, or so many of them.

    Args:
        seed: Which trials; today's by default.
        seconds: When to end. Every process runs at least one part.
        trials: How many to run, unless time is over before.
        jobs: Processes.
        device: ``"cpu"``, or the device of PyTorch on which the module of `gs.to_torch` runs.
        libraries: Whom to compare with; by default the specification, and PyTorch and JAX where they are installed.
        part: Trials that a process takes at once.

    >>> fuzz(1, trials=4, part=2, libraries=["spec"]).failures
    []
    """
    seed = date.today().toordinal() if seed is None else seed
    if libraries is None:
        libraries = [name for name in REFERENCES if name == "spec" or find_spec(name)]
    deadline = None if seconds is None else monotonic() + seconds
    tally = FuzzTally(seed, 0, Counter(), Counter(), [])
    run = partial(_part, length=part, device=device, libraries=libraries)
    workers = [FuzzProcess(run) for _ in range(jobs)] if jobs > 1 else []
    for turn in count():
        first = (seed << 32) + turn * part
        is_over = deadline is not None and monotonic() >= deadline and turn >= max(1, jobs)
        if is_over or (trials is not None and turn * part >= trials):
            break
        if workers:
            worker = workers[turn % jobs]
            tally.enter(worker.collect())
            worker.submit(first)
        else:
            tally.enter(run(first))
    for worker in workers:
        tally.enter(worker.collect())
        worker.pool.shutdown()
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer from the command line; 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m gradspec.testing.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="which trials [today's]")
    parser.add_argument("--seconds", type=float, help="when to end [60, unless --trials are given]")
    parser.add_argument("--trials", type=int, help="how many to run")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="processes [one for each core]")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for the kernels of gs.to_torch")
    parser.add_argument("--libraries", type=lambda text: text.split(","), help="torch,spec,jax [those installed]")
    parser.add_argument("--trial", type=int, help="run one trial of this number, and show it")
    given = parser.parse_args(arguments)
    if given.trial is not None:
        print(draw(given.trial))
        outcome = attempt(given.trial, given.device, given.libraries or ["spec"])
        print(outcome)
        return int(bool(outcome.failure))
    seconds = 60.0 if given.seconds is None and given.trials is None else given.seconds
    options = {"jobs": given.jobs, "device": given.device, "libraries": given.libraries}
    tally = fuzz(given.seed, seconds=seconds, trials=given.trials, **options)
    print(tally)
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())

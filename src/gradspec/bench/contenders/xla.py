"""JAX, everything inside ``jax.jit``; convolutions and networks with channels first and last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from math import prod
from types import ModuleType
from typing import TypeVar

import numpy as np

from gradspec.bench.contenders import (
    FIXED,
    GIVEN,
    Call,
    Contender,
    Function,
    Operators,
    Variants,
    as_problem,
    network_of,
)
from gradspec.bench.grid import Array, BenchProblem, Conv, Limit, Network, Pool, data, labels
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets.jax.target import AS_IT_LIES, function, modules, undocumented
from gradspec.conformance.targets.program import function_of

Functions = dict[str, Function]
Entry = TypeVar("Entry")
MOST_SLICES = 200  # of windows stacked as slices: each is an operation that XLA compiles
AXES = "STUV"  # names of spatial axes


@dataclass(frozen=True)
class Layout:
    """Where the channels of a tensor stand: second, or last; weights then end with theirs."""

    channels_last: bool = False

    def put(self, name: str, array: Array) -> Array:
        if not self.channels_last or array.ndim < 3:
            return array
        moved = np.moveaxis(array, (0, 1), (-1, -2)) if "weight" in name else np.moveaxis(array, 1, -1)
        return np.ascontiguousarray(moved)

    def taken(self, name: str, array: Array) -> Array:
        if not self.channels_last or array.ndim < 3:
            return array
        return np.moveaxis(array, (-1, -2), (0, 1)) if "weight" in name else np.moveaxis(array, -1, 1)

    def numbers(self, rank: int) -> tuple[str, str, str]:
        """As ``jax.lax`` names the axes of a convolution's input, weight and output."""
        axes = AXES[:rank]
        tensor, weight = (f"N{axes}C", f"{axes}IO") if self.channels_last else (f"NC{axes}", f"OI{axes}")
        return tensor, weight, tensor

    def axes(self, rank: int) -> tuple[int, ...]:
        """The spatial ones of a tensor."""
        return tuple(range(1, 1 + rank)) if self.channels_last else tuple(range(2, 2 + rank))

    def around(self, spatial: Sequence[Entry], other: Entry) -> tuple[Entry, ...]:
        """One entry per axis of a tensor, from those of its spatial axes and one for batch and channels."""
        return (other, *spatial, other) if self.channels_last else (other, other, *spatial)


@dataclass(frozen=True)
class Finished:
    """Results, with the names that say how they are laid out."""

    results: Sequence[Array]
    names: Sequence[str]
    layout: Layout


class Jax(Contender):
    platform = "cpu"

    def __init__(self, threads: int) -> None:
        """The number of threads is read from the environment, PJRT_NPROC."""
        self.jax = import_module("jax")
        self.jax.config.update("jax_platforms", self.platform)

    def versions(self) -> dict[str, str]:
        return {name: import_module(name).__version__ for name in ("jax", "jaxlib")}

    def arrays(self, done: Finished) -> list[Array]:
        named = zip(done.names, done.results, strict=True)
        return [done.layout.taken(name, np.asarray(array)) for name, array in named]

    def variants(self, problem: BenchProblem) -> Variants:
        has_layouts = isinstance(problem.cell, Conv | Network | Pool) and self.platform == "cpu"
        made: Variants = {}
        for layout in (Layout(), Layout(True)) if has_layouts else (Layout(problem.cell.channels_last),):
            arguments, results = self._arguments(problem, layout)
            for name, f in self._functions(problem, layout).items():
                for how, call in self._calls(problem, f, arguments):
                    words = name, how, "channels last" * layout.channels_last
                    made[", ".join(filter(None, words))] = self._finishing(call, results, layout)
        return made

    def _arguments(self, problem: BenchProblem, layout: Layout) -> tuple[list[Array], list[str]]:
        """What the mode's function takes, and the names of what it gives."""
        given, names = data(problem), list(problem.cell.inputs())
        active = [names[i] for i in problem.cell.active()]
        more, moving, results = {
            "forward": ((), (), ["value"]),
            "jvp": (given.tangents, active, ["value", "tangent"]),
            "vjp": ((given.cotangent,), ["cotangent"], ["value", *active]),
        }[problem.mode]
        named = zip((*names, *moving), (*given.inputs, *more), strict=True)
        return [self.jax.numpy.asarray(layout.put(name, array)) for name, array in named], results

    def _calls(self, problem: BenchProblem, f: Function, arguments: list[Array]) -> Iterator[tuple[str, Call]]:
        fixed = len(problem.cell.inputs()) - len(problem.cell.active())  # inputs without a derivative come first
        derived = {"jvp": with_tangent(f), "vjp": with_cotangents(f, fixed)}
        whole = self.jax.jit(derived.get(problem.mode, lambda *inputs: [f(*inputs)]))
        yield (GIVEN if problem.has_fixed_weights else ""), lambda: whole(*arguments)
        if problem.has_fixed_weights:
            x, *weights = arguments
            packed = self.jax.jit(lambda x: [f(x, *weights)])
            yield FIXED, lambda: packed(x)

    def _finishing(self, call: Call, names: Sequence[str], layout: Layout) -> Callable[[], Finished]:
        return lambda: Finished(self._finished(call()), names, layout)

    def _finished(self, results: Sequence[Array]) -> Sequence[Array]:
        return self.jax.block_until_ready(results)

    # --- what is computed ---------------------------------------------------------------------------------------------

    def _functions(self, problem: BenchProblem, layout: Layout) -> Functions:
        cell = problem.cell
        if isinstance(cell, Limit):
            return {"": self.jax.numpy.matmul}
        if isinstance(cell, Network):
            return {"": network_of(cell, problem.mode, _operators(self.jax, layout, labels(cell)))}
        if isinstance(cell, Pool) and problem.op == "smooth":
            return self._smooth_pool(cell, problem.mode, layout)
        asked = as_problem(problem)
        if reason := undocumented(asked, "value"):
            raise NotOfferedError(reason)
        if isinstance(cell, Pool) and layout.channels_last:
            return {"": self._pool_of_channels_last(cell, problem.op, layout)}
        expression = function(asked, AS_IT_LIES if layout.channels_last else "plain")
        return {"": function_of(expression, cell.inputs(), modules())}

    def _pool_of_channels_last(self, cell: Pool, op: str, layout: Layout) -> Function:
        lax, jnp = self.jax.lax, self.jax.numpy
        kernel, _, padding = cell.windows
        if cell.is_global:
            reduce = {"max": jnp.max, "avg": jnp.mean}[op]
            return lambda x: reduce(x, layout.axes(cell.rank), keepdims=True)
        pads = layout.around([(p, p) for p in padding], (0, 0))
        if op == "max":
            return lambda x: self._reduce_window(cell, x, -jnp.inf, lax.max, layout, pads)
        return lambda x: self._reduce_window(cell, x, 0.0, lax.add, layout, pads) / prod(kernel)

    def _reduce_window(
        self, cell: Pool, x: Array, start: object, operation: Function, layout: Layout, padding: object = "VALID"
    ) -> Array:
        kernel, stride = (layout.around(sizes, 1) for sizes in cell.windows[:2])
        return self.jax.lax.reduce_window(x, start, operation, kernel, stride, padding)

    def _smooth_pool(self, cell: Pool, mode: str, layout: Layout) -> Functions:
        """Slices of the windows stacked; powers summed by ``reduce_window``; values, also its reducer ``logaddexp``.

        Powers are shifted by the greatest number of all and so lose windows that lie far below it.
        """
        jnp, lax = self.jax.numpy, self.jax.lax
        if cell.is_global:
            return {"": lambda x: self.jax.nn.logsumexp(x, axis=layout.axes(cell.rank), keepdims=True)}
        kernel, stride, padding = cell.windows
        pads = layout.around([(p, p) for p in padding], (0, 0))

        def slices(x: Array) -> Array:
            x = jnp.pad(x, pads)
            offsets = product(*map(range, kernel))
            steps = (_steps(at, stride, cell.output()[2:]) for at in offsets)
            taken = [x[layout.around(each, slice(None))] for each in steps]
            return self.jax.nn.logsumexp(jnp.stack(taken), axis=0)

        def powers(x: Array) -> Array:
            x = jnp.pad(x, pads)
            top = lax.stop_gradient(x.max())
            return jnp.log(self._reduce_window(cell, jnp.exp(x - top), 0.0, lax.add, layout)) + top

        def reducer(x: Array) -> Array:
            start = np.asarray(-jnp.inf, x.dtype)
            return self._reduce_window(cell, jnp.pad(x, pads), start, jnp.logaddexp, layout)

        functions: Functions = {"pooled powers": powers}
        functions |= {"stacked slices": slices} if cell.kernel**cell.rank <= MOST_SLICES else {}
        return functions | ({"reduce_window of logaddexp": reducer} if mode == "forward" else {})


def _steps(start: tuple[int, ...], stride: tuple[int, ...], count: tuple[int, ...]) -> list[slice]:
    """Every ``stride``-th cell from ``start``, ``count`` of them, along each axis."""
    return [slice(at, at + s * (n - 1) + 1, s) for at, s, n in zip(start, stride, count, strict=True)]


def _operators(jax: ModuleType, layout: Layout, classes: Array) -> Operators:
    def cross_entropy(x: Array) -> Array:
        return -jax.numpy.mean(jax.nn.log_softmax(x)[np.arange(len(classes)), classes])

    def flatten(x: Array) -> Array:
        channels_first = jax.numpy.moveaxis(x, -1, 1) if layout.channels_last else x
        return channels_first.reshape(len(x), -1)

    def conv(x: Array, weight: Array, bias: Array, stride: int, padding: int) -> Array:
        pads, numbers = [(padding, padding)] * 2, layout.numbers(2)
        product = jax.lax.conv_general_dilated(x, weight, (stride, stride), pads, dimension_numbers=numbers)
        return product + (bias if layout.channels_last else bias[:, None, None])

    def max_pool(x: Array, kernel: int, stride: int, padding: int) -> Array:
        kernels, strides = (layout.around([size] * 2, 1) for size in (kernel, stride))
        pads = layout.around([(padding, padding)] * 2, (0, 0))
        return jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, kernels, strides, pads)

    return {
        "relu": jax.nn.relu,
        "add": jax.numpy.add,
        "linear": lambda x, weight, bias: x @ weight.T + bias,
        "flatten": flatten,
        "conv": conv,
        "max_pool": max_pool,
        "cross_entropy": cross_entropy,
        "mean_square": lambda x: jax.numpy.mean(jax.numpy.square(x)),
    }


# --- derivatives ------------------------------------------------------------------------------------------------------


def with_tangent(f: Function) -> Function:
    """Inputs, then their tangents, to the value and its tangent."""
    import jax

    return lambda *arrays: jax.jvp(f, arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :])


def with_cotangents(f: Function, fixed: int = 0) -> Function:
    """Inputs, then the value's cotangent, to the value and the inputs' cotangents, but for the first ``fixed`` ones."""
    import jax

    def pulled(*arrays: Array) -> tuple[Array, ...]:
        *inputs, g = arrays
        value, pullback = jax.vjp(lambda *moving: f(*inputs[:fixed], *moving), *inputs[fixed:])
        return value, *pullback(g)

    return pulled

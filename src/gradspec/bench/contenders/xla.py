"""JAX on the CPU, everything inside ``jax.jit``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from gradspec.bench.contenders import NotOfferedError, Variants
from gradspec.bench.data import Array, data, labels
from gradspec.bench.grid import MATMUL, Conv, Network, Pool, Problem
from gradspec.bench.networks import run

Functions = dict[str, Callable[..., Any]]
MOST_SLICES = 200  # of windows stacked as slices: each is an operation that XLA compiles


class Jax:
    def __init__(self, threads: int) -> None:
        """The number of threads is read from the environment, PJRT_NPROC."""
        self.jax = import_module("jax")
        self.jax.config.update("jax_platforms", "cpu")

    def versions(self) -> dict[str, str]:
        return {name: import_module(name).__version__ for name in ("jax", "jaxlib")}

    def arrays(self, results: Iterable[Any]) -> list[Array]:
        return [np.asarray(array) for array in results]

    def variants(self, problem: Problem) -> Variants:
        given = data(problem)
        shape = {"forward": self._forward, "jvp": self._jvp, "vjp": self._vjp}[problem.mode]
        arrays = {"forward": (), "jvp": given.tangents, "vjp": (given.cotangent,)}[problem.mode]
        arguments = [self.jax.numpy.asarray(array) for array in (*given.inputs, *arrays)]
        functions = {name: self.jax.jit(shape(problem, f)) for name, f in self._functions(problem).items()}
        return {name: partial(self._finished, f, arguments) for name, f in functions.items()}

    def _finished(self, f: Callable[..., Any], arguments: list[Any]) -> Any:
        return self.jax.block_until_ready(f(*arguments))

    # --- value, and value with a derivative ---------------------------------------------------------------------------

    def _forward(self, problem: Problem, f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: [f(*inputs)]

    def _jvp(self, problem: Problem, f: Callable[..., Any]) -> Callable[..., Any]:
        count = len(problem.cell.inputs())
        return lambda *both: self.jax.jvp(f, both[:count], both[count:])

    def _vjp(self, problem: Problem, f: Callable[..., Any]) -> Callable[..., Any]:
        active = problem.cell.active()

        def pulled(*given: Any) -> Any:
            *inputs, cotangent = given
            fixed = inputs[: active[0]]  # the inputs that are not differentiated come first
            value, pullback = self.jax.vjp(lambda *moving: f(*fixed, *moving), *inputs[active[0] :])
            return value, *pullback(cotangent)

        return pulled

    # --- what is computed ---------------------------------------------------------------------------------------------

    def _functions(self, problem: Problem) -> Functions:
        cell = problem.cell
        if cell == MATMUL:
            return {"": self.jax.numpy.matmul}
        if isinstance(cell, Pool):
            return self._pool(cell, problem.op, problem.mode)
        if isinstance(cell, Conv):
            return {"": self._conv(cell)}
        assert isinstance(cell, Network)
        return {"": self._network(cell, problem.mode)}

    def _pool(self, cell: Pool, op: str, mode: str) -> Functions:
        jnp = self.jax.numpy
        axes = tuple(range(2, 2 + cell.rank))
        if cell.is_adaptive:
            raise NotOfferedError("JAX has no adaptive pooling")
        if cell.is_global:
            whole = {"max": jnp.max, "avg": jnp.mean, "smooth": self.jax.nn.logsumexp}[op]
            return {"": lambda x: whole(x, axis=axes, keepdims=True)}
        if op == "smooth":
            return self._smooth_pool(cell, mode)
        if op == "max":
            return {"": lambda x: self._reduce_window(cell, x, -jnp.inf, self.jax.lax.max)}
        volume = cell.kernel**cell.rank
        return {"": lambda x: self._reduce_window(cell, x, 0.0, self.jax.lax.add) / volume}

    def _reduce_window(self, cell: Pool, x: Any, start: float, operation: Any, padded: bool = True) -> Any:
        kernel, stride, padding = cell.windows
        pads = [(p, p) if padded else (0, 0) for p in (0, 0, *padding)]
        return self.jax.lax.reduce_window(x, start, operation, (1, 1, *kernel), (1, 1, *stride), pads)

    def _smooth_pool(self, cell: Pool, mode: str) -> Functions:
        """Slices of the windows stacked; powers summed by ``reduce_window``; values, also its reducer ``logaddexp``.

        Powers are shifted by the greatest number of all and so lose windows that lie far below it.
        """
        jnp, lax = self.jax.numpy, self.jax.lax
        kernel, stride, padding = cell.windows
        pads = [(0, 0), (0, 0), *((p, p) for p in padding)]

        def slices(x: Any) -> Any:
            x = jnp.pad(x, pads)
            offsets = product(*map(range, kernel))
            taken = [x[(..., *_steps(at, stride, cell.output()[2:]))] for at in offsets]
            return self.jax.nn.logsumexp(jnp.stack(taken), axis=0)

        def powers(x: Any) -> Any:
            x = jnp.pad(x, pads)
            top = lax.stop_gradient(x.max())
            return jnp.log(self._reduce_window(cell, jnp.exp(x - top), 0.0, lax.add, padded=False)) + top

        def reducer(x: Any) -> Any:
            return self._reduce_window(cell, jnp.pad(x, pads), -jnp.inf, jnp.logaddexp, padded=False)

        functions: Functions = {"pooled powers": powers}
        functions |= {"stacked slices": slices} if cell.kernel**cell.rank <= MOST_SLICES else {}
        return functions | ({"reduce_window of logaddexp": reducer} if mode == "forward" else {})

    def _conv(self, cell: Conv) -> Callable[..., Any]:
        lax, pads = self.jax.lax, [(cell.padding, cell.padding)] * cell.rank
        if not cell.transposed:
            strides, dilation = (cell.stride,) * cell.rank, (cell.dilation,) * cell.rank
            return lambda x, w: lax.conv_general_dilated(
                x, w, strides, pads, rhs_dilation=dilation, feature_group_count=cell.groups
            )
        pads = [(cell.kernel - 1 - cell.padding,) * 2] * cell.rank
        letters = "DHW"[-cell.rank :]
        numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
        return lambda x, w: lax.conv_transpose(
            x, w, (cell.stride,) * cell.rank, pads, dimension_numbers=numbers, transpose_kernel=True
        )

    def _network(self, cell: Network, mode: str) -> Callable[..., Any]:
        jnp, operators, classes = self.jax.numpy, Operators(self), labels(cell)

        def value(x: Any, *parameters: Any) -> Any:
            return run(cell, operators, x, parameters)

        def loss(x: Any, *parameters: Any) -> Any:
            result = value(x, *parameters)
            if cell.loss == "mean_square":
                return jnp.mean(jnp.square(result))
            return -jnp.mean(self.jax.nn.log_softmax(result)[np.arange(len(classes)), classes])

        return value if mode == "forward" else loss


def _steps(start: tuple[int, ...], stride: tuple[int, ...], count: tuple[int, ...]) -> list[slice]:
    """Every ``stride``-th cell from ``start``, ``count`` of them, along each axis."""
    return [slice(at, at + s * (n - 1) + 1, s) for at, s, n in zip(start, stride, count, strict=True)]


class Operators:
    """What a network is made of, on JAX arrays."""

    def __init__(self, contender: Jax) -> None:
        self.jax, self._contender = contender.jax, contender

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def flatten(self, x: Any) -> Any:
        return x.reshape(len(x), -1)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(self, x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any:
        pads = [(padding, padding)] * 2
        return self.jax.lax.conv_general_dilated(x, weight, (stride, stride), pads) + bias[:, None, None]

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def max_pool(self, x: Any, kernel: int, stride: int, padding: int) -> Any:
        cell = Pool("", x.shape, kernel, stride, padding)
        return self._contender._reduce_window(cell, x, -self.jax.numpy.inf, self.jax.lax.max)

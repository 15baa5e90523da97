"""PyTorch, eager and by ``torch.compile``, each with tensors in the default layout and in channels_last memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

from gradspec.bench.contenders import FIXED, GIVEN, NotOfferedError, Variants
from gradspec.bench.data import Array, data, labels
from gradspec.bench.grid import Conv, Limit, Network, Pool, Problem
from gradspec.bench.networks import run

Functions = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class PyTorch:
    torch: Any
    channels_last: bool = False
    compiled: bool = False

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def arrays(self, results: Iterable[Any]) -> list[Array]:
        return [tensor.detach().numpy() for tensor in results]

    def variants(self, problem: Problem) -> Variants:
        if self.channels_last and problem.cell.rank not in (2, 3):
            raise NotOfferedError("channels_last is a layout of two or three spatial axes")
        functions = self._functions(problem)
        if self.compiled:
            self.torch._dynamo.reset()
        calls = {"forward": self._forward, "jvp": self._jvp, "vjp": self._vjp}[problem.mode](problem, functions)
        return dict(calls)

    # --- value, and value with a derivative ---------------------------------------------------------------------------

    def _forward(self, problem: Problem, functions: Functions) -> Iterable[tuple[str, Callable[[], Any]]]:
        inputs = [self._tensor(array) for array in data(problem).inputs]
        is_fixed = self.compiled and problem.has_fixed_weights
        for name, f in functions.items():
            yield (GIVEN if is_fixed else name), partial(lambda f: [f(*inputs)], self._compile(f))
            if is_fixed:
                yield FIXED, self._frozen(f, *inputs)

    def _frozen(self, f: Callable[..., Any], x: Any, *weights: Any) -> Callable[[], Any]:
        """A module whose parameters the compiler takes for constants; it is compiled when first called."""
        torch, config = self.torch, import_module("torch._inductor.config")
        module = _module(torch, f, weights)

        @cache
        def compiled() -> Callable[..., Any]:
            made = self._compile(module)
            with torch.no_grad(), config.patch(freezing=True):
                made(x)
            return made

        def call() -> Any:
            made = compiled()
            with torch.no_grad():
                return [made(x)]

        return call

    def _jvp(self, problem: Problem, functions: Functions) -> Iterable[tuple[str, Callable[[], Any]]]:
        given = data(problem)
        inputs, tangents = (tuple(map(self._tensor, arrays)) for arrays in (given.inputs, given.tangents))
        forward_ad = self.torch.autograd.forward_ad

        def dual(f: Callable[..., Any]) -> Any:
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, inputs, tangents)))

        for name, f in functions.items():
            moved = self._compile(partial(self.torch.func.jvp, f))
            yield f"{name} torch.func.jvp".strip(), partial(moved, inputs, tangents)
            if not self.compiled:
                yield f"{name} dual numbers".strip(), partial(dual, f)

    def _vjp(self, problem: Problem, functions: Functions) -> Iterable[tuple[str, Callable[[], Any]]]:
        given, active = data(problem), problem.cell.active()
        inputs = [self._tensor(array).requires_grad_(i in active) for i, array in enumerate(given.inputs)]
        cotangent, wrt, grad = self._tensor(given.cotangent), [inputs[i] for i in active], self.torch.autograd.grad

        def pull(f: Callable[..., Any]) -> Any:
            value = f(*inputs)
            return value, *grad(value, wrt, cotangent)

        for name, f in functions.items():
            yield name, partial(pull, self._compile(f))

    def _compile(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(f, dynamic=False) if self.compiled else f

    def _tensor(self, array: Array) -> Any:
        tensor = self.torch.from_numpy(array.copy())
        layouts = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}
        if not self.channels_last or tensor.dim() not in layouts:
            return tensor
        return tensor.contiguous(memory_format=layouts[tensor.dim()])

    # --- what is computed ---------------------------------------------------------------------------------------------

    def _functions(self, problem: Problem) -> Functions:
        cell = problem.cell
        if isinstance(cell, Limit):
            if self.compiled:
                raise NotOfferedError("the same product as that of torch-eager")
            return {"": self.torch.matmul}
        if cell.rank not in (1, 2, 3):
            raise NotOfferedError("PyTorch pools and convolves along one to three axes")
        if isinstance(cell, Pool):
            return self._pool(cell, problem.op)
        if isinstance(cell, Conv):
            return {"": self._conv(cell)}
        assert isinstance(cell, Network)
        return {"": self._network(cell, problem.mode)}

    def _pool(self, cell: Pool, op: str) -> Functions:
        functional = self.torch.nn.functional
        if op == "smooth":
            return self._smooth_pool(cell)
        if cell.output_size:
            adaptive = getattr(functional, f"adaptive_{op}_pool{cell.rank}d")
            functions: Functions = {"adaptive": lambda x: adaptive(x, cell.output_size)}
            if cell.is_global:
                reduce = {"max": self.torch.amax, "avg": self.torch.mean}[op]
                axes = tuple(range(2, 2 + cell.rank))
                functions["reduction"] = lambda x: reduce(x, axes, keepdim=True)
            return functions
        pool = getattr(functional, f"{op}_pool{cell.rank}d")
        return {"": lambda x: pool(x, cell.kernel, cell.stride, cell.padding)}

    def _smooth_pool(self, cell: Pool) -> Functions:
        """``Tensor.unfold`` makes views of windows, ``F.unfold`` (2-D) copies them; or powers are summed by a pool.

        The last is shifted by the greatest number of all and so loses windows that lie far below it.
        """
        logsumexp, functional = self.torch.logsumexp, self.torch.nn.functional
        kernel, stride, padding = cell.windows
        axes = tuple(range(2, 2 + cell.rank))
        if cell.is_global:
            return {"reduction": lambda x: logsumexp(x, axes, keepdim=True)}
        pads = [side for axis in reversed(padding) for side in (axis, axis)]

        def views(x: Any) -> Any:
            x = functional.pad(x, pads)
            for axis, k, s in zip(axes, kernel, stride, strict=True):
                x = x.unfold(axis, k, s)
            return logsumexp(x, tuple(range(-cell.rank, 0)))

        def copies(x: Any) -> Any:
            planes = functional.pad(x, pads).flatten(0, 1).unsqueeze(1)
            return logsumexp(functional.unfold(planes, kernel, stride=stride), 1).view(cell.output())

        sum_pool, volume = getattr(functional, f"avg_pool{cell.rank}d"), cell.kernel**cell.rank

        def powers(x: Any) -> Any:
            x = functional.pad(x, pads)
            top = x.detach().max()
            return (sum_pool((x - top).exp(), kernel, stride) * volume).log() + top

        functions: Functions = {"unfolded views": views, "pooled powers": powers}
        return functions | ({"F.unfold": copies} if cell.rank == 2 else {})

    def _conv(self, cell: Conv) -> Callable[..., Any]:
        name = f"conv_transpose{cell.rank}d" if cell.transposed else f"conv{cell.rank}d"
        conv = getattr(self.torch.nn.functional, name)
        if cell.transposed:
            return lambda x, weight: conv(x, weight, None, cell.stride, cell.padding)
        return lambda x, weight: conv(x, weight, None, cell.stride, cell.padding, cell.dilation, cell.groups)

    def _network(self, cell: Network, mode: str) -> Callable[..., Any]:
        functional, operators = self.torch.nn.functional, Operators(self.torch)
        classes = self.torch.from_numpy(labels(cell))

        def value(x: Any, *parameters: Any) -> Any:
            return run(cell, operators, x, parameters)

        def loss(x: Any, *parameters: Any) -> Any:
            result = value(x, *parameters)
            return functional.cross_entropy(result, classes) if cell.loss == "cross_entropy" else result.square().mean()

        return value if mode == "forward" else loss


@dataclass(frozen=True)
class Operators:
    """What a network is made of, on tensors."""

    torch: Any

    def relu(self, x: Any) -> Any:
        return self.torch.relu(x)

    def flatten(self, x: Any) -> Any:
        return x.flatten(1)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(self, x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any:
        return self.torch.nn.functional.conv2d(x, weight, bias, stride, padding)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.torch.nn.functional.linear(x, weight, bias)

    def max_pool(self, x: Any, kernel: int, stride: int, padding: int) -> Any:
        return self.torch.nn.functional.max_pool2d(x, kernel, stride, padding)


def _module(torch: Any, f: Callable[..., Any], weights: Iterable[Any]) -> Any:
    class Module(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(weights)

        def forward(self, x: Any) -> Any:
            return f(x, *self.weights)

    return Module().eval()


def _torch(threads: int) -> Any:
    torch = import_module("torch")
    torch.set_num_threads(threads)
    return torch


def eager(threads: int) -> PyTorch:
    return PyTorch(_torch(threads))


def channels_last(threads: int) -> PyTorch:
    return PyTorch(_torch(threads), channels_last=True)


def compiled(threads: int) -> PyTorch:
    return PyTorch(_torch(threads), compiled=True)


def compiled_channels_last(threads: int) -> PyTorch:
    return PyTorch(_torch(threads), channels_last=True, compiled=True)

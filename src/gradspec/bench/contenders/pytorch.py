"""PyTorch, eager and by ``torch.compile``, each with tensors in the default layout and in channels_last memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

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
from gradspec.conformance.targets.program import function_of, routine
from gradspec.conformance.targets.torch.functions import quickest
from gradspec.conformance.targets.torch.program import mode_lines
from gradspec.conformance.targets.torch.target import in_channels_last
from gradspec.system.host import enter, leave

if TYPE_CHECKING:
    from torch import Tensor

Functions = dict[str, Function]


@dataclass(frozen=True)
class PyTorch(Contender):
    torch: ModuleType
    channels_last: bool = False
    compiled: bool = False
    mode: str = "default"  # of torch.compile
    device: str = "cpu"

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def arrays(self, results: Iterable[Tensor]) -> list[Array]:
        return list(map(leave, results))

    def variants(self, problem: BenchProblem) -> Variants:
        if self.channels_last and problem.cell.rank not in (2, 3):
            raise NotOfferedError("channels_last is a layout of two or three spatial axes")
        functions = self._functions(problem)
        if self.compiled:
            self.torch.compiler.reset()
        calls = {"forward": self._forward, "jvp": self._jvp, "vjp": self._vjp}[problem.mode](problem, functions)
        return dict(calls)

    # --- value, and value with a derivative ---------------------------------------------------------------------------

    def _forward(self, problem: BenchProblem, functions: Functions) -> Iterable[tuple[str, Call]]:
        inputs = self._tensors(problem, data(problem).inputs)
        is_fixed = self.compiled and problem.has_fixed_weights
        for name, f in functions.items():
            yield (GIVEN if is_fixed else name), partial(lambda f: [f(*inputs)], self._compile(f))
            if is_fixed:
                yield FIXED, self._frozen(f, *inputs)

    def _frozen(self, f: Function, x: Tensor, *weights: Tensor) -> Call:
        """A module whose parameters the compiler takes for constants; it is compiled when first called."""
        from gradspec.interop.torch.private import compiler_options

        torch = self.torch
        module = _module(torch, f, weights)

        @cache
        def compiled() -> Function:
            made = self._compile(module)
            with torch.no_grad(), compiler_options(freezing=True):
                made(x)
            return made

        def call() -> list[Tensor]:
            made = compiled()
            with torch.no_grad():
                return [made(x)]

        return call

    def _jvp(self, problem: BenchProblem, functions: Functions) -> Iterable[tuple[str, Call]]:
        given = data(problem)
        inputs, tangents = (self._tensors(problem, arrays) for arrays in (given.inputs, given.tangents))
        forward_ad = self.torch.autograd.forward_ad

        def dual(f: Function) -> tuple[Tensor, ...]:
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, inputs, tangents)))

        for name, f in functions.items():
            moved = self._compile(self._asked(problem, f))
            yield f"{name} torch.func.jvp".strip(), partial(moved, *inputs, *tangents)
            if not self.compiled:
                yield f"{name} dual numbers".strip(), partial(dual, f)

    def _vjp(self, problem: BenchProblem, functions: Functions) -> Iterable[tuple[str, Call]]:
        given = data(problem)
        tensors = self._tensors(problem, (*given.inputs, given.cotangent))
        for name, f in functions.items():
            yield name, partial(self._asked(problem, self._compile(f)), *tensors)

    def _asked(self, problem: BenchProblem, f: Function) -> Function:
        """The value with its derivative as the judge asks for it, as a function of all tensors."""
        names = list(problem.cell.inputs())
        chosen = [names[i] for i in problem.cell.active()]
        tangents = [f"d{name}" for name in chosen]
        more, derived = (tangents, ["dy"]) if problem.mode == "jvp" else (["g"], [f"grad_{name}" for name in chosen])
        lines = [*mode_lines(problem.mode, "plain", names, chosen, f"f({', '.join(names)})")]
        return routine(lines, [*names, *more], ["y", *derived], {"torch": self.torch, "f": f})

    def _compile(self, f: Function) -> Function:
        return self.torch.compile(f, dynamic=False, mode=self.mode) if self.compiled else f

    def _tensors(self, problem: BenchProblem, arrays: Iterable[Array]) -> list[Tensor]:
        tensors = [enter("torch", array.copy()).to(self.device) for array in arrays]
        if not (self.channels_last or problem.cell.channels_last):
            return tensors
        return [in_channels_last(tensor) if tensor.dim() in (4, 5) else tensor for tensor in tensors]

    # --- what is computed ---------------------------------------------------------------------------------------------

    def _functions(self, problem: BenchProblem) -> Functions:
        cell = problem.cell
        if isinstance(cell, Limit):
            if self.compiled:
                raise NotOfferedError("the same product as that of torch-eager")
            return {"": self.torch.matmul}
        if cell.rank not in (1, 2, 3):
            raise NotOfferedError("PyTorch pools and convolves along one to three axes")
        if isinstance(cell, Network):
            return {"": self._network(cell, problem.mode)}
        if isinstance(cell, Pool) and problem.op == "smooth":
            return self._smooth_pool(cell)
        called = function_of(quickest(as_problem(problem)), cell.inputs(), {"torch": self.torch})
        if isinstance(cell, Conv) or not cell.output_size:
            return {"": called}
        functions: Functions = {"adaptive": called}
        if cell.is_global:
            reduce, axes = {"max": self.torch.amax, "avg": self.torch.mean}[problem.op], tuple(range(2, 2 + cell.rank))
            functions["reduction"] = lambda x: reduce(x, axes, keepdim=True)
        return functions

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

        def views(x: Tensor) -> Tensor:
            x = functional.pad(x, pads)
            for axis, k, s in zip(axes, kernel, stride, strict=True):
                x = x.unfold(axis, k, s)
            return logsumexp(x, tuple(range(-cell.rank, 0)))

        def copies(x: Tensor) -> Tensor:
            planes = functional.pad(x, pads).flatten(0, 1).unsqueeze(1)
            return logsumexp(functional.unfold(planes, kernel, stride=stride), 1).view(cell.output())

        sum_pool, volume = getattr(functional, f"avg_pool{cell.rank}d"), cell.kernel**cell.rank

        def powers(x: Tensor) -> Tensor:
            x = functional.pad(x, pads)
            top = x.detach().max()
            return (sum_pool((x - top).exp(), kernel, stride) * volume).log() + top

        functions: Functions = {"unfolded views": views, "pooled powers": powers}
        return functions | ({"F.unfold": copies} if cell.rank == 2 else {})

    def _network(self, cell: Network, mode: str) -> Function:
        functional, classes = self.torch.nn.functional, self.torch.from_numpy(labels(cell))
        operators: Operators = {
            "relu": self.torch.relu,
            "flatten": lambda x: x.flatten(1),
            "add": self.torch.add,
            "conv": functional.conv2d,
            "linear": functional.linear,
            "max_pool": functional.max_pool2d,
            "cross_entropy": lambda y: functional.cross_entropy(y, classes),
            "mean_square": lambda y: y.square().mean(),
        }
        return network_of(cell, mode, operators)


def _module(torch: ModuleType, f: Function, weights: Iterable[Tensor]) -> Function:
    class WithParameters(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(weights)

        def forward(self, x: Tensor) -> Tensor:
            return f(x, *self.weights)

    return WithParameters().eval()


def eager(threads: int, channels_last: bool = False, compiled: bool = False) -> PyTorch:
    torch = import_module("torch")
    torch.set_num_threads(threads)
    return PyTorch(torch, channels_last, compiled)


channels_last, compiled = partial(eager, channels_last=True), partial(eager, compiled=True)
compiled_channels_last = partial(compiled, channels_last=True)

"""Our own operators on tensors of PyTorch: graphs as modules of ``gs.to_torch``, on a GPU by kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from gradspec.conformance.model.attributes import OPERATORS, spelled
from gradspec.conformance.model.problem import GIVES_INDICES, Call, Problem, unspecified
from gradspec.conformance.model.target import ExpectedError
from gradspec.conformance.targets.program import Code, applied, routine
from gradspec.conformance.targets.torch.program import lines_of, results_of
from gradspec.conformance.targets.torch.target import TorchWindows, forward
from gradspec.graph.types import DTYPES
from gradspec.interop import to_torch
from gradspec.transforms.trace import trace


class ModuleTarget(TorchWindows):
    """``gs.to_torch`` of a traced operator, with ``torch.func.jvp`` and ``torch.autograd.grad``."""

    name = "to_torch"
    repeatable = True
    strict = True
    fresh_results = True

    @property
    def compiles(self) -> bool:  # type: ignore[override]
        """On a GPU a window is compiled when it is first met."""
        return not self.device.is_host

    def versions(self) -> dict[str, str]:
        return {"gradspec": version("gradspec"), **super().versions()}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return unspecified(problem, mode)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        return ("with_indices",) if mode == "value" and problem.op in GIVES_INDICES else ()

    def staged(self, call: Call) -> Call:
        return forward(call)

    def expression(self, call: Call) -> str:
        return applied("module", *map(Code, call.named()))

    def made_function(self, call: Call, decorator: str = "") -> Callable[..., tuple[Any, ...]]:
        import torch

        definitions, lines = lines_of(call, self.expression(call))
        modules = {"torch": torch, "gs": SimpleNamespace(**OPERATORS, **DTYPES, trace=trace, to_torch=to_torch)}
        return routine(lines, call.arrays(), results_of(call), modules, [_module(call), *definitions])

    def reproducer(self, call: Call) -> str:
        return (
            super()
            .reproducer(call)
            .replace("import torch\n", f"import torch\nimport gradspec as gs\n\n{_module(call)}\n", 1)
        )

    def conventions(self) -> frozenset[str]:
        return frozenset()

    def expected_errors(self) -> Sequence[ExpectedError]:
        return ()


def _module(call: Call) -> str:
    """The line that makes the module of a call."""
    indices = {"return_indices": True} if call.variant == "with_indices" else {}
    operator = applied(f"gs.{call.problem.op}", *map(Code, call.named()), **spelled(call.problem), **indices)
    shapes = call.problem.named_shapes()
    types = ", ".join(f"gs.{call.problem.dtype_of(name)}[{', '.join(map(str, shapes[name]))}]" for name in call.named())
    return f"module = gs.to_torch(gs.trace(lambda {', '.join(call.named())}: {operator}, {types}))"

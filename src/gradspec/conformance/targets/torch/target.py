"""PyTorch as its users call it: eagerly, compiled, and with channels fastest in memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.geometry import OPERATORS, spelled
from gradspec.conformance.model.problem import AVERAGES, GIVES_INDICES, SELECTIONS, Call, Problem, why_unspecified
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.model.target import ExpectedError, NotOfferedError
from gradspec.conformance.targets.arrays import LibraryTarget
from gradspec.conformance.targets.layers import WithLayers
from gradspec.conformance.targets.program import Code, applied, routine
from gradspec.conformance.targets.torch import functions
from gradspec.conformance.targets.torch.program import compiled_by, lines_of, program, results_of
from gradspec.graph.types import DTYPES
from gradspec.interop import to_torch
from gradspec.transforms.trace import trace

NOTES = "https://docs.pytorch.org/docs/stable/notes/"
GENERATED = "https://docs.pytorch.org/docs/stable/generated/"
BATCHED_BY_VMAP = (*SELECTIONS, *AVERAGES)
"""Operators of one input that ``torch.vmap`` has rules for; it calls others once for each sample."""


class TorchWindows(LibraryTarget):
    """``torch.nn.functional``, with ``torch.func.jvp`` and ``torch.autograd.grad``."""

    name, array = "torch", "torch"
    channels_last = False
    """Whether tensors with batch and channels are put in the memory format of this name."""

    def versions(self) -> dict[str, str]:
        import torch

        onednn = re.search(r"MKL-DNN v(\S+)", torch.__config__.show())
        return {"torch": torch.__version__, **({"oneDNN": onednn.group(1)} if onednn else {})}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return functions.undocumented(problem, mode) or _unimplemented(
            problem.op, problem.rank, problem.dtype, mode, self.device
        )

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        if mode == "value":
            indices = ("with_indices",) if functions.has_indices(problem) else ()
            return (*indices, "samples") if functions.has_batch(problem) and problem.op != "unfold" else indices
        if mode == "jvp":
            return ("double_backward",)
        if mode == "vjp" and len(problem.differentiable) > 1:
            return ("one_by_one",)
        return ("vmap",) if mode == "vjp" and functions.has_batch(problem) and problem.op in BATCHED_BY_VMAP else ()

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        """Where it was told to use algorithms that are, as a module of the user's may do."""
        import torch

        return torch.are_deterministic_algorithms_enabled()

    def staged(self, call: Call) -> Call:
        if call.problem.op == "max_unpool" and (call.named()["indices"] < 0).any():
            raise NotOfferedError("max_unpool documents no index that names no cell")
        is_shared = call.mode != "value" and self.expression(call).startswith("torch.amax")
        if is_shared and np.isnan(call.named()["x"].astype(np.float64)).any():
            raise NotOfferedError("amax documents how equal values share a gradient, and NaN equals nothing")
        return forward(call)

    def compute(self, call: Call) -> Mapping[str, Any]:
        try:
            with warnings.catch_warnings(action="ignore"):  # of slow ways to a result; the result is what is judged
                return dict(zip(results_of(call), self.answer(call, *call.arrays().values()), strict=True))
        except RuntimeError as error:
            if re.search("is not implemented|not implemented for '|[Ii]nput dtype must be", str(error)):
                raise NotOfferedError(str(error).partition("\n")[0]) from None
            raise

    def answer(self, call: Call, *tensors: Any) -> tuple[Any, ...]:
        return self.function(call)(*tensors)  # type: ignore[no-any-return]

    def expression(self, call: Call) -> str:
        return functions.function(call.problem, call.variant == "with_indices")

    def made_function(self, call: Call, decorator: str = "") -> Callable[..., tuple[Any, ...]]:
        import torch

        definitions, lines = lines_of(call, self.expression(call), decorator)
        return routine(lines, call.arrays(), results_of(call), {"torch": torch}, definitions)

    def reproducer(self, call: Call) -> str:
        return program(call, self.expression(call), self.channels_last, device=self.device)

    def may_race(self, call: Call) -> bool:
        """``torch.func.jvp`` is for one thread at a time: all share one level of dual numbers."""
        return super().may_race(call) and call.mode not in ("jvp", "second")

    def set_threads(self, count: int) -> bool:
        import torch

        torch.set_num_threads(count)
        return True

    def conventions(self) -> frozenset[str]:
        """Padding of max pooling is −∞; unpooling to one place twice leaves open which of the two is kept."""
        return frozenset({"padding_only_minus_inf", "unpool_overwrites"})

    def reduced(self) -> dict[str, str]:
        return {
            "parts": f"derivatives are composed of operators, each of which gives a tensor ({NOTES}autograd.html)",
            "bf16_inputs": f'torch.backends.mkldnn.conv.fp32_precision = "bf16" ({NOTES}mkldnn.html)',
            "tf32": f"torch.backends.cudnn.conv.fp32_precision, or mkldnn's ({NOTES}cuda.html, {NOTES}mkldnn.html)",
            "ftz": f"torch.set_flush_denormal(True) ({GENERATED}torch.set_flush_denormal.html)",
        }

    def composed(self, problem: Problem, mode: str) -> frozenset[str]:
        """A JVP of two inputs, and every derivative of a derivative, is a sum of tensors in the inputs' own dtype."""
        return frozenset({"parts"} if mode in ("jvp", "second") else ())

    def expected_errors(self) -> Sequence[ExpectedError]:
        return [row.expected("import torch", lambda: {"torch": import_module("torch")}) for row in functions.ERROR_ROWS]


class TorchChannelsLastTarget(TorchWindows):
    """Inputs, weights, tangents and cotangents in ``torch.channels_last`` or ``torch.channels_last_3d``."""

    name = "torch:channels_last"
    channels_last = True

    def answer(self, call: Call, *tensors: Any) -> tuple[Any, ...]:
        return super().answer(call, *(in_channels_last(t) if t.dim() == call.problem.rank + 2 else t for t in tensors))

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.rank not in (2, 3) or len(problem.x_shape) != problem.rank + 2:
            return "channels_last is a format of tensors with a batch, channels and two or three spatial axes"
        return super().refusal(problem, mode)


class TorchTarget(WithLayers, TorchWindows):
    """Eager calls."""

    expressions, refused, arithmetics = functions.EXPRESSIONS, functions.REFUSED, functions.ARITHMETICS


class TorchCompileTarget(TorchTarget):
    """``torch.compile`` of the value, which compiles its VJP along, and of ``torch.func.jvp`` of it."""

    name = "torch.compile"
    compiles = True
    backend = "inductor"

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "backend": self.backend}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if mode == "second":
            return "torch.compile documents that it does not support double backward"
        return super().refusal(problem, mode) or _cannot_compile(self.backend)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        return tuple(variant for variant in super().variants(problem, mode) if variant == "with_indices")

    def made_function(self, call: Call, decorator: str = "") -> Callable[..., tuple[Any, ...]]:
        return super().made_function(call, compiled_by(self.backend))

    def reproducer(self, call: Call) -> str:
        return program(call, self.expression(call), compiled=True, device=self.device)

    @contextmanager
    def settings(self) -> Iterator[None]:
        from gradspec.interop.torch.private import compiler_options

        with compiler_options(recompile_limit=64, compile_threads=1):
            yield


@cache
def _cannot_compile(backend: str) -> str | None:
    """Why ``torch.compile`` does not work here, for want of a C++ compiler for instance."""
    import torch

    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    except Exception as error:  # there are many reasons, and any of them is one
        return f"torch.compile does not work here: {str(error).splitlines()[0]}"
    return None


@cache
def _unimplemented(op: str, rank: int, dtype: str, mode: str, device: Device = HOST) -> str | None:
    """What PyTorch says where a kernel has no such dtype: asked once, on the smallest problem."""
    problem = functions.smallest(op, rank, dtype)
    call = on_zeros(problem, mode).mapped(np.ones_like)
    places = {"indices": np.arange(2**rank).reshape(problem.x_shape)} if op == "max_unpool" else {}
    try:
        TorchWindows().on(device).run(call.with_arrays({**call.arrays(), **places}))
    except NotOfferedError as error:
        return str(error)
    return _unimplemented(op, rank, dtype, "value", device) if mode != "value" else None


def forward(call: Call) -> Call:
    """In the layout that it names; PyTorch has no negative strides."""
    return replace(call, layout="contiguous" if call.layout == "reversed" else call.layout).in_layout()


def in_channels_last(tensor: Any) -> Any:
    """A tensor of two or three spatial axes in the memory format of that name."""
    import torch

    return tensor.to(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


# --- our own operators on tensors -------------------------------------------------------------------------------------


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
        return why_unspecified(problem, mode)

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

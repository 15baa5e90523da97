"""PyTorch on the CPU, as its users call it: eagerly, compiled, and with channels fastest in memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from gradspec.conformance.call import DTYPES, Array, Call, Problem, Results, laid_out
from gradspec.conformance.targets import NotOfferedError, Promise, Target
from gradspec.conformance.targets.pytorch_functions import function, has_batch, smallest, undocumented
from gradspec.conformance.targets.pytorch_promises import promises
from gradspec.conformance.targets.pytorch_source import program
from gradspec.conformance.targets.pytorch_ways import WAYS, Question, by_samples, by_vmap, tangent

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NOTES = "https://docs.pytorch.org/docs/stable/notes/"
GENERATED = "https://docs.pytorch.org/docs/stable/generated/"
BATCHED_BY_VMAP = (
    "max_pool",
    "avg_pool",
    "adaptive_max_pool",
    "adaptive_avg_pool",
    "global_max_pool",
    "global_avg_pool",
)
"""Operators of one input that ``torch.vmap`` has rules for; it calls others once for each sample."""


class Eager(Target):
    """``torch.nn.functional``, with ``torch.func.jvp`` and ``torch.autograd.grad``."""

    name = "torch"
    channels_last = False
    """Whether tensors with batch and channels are put in the memory format of this name."""

    def versions(self) -> dict[str, str]:
        import torch

        onednn = re.search(r"MKL-DNN v(\S+)", torch.__config__.show())
        return {"torch": torch.__version__, **({"oneDNN": onednn.group(1)} if onednn else {})}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return undocumented(problem, mode) or _unimplemented(problem.op, problem.rank, problem.dtype, mode)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        if mode == "value":
            indices = ("with_indices",) if function(problem).has_indices else ()
            return (*indices, "samples") if has_batch(problem) and problem.op != "unfold" else indices
        if mode == "jvp":
            return ("double_backward",)
        if mode == "vjp" and len(problem.differentiable) > 1:
            return ("one_by_one",)
        return ("vmap",) if mode == "vjp" and has_batch(problem) and problem.op in BATCHED_BY_VMAP else ()

    def run(self, call: Call) -> Results:
        _require_documented_numbers(call)
        try:
            with warnings.catch_warnings(action="ignore"):  # of slow ways to a result; the result is what is judged
                tensors = self.answer(call)
        except RuntimeError as error:
            if re.search("not implemented for '|[Ii]nput dtype must be", str(error)):
                raise NotOfferedError(str(error)) from None
            raise
        return dict(zip(call.problem.results(call.mode), map(_array, tensors), strict=False))

    def answer(self, call: Call) -> tuple[Any, ...]:
        """The results as tensors."""
        return WAYS[call.mode, call.variant](self.question(call))

    def question(self, call: Call) -> Question:
        """The call in tensors."""
        names = tuple(call.named())
        differentiable = tuple(names.index(name) for name in call.problem.differentiable)
        inputs = tuple(self.tensor(array, call) for array in call.named().values())
        directions = tuple(self.tensor(array, call) for array in call.directions)
        cotangent = None if call.cotangent is None else self.tensor(call.cotangent, call)
        return Question(self.forward(call), inputs, differentiable, directions, cotangent)

    def forward(self, call: Call) -> Callable[..., Any]:
        """The function of tensors whose value and derivatives are asked for."""
        used = function(call.problem)
        f = (used.with_indices() if call.variant == "with_indices" else used).resolved()
        batched = 2 if call.problem.op == "max_unpool" else 1
        if call.variant in ("samples", "vmap"):
            return (by_samples if call.variant == "samples" else by_vmap)(f, batched)
        return f

    def tensor(self, array: Array, call: Call) -> Any:
        """The array's numbers in the layout that the call names."""
        import torch

        rank = call.problem.rank
        placed = laid_out(array, call.layout, rank)
        if placed.dtype == BFLOAT16:
            tensor = torch.from_numpy(placed.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(placed)
        if self.channels_last and placed.ndim == rank + 2:
            return tensor.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
        return tensor

    def reproducer(self, call: Call) -> str:
        return program(call, channels_last=self.channels_last)

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
            "tf32": f'torch.backends.mkldnn.conv.fp32_precision = "tf32" ({NOTES}mkldnn.html)',
            "ftz": f"torch.set_flush_denormal(True) ({GENERATED}torch.set_flush_denormal.html)",
        }

    def composed(self, problem: Problem, mode: str) -> frozenset[str]:
        """A JVP of two inputs, and every derivative of a derivative, is a sum of tensors in the inputs' own dtype."""
        return frozenset({"parts"} if mode in ("jvp", "second") else ())

    def promises(self) -> Sequence[Promise]:
        return promises()


class ChannelsLast(Eager):
    """Inputs, weights, tangents and cotangents in ``torch.channels_last`` or ``torch.channels_last_3d``."""

    name = "torch:channels_last"
    channels_last = True

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.rank not in (2, 3) or len(problem.shapes[0] or ()) != problem.rank + 2:
            return "channels_last is a format of tensors with a batch, channels and two or three spatial axes"
        return super().refusal(problem, mode)


class Compiled(Eager):
    """``torch.compile`` of the operator, which compiles its VJP along, and of ``torch.func.jvp`` of it."""

    name = "torch.compile"
    backend = "inductor"
    kept = 16
    """How many compiled functions are kept."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "backend": self.backend}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if mode == "second":
            return "torch.compile documents that it does not support double backward"
        return super().refusal(problem, mode) or _cannot_compile(self.backend)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        return ("with_indices",) if mode == "value" and function(problem).has_indices else ()

    def answer(self, call: Call) -> tuple[Any, ...]:
        import torch._dynamo
        import torch._inductor.config

        with torch._dynamo.config.patch(recompile_limit=64), torch._inductor.config.patch(compile_threads=1):
            if call.mode != "jvp":
                return super().answer(call)
            asked = self.question(call)
            return (self.compiled(call, tangent(asked.f, asked.differentiable))(asked.tensors, asked.directions),)

    def forward(self, call: Call) -> Callable[..., Any]:
        f = super().forward(call)
        return f if call.mode == "jvp" else self.compiled(call, f)

    def compiled(self, call: Call, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled for this problem; what was compiled for earlier ones is given up in time."""
        import torch

        key = repr((call.problem, call.mode, call.variant))
        if key not in self._functions:
            if len(self._functions) == self.kept:
                self._functions.clear()
                torch._dynamo.reset()
            self._functions[key] = torch.compile(f, dynamic=False, fullgraph=True, backend=self.backend)
        return self._functions[key]

    def reproducer(self, call: Call) -> str:
        return program(call, compiled=True)


@cache
def _cannot_compile(backend: str) -> str | None:
    """Why ``torch.compile`` does not work here, for want of a C++ compiler for instance."""
    import torch

    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    except Exception as error:  # there are many reasons, and any of them is one
        return f"torch.compile does not work here: {str(error).splitlines()[0]}"
    return None


def _require_documented_numbers(call: Call) -> None:
    if call.problem.op == "max_unpool" and (call.named()["indices"] < 0).any():
        raise NotOfferedError("max_unpool documents no index that names no cell")
    shared = call.mode != "value" and function(call.problem).path == "amax"
    if shared and np.isnan(call.named()["x"].astype(np.float64)).any():
        raise NotOfferedError("amax documents how equal values share a gradient, and NaN equals nothing")


def _array(tensor: Any) -> Array:
    import torch

    whole = tensor.detach()
    if whole.dtype is torch.bfloat16:
        return whole.view(torch.int16).numpy().view(BFLOAT16)  # type: ignore[no-any-return]
    return whole.numpy()  # type: ignore[no-any-return]


@cache
def _unimplemented(op: str, rank: int, dtype: str, mode: str) -> str | None:
    """What PyTorch says where a kernel has no such dtype: asked once, on the smallest problem."""
    problem = smallest(op, rank, dtype)
    arrays = tuple(None if shape is None else np.ones(shape, DTYPES[dtype]) for shape in problem.shapes)
    if op == "max_unpool":
        arrays = (arrays[0], np.arange(2**rank).reshape(problem.shapes[1] or ()))
    call, eager = Call(problem, "value", arrays), Eager()
    directions = tuple(array for name, array in call.named().items() if name in problem.differentiable)
    try:
        y = eager.run(call)["y"]
        if mode != "value":
            eager.run(Call(problem, mode, arrays, () if mode == "vjp" else directions, None if mode == "jvp" else y))
    except NotOfferedError as error:
        return str(error)
    return None

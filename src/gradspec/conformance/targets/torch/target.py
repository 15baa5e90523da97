"""PyTorch on the CPU, as its users call it: eagerly, compiled, and with channels fastest in memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from gradspec.conformance.model.geometry import shapes_of
from gradspec.conformance.model.problem import AVERAGES, DTYPES, SELECTIONS, Array, Call, Problem, Results, laid_out
from gradspec.conformance.model.target import NotOfferedError, Promise, Target
from gradspec.conformance.targets.program import routine
from gradspec.conformance.targets.torch.functions import function, has_batch, has_indices, smallest, undocumented
from gradspec.conformance.targets.torch.program import COMPILE, lines_of, program, results_of
from gradspec.conformance.targets.torch.promises import promises

BFLOAT16 = DTYPES["bf16"]
NOTES = "https://docs.pytorch.org/docs/stable/notes/"
GENERATED = "https://docs.pytorch.org/docs/stable/generated/"
BATCHED_BY_VMAP = (*SELECTIONS, *AVERAGES)
"""Operators of one input that ``torch.vmap`` has rules for; it calls others once for each sample."""


class TorchTarget(Target):
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
            indices = ("with_indices",) if has_indices(problem) else ()
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
                tensors = self.answer(call, *(self.tensor(array, call) for array in call.arrays().values()))
        except RuntimeError as error:
            if re.search("not implemented for '|[Ii]nput dtype must be", str(error)):
                raise NotOfferedError(str(error)) from None
            raise
        return dict(zip(results_of(call), map(array_of, tensors), strict=True))

    def answer(self, call: Call, *tensors: Any) -> tuple[Any, ...]:
        return self.routine(call)(*tensors)

    def routine(self, call: Call, decorator: str = "") -> Callable[..., tuple[Any, ...]]:
        """The program's lines as a function of the tensors of a call."""
        import torch

        definitions, lines = lines_of(call, decorator)
        return routine(lines, call.arrays(), results_of(call), {"torch": torch}, definitions)

    def tensor(self, array: Array, call: Call) -> Any:
        """The array's numbers in the layout that the call names."""
        rank = call.problem.rank
        layout = call.layout if call.layout in ("channels_last", "non_contiguous") else "contiguous"  # no other strides
        tensor = tensor_of(laid_out(array, layout, rank))
        return in_channels_last(tensor) if self.channels_last and array.ndim == rank + 2 else tensor

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


class TorchChannelsLastTarget(TorchTarget):
    """Inputs, weights, tangents and cotangents in ``torch.channels_last`` or ``torch.channels_last_3d``."""

    name = "torch:channels_last"
    channels_last = True

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.rank not in (2, 3) or len(problem.x_shape) != problem.rank + 2:
            return "channels_last is a format of tensors with a batch, channels and two or three spatial axes"
        return super().refusal(problem, mode)


class TorchCompileTarget(TorchTarget):
    """``torch.compile`` of the operator, which compiles its VJP along, and of ``torch.func.jvp`` of it."""

    name = "torch.compile"
    compiles = True
    backend = "inductor"
    kept = 16
    """How many compiled functions are kept."""

    def __init__(self) -> None:
        self._routines: dict[str, Callable[..., tuple[Any, ...]]] = {}

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "backend": self.backend}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if mode == "second":
            return "torch.compile documents that it does not support double backward"
        return super().refusal(problem, mode) or _cannot_compile(self.backend)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        return ("with_indices",) if mode == "value" and has_indices(problem) else ()

    def answer(self, call: Call, *tensors: Any) -> tuple[Any, ...]:
        import torch._dynamo
        import torch._inductor.config

        with torch._dynamo.config.patch(recompile_limit=64), torch._inductor.config.patch(compile_threads=1):
            return self.routine(call)(*tensors)

    def routine(self, call: Call, decorator: str = "") -> Callable[..., tuple[Any, ...]]:
        """Compiled for this problem; what was compiled for earlier ones is given up in time."""
        import torch

        key = repr((call.problem, call.mode, call.variant))
        if key not in self._routines:
            if len(self._routines) == self.kept:
                self._routines.clear()
                torch._dynamo.reset()
            self._routines[key] = super().routine(call, COMPILE.replace(")", f', backend="{self.backend}")'))
        return self._routines[key]

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
    shared = call.mode != "value" and function(call.problem).startswith("torch.amax")
    if shared and np.isnan(call.named()["x"].astype(np.float64)).any():
        raise NotOfferedError("amax documents how equal values share a gradient, and NaN equals nothing")


@cache
def _unimplemented(op: str, rank: int, dtype: str, mode: str) -> str | None:
    """What PyTorch says where a kernel has no such dtype: asked once, on the smallest problem."""
    problem = smallest(op, rank, dtype)
    ones = {name: np.ones(shape, DTYPES[dtype]) for name, shape in shapes_of(problem, mode).items()}
    if op == "max_unpool":
        ones["indices"] = np.arange(2**rank).reshape(problem.x_shape)
    try:
        TorchTarget().run(Call(problem, mode, ()).with_arrays(ones))
    except NotOfferedError as error:
        return str(error)
    return _unimplemented(op, rank, dtype, "value") if mode != "value" else None


# --- arrays in and out ------------------------------------------------------------------------------------------------


def tensor_of(array: Array) -> Any:
    """The array as a tensor on the same memory."""
    import torch

    is_bfloat16 = array.dtype == BFLOAT16
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)


def in_channels_last(tensor: Any) -> Any:
    """A tensor of two or three spatial axes in the memory format of that name."""
    import torch

    return tensor.to(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


def array_of(tensor: Any) -> Array:
    import torch

    whole = tensor.detach()
    if whole.dtype is torch.bfloat16:
        return whole.view(torch.int16).numpy().view(BFLOAT16)  # type: ignore[no-any-return]
    return whole.numpy()  # type: ignore[no-any-return]

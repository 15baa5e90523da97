"""PyTorch on the CPU, as its users call it: eagerly, compiled, and with channels fastest in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from gradspec.conformance.call import DTYPES, Array, Call, Problem, Results, laid_out
from gradspec.conformance.targets import NotOfferedError, Target
from gradspec.conformance.targets.pytorch_functions import function, has_batch, repeats, smallest, undocumented
from gradspec.conformance.targets.pytorch_source import program
from gradspec.conformance.targets.pytorch_ways import WAYS, Question, by_samples, by_vmap

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


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
            return (*indices, "samples") if has_batch(problem) else indices
        if mode == "jvp":
            return ("double_backward",)
        if mode == "vjp" and len(problem.differentiable) > 1:
            return ("one_by_one",)
        return ("vmap",) if mode == "vjp" and has_batch(problem) else ()

    def run(self, call: Call) -> Results:
        if call.problem.op == "max_unpool" and repeats(call.named()["indices"], call.problem.rank):
            raise NotOfferedError("max_unpool documents no result where two cells have one index, or an index is -1")
        try:
            tensors = WAYS[call.mode, call.variant](self.question(call))
        except RuntimeError as error:
            if re.search("not implemented for '|[Ii]nput dtype must be", str(error)):
                raise NotOfferedError(str(error)) from None
            raise
        return dict(zip(call.problem.results(call.mode), map(_array, tensors), strict=False))

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


class ChannelsLast(Eager):
    """Inputs, weights, tangents and cotangents in ``torch.channels_last`` or ``torch.channels_last_3d``."""

    name = "torch:channels_last"
    channels_last = True

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.rank not in (2, 3) or len(problem.shapes[0] or ()) != problem.rank + 2:
            return "channels_last is a format of tensors with a batch, channels and two or three spatial axes"
        return super().refusal(problem, mode)


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

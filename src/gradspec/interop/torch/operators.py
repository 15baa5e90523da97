"""The PyTorch operator that runs a graph: ``gradspec::graph(Tensor[] operands, str structure) -> Tensor[]``.

One operator stands for all graphs. The text says what it computes, so that a program which PyTorch traced or exported
holds all that it needs, and the derivatives of a graph are the same operator with other texts.

``torch.library.register_autograd`` knows reverse mode only: forward mode would find tangents of zero where there is no
rule. So the operator has its own kernel for autograd, which applies a function with both rules. ``torch.func`` calls
this kernel once for each of its levels, and the kernel passes on to the next, as kernels of PyTorch's own operators do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gradspec.interop.torch import private
from gradspec.interop.torch.private import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from gradspec.interop.torch.structure import PlannedPooling, Structure, chosen, structure_of
from gradspec.interop.torch.types import require_tensor, torch_dtype
from gradspec.spec.errors import UnsupportedError

NAME = "gradspec::graph"

Run: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]

_Library: Any = torch.library.Library
_library = _Library("gradspec", "FRAGMENT")
_library.define("graph(Tensor[] operands, str structure) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))

GRAPH = torch.ops.gradspec.graph.default


def apply(structure: Structure, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run a structure: at once where nothing but autograd's reverse mode could be watching, else by the operator."""
    if is_watched(tensors):
        return tuple(GRAPH(list(tensors), structure.text))
    if needs_gradient(tensors):
        pooling = structure.pooling(tensors)
        return _differentiable(structure.run, structure, *tensors) if pooling is None else pooled(pooling, tensors[0])
    return structure.run(tensors)


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def is_watched(tensors: Sequence[Tensor]) -> bool:
    """Whether a transformation, a tracer or a tensor of another kind must see the operator."""
    return private.is_transforming() or is_compiling() or not all(map(_is_plain, tensors))


def _is_plain(tensor: Tensor) -> bool:
    if type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return not (is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor) or tensor.is_neg())
    require_tensor(tensor)
    return False


# --- kernels ----------------------------------------------------------------------------------------------------------


def _run(operands: list[Tensor], text: str) -> list[Tensor]:
    return [t.contiguous() for t in structure_of(text).run(operands)]  # as the fake ones are


def _fake(operands: list[Tensor], text: str) -> list[Tensor]:
    types = structure_of(text).result_types(operands)
    device = operands[0].device if operands else "cpu"
    return [torch.empty(t.shape, dtype=torch_dtype(t.dtype), device=device) for t in types]


def _batched(info: Any, dims: Any, operands: list[Tensor], text: str) -> tuple[list[Tensor], list[int | None]]:
    axes = dims[0]
    leading = [t if axis is None else t.movedim(axis, 0) for t, axis in zip(operands, axes, strict=True)]
    batched = structure_of(text).batch(info.batch_size, tuple(axis is not None for axis in axes))
    results = GRAPH(leading, batched.text)
    return results, [0] * len(results)


def _batched_by_autograd(operands: list[Tensor], text: str) -> list[Tensor]:
    """A batch of the kind that ``is_grads_batched`` and ``vectorize`` make, which are older than ``torch.func``.

    Such a tensor says neither its level nor its axis. But the axis of a level, taken out, has the batch's size, and one
    that a tensor does not have has the size that is asked for: 0, which no batch has.
    """
    for level in range(private.legacy_levels(), 0, -1):
        leading = [private.remove_batch_dim(t, level, 0, 0) for t in operands]
        batched = tuple(is_legacy_batchedtensor(t) and a.shape[0] > 0 for t, a in zip(operands, leading, strict=True))
        if any(batched):
            break
    given = [a if has_axis else t for a, t, has_axis in zip(leading, operands, batched, strict=True)]
    size = next(a.shape[0] for a, has_axis in zip(leading, batched, strict=True) if has_axis)
    return [private.add_batch_dim(r, 0, level) for r in GRAPH(given, structure_of(text).batch(size, batched).text)]


def _autograd(keys: Any, operands: list[Tensor], text: str) -> list[Tensor]:
    with_reverse, with_forward = torch.is_grad_enabled(), private.is_forward_enabled()

    def pass_on(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        # The function below switches both modes off, which are those of the next level of torch.func, too.
        reverse, forward = torch.set_grad_enabled(with_reverse), private.set_forward_enabled(with_forward)
        with private.below_autograd(), reverse, forward:
            results: list[Tensor] = GRAPH.redispatch(keys & private.after_autograd, list(tensors), text)
            return results

    structure, tangents = structure_of(text), [_tangent(t) for t in operands] if with_forward else []
    moving = tuple(t is not None for t in tangents)
    given = [*operands, *chosen(tangents, moving)]
    if any(moving) and not needs_gradient(given) and not any(map(is_legacy_batchedtensor, given)):
        return _moved(structure, given, moving)
    with private.enable_single_level_autograd_function():
        return list(_differentiable(pass_on, structure, *operands))


def _tangent(tensor: Tensor) -> Tensor | None:
    """Of this level, which is 0 at each level of ``torch.func``."""
    return private.unpack_dual(tensor, level=0)[1]


def _moved(structure: Structure, given: list[Tensor], moving: tuple[bool, ...]) -> list[Tensor]:
    """Outputs with their tangents, by one structure: what both need is found once. ``given``: operands, then tangents,
    which may be of another kind, so that who comes next is found anew."""
    with private.below_autograd():
        results = GRAPH(given, structure.dual(moving).text)
    n, make_dual = len(structure.float_outputs), private.make_dual
    found = iter(results[n:])
    floats = zip(results[:n], structure.float_outputs, strict=True)
    return [make_dual(r, next(found), level=0) if is_float else r for r, is_float in floats]


class _Uncompiled(private.SingleLevelFunction):
    """A function that compiled autograd refuses."""

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        raise UnsupportedError(
            "a graph of gradspec was met by compiled autograd, which cannot trace its backward pass; compile the "
            "module instead: torch.compile(gs.to_torch(graph))"
        )


class _Differentiable(_Uncompiled):
    """A structure's outputs, as ``run`` finds them, with both derivatives. They are structures again, to any order."""

    @staticmethod
    def forward(run: Run, structure: Structure, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, structure, *tensors = inputs
        ctx.structure = structure
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*chosen(output, tuple(not is_float for is_float in structure.float_outputs)))
        ctx.save_for_forward(*tensors)
        if any(ctx.needs_input_grad):
            needs = structure.vjp(structure.float_outputs, ctx.needs_input_grad[2:]).primals
            kept = [t if is_needed else None for t, is_needed in zip(tensors, needs, strict=True)]
            ctx.save_for_backward(*kept)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        arriving, wanted = tuple(ct is not None for ct in cotangents), ctx.needs_input_grad[2:]
        if not any(arriving):
            return (None,) * (2 + len(wanted))
        derived = ctx.structure.vjp(arriving, wanted)
        primals = chosen(ctx.saved_tensors, derived.primals)
        found = iter(apply(derived.structure, primals + chosen(cotangents, arriving)))
        return None, None, *(next(found) if is_wanted else None for is_wanted in wanted)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        moving = tuple(t is not None for t in tangents[2:])
        derived = ctx.structure.jvp(moving)
        # PyTorch switches forward mode off here, and with it that of all outer levels. On again, only the primals must
        # lose the tangents of this level, which is 0 at each level of torch.func.
        with private.set_forward_enabled(True):
            primals = [private.without_tangent(t, 0) for t in chosen(ctx.saved_tensors, derived.primals)]
            found = iter(apply(derived.structure, (*primals, *chosen(tangents[2:], moving))))
        return tuple(next(found) if is_float else None for is_float in ctx.structure.float_outputs)


class _Pooled(_Uncompiled):
    """One pooling operator, which none but reverse mode watches: its first derivative is a launch."""

    @staticmethod
    def forward(ctx: Any, pooling: PlannedPooling, x: Tensor) -> tuple[Tensor, ...]:
        results, saved = pooling.recorded(x)
        ctx.pooling = pooling
        ctx.save_for_backward(*saved)
        if len(results) > 1:
            ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        pooling, saved = ctx.pooling, ctx.saved_tensors
        if torch.is_grad_enabled() or is_watched((cotangent,)):
            return None, *apply(pooling.derived.structure, (*saved[:1], cotangent))
        return None, *pooling.pulled(saved, cotangent)


_differentiable: Callable[..., tuple[Tensor, ...]] = _Differentiable.apply  # type: ignore[attr-defined]
pooled: Callable[[PlannedPooling, Tensor], tuple[Tensor, ...]] = _Pooled.apply  # type: ignore[attr-defined]

_library.impl("graph", _run, "CompositeExplicitAutograd")
_library.impl("graph", _autograd, "Autograd", with_keyset=True)
_library.impl("graph", _batched_by_autograd, "Batched")
torch.library.register_fake(NAME, _fake, lib=_library)
torch.library.register_vmap(NAME, _batched, lib=_library)

"""How a user of PyTorch asks a function for its value and derivatives, and other ways that mean the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tensors = tuple[Any, ...]


@dataclass(frozen=True)
class Question:
    """A function, the tensors it is called on, which of them are differentiable, and along what."""

    f: Callable[..., Any]
    tensors: Tensors
    differentiable: tuple[int, ...]
    directions: Tensors
    cotangent: Any

    @property
    def chosen(self) -> Tensors:
        return tuple(self.tensors[place] for place in self.differentiable)

    def of_chosen(self, *chosen: Any) -> Any:
        """The function of its differentiable tensors alone."""
        return self.f(*_replaced(self.tensors, self.differentiable, chosen))

    def followed(self) -> tuple[Any, Tensors]:
        """The value as autograd follows it, and the tensors that it came from."""
        leaves = tuple(tensor.detach().requires_grad_() for tensor in self.chosen)
        return self.of_chosen(*leaves), leaves


def _replaced(tensors: Tensors, places: tuple[int, ...], by: Tensors) -> Tensors:
    return tuple(by[places.index(i)] if i in places else tensor for i, tensor in enumerate(tensors))


def value(asked: Question) -> Tensors:
    given = asked.f(*asked.tensors)
    return given if isinstance(given, tuple) else (given,)


def jvp(asked: Question) -> Tensors:
    return (tangent(asked.f, asked.differentiable)(asked.tensors, asked.directions),)


def tangent(f: Callable[..., Any], places: tuple[int, ...]) -> Callable[[Tensors, Tensors], Any]:
    """The derivative as a function of all tensors and of the directions, for ``torch.compile`` to take whole."""
    import torch

    def along(tensors: Tensors, directions: Tensors) -> Any:
        def of_chosen(*chosen: Any) -> Any:
            return f(*_replaced(tensors, places, chosen))

        return torch.func.jvp(of_chosen, tuple(tensors[place] for place in places), directions)[1]

    return along


def jvp_by_double_backward(asked: Question) -> Tensors:
    import torch

    return (torch.autograd.functional.jvp(asked.of_chosen, asked.chosen, asked.directions)[1],)  # type: ignore[no-untyped-call]


def vjp(asked: Question) -> Tensors:
    import torch

    y, leaves = asked.followed()
    return torch.autograd.grad(y, leaves, asked.cotangent)


def vjp_one_by_one(asked: Question) -> Tensors:
    import torch

    y, leaves = asked.followed()
    grads = (torch.autograd.grad(y, leaf, asked.cotangent, retain_graph=True) for leaf in leaves)
    return tuple(grad for (grad,) in grads)


def second(asked: Question) -> Tensors:
    import torch

    y, leaves = asked.followed()
    g = asked.cotangent.detach().requires_grad_()
    grads = torch.autograd.grad(y, leaves, g, create_graph=True)
    return torch.autograd.grad(grads, (*leaves, g), asked.directions, materialize_grads=True)


WAYS: dict[tuple[str, str], Callable[[Question], Tensors]] = {
    ("value", "plain"): value,
    ("value", "with_indices"): value,
    ("value", "samples"): value,
    ("jvp", "plain"): jvp,
    ("jvp", "double_backward"): jvp_by_double_backward,
    ("vjp", "plain"): vjp,
    ("vjp", "one_by_one"): vjp_one_by_one,
    ("vjp", "vmap"): vjp,
    ("second", "plain"): second,
}
"""By mode and variant; ``with_indices``, ``samples`` and ``vmap`` change the function that is asked."""


def by_samples(f: Callable[..., Any], batched: int) -> Callable[..., Any]:
    """The function called on each sample without its batch axis; the first ``batched`` tensors have one."""
    import torch

    def call(*tensors: Any) -> Any:
        samples = zip(*tensors[:batched], strict=True)
        return torch.stack([f(*sample, *tensors[batched:]) for sample in samples])

    return call


def by_vmap(f: Callable[..., Any], batched: int) -> Callable[..., Any]:
    """The same by PyTorch's own transformation."""
    import torch

    def call(*tensors: Any) -> Any:
        return torch.vmap(f, in_dims=tuple(0 if place < batched else None for place in range(len(tensors))))(*tensors)

    return call

"""What PyTorch makes of an operator that the table lacks: a program of other operators, traced for one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from gradspec.interop.torch.aten import entry_for
from gradspec.spec.errors import UnsupportedError

Function = Callable[..., Any]
Part = tuple[fx.GraphModule, list[fx.Node]]
"""A program, and the nodes whose values it takes."""

LOSSES = ("smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
"""Of 16-bit operands, kernels store every step of these, and every cell before cells are added up; decompositions are
wrapped in a conversion to float32 and back."""

AUTOCAST_SETTINGS = 5
"""Arguments of an autocast before those of its part: device, dtype, whether it is on, whether it caches, the part."""


@cache
def decompositions() -> dict[Any, Function]:
    """PyTorch's decompositions of the operators that the table lacks; those of ``torch.export`` come first."""
    known: dict[Any, Function] = {**decomposition_table, **torch.export.default_decompositions()}
    plain = {operator: unwrap(known[operator]) for loss in LOSSES for operator in _overloads(loss) if operator in known}
    return {operator: how for operator, how in {**known, **plain}.items() if entry_for(operator) is None}


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, overload) for overload in packet.overloads()]


def decomposed(node: fx.Node) -> Part:
    """A node as a program of other operators.

    Operators that PyTorch composes itself are composed here, too, so no table has to name them.
    """
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload):
        raise UnsupportedError("")
    try:
        part, sources = _traced(decompositions().get(operator, operator), node, nullcontext())
    except RuntimeError as error:  # of PyTorch's, if the numbers of a tensor decide what happens
        raise UnsupportedError(f"PyTorch cannot make it of other operators: {error}") from error
    if any(inner.target is operator for inner in part.graph.nodes):
        raise UnsupportedError("")
    return part, sources


def cast_automatically(node: fx.Node, part: fx.GraphModule) -> Part:
    """A part of the model under an autocast, with the conversions that it comes to."""
    device, dtype, enabled, *_ = node.args
    casting = torch.autocast(str(device), dtype, enabled=bool(enabled))  # type: ignore[arg-type]
    return _traced(lambda *args: part(*args[AUTOCAST_SETTINGS:]), node, casting)


def _traced(function: Function, node: fx.Node, context: AbstractContextManager[Any]) -> Part:
    """The operators that a function of a node's arguments runs, without writes to shared memory."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, fx.Node) and _is_tensor(leaf)]
    sources: list[fx.Node] = [leaves[i] for i in places]
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def run(*tensors: Tensor) -> list[Any]:
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = pytree.tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)], structure)
        with context:
            return pytree.tree_leaves(function(*args, **kwargs))

    with mode, _without_onednn():  # tensors of their own, since one that is given twice would pass for one variable
        fakes = [_like(source.meta["val"]) for source in sources]
        part = _without_writes(run, fakes)
    for inner in part.graph.nodes:
        inner.meta.update({key: value for key, value in node.meta.items() if key in ("stack_trace", "nn_module_stack")})
    return part, sources


def _without_writes(function: Function, tensors: list[Tensor]) -> fx.GraphModule:
    """What PyTorch composes in C++ is taken apart only below, so that its own writes come out, and are undone then."""
    part: fx.GraphModule = make_fx(functionalize(function), decomposition_table=decompositions())(*tensors)
    if not any(map(_writes_within, part.graph.nodes)):
        return part
    again: fx.GraphModule = make_fx(functionalize(part), decomposition_table=decompositions())(*tensors)
    if any(map(_writes_within, again.graph.nodes)):
        raise UnsupportedError("PyTorch makes it by writes to shared memory, which it cannot undo")
    return again


def _writes_within(node: fx.Node) -> bool:
    """Whether a node writes to what the program has made; to what it is given it writes its results, at last."""
    is_operator = isinstance(node.target, torch._ops.OpOverload) and bool(node.all_input_nodes)
    return is_operator and node.target._schema.is_mutable and node.all_input_nodes[0].op != "placeholder"  # type: ignore[union-attr]


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Where oneDNN may run an LSTM whole, PyTorch makes it of nothing else."""
    enabled, *_ = torch.backends.mkldnn.set_flags(False, None, None, None)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled, None, None, None)  # type: ignore[no-untyped-call]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

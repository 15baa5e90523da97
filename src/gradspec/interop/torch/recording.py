"""A model as a program of static shapes: what it calls, operator by operator, written down while it runs on zeros.

``torch.export`` loads PyTorch's compiler, for two seconds, and then takes 15 ms to 200 ms for every list of sizes. A
recording has the same nodes after a tenth of that time; where it might not have them, some error refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx.node import Argument

from gradspec.graph.types import TensorType
from gradspec.interop.torch import private
from gradspec.interop.torch.capture import for_a_while, in_mode
from gradspec.interop.torch.private import OpOverload, pytree, tensor_without_memory
from gradspec.interop.torch.types import torch_dtype
from gradspec.spec.errors import UnsupportedError

DETACH = torch.ops.aten.detach.default
SPLIT_BY_NUMBERS = torch.ops.aten.tensor_split.tensor_indices_or_sections
"""It reads its operand's memory itself."""


@dataclass(frozen=True)
class Recording:
    """What is read of an ``ExportedProgram``."""

    graph: fx.Graph
    graph_signature: Any
    state_dict: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]


def record(model: nn.Module, types: Sequence[TensorType], training: bool) -> Recording:
    """The program of a model for arguments of these types, which are called what ``torch.export`` calls them."""
    recorder = _Recorder()
    zeros = [torch.zeros(t.shape, dtype=torch_dtype(t.dtype)) for t in types]
    inputs = [recorder.given(f"input {i}", tensor) for i, tensor in enumerate(zeros)]
    given = {n: x if isinstance(x, tuple) else () for n, x in signature(model.forward).bind(*inputs).arguments.items()}
    names = [f"{n}{end}".lower() for n, x in given.items() for end in [f"_{i}" for i in range(len(x))] or [""]]
    with in_mode(model, training):
        state, buffers = model.state_dict(keep_vars=True), dict(model.named_buffers(remove_duplicate=False))
        held = dict(model.named_parameters(remove_duplicate=False)) | buffers
        last = {id(tensor): recorder.given(f"held {name}", tensor) for name, tensor in held.items()}
        outlines: dict[str, Tensor] = {name: last[id(tensor)] for name, tensor in held.items()}
        with for_a_while(private.EXPORTING, [torch.compiler]), private.python_dispatcher(), recorder:
            leaves = pytree.tree_leaves(torch.func.functional_call(model, outlines, (*inputs,)))
    if len({*names}) != len(types) or not all(isinstance(x, Outline | int | float | str | None) for x in leaves):
        raise UnsupportedError("torch.export has a way of its own to name such arguments, or to refuse such results")
    recorder.graph.output(tuple(map(_node, leaves)))
    recorder.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    for x, name in zip(inputs, names, strict=True):
        x.node.name = name
    specs = [InputSpec(InputKind.USER_INPUT, TensorArgument(name), None) for name in names]
    specs += [InputSpec(InputKind.PARAMETER, TensorArgument(f"held {name}"), name) for name in held]
    constants = {name: buffer for name, buffer in buffers.items() if name not in state}
    return Recording(recorder.graph, ExportGraphSignature(specs, []), state, constants)


class Outline(Tensor):
    """A tensor as a model sees it that asks for no numbers, and the node that gives it."""

    numbers: Tensor
    node: fx.Node
    __torch_function__ = nn.Parameter.__torch_function__

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: Any = (), kwargs: object = None) -> Any:  # type: ignore[override]
        """What PyTorch calls by itself: of ``zeros_like`` and its kin the last step, which changes nothing."""
        if func is not DETACH or not str(args[0].node.target).endswith("_like.default"):
            raise UnsupportedError(f"{func} is called where no recorder sees it")
        return args[0]

    def data_ptr(self) -> int:
        raise UnsupportedError("a tensor without numbers lies nowhere")


class _Recorder(private.PreDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators as a model calls them, on zeros that the model does not see, and writes them down."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()

    def given(self, name: str, tensor: Tensor) -> Outline:
        """An argument of the program."""
        node = self.graph.placeholder("given")
        node.name = name
        return _outline(tensor.detach(), node, tensor.requires_grad)

    def __torch_dispatch__(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> object:
        is_plain = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and func is not SPLIT_BY_NUMBERS
        if not is_plain or not isinstance(func, OpOverload) or func._schema.is_mutable:
            raise UnsupportedError(f"{func} writes to memory, reads numbers, or is under a switch")
        (given, named), (args, kwargs) = (pytree.tree_map(leaf, (args, kwargs or {})) for leaf in (_numbers, _node))
        with private.below_python_dispatcher(), private.number_blind(), torch.no_grad():
            results = func(*given, **named)
        node = self.graph.call_function(func, args, kwargs)
        requires_grad = func is not DETACH and any(source.meta["requires_grad"] for source in node.all_input_nodes)
        if isinstance(results, Tensor):
            return _outline(results, node, requires_grad)
        parts = [self.graph.call_function(getitem, (node, i)) for i in range(len(results))]
        found = [_outline(result, part, requires_grad) for result, part in zip(results, parts, strict=True)]
        node.meta["val"] = [part.meta["val"] for part in parts]
        return type(results)(found)


def _outline(tensor: Tensor, node: fx.Node, requires_grad: bool) -> Outline:
    like = {"strides": tensor.stride(), "dtype": tensor.dtype, "device": tensor.device}
    watched = requires_grad and tensor.is_floating_point()
    node.meta |= {"val": torch.empty_like(tensor, device="meta"), "requires_grad": watched}
    found: Outline = tensor_without_memory(Outline, tensor.shape, requires_grad=watched, **like)
    found.numbers, found.node = tensor, node
    return found


def _node(leaf: Any) -> Argument:
    return leaf.node if isinstance(leaf, Outline) else leaf


def _numbers(leaf: object) -> object:
    if isinstance(leaf, Tensor) and not isinstance(leaf, Outline):
        raise UnsupportedError("torch.export makes constants of tensors that are neither given nor held")
    return leaf.numbers if isinstance(leaf, Outline) else leaf

"""A model as an ``ExportedProgram`` of static shapes, without hidden writes, in operators that the table knows.

Of an operator that the table lacks, PyTorch makes a program of other operators, which is traced for one node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from inspect import signature, unwrap
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from gradspec.graph.arrays import as_numpy
from gradspec.graph.types import TensorType
from gradspec.interop.torch.aten import entry_for
from gradspec.interop.torch.private import FakeTensorMode, OpOverload, decomposition_table, pytree
from gradspec.interop.torch.types import gradspec_dtype, torch_dtype
from gradspec.spec.errors import ShapeError, UnsupportedError


def capture_program(model: Any, args: Any, kwargs: Any, training: bool = False) -> ExportedProgram:
    """The program of a model for arguments like these, which are tensors, arrays or types in any nesting."""
    args, kwargs = pytree.tree_map(_tensor_like, (tuple(args), dict(kwargs)))
    if training:
        _require_training(model)
    if isinstance(model, ExportedProgram):
        return _simplify(_with_static_shapes(model, args, kwargs))
    return _simplify(_export(as_model(model), args, kwargs, training))


def as_model(model: Any) -> Any:
    """A function of tensors as a module; what is a model stays what it is."""
    if isinstance(model, ExportedProgram | nn.Module):
        return model
    if not callable(model):
        raise TypeError(
            "a torch.nn.Module, an fx.GraphModule, an ExportedProgram or a function of tensors is needed, not a "
            f"{type(model).__name__}"
        )
    return FunctionModule(model)


class FunctionModule(nn.Module):
    """A function that is called by the names of its own arguments, if it has any."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        try:
            signature(function)
        except ValueError:  # it is built in
            self.forward = lambda *args, **kwargs: function(*args, **kwargs)
        else:
            self.forward = function


def _tensor_like(value: Any) -> Any:
    """A type such as ``gs.f32[1, 3, 8, 8]`` as a tensor of it, an array as a tensor; the rest as it is.

    A tensor becomes one of its own, because torch.export takes the same tensor in two places, or a parameter that is
    given as an example, for one and the same variable.
    """
    if isinstance(value, TensorType):
        return torch.zeros(value.shape, dtype=torch_dtype(value.dtype))
    if isinstance(value, torch.Tensor):
        gradspec_dtype(value.dtype)
        return value.detach().clone()
    return torch.as_tensor(as_numpy(value)) if hasattr(value, "__array_interface__") else value


def _require_training(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"training=True is for modules, and this {type(model).__name__} has the mode it was exported in"
        )
    if not any(part.training for part in model.modules()):
        raise ValueError("training=True, and every part of the model is in evaluation mode; call model.train() first")


def _export(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool = False
) -> ExportedProgram:
    with in_mode(module, training):
        try:
            return torch.export.export(module, args, kwargs, strict=False)
        except Exception as error:
            if len(args) == 1 and isinstance(args[0], list | tuple) and not kwargs:
                raise TypeError(
                    f"the model was given one argument, a {type(args[0]).__name__} of {len(args[0])}, and does not "
                    "take it; gs.from_torch takes the arguments one by one: gs.from_torch(model, *arguments)"
                ) from error
            error.add_note(
                "gs.from_torch captures a model with torch.export, which failed on this one; see that "
                "torch.export.export(model.eval(), args) works, or give a part of the model for which it does"
            )
            raise


def in_mode(module: nn.Module, training: bool) -> AbstractContextManager[None]:
    """Evaluation mode for a while, or that of each part; then every part is in the mode it was in."""
    return _without_statistics(module) if training else for_a_while({"training": False}, module.modules())


def _without_statistics(module: nn.Module) -> AbstractContextManager[None]:
    """Parts that are in training mode have no running statistics for a while."""
    parts = [part for part in module.modules() if part.training and hasattr(part, "track_running_stats")]
    return for_a_while({"track_running_stats": False, "running_mean": None, "running_var": None}, parts)


@contextmanager
def for_a_while(values: Mapping[str, object], parts: Iterable[object]) -> Iterator[None]:
    """Attributes of all parts, and then as they were in each."""
    before = [(part, name, getattr(part, name)) for part in parts for name in values]
    try:
        for part, name, _ in before:
            setattr(part, name, values[name])
        yield
    finally:
        for part, name, value in before:
            setattr(part, name, value)


def _with_static_shapes(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The program itself if its shapes are numbers; else exported again for the sizes of the example arguments."""
    taken = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.find_nodes(op="placeholder") if node.name in taken]
    shapes = {node.name: list(node.meta["val"].shape) for node in nodes if isinstance(node.meta["val"], torch.Tensor)}
    said = ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
    given = [list(x.shape) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if any(isinstance(n, torch.SymInt) for shape in shapes.values() for n in shape):
        if given:
            return _export(program.module(), args, kwargs)
        raise ShapeError(
            f"the program was exported with dynamic shapes ({said}), and a graph has static ones; give example "
            "arguments of the sizes wanted, gs.from_torch(program, x), or export without dynamic_shapes"
        )
    if given and given != list(shapes.values()):
        raise ShapeError(
            f"the program was exported for the shapes {said}, and the example arguments have {given}; leave them out, "
            "or export the model for theirs"
        )
    return program


def _simplify(program: ExportedProgram) -> ExportedProgram:
    """Writes to shared memory undone and ``vmap`` carried out, only where needed: it takes longer than the export."""
    parts = [part.graph for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    is_batched = any(getattr(node.target, "__name__", "") == "_add_batch_dim" for part in parts for node in part.nodes)
    if not is_batched and all(map(_writes_are_private, parts)):
        return program
    if any(is_gradient_switch(node) for part in parts for node in part.nodes):
        raise UnsupportedError(
            "the model has a part under torch.no_grad(), which PyTorch forgets when it has to undo writes to shared "
            "memory or to carry out vmap; use detach() instead, write nothing through views and call no vmap"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # of PyTorch's, about its own code
        try:
            readable: ExportedProgram = program.run_decompositions(decompositions())
        except Exception as error:
            raise UnsupportedError(
                "the model writes to memory that tensors share in a way that PyTorch cannot undo; write the result of "
                f"an operator instead of a part of a tensor ({str(error).splitlines()[0][:200]})"
            ) from error
    return readable


def is_gradient_switch(node: fx.Node) -> bool:
    """Whether a node runs a part of the model with gradients on or off, which its first argument says."""
    return node.target is torch.ops.higher_order.wrap_with_set_grad_enabled


def is_autocast(node: fx.Node) -> bool:
    """Whether a node runs a part of the model with other dtypes, as its first arguments say."""
    return node.target is torch.ops.higher_order.wrap_with_autocast


# --- operators that write to their operand ----------------------------------------------------------------------------

DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
"""Operators that give their operand itself when a model is evaluated; their schemas do not say so."""


def gives_operand(node: fx.Node) -> bool:
    """Whether the result of a node is its first operand, which the operator may have written to."""
    operator = node.target
    if not isinstance(operator, OpOverload) or not node.all_input_nodes:
        return False
    return operator._schema.is_mutable or operator.overloadpacket.__name__ in DROPOUTS


def _writes_are_private(graph: fx.Graph) -> bool:
    """Whether each in-place operator writes to memory that no input and no earlier view shares.

    Then the result can simply take the operand's place from there on.
    """
    shared: set[fx.Node] = set()
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        sources = [owners.get(source, source) for source in node.all_input_nodes]
        if gives_operand(node):
            owners[node] = sources[0]
            if node.target._schema.is_mutable and sources[0] in shared:
                return False
        elif node.op != "call_function" or _may_share(node, sources, shared):
            shared.update(sources, [node])
    return True


def _may_share(node: fx.Node, sources: Sequence[fx.Node], shared: set[fx.Node]) -> bool:
    """Whether the node's result may lie in the memory of an operand, as that of ``type_as`` does without saying so."""
    if not isinstance(node.target, OpOverload):
        return node.target is not getitem or sources[0] in shared
    said = any(result.alias_info for result in node.target._schema.returns)
    return said or node.target.overloadpacket.__name__ == "type_as"


# --- decompositions by PyTorch ----------------------------------------------------------------------------------------


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


def decompose_node(node: fx.Node) -> Part:
    """A node as a program of other operators.

    Operators that PyTorch composes itself are composed here, too, so no table has to name them.
    """
    operator = node.target
    if not isinstance(operator, OpOverload):
        raise UnsupportedError("")
    try:
        part, sources = _trace_part(decompositions().get(operator, operator), node, nullcontext())
    except RuntimeError as error:  # of PyTorch's, if the numbers of a tensor decide what happens
        raise UnsupportedError(f"PyTorch cannot make it of other operators: {error}") from error
    if any(inner.target is operator for inner in part.graph.nodes):
        raise UnsupportedError("")
    return part, sources


def cast_automatically(node: fx.Node, part: fx.GraphModule) -> Part:
    """A part of the model under an autocast, with the conversions that it comes to."""
    device, dtype, enabled, *_ = node.args
    casting = torch.autocast(str(device), dtype, enabled=bool(enabled))  # type: ignore[arg-type]
    return _trace_part(lambda *args: part(*args[AUTOCAST_SETTINGS:]), node, casting)


def _trace_part(function: Function, node: fx.Node, context: AbstractContextManager[Any]) -> Part:
    """The operators that a function of a node's arguments runs, without writes to shared memory."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    values: list[Any] = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else None for leaf in leaves]
    places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
    sources: list[fx.Node] = [leaves[i] for i in places]
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def run(*tensors: Tensor) -> list[Any]:
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = pytree.tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)], structure)
        with context:
            return pytree.tree_leaves(function(*args, **kwargs))

    with mode, _without_onednn():  # tensors of their own, since one that is given twice would pass for one variable
        given = [values[i] for i in places]
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in given]
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
    is_operator = isinstance(node.target, OpOverload) and bool(node.all_input_nodes)
    return is_operator and node.target._schema.is_mutable and node.all_input_nodes[0].op != "placeholder"  # type: ignore[union-attr]


@contextmanager
def without_driver() -> Iterator[None]:
    """PyTorch asks with each operator that it traces whether there is a GPU. That opens the driver, and copies of a
    process in which it is open cannot use a GPU; so there is none for a while, unless one is in use."""
    asked = torch.cuda.is_available
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = asked


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Where oneDNN may run an LSTM whole, PyTorch makes it of nothing else."""
    enabled, *_ = torch.backends.mkldnn.set_flags(False, None, None, None)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled, None, None, None)  # type: ignore[no-untyped-call]

"""PyTorch models as graphs: the program that ``torch.export`` captures, read operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import TensorType, f32
from gradspec.interop.torch.aten import AtenEntry, entry_of
from gradspec.interop.torch.aten.table import to_dtype
from gradspec.interop.torch.capture import captured, gives_operand, is_autocast, is_gradient_switch
from gradspec.interop.torch.decompose import cast_automatically, decomposed
from gradspec.interop.torch.refusals import TorchRefusals
from gradspec.interop.torch.state import Held, chosen_inputs, tensors_held
from gradspec.interop.torch.types import array_of, gradspec_type
from gradspec.ops.pointwise import detach
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError


def read(
    model: Any,
    example_args: Sequence[Any],
    *,
    params: str | Sequence[str] = "constants",
    example_kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Graph:
    """The graph of a module, an exported program or an ``fx.GraphModule``; see ``gs.from_torch``."""
    program = captured(model, example_args, example_kwargs or {}, training)
    _require_no_effects(program)
    return _Reader(program).graph(params)


def _require_no_effects(program: ExportedProgram) -> None:
    """A graph has results and nothing else: it leaves inputs and buffers as they are."""
    ordered = [str(n.args[1]) for n in program.graph.nodes if n.target is torch.ops.higher_order.with_effects]
    if ordered:
        raise UnsupportedError(
            f"the model has operators with effects, {', '.join(ordered)}, and a graph has results only; "
            "write these parts with other operators, or import the parts around them"
        )
    effects = [spec.target for spec in program.graph_signature.output_specs if spec.kind is not OutputKind.USER_OUTPUT]
    if effects:
        raise UnsupportedError(
            f"the model changes {', '.join(map(str, effects))} in place, and a graph changes nothing; "
            "return the new value instead, or export the model after model.eval()"
        )


class _Reader:
    """The values of a program's nodes: variables, tensors that no input changes, numbers, and lists of these."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.builder = Builder()
        self.refusals = TorchRefusals()
        self.values: dict[fx.Node, Any] = {}
        self.owners: dict[fx.Node, fx.Node] = {}
        """For a result that is the operand itself, written to or not: the node that first gave that tensor."""

    def graph(self, params: str | Sequence[str]) -> Graph:
        self._take_inputs()
        held = tensors_held(self.program)
        self._take_held(held, chosen_inputs(self.program, held, params))
        results = self._run(self.program.graph)
        self.refusals.raise_any()
        return self.builder.build(self._outputs(results), allow_unused=True)

    # --- inputs, parameters and results -------------------------------------------------------------------------------

    def _take_inputs(self) -> None:
        """The model's arguments: variables for tensors; numbers and None as they were when it was exported."""
        nodes = {node.name: node for node in self.program.graph.find_nodes(op="placeholder")}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                node = nodes[spec.arg.name]
                fixed = isinstance(spec.arg, ConstantArgument)
                self.values[node] = spec.arg.value if fixed else self._input(node.meta["val"], node.name)

    def _input(self, tensor: Tensor, name: str) -> Var:
        return self.builder.input(gradspec_type(tensor), self.builder.unused(name))

    def _take_held(self, held: Sequence[Held], inputs: Sequence[Held]) -> None:
        """Parameters and constants; a tensor that has several names is one variable."""
        variables: dict[int, Any] = {}
        for h in inputs:
            if h.key not in variables:
                variables[h.key] = self._input(h.tensor, h.name)
        for h in held:
            if h.node.users:
                if h.key not in variables:
                    variables[h.key] = self._constant(h)
                self.values[h.node] = variables[h.key]

    def _constant(self, held: Held) -> Any:
        """Numbers of the model; integers stay a tensor, since positions may be computed from them."""
        if held.tensor.is_floating_point():
            return self.builder.const(array_of(held.tensor.detach()), held.name)
        return held.tensor.clone()

    def _outputs(self, results: Sequence[Any]) -> list[Var]:
        """The tensors among the results, in the order of PyTorch's pytrees."""
        variables = [self._variable(v) for v in results if isinstance(v, Var | Tensor)]
        if not variables:
            raise UnsupportedError(f"the model returns {results}, and a graph needs a tensor to give")
        return variables

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _run(self, graph: fx.Graph) -> list[Any]:
        """The results of a graph whose placeholders have values."""
        for node in graph.nodes:
            if node.op not in ("placeholder", "output") and (node.users or gives_operand(node)):
                self._read(node)
        results: Any = graph.output_node().args[0]
        return [self._value(v) for v in results]

    def _read(self, node: fx.Node) -> None:
        """Keep the value of a node, or the reason why there is none."""
        try:
            result = self._result(node)
        except (UnsupportedError, ShapeError, DTypeError) as error:
            self.refusals.add_node(node, str(error))
            result = pytree.tree_map_only(Tensor, self._stand_in, node.meta.get("val"))
        if gives_operand(node):
            self.owners[node] = self._owner(node.args[0])
        self.values[self._owner(node)] = result

    def _stand_in(self, tensor: Tensor) -> Var:
        """A variable in the place of a result that there is not, so that what depends on it is examined as well."""
        return self.builder.input(_type_given(tensor))

    def _result(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(node.graph.owning_module, str(node.target))
        given = [self._value(source) for source in node.all_input_nodes]
        if node.target is getitem:
            return self._item(*node.args)
        if not any(map(_varies, given)):
            return self._computed(node)
        if is_gradient_switch(node):
            return self._part(*(self._value(argument) for argument in node.args))
        if is_autocast(node):
            return self._autocast(node)
        entry = entry_of(node)
        return self._decomposed(node) if entry is None else self._applied(entry, node)

    def _part(self, differentiable: bool, part: fx.GraphModule, *values: Any) -> list[Any]:
        """The results of a part of the model, as constants where it is not to be differentiated."""
        self.values.update(zip(part.graph.find_nodes(op="placeholder"), values, strict=True))
        results = self._run(part.graph)
        return results if differentiable else [detach(v) if isinstance(v, Var) else v for v in results]

    def _autocast(self, node: fx.Node) -> list[Any]:
        """A part with other dtypes: as it is if it is off, or meant for another device; else with its conversions."""
        device, _, enabled, _, part, *values = (self._value(argument) for argument in node.args)
        if not enabled or device != "cpu":
            return self._part(True, part, *values)
        if any(map(is_gradient_switch, part.graph.nodes)):
            raise UnsupportedError("a part under torch.autocast that has one under torch.no_grad() is not known")
        converted, sources = cast_automatically(node, part)
        return self._part(True, converted, *map(self._value, sources))

    def _decomposed(self, node: fx.Node) -> Any:
        """An operator that the table lacks, as PyTorch makes it of others."""
        try:
            part, sources = decomposed(node)
        except UnsupportedError:
            _require_no_chance(node)
            raise
        refusals, self.refusals = self.refusals, TorchRefusals()
        results = self._part(True, part, *map(self._value, sources))
        refusals, self.refusals = self.refusals, refusals
        if refusals.places:
            raise UnsupportedError(refusals.as_reason())
        return results[0] if isinstance(node.meta["val"], Tensor) else results

    def _item(self, source: Any, i: Any) -> Any:
        values = self._value(source)
        if i >= len(values):
            raise UnsupportedError(f"result {i} of {source.target} is not known")
        return values[i]

    def _computed(self, node: fx.Node) -> Any:
        """What no input changes, PyTorch computes now; memory that it leaves unset is 0."""
        _require_no_chance(node)
        args, kwargs = self._arguments(node, self._value)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        return result.zero_() if "empty" in str(node.target) else result

    def _applied(self, entry: AtenEntry, node: fx.Node) -> Any:
        args, kwargs = self._arguments(node, lambda source: self._variable(self._value(source)))
        if any(
            isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in pytree.tree_leaves((args, kwargs))
        ):
            raise UnsupportedError("it takes a number that is read out of a tensor; index by a tensor of one axis")
        if entry.chooses_results:
            kwargs["wanted"] = {user.args[1] for user in node.users if user.target is getitem and user.users}
        result = entry.function(*args, **kwargs)
        found = to_dtype(result, args[0].dtype) if entry.in_place else result
        _require_types(found, node.meta.get("val"))
        return found

    def _arguments(self, node: fx.Node, value: Callable[[fx.Node], Any]) -> tuple[list[Any], dict[str, Any]]:
        args: Any = fx.map_arg(node.args, value)
        kwargs: Any = fx.map_arg(node.kwargs, value)
        return list(args), dict(kwargs)

    def _owner(self, node: Any) -> Any:
        return self.owners.get(node, node)

    def _value(self, argument: Any) -> Any:
        return self.values[self._owner(argument)] if isinstance(argument, fx.Node) else argument

    def _variable(self, value: Any) -> Any:
        """A tensor as a constant of the graph; everything else as it is."""
        if isinstance(value, list | tuple):
            return [self._variable(v) for v in value]
        return self.builder.const(array_of(value)) if isinstance(value, Tensor) else value


def _require_no_chance(node: fx.Node) -> None:
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise UnsupportedError("it draws random numbers, and a graph gives the same result each time")


def _type_given(tensor: Tensor) -> TensorType:
    """The type of a result in PyTorch; complex numbers, which are refused where they arise, pass for real ones."""
    return f32[tuple(tensor.shape)] if tensor.is_complex() else gradspec_type(tensor)


def _require_types(found: Any, expected: Any) -> None:
    """What the function of an operator gives must be of the type that PyTorch gives; None is not compared."""
    pairs = zip(found, expected, strict=False) if isinstance(found, list | tuple) else [(found, expected)]
    for var, tensor in pairs:
        if isinstance(var, Var) and isinstance(tensor, Tensor) and var.type != _type_given(tensor):
            raise UnsupportedError(f"in PyTorch its result is {_type_given(tensor)}, and here it would be {var.type}")


def _varies(value: Any) -> bool:
    """Whether a value depends on variables of the graph."""
    return isinstance(value, Var) or (isinstance(value, list | tuple) and any(map(_varies, value)))

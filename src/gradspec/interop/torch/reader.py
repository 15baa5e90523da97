"""PyTorch models as graphs: the program that ``torch.export`` captures, read operator by operator."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import getitem, index
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from gradspec.graph.builder import Builder
from gradspec.graph.family import Family, OpenType, Sizes
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import DType, TensorType, f32, type_of
from gradspec.interop.refusals import Refusals
from gradspec.interop.torch.aten import AtenEntry, entry_of
from gradspec.interop.torch.aten.table import to_dtype
from gradspec.interop.torch.capture import (
    as_model,
    capture_program,
    cast_automatically,
    decompose_node,
    gives_operand,
    is_autocast,
    is_gradient_switch,
    without_driver,
)
from gradspec.interop.torch.private import pytree
from gradspec.interop.torch.recording import Recording, record
from gradspec.interop.torch.types import array_of, gradspec_type, torch_dtype
from gradspec.ops.pointwise import detach
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.transforms.functions import scan_variables

Program: TypeAlias = ExportedProgram | Recording


@without_driver()
def read(
    model: Any,
    example_args: Sequence[Any],
    *,
    params: str | Sequence[str] = "constants",
    example_kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Graph:
    """The graph of a module, an exported program or an ``fx.GraphModule``; see ``gs.from_torch``."""
    program = capture_program(model, example_args, example_kwargs or {}, training)
    _require_no_effects(program)
    return _Reader(program).graph(params)


@without_driver()
def read_recorded(model: nn.Module, types: Sequence[TensorType], params: str | Sequence[str], training: bool) -> Graph:
    """As `read` gives it of a model for arguments of these types, or any error."""
    return _Reader(record(model, types, training)).graph(params)


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

    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = Builder()
        self.refusals = TorchRefusals()
        self.values: dict[fx.Node, Any] = {}
        self.owners: dict[fx.Node, fx.Node] = {}
        """For a result that is the operand itself, written to or not: the node that first gave that tensor."""

    def graph(self, params: str | Sequence[str]) -> Graph:
        self._take_inputs()
        held = held_tensors(self.program)
        self._take_held(held, choose_inputs(self.program, held, params))
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
        if node.target is torch.ops.higher_order.scan:
            return self._scan(*self._arguments(node, lambda source: self._variable(self._value(source)))[0])
        entry = entry_of(node)
        return self._decomposed(node) if entry is None else self._applied(entry, node)

    def _part(self, differentiable: bool, part: fx.GraphModule, *values: Any) -> list[Any]:
        """The results of a part of the model, as constants where it is not to be differentiated."""
        self.values.update(zip(part.graph.find_nodes(op="placeholder"), values, strict=True))
        results = self._run(part.graph)
        return results if differentiable else [detach(v) if isinstance(v, Var) else v for v in results]

    def _scan(self, body: fx.GraphModule, carry: Any, columns: Any, others: Any) -> list[Any]:
        """A body for each row of the columns in turn, with what it hands on."""

        def step(*variables: Var) -> Any:
            return self._variable(self._part(True, body, *variables, *others))

        return scan_variables(step, carry, columns, columns[0].shape[0])

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
            part, sources = decompose_node(node)
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


# --- parameters, buffers and constants --------------------------------------------------------------------------------


PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER)


@dataclass(frozen=True)
class Held:
    """A tensor that the program holds, under the name it has in the model, and the node that stands for it."""

    name: str
    node: fx.Node
    tensor: Tensor
    is_parameter: bool

    @property
    def key(self) -> int:
        """The same for one tensor under several names, which is one variable of the graph."""
        return id(self.tensor)


def held_tensors(program: Program) -> list[Held]:
    """Everything that the program takes besides the arguments of the model."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    values = {**program.constants, **program.state_dict}
    return [
        Held(spec.target, nodes[spec.arg.name], values[spec.target], spec.kind in PARAMETERS)
        for spec in program.graph_signature.input_specs
        if spec.target is not None and isinstance(values.get(spec.target), Tensor)
    ]


def choose_inputs(program: Program, held: Sequence[Held], params: str | Sequence[str]) -> list[Held]:
    """What becomes an input: nothing, all of the state dict that the program reads, or what is named."""
    by_name = {h.name: h for h in held if h.is_parameter}
    if params == "constants":
        return []
    if params == "inputs":
        read = {h.key for h in held if h.node.users}
        return [by_name[name] for name in program.state_dict if name in by_name and by_name[name].key in read]
    if isinstance(params, str):
        raise ValueError(f'params={params!r} must be "constants", "inputs" or a list of the names of parameters')
    unknown = [name for name in params if name not in by_name]
    if unknown:
        raise ValueError(
            f"the model has no parameter or buffer called {', '.join(unknown)}; it has {', '.join(by_name) or 'none'}"
        )
    return [by_name[name] for name in params]


# --- places in a model's source ---------------------------------------------------------------------------------------


_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .*\n\s*(?P<code>.*)')
_LIBRARY = str(Path(torch.__file__).parent)


class TorchRefusals(Refusals):
    def add_node(self, node: fx.Node, reason: str) -> None:
        self.add(str(node.target), reason, place_of(node))

    def as_reason(self) -> str:
        """The reason why an operator that is made of these is refused; nobody writes those of the library ``prims``."""
        parts = [
            f"{name}: {reason}" if reason else name for name, reason in self.places if not name.startswith("prims")
        ]
        return f"PyTorch makes it of {'; '.join(parts)}" if parts else ""


def place_of(node: fx.Node) -> str:
    """The innermost line outside PyTorch that led to a node, or its innermost line and the part of the model."""
    frames = [match.groupdict() for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if not frame["file"].startswith(_LIBRARY)]
    if own:
        return "{file}:{line}: {code}".format(**own[-1])
    parts = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    inside = f" (in {parts[-1]})" if parts else ""
    return ("{file}:{line}: {code}".format(**frames[-1]) if frames else f"node {node.name}") + inside


# --- models of open sizes ---------------------------------------------------------------------------------------------


def read_family(
    model: Any,
    example_args: Sequence[Any],
    *,
    params: str | Sequence[str],
    example_kwargs: Mapping[str, Any],
    dynamic: Any,
    training: bool = False,
) -> Family:
    """The family of a model whose axes ``dynamic`` names; see ``gs.from_torch``.

    A copy of the model as it is now is captured anew for each size and float dtype that is met. ``torch.export`` knows
    symbolic sizes, too, but refuses models that compare a size with a number.
    """
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise TypeError(f"dynamic={dynamic!r} does not name sizes; say which, such as dynamic={{'x': {{0: 'batch'}}}}")
    examples = _Examples(example_args, example_kwargs, training)
    first = examples.read(model, examples.types, params)
    inputs = first.inputs[: len(examples.types)]
    if [v.type for v in inputs] != examples.types:  # PyTorch may order arguments by keyword as the model does
        raise ValueError("give the arguments of example_kwargs in the order in which the model takes them")
    opened = named_axes({v.name: v.type for v in inputs}, dynamic)
    _require_open(model, dynamic)
    kept = _copy(model.module() if isinstance(model, ExportedProgram) else as_model(model))

    def make(sizes: Sizes, dtype: DType | None) -> Graph:
        module = kept if dtype is None else _copy(kept).to(torch_dtype(dtype))  # as by model.double()
        return examples.read(module, [t.at(sizes, dtype) for t in opened.values()], params)

    return Family(opened, make, first)


class _Examples:
    """Example arguments in any nesting: the types of the tensors among them, and the same nesting of others."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> None:
        self._training = training
        self._leaves, self._nesting = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._places = [i for i, leaf in enumerate(self._leaves) if _is_array(leaf)]
        self.types = [_type(self._leaves[i]) for i in self._places]

    def read(self, model: Any, types: Sequence[TensorType], params: str | Sequence[str]) -> Graph:
        """The graph of a model for arguments of these types, in the same nesting."""
        leaves = list(self._leaves)
        for i, t in zip(self._places, types, strict=True):
            leaves[i] = t
        args, kwargs = pytree.tree_unflatten(leaves, self._nesting)
        return read(model, args, params=params, example_kwargs=kwargs, training=self._training)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | TensorType) or hasattr(leaf, "__array_interface__")


def _type(leaf: Any) -> TensorType:
    if isinstance(leaf, TensorType):
        return leaf
    return gradspec_type(leaf) if isinstance(leaf, Tensor) else type_of(leaf)


# --- names of sizes ---------------------------------------------------------------------------------------------------


def named_axes(types: Mapping[str, TensorType], dynamic: Mapping[str, Mapping[int, Any]]) -> dict[str, OpenType]:
    """The types of the inputs with names for the axes that ``dynamic`` opens, ``{"x": {0: "batch"}}``."""
    unknown = [name for name in dynamic if name not in types]
    if unknown:
        raise ValueError(f"dynamic names {', '.join(map(repr, unknown))}; the model's inputs are {', '.join(types)}")
    opened = {name: OpenType(t.dtype, _dims(name, t, dynamic.get(name, {}))) for name, t in types.items()}
    sizes: dict[str, int] = {}
    for name, open_type in opened.items():
        for dim, n in zip(open_type.dims, types[name].shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, n) != n:
                raise ShapeError(
                    f"dynamic calls {dim!r} what is {sizes[dim]} in one example and {n} in {name}: {types[name]}; give "
                    "examples of one size, or other names"
                )
    return opened


def _dims(name: str, t: TensorType, axes: Mapping[Any, Any]) -> tuple[int | str, ...]:
    dims: list[int | str] = list(t.shape)
    for axis, dim in axes.items():
        if not -t.ndim <= index(axis) < t.ndim:
            raise ShapeError(f"dynamic names axis {axis} of {name}: {t}, which has {t.ndim} axes")
        called = getattr(dim, "__name__", dim)  # a torch.export.Dim has one
        if not isinstance(called, str) or not called:
            raise TypeError(f"dynamic calls axis {axis} of {name} {dim!r}; give a text, such as 'batch'")
        dims[index(axis)] = called
    return tuple(dims)


# --- models -----------------------------------------------------------------------------------------------------------


def _require_open(model: Any, dynamic: Mapping[str, Mapping[int, Any]]) -> None:
    if isinstance(model, ExportedProgram) and any(dynamic.values()):
        shapes = [node.meta["val"].shape for node in model.graph.find_nodes(op="placeholder") if "val" in node.meta]
        if not any(isinstance(n, torch.SymInt) for shape in shapes for n in shape):
            raise ShapeError(
                "the program was exported for fixed sizes, so it is no family; export it with dynamic_shapes, or give "
                "the module"
            )


def _copy(model: nn.Module) -> nn.Module:
    """The model as it is now, whatever becomes of it."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # of PyTorch's, about its own code
            return deepcopy(model)
    except Exception as error:
        error.add_note("a family keeps a copy of its model, to import it for other sizes, and this one has none")
        raise

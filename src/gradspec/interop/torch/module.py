"""Graphs and families as functions of tensors and as modules: constants become buffers or parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradspec.graph.family import MOST_GRAPHS, Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType, TensorType
from gradspec.interop.torch.device import DEVICES
from gradspec.interop.torch.operators import GRAPH, apply, is_watched, needs_gradient
from gradspec.interop.torch.private import outside_transforms
from gradspec.interop.torch.structure import OpenedGraph, large_constants, opened, with_inputs
from gradspec.interop.torch.types import array_of, gradspec_dtype, require_tensor, tensor_of
from gradspec.saving.graphs import from_text, to_text
from gradspec.spec.errors import DTypeError, UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])
_constant_while_compiling: Callable[[Function], Function] = torch.compiler.assume_constant_result

Types: TypeAlias = tuple[tuple[torch.dtype, tuple[int, ...]], ...]
ALL = "all"
_CPU = torch.device("cpu")


def call(graph: Graph, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a graph, in memory of their own; autograd, ``torch.func``, compilers and tracers may watch.

    >>> import torch
    >>> square = gs.trace(lambda x: x * x, gs.f32[2])
    >>> torch.func.jvp(lambda x: call(square, [x])[0], (torch.tensor([1.0, 3.0]),), (torch.ones(2),))[1]
    tensor([2., 6.])
    """
    if torch.compiler.is_compiling():
        return _call_compiled(graph, (), tensors)
    known = opened(graph)
    if not (is_watched(tensors) or needs_gradient(tensors)):
        return known.closed.run(tensors)
    return apply(known.structure, [*tensors, *known.constants(_device_of(tensors))])


def _device_of(tensors: Sequence[Tensor]) -> torch.device:
    """Where a graph runs that is given these."""
    return tensors[0].device if tensors else _CPU


def _call_compiled(source: Graph | FamilyModule, types: Types, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A graph, or that of a family for ``types``, as one operator of the program that is compiled."""
    constants = [_constant(source, types, i, _device_of(tensors)) for i in range(_count(source, types))]
    return tuple(GRAPH([*tensors, *constants], _text(source, types)))


def _opened(source: Graph | FamilyModule, types: Types) -> OpenedGraph:
    return opened(source if isinstance(source, Graph) else _member(source, types).graph)


@_constant_while_compiling
def _text(source: Graph | FamilyModule, types: Types) -> str:
    return _opened(source, types).structure.text


@_constant_while_compiling
def _count(source: Graph | FamilyModule, types: Types) -> int:
    return len(_opened(source, types).constants(_CPU))


@_constant_while_compiling
def _constant(source: Graph | FamilyModule, types: Types, i: int, device: torch.device) -> Tensor:
    return _opened(source, types).constants(device)[i]


def run_there(graph: Graph, arrays: Sequence[Any]) -> Any:
    """A graph on tensors of a device, and numbers without axes: one tensor for one output, a tuple for several."""
    device = next(a.device for a in arrays if isinstance(a, Tensor) and a.device.type in DEVICES)
    results = opened(graph).closed.run([_there(a, device) for a in arrays])
    return results[0] if len(results) == 1 else results


def _there(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.resolve_neg()
    if getattr(value, "shape", None) != ():
        raise UnsupportedError(
            f"an array of {type(value).__name__} was given beside a tensor on {device}; move it there: "
            f"torch.as_tensor(x, device={str(device)!r})"
        )
    return tensor_of(np.asarray(value)).to(device)


# --- graphs as modules ------------------------------------------------------------------------------------------------


def write(graph: Graph, parameters: str | Sequence[str] = ()) -> GradspecModule:
    """The module of a graph. ``parameters``: the constants that are trained, by name, or ``"all"``."""
    trained = trained_constants(graph, parameters)
    return GradspecModule(graph, trained, {*trained, *large_constants(graph)})


def trained_constants(graph: Graph, parameters: str | Sequence[str]) -> set[Var]:
    """The constants that ``parameters`` names."""
    if parameters == ALL and isinstance(parameters, str):
        return {v for v in large_constants(graph) if v.type.is_float}
    by_name = {v.name: v for v in graph.constants}
    names = [parameters] if isinstance(parameters, str) else list(parameters)
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(by_name) or "none"
        raise ValueError(f"parameters names {', '.join(map(repr, unknown))}; the graph's constants are {known}")
    chosen = {by_name[name] for name in names}
    integers = [v for v in chosen if not v.type.is_float]
    if integers:
        raise TypeError(f"parameters names {integers}: integers have no gradient, so they can only be buffers")
    return chosen


class Holder(torch.nn.Module):
    """A module with constants of graphs as its parameters and buffers, under the constants' names."""

    def __init__(self, signature: str) -> None:
        super().__init__()
        self._signature = signature
        self._places: list[tuple[torch.nn.Module, str]] = []

    def _hold_all(self, values: Mapping[Var, Array], trained: set[Var]) -> None:
        """Last, so that no name is taken that the module has for itself."""
        for var, array in values.items():
            self._hold(var.name, tensor_of(array.copy()), is_trained=var in trained)

    def _hold(self, name: str, value: Tensor, is_trained: bool) -> None:
        *path, leaf = name.split(".")
        owner: torch.nn.Module = self
        for part in path:
            part = _free_name(owner, part, taken_by=torch.nn.Module)
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        leaf = _free_name(owner, leaf)
        if is_trained:
            owner.register_parameter(leaf, torch.nn.Parameter(value))
        else:
            owner.register_buffer(leaf, value)
        self._places.append((owner, leaf))

    def _held(self) -> list[Tensor]:
        return [getattr(owner, leaf) for owner, leaf in self._places]

    def extra_repr(self) -> str:
        return self._signature

    def __prepare_scriptable__(self) -> torch.nn.Module:
        raise UnsupportedError(
            f"a module of gs.to_torch is no Python code that torch.jit.script could compile: {self._signature}; trace "
            "it, and script what uses it: torch.jit.trace(module, example)"
        )


class GradspecModule(Holder):
    """A graph as a function of tensors, in the order of the graph's inputs or by their names.

    Its constants are copies, since those of a graph never change: parameters where they are trained, else buffers.
    They have the names of the constants; ``conv1.weight`` is the ``weight`` of a submodule ``conv1``, so that the state
    of a module that was imported fits the one that is written. Single numbers stay inside unless they are trained.

    ``train()`` and ``eval()`` change nothing: a graph has one meaning.
    """

    def __init__(self, graph: Graph, trained: set[Var], held: set[Var]) -> None:
        super().__init__(f"({_listed(graph.inputs)}) -> ({_listed(graph.outputs)})")
        values = {v: array for v, array in graph.constants.items() if v in held}
        self._open = with_inputs(graph, tuple(values))
        self._inputs = len(graph.inputs)
        self._hold_all(values, trained)

    def forward(self, *tensors: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        """One tensor for one output, a tuple for several."""
        given = tensors if len(tensors) == self._inputs and not named else self._in_order(tensors, named)
        results = call(self._open, [*given, *self._held()])
        return results[0] if len(results) == 1 else results

    def _in_order(self, tensors: Sequence[Tensor], named: Mapping[str, Tensor]) -> list[Tensor]:
        names = [v.name for v in self._open.inputs[len(tensors) : self._inputs]]
        if len(tensors) > self._inputs or sorted(names) != sorted(named):
            wanted = _listed(self._open.inputs[: self._inputs])
            given = f"{len(tensors)} by position" + (f" and {', '.join(named)} by name" if named else "")
            raise TypeError(f"the module takes ({wanted}), each once; it was given {given}")
        return [*tensors, *(named[name] for name in names)]

    @property
    def graph(self) -> Graph:
        """The graph with the values that the module holds now, as constants."""
        held = self._open.inputs[self._inputs :]
        return _close(self._open, dict(zip(held, self._held(), strict=True)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GradspecModule:
        """What ``.to()``, ``.double()`` and the like do; a graph has dtypes of its own, which stay."""
        for tensor in (getattr(*place) for place in self._places):
            wanted = fn(torch.empty(0, dtype=tensor.dtype)).dtype
            if wanted is not tensor.dtype:
                raise DTypeError(
                    f"the module computes in {gradspec_dtype(tensor.dtype)}, as its graph does, so it cannot become "
                    f"{wanted}; make it of a graph for that dtype: gs.to_torch(gs.from_torch(model.to({wanted}), x)), "
                    "or of a family, which has all: gs.from_torch(model, x, dynamic={})"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": to_text(self._open)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_open": from_text(state["_open"])})  # type: ignore[no-untyped-call]


def _free_name(owner: torch.nn.Module, name: str, taken_by: type | None = None) -> str:
    """``name``, with as many underscores as it needs to be new to the module, or that of a submodule to share."""
    while not name or (hasattr(owner, name) and not (taken_by and isinstance(getattr(owner, name), taken_by))):
        name += "_"
    return name


def _listed(variables: Sequence[Var]) -> str:
    return ", ".join(map(repr, variables))


def _close(graph: Graph, values: Mapping[Var, Tensor]) -> Graph:
    """The graph with copies of tensors as constants in the place of its last inputs."""
    arrays = {v: array_of(tensor).copy() for v, tensor in values.items()}
    for array in arrays.values():
        array.flags.writeable = False
    inputs = graph.inputs[: len(graph.inputs) - len(arrays)]
    return Graph(inputs, graph.nodes, graph.outputs, MappingProxyType({**arrays, **graph.constants}))


# --- families as modules ----------------------------------------------------------------------------------------------


def write_family(family: Family, parameters: str | Sequence[str] = ()) -> FamilyModule:
    """The module of a family. ``parameters``: the constants that are trained, by name, or ``"all"``."""
    example = family.example()
    return FamilyModule(family, trained_constants(example, parameters))


@dataclass(frozen=True, eq=False)
class OpenMember:
    """A graph of a family, which takes what the module holds as further inputs: the constants of these names."""

    graph: Graph
    inputs: tuple[Var, ...]
    names: tuple[str, ...]


class FamilyModule(Holder):
    """A family as a function of tensors: of all sizes that it takes, and in the float dtype that the module has.

    What the graphs hold alike, the module holds for all: the weights, under the names of the constants. Numbers that a
    size brings along, such as a table of positions, stay in the graph for that size.
    """

    def __init__(self, family: Family, trained: set[Var]) -> None:
        super().__init__(family.signature)
        example = family.example()
        held = {*trained, *large_constants(example)}
        values = {v: array for v, array in example.constants.items() if v in held}
        self._family = family
        self._trained = tuple(v.name for v in values if v in trained)
        self._names = tuple(v.name for v in values)
        self._members = LRUCache[OpenMember](MOST_GRAPHS)
        self._hold_all(values, trained)

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """One tensor for one output, a tuple for several."""
        for tensor in tensors:
            require_tensor(tensor)
        types = tuple([(t.dtype, tuple(t.shape)) for t in tensors[: len(self._family.inputs)]])
        held = self._held()
        operands = [*tensors, *[held[i] for i in _places(self, types)]]
        if torch.compiler.is_compiling():
            results = _call_compiled(self, types, operands)
        else:
            results = call(_member(self, types).graph, operands)
        return results[0] if len(results) == 1 else results

    def at(self, *like: Any, dtype: DType | None = None, **sizes: int) -> Graph:
        """The graph for arrays or types like these, or for sizes by name, with the values that the module holds now."""
        member = self._member(self._family.at(*like, dtype=dtype, **sizes))
        held = dict(zip(self._names, self._held(), strict=True))
        return _close(member.graph, {v: held[v.name] for v in member.graph.inputs[len(member.inputs) :]})

    def _member(self, graph: Graph) -> OpenMember:
        return self._members.get_or_make(graph, lambda: self._open_member(graph))

    def _open_member(self, graph: Graph) -> OpenMember:
        origin = {v.name: array for v, array in self._family.example().constants.items()}
        names = set(self._names)
        held = [v for v, array in graph.constants.items() if v.name in names and _is_the_same(origin[v.name], array)]
        missing = {*self._trained} - {v.name for v in held}
        if missing:
            raise UnsupportedError(
                f"the graph for ({', '.join(map(repr, graph.inputs))}) does not have what is trained as the others do: "
                f"{', '.join(sorted(missing))}; leave it out of parameters="
            )
        return OpenMember(with_inputs(graph, held), graph.inputs, tuple(v.name for v in held))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_members": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_members": LRUCache[OpenMember](MOST_GRAPHS)})  # type: ignore[no-untyped-call]


@_constant_while_compiling
def _places(module: FamilyModule, types: Types) -> tuple[int, ...]:
    """Which of the tensors that the module holds this graph takes."""
    return tuple(module._names.index(name) for name in _member(module, types).names)


def _member(module: FamilyModule, types: Types) -> OpenMember:
    """The graph for these types, made as if nobody watched: neither a transformation nor a compiler is to see it."""
    like = [TensorType(gradspec_dtype(dtype), tuple(map(int, shape))) for dtype, shape in types]
    with outside_transforms():
        return module._member(module._family.at(*like))


def _is_the_same(origin: Array, array: Array) -> bool:
    """Whether a constant is that of the example, in its own dtype."""
    if origin is array:
        return True
    if origin.shape != array.shape:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array_equal(origin.astype(array.dtype), array, equal_nan=array.dtype.kind not in "iub")

"""Families as modules: one set of parameters and buffers for graphs of every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from gradspec.graph.family import MOST_GRAPHS, Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType, TensorType
from gradspec.interop.torch.call import call, place_of
from gradspec.interop.torch.module import Holder, frozen_copy, trained_constants
from gradspec.interop.torch.operators import GRAPH
from gradspec.interop.torch.structure import large_constants, opened, with_inputs
from gradspec.interop.torch.types import gradspec_dtype, require_tensor
from gradspec.spec.errors import UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])
_constant_while_compiling: Callable[[Function], Function] = torch.compiler.assume_constant_result

Types: TypeAlias = tuple[tuple[torch.dtype, tuple[int, ...]], ...]


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
            constants = [_constant(self, types, i, place_of(tensors)) for i in range(_count(self, types))]
            results = tuple(GRAPH([*operands, *constants], _text(self, types)))
        else:
            results = call(_member(self, types).graph, operands)
        return results[0] if len(results) == 1 else results

    def at(self, *like: Any, dtype: DType | None = None, **sizes: int) -> Graph:
        """The graph for arrays or types like these, or for sizes by name, with the values that the module holds now."""
        member = self._member(self._family.at(*like, dtype=dtype, **sizes))
        held = dict(zip(self._names, self._held(), strict=True))
        values = {v: frozen_copy(held[v.name]) for v in member.graph.inputs[len(member.inputs) :]}
        constants = MappingProxyType({**values, **member.graph.constants})
        return Graph(member.inputs, member.graph.nodes, member.graph.outputs, constants)

    def _member(self, graph: Graph) -> OpenMember:
        return self._members.get_or_make(graph, lambda: self._opened(graph))

    def _opened(self, graph: Graph) -> OpenMember:
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


@_constant_while_compiling
def _text(module: FamilyModule, types: Types) -> str:
    return opened(_member(module, types).graph).structure.text


@_constant_while_compiling
def _count(module: FamilyModule, types: Types) -> int:
    return len(opened(_member(module, types).graph).constants(torch.device("cpu")))


@_constant_while_compiling
def _constant(module: FamilyModule, types: Types, i: int, device: torch.device) -> Tensor:
    return opened(_member(module, types).graph).constants(device)[i]


def _member(module: FamilyModule, types: Types) -> OpenMember:
    """The graph for these types, made as if nobody watched: neither a transformation nor a compiler is to see it."""
    like = [TensorType(gradspec_dtype(dtype), tuple(map(int, shape))) for dtype, shape in types]
    with _disable_current_modes(), temporarily_clear_interpreter_stack(), torch.inference_mode(False):
        return module._member(module._family.at(*like))


def _is_the_same(origin: Array, array: Array) -> bool:
    """Whether a constant is that of the example, in its own dtype."""
    if origin is array:
        return True
    if origin.shape != array.shape:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array_equal(origin.astype(array.dtype), array, equal_nan=array.dtype.kind not in "iub")

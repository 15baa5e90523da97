"""Graphs as modules: constants become buffers or parameters, and the module is called like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.interop.torch.call import call
from gradspec.interop.torch.structure import large_constants, with_inputs
from gradspec.interop.torch.types import array_of, gradspec_dtype, tensor_of
from gradspec.saving.graphs import from_text, to_text
from gradspec.spec.errors import DTypeError, UnsupportedError

ALL = "all"


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
        values = {v: frozen_copy(tensor) for v, tensor in zip(held, self._held(), strict=True)}
        constants = MappingProxyType({**values, **self._open.constants})
        return Graph(self._open.inputs[: self._inputs], self._open.nodes, self._open.outputs, constants)

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


def frozen_copy(tensor: Tensor) -> Any:
    array = array_of(tensor).copy()
    array.flags.writeable = False
    return array

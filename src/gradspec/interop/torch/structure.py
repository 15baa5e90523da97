"""What a PyTorch operator knows of a graph: its structure as text, and the graphs of its derivatives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

import gradspec.wiring  # noqa: F401  (a program that was exported brings nothing but this package)
from gradspec.graph.builder import is_symbolic_zero, needed
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType
from gradspec.interop.torch.device import DEVICES, DeviceProgram, is_there, only_pooling, pooling_operator
from gradspec.interop.torch.private import outside_transforms
from gradspec.interop.torch.types import array_of, gradspec_dtype, tensor_of, torch_dtype
from gradspec.runtime.compiled import Program, program_for, require_count
from gradspec.runtime.threads import get_num_threads
from gradspec.saving.graphs import from_text, to_text
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from gradspec.backends.triton.plans import Operator

Mask = tuple[bool, ...]
T = TypeVar("T")

MOST_TEXTS = 512
MOST_DERIVED = 32


class Structure:
    """A graph that is given all it needs: what were its constants are inputs.

    Derivatives and batches of it are made once, and without what nobody asked for.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.float_outputs: Mask = tuple(v.type.is_float for v in graph.outputs)
        self._derived = LRUCache[Derived](MOST_DERIVED)
        self._others = LRUCache[Structure](MOST_DERIVED)
        self._types = [(v.shape, torch_dtype(v.dtype)) for v in graph.inputs]
        self._there: dict[torch.device, DeviceProgram] = {}
        self._pooled = only_pooling(graph) if len(graph.inputs) == 1 else None
        self._poolings = LRUCache[PlannedPooling](MOST_DERIVED)

    @cached_property
    def text(self) -> str:
        """The graph as text, which ``structure_of`` remembers."""
        text = to_text(self.graph)
        _by_text.put(text, self)
        return text

    @cached_property
    def program(self) -> Program:
        return program_for(self.graph)

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs, in memory of their own, where the tensors are, which must be plain ones."""
        for tensor in tensors:
            if is_there(tensor):
                self._require_types(tensors)
                return self.there(tensor.device)(tensors)
        try:
            threads = min(torch.get_num_threads(), get_num_threads())
            results = self.program.call([array_of(t) for t in tensors], threads=threads)
        except (ShapeError, TypeError):
            self.result_types(tensors)  # whose errors speak of tensors
            raise
        return tuple(map(tensor_of, results)) if isinstance(results, tuple) else (tensor_of(results),)

    def _require_types(self, tensors: Sequence[Tensor]) -> None:
        if [(t.shape, t.dtype) for t in tensors] != self._types:
            self.result_types(tensors)  # which raises

    def there(self, device: torch.device) -> DeviceProgram:
        """The graph on tensors of a device."""
        program = self._there.get(device)
        if program is None:
            program = self._there[device] = DeviceProgram(self.graph, device)
        return program

    def pooling(self, tensors: Sequence[Tensor]) -> PlannedPooling | None:
        """The graph on tensors like this one, if it is one pooling operator there."""
        node = self._pooled
        if node is None or not is_there(tensors[0]):
            return None
        self._require_types(tensors)
        x = tensors[0]
        return self._poolings.get_or_make((x.stride(), x.device), lambda: PlannedPooling(self, node, x))

    def result_types(self, tensors: Sequence[Tensor]) -> list[TensorType]:
        """The types of the outputs, if the tensors, which may be fake, are of the inputs' types."""
        require_count(self.graph.inputs, tensors)
        for var, tensor in zip(self.graph.inputs, tensors, strict=True):
            _require_type(var, tensor)
        return [v.type for v in self.graph.outputs]

    def jvp(self, moving: Mask) -> Derived:
        """Tangents of the float outputs, from the inputs and the tangents of those that move."""
        return self._derived.get_or_make(("jvp", moving), lambda: self._jvp(moving))

    def vjp(self, arriving: Mask, wanted: Mask) -> Derived:
        """Cotangents of the inputs that are wanted, from the inputs and those cotangents of outputs that arrive."""
        return self._derived.get_or_make(("vjp", arriving, wanted), lambda: self._vjp(arriving, wanted))

    def batch(self, n: int, batched: Mask) -> Structure:
        """A leading axis of ``n`` on the outputs and on those inputs."""
        axes = [0 if has_axis else None for has_axis in batched]
        return self._others.get_or_make((n, batched), lambda: Structure(self.graph.batch(n, axes)))

    def dual(self, moving: Mask) -> Structure:
        """The outputs and then tangents of the float ones, from the inputs and the tangents of those that move."""
        return self._others.get_or_make(
            ("dual", moving), lambda: Structure(self.graph.jvp(_positions(moving)).simplify())
        )

    def _jvp(self, moving: Mask) -> Derived:
        forward = self.graph.jvp(_positions(moving))
        return Derived(forward, len(self.graph.inputs), forward.outputs[len(self.graph.outputs) :])

    def _vjp(self, arriving: Mask, wanted: Mask) -> Derived:
        kept = chosen(self.graph.outputs, arriving)
        nodes, _ = needed(self.graph.nodes, kept)
        backward = Graph(self.graph.inputs, nodes, kept, self.graph.constants).vjp(_positions(wanted))
        return Derived(backward, len(self.graph.inputs), backward.outputs[len(kept) :])


class Derived:
    """The structure of a derivative, and which of the first ``primals`` inputs of its graph it reads."""

    def __init__(self, graph: Graph, primals: int, outputs: tuple[Var, ...]) -> None:
        whole = Graph(graph.inputs, graph.nodes, outputs, graph.constants).simplify()
        nodes, used = needed(whole.nodes, whole.outputs)
        self.primals: Mask = tuple(v in used for v in whole.inputs[:primals])
        inputs = (*chosen(whole.inputs[:primals], self.primals), *whole.inputs[primals:])
        constants = {v: a for v, a in whole.constants.items() if v in used}
        self.structure = Structure(Graph(inputs, nodes, whole.outputs, MappingProxyType(constants)))


class PlannedPooling:
    """A graph of one pooling operator on tensors like ``x``, with the plans of its value and of its gradient.

    Where the first of equals alone is the largest, winners are written on a tape, for cotangents to be sent to them
    without a look at the cells.
    """

    def __init__(self, structure: Structure, node: Node, x: Tensor) -> None:
        self._structure, self._device, self._outputs = structure, x.device, len(node.outputs)
        self.value = self._taped = pooling_operator((node,), x.device).plan([x])
        self._sent: Operator | None = None
        if node.op.name == "max_pool" and node.attrs.ties == "first" and not node.attrs.return_indices:
            from gradspec.backends.triton.pool import sent, taped

            self._taped, self._sent = taped(node.attrs).plan([x]), sent(node.attrs, node.inputs[0].shape)

    @cached_property
    def derived(self) -> Derived:
        """The input's cotangent as a graph, which may be derived further."""
        return self._structure.vjp(self._structure.float_outputs, (True,))

    @cached_property
    def _pull(self) -> DeviceProgram:
        return self.derived.structure.there(self._device)

    def recorded(self, x: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The outputs, and what their derivatives are found by: the input, if it is needed, and the tape."""
        results, n = self._taped((x,)), self._outputs
        return results[:n], (x, *results[n:]) if self.derived.primals[0] else ()

    def pulled(self, saved: Sequence[Tensor], cotangent: Tensor) -> tuple[Tensor, ...]:
        """The input's cotangent."""
        return self._pull((*saved, cotangent)) if self._sent is None else self._sent(cotangent, *saved[1:])


def chosen(values: Sequence[Any], mask: Mask) -> tuple[Any, ...]:
    """The values that the mask marks."""
    return tuple(value for value, is_chosen in zip(values, mask, strict=True) if is_chosen)


def _positions(mask: Mask) -> list[int]:
    return [i for i, is_chosen in enumerate(mask) if is_chosen]


def _require_type(var: Var, tensor: Tensor) -> None:
    if tensor.device.type not in ("cpu", "meta", *DEVICES):
        raise UnsupportedError(
            f"input {var!r} was given a tensor on {tensor.device}; gradspec computes on the CPU and on CUDA devices"
        )
    if gradspec_dtype(tensor.dtype) != var.dtype:
        raise DTypeError(
            f"input {var!r} was given a tensor of {tensor.dtype}; convert it, or make a graph for that type"
        )
    if tuple(tensor.shape) != var.shape:
        raise ShapeError(
            f"input {var!r} was given a tensor of shape {tuple(tensor.shape)}; pass one of shape {var.shape}, or make "
            "a graph for that shape"
        )


# --- structures of texts and graphs -----------------------------------------------------------------------------------

_by_text = LRUCache[Structure](MOST_TEXTS)
_by_graph: WeakKeyDictionary[Graph, OpenedGraph] = WeakKeyDictionary()


def structure_of(text: str) -> Structure:
    """The structure that a text describes; it may come from a file, and everything in it is checked."""
    return _by_text.get_or_make(text, lambda: Structure(from_text(text)))


def large_constants(graph: Graph) -> tuple[Var, ...]:
    """The constants that a text should not hold: all but single numbers and the zeros that derivatives bring along."""
    return tuple(v for v, array in graph.constants.items() if v.ndim > 0 and not is_symbolic_zero(array))


def with_inputs(graph: Graph, constants: Collection[Var]) -> Graph:
    """The graph with these constants as further inputs."""
    kept = {v: array for v, array in graph.constants.items() if v not in constants}
    return Graph((*graph.inputs, *constants), graph.nodes, graph.outputs, MappingProxyType(kept))


class OpenedGraph:
    """A graph as it is, and its structure with the constants as tensors, for those who must see all operands."""

    def __init__(self, graph: Graph) -> None:
        large = large_constants(graph)
        self.structure = Structure(with_inputs(graph, large))
        # They outlast what is traced, inferred or transformed now.
        with outside_transforms():
            self._constants = [tensor_of(graph.constants[v]) for v in large]
        self._elsewhere: dict[torch.device, list[Tensor]] = {}
        self.closed = Structure(with_inputs(graph, ()))

    def constants(self, device: torch.device) -> list[Tensor]:
        """The constants, on a device that graphs run on, or in this machine's memory."""
        if device.type not in DEVICES:
            return self._constants
        if device not in self._elsewhere:
            with outside_transforms():
                self._elsewhere[device] = [t.to(device) for t in self._constants]
        return self._elsewhere[device]


def opened(graph: Graph) -> OpenedGraph:
    """Made once for each graph."""
    found = _by_graph.get(graph)
    if found is None:
        found = _by_graph[graph] = OpenedGraph(graph)
    return found

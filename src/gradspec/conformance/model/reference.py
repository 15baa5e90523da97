"""References: specifications that are graphs, traced anew for every type that a kernel is judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from gc import collect
from math import prod
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from gradspec.conformance.model.geometry import geometry_of, recut
from gradspec.conformance.model.problem import ARRAY_DTYPES, FLOATS, MODES, Array, Call, CallSignature, Problem
from gradspec.conformance.model.values import ValueRoom, check_values, fitted, holds
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DTYPES as TYPES
from gradspec.graph.types import STORED, TensorType, bf16, f16, f32
from gradspec.ops.convert import CONVERT, convert
from gradspec.spec.errors import ShapeError
from gradspec.transforms.copy import Copier, expand, inline

Types: TypeAlias = tuple[TensorType, ...]
Axis: TypeAlias = tuple[int, int]
"""An input, and one of its axes."""
MOST_GRAPHS = 256
FEW = 4
"""Cells of an axis that is not varied."""
MOST_CLASSES, BYTE = 1 << 10, 1 << 8
_known = WeakValueDictionary[str, "Reference"]()
"""References by the names that problems have: each as long as it is referred to."""


class Reference:
    """What a kernel is judged by: a graph for each list of types.

    ``trace`` makes the graph; it raises what it likes where there is none. The graph may have inputs of its own behind
    those of the types: the parameters of a module. ``draw`` gives arrays of the types, if there is a way of one's own.
    """

    library = "gradspec"
    """What it is written in."""

    def __init__(
        self,
        name: str,
        trace: Callable[[Types], Graph],
        types: Sequence[Types],
        draw: Callable[[np.random.Generator, Types], Sequence[Array]] | None = None,
        trial: Callable[[Types], object] | None = None,
        dtypes: Sequence[str] = (),
    ) -> None:
        """``trial`` raises for most types that there is no graph for, and is quicker.

        ``dtypes`` are the floating-point dtypes that there are; if none are given, that of the types, or any.
        """
        self._trace, self.types, self.draw, self._trial = trace, tuple(types), draw, trial
        self._dtypes = tuple(dtypes)
        self._graphs = LRUCache["Graph | str"](MOST_GRAPHS)
        self._programs = LRUCache[Graph](MOST_GRAPHS)
        self.found = LRUCache[Any](MOST_GRAPHS)
        """Cached facts about it, by caller."""
        self.name = _register(name, self)
        self.given = len(self.types[0])
        """How many inputs it has beside parameters."""
        self.values: Mapping[str, str] = {}
        self._no_grad: tuple[str, ...] = ()
        self._out_dtype = self.intermediates = ""

    def declare(self, values: Mapping[str, str], no_grad: Sequence[str], out_dtype: str, intermediates: str) -> None:
        """Say which values inputs may have, which have no derivatives, and the dtypes of floats among results, and of
        those between operators."""
        if out_dtype and out_dtype not in FLOATS:
            raise ValueError(f"out_dtype is {out_dtype!r}; declare one of {', '.join(FLOATS)}")
        if intermediates not in ("", "f32"):
            raise ValueError(
                f"intermediates is {intermediates!r}; declare f32, or nothing for the dtype of each result"
            )
        names = [v.name for v in self.graph(self.types[0]).inputs]
        if unknown := [name for name in (*values, *no_grad) if name not in names]:
            raise ValueError(f"{self.name} has no input {unknown[0]!r} to declare; its inputs are {', '.join(names)}")
        self.values, self._no_grad = check_values(values), tuple(no_grad)
        if (out_dtype, intermediates) != (self._out_dtype, self.intermediates):
            self._out_dtype, self.intermediates = out_dtype, intermediates
            self._graphs, self._programs = LRUCache(MOST_GRAPHS), LRUCache(MOST_GRAPHS)

    def with_stored_intermediates(self) -> Reference:
        """The same of a kernel that may store the dtype of each result between operators."""
        other = copy(self)
        other.declare(self.values, self._no_grad, self._out_dtype, "")
        return other

    def graph(self, types: Types) -> Graph:
        """The graph for these types, of which every node is judged, or a ValueError that says why there is none."""
        return self._programs.get_or_make(types, lambda: _expanded(self._whole(types)))

    def _whole(self, types: Types) -> Graph:
        """The graph for these types, as it is differentiated."""
        found = self._graphs.get_or_make(types, lambda: self._try_trace(types))
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _try_trace(self, types: Types) -> Graph | str:
        try:
            graph = _converted(self._trace(types), self._out_dtype)
            graph = _with_wide_intermediates(graph) if self.intermediates else graph
        except Exception as error:  # of whatever library it is written in
            return f"{self.name} does not take {', '.join(map(str, types))}: {type(error).__name__}: {error}"
        unknown = [v for v in (*graph.inputs, *graph.outputs) if v.dtype.name not in ARRAY_DTYPES]
        return f"{unknown[0]!r} has a dtype that is not judged" if unknown else graph

    def may_take(self, types: Types) -> bool:
        """Whether there most likely is a graph."""
        if self._trial is None:
            return self.takes(types)
        try:
            self._trial(types)
        except Exception:  # of whatever library it is written in
            return False
        return True

    def takes(self, types: Types) -> bool:
        return isinstance(self._graphs.get_or_make(types, lambda: self._try_trace(types)), Graph)

    @cached_property
    def dtype(self) -> str:
        """The floating-point dtype of the types as they were given."""
        return next((t.dtype.name for types in self.types for t in types if t.is_float), "f32")

    def dtypes(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Of the dtypes that are asked for those that there are; if none are, all that there are, or the types' own."""
        known = self._dtypes or asked or (self.dtype,)
        return tuple(name for name in asked or known if name in known)

    def problem(self, types: Types, of: int = 0) -> Problem:
        """All of a call of these types but its numbers."""
        graph = self.graph(types)
        count = len(graph.outputs)
        signature = CallSignature(
            tuple(v.name.replace(".", "_") for v in graph.inputs),
            tuple(v.dtype.name for v in graph.inputs),
            ("y",) if count == 1 else tuple(f"y{i}" for i in range(count)),
            of,
            self._no_grad,
        )
        dtype = next((name for name in signature.dtypes if name in FLOATS), self.dtype)
        return Problem(self.name, 0, tuple(v.shape for v in graph.inputs), {}, dtype, signature)

    def types_of(self, problem: Problem) -> Types:
        """The types that a problem was made of."""
        return tuple(array_types(problem, "value").values())[: self.given]

    def output(self, problem: Problem) -> TensorType:
        """The type of the result that derivatives are those of."""
        return self.graph(self.types_of(problem)).outputs[problem.interface.of].type

    def modes(self, types: Types) -> tuple[str, ...]:
        """Those that there are: integers have no derivatives."""
        graph = self.graph(types)
        differentiable = self.problem(types).differentiable and any(v.type.is_float for v in graph.outputs)
        return MODES if differentiable else MODES[:1]

    def program(self, problem: Problem, mode: str) -> Graph:
        """The graph of a mode: arrays in the order of `Call.arguments`, results in that of `Problem.results`."""
        key = self.types_of(problem), problem.interface, mode
        return self._programs.get_or_make(key, lambda: self._program(problem, mode))

    def _program(self, problem: Problem, mode: str) -> Graph:
        types = self.types_of(problem)
        return self.graph(types) if mode == "value" else _expanded(self._derived(self._whole(types), problem, mode))

    def _derived(self, graph: Graph, problem: Problem, mode: str) -> Graph:
        graph = _with_outputs(graph, (graph.outputs[problem.interface.of],))
        wrt = [problem.inputs.index(name) for name in problem.differentiable]
        if mode == "jvp":
            return _derivatives(graph.jvp(wrt), 1)
        gradients = _derivatives(graph.vjp(wrt), 1)
        if mode == "vjp":
            return gradients
        return _derivatives(gradients.vjp([*wrt, len(graph.inputs)]), len(gradients.outputs))


def _expanded(graph: Graph) -> Graph:
    made = expand(graph)
    return graph if made is graph else made.simplify()


def _with_outputs(graph: Graph, outputs: Sequence[Var]) -> Graph:
    return replace(graph, outputs=tuple(outputs)).simplify()


def _derivatives(graph: Graph, values: int) -> Graph:
    """Without the values that stand before derivatives."""
    return _with_outputs(graph, graph.outputs[values:])


def _with_wide_intermediates(graph: Graph) -> Graph:
    """The graph with float32 in the place of float16 and bfloat16, but in inputs, results, and what is converted to
    them."""
    copy = Copier(graph := expand(graph))
    for node in graph.nodes:
        operands, (dtype, *others) = copy.all(node.inputs), [v.dtype for v in node.outputs]
        wide = [convert(v, f32) if v.dtype in (f16, bf16) else v for v in operands]
        if node.op is CONVERT and not others and dtype not in STORED:
            copy.assign(node, [convert(operands[0], dtype)])
            continue
        found = copy.builder.apply(node.op, node.attrs, *wide)
        if any(new.dtype not in (old.dtype, f32) for old, new in zip(node.outputs, found, strict=True)):
            narrow = [convert(v, old.dtype) for v, old in zip(wide, node.inputs, strict=True)]
            found = copy.builder.apply(node.op, node.attrs, *narrow)  # it is one of bits
        copy.assign(node, found)
    return copy.builder.build([convert(copy(v), v.dtype) for v in graph.outputs], allow_unused=True)


def _converted(graph: Graph, dtype: str) -> Graph:
    """The same graph with results of another floating-point dtype."""
    if not dtype:
        return graph
    builder = Builder()
    found = inline(graph, [builder.input(v.type, v.name) for v in graph.inputs])
    return builder.build([convert(v, TYPES[dtype]) if v.type.is_float else v for v in found], allow_unused=True)


def _register(name: str, reference: Reference) -> str:
    """A name that no other living reference has."""
    if name in _known:
        collect()  # an earlier one that only a cycle refers to
    number, free = 1, name
    while free in _known:
        number += 1
        free = f"{name}_{number}"
    _known[free] = reference
    return free


def reference_of(problem: Problem) -> Reference:
    """The reference that a problem is of."""
    found = _known.get(problem.op)
    if found is None:
        raise LookupError(f"the reference {problem.op!r} is not loaded; load the target that is judged by it")
    return found


def in_dtype(types: Types, dtype: str) -> Types:
    """The same types with another floating-point dtype."""
    return tuple(replace(t, dtype=TYPES[dtype]) if t.is_float else t for t in types)


def output_type(problem: Problem) -> TensorType:
    """The type of the result that derivatives are those of."""
    if problem.is_reference:
        return reference_of(problem).output(problem)
    return TensorType(TYPES[problem.dtype], geometry_of(problem).output)


def array_types(problem: Problem, mode: str) -> dict[str, TensorType]:
    """The types of all arrays of a call, by the names of `Call.arrays`."""
    shapes = problem.named_shapes()
    types = {name: TensorType(TYPES[problem.dtype_of(name)], shape) for name, shape in shapes.items()}
    if mode in ("jvp", "second"):
        types |= {problem.direction(name): types[name] for name in problem.differentiable}
    return types | ({problem.cotangent: output_type(problem)} if mode in ("vjp", "second") else {})


def call_of(problem: Problem, mode: str, arrays: Mapping[str, Array], layout: str = "contiguous") -> Call:
    """A call on arrays by name."""
    return Call(problem, mode, (), layout=layout, output=output_type(problem).shape).with_arrays(arrays)


def on_zeros(problem: Problem, mode: str) -> Call:
    """A call of a problem whose arrays are all zeros."""
    types = array_types(problem, mode)
    return call_of(problem, mode, {name: np.zeros(t.shape, t.dtype.numpy) for name, t in types.items()})


# --- other sizes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FreeAxes:
    """Axes of inputs, ``(input, axis)``, that have one size, which may be any number that ``step`` divides."""

    axes: frozenset[Axis]
    step: int = 1

    def size(self, types: Types) -> int:
        i, axis = min(self.axes)
        return types[i].shape[axis]

    def resized(self, types: Types, size: int) -> Types:
        """The same types with these axes of another size."""

        def shape(i: int, t: TensorType) -> tuple[int, ...]:
            return tuple(size if (i, axis) in self.axes else n for axis, n in enumerate(t.shape))

        return tuple(replace(t, shape=shape(i, t)) for i, t in enumerate(types))


def free_axes(reference: Reference, types: Types) -> tuple[FreeAxes, ...]:
    """The axes that may have another size, those together that need to have one size.

    They are those of the types that were given: smaller ones may agree in more sizes by chance. Axes of few cells, but
    for the very first, most often mean something (a window of 3 × 3, four gates), and stay. Axes of one size stay so
    if the reference takes that, as nothing says that a kernel is meant for more; or else those that stand in the same
    place of their inputs, or two of them, or one alone.
    """
    ranks = [t.ndim for t in types]
    given = next((one for one in reference.types if [t.ndim for t in one] == ranks), types)
    return reference.found.get_or_make((free_axes, given), lambda: _free_axes(reference, given))  # type: ignore[no-any-return]


def _free_axes(reference: Reference, types: Types) -> tuple[FreeAxes, ...]:
    found: list[FreeAxes] = []
    axes = [(i, axis) for i, t in enumerate(types) for axis in range(t.ndim)]
    for axis in (a for a in axes if types[a[0]].shape[a[1]] > FEW or a == (0, 0)):
        taken = {other for free in found for other in free.axes}
        if axis not in taken:
            groups = _groups(types, [other for other in axes if other not in taken], axis)
            free = next(filter(None, (_free(reference, types, group) for group in groups)), None)
            found += [] if free is None else [free]
    return tuple(found)


def _groups(types: Types, axes: Sequence[Axis], first: Axis) -> Iterator[frozenset[Axis]]:
    def size(axis: Axis) -> int:
        return types[axis[0]].shape[axis[1]]

    alike = [axis for axis in axes if size(axis) == size(first)]
    from_end = first[1] - types[first[0]].ndim
    groups = [
        alike,
        [axis for axis in alike if axis[1] == first[1]],
        [axis for axis in alike if axis[1] - types[axis[0]].ndim == from_end],
        *([first, other] for other in alike if other != first),
        [first],
    ]
    yield from dict.fromkeys(frozenset(group) for group in groups)


def _free(reference: Reference, types: Types, group: frozenset[Axis]) -> FreeAxes | None:
    """The axes, if the reference takes other sizes of them: one more or one less, or else twice as many."""
    one = FreeAxes(group)
    n = one.size(types)
    if reference.may_take(one.resized(types, n + 1)) or (n > 1 and reference.may_take(one.resized(types, n - 1))):
        return one
    steps = [step for step in (2, 4, 8, n) if step > 1 and n % step == 0]
    return next((FreeAxes(group, s) for s in steps if reference.may_take(one.resized(types, n + s))), None)


def cells(types: Types) -> int:
    return sum(prod(t.shape) for t in types)


@dataclass(frozen=True)
class Resized:
    """Other types of a call, and how its arrays are cut from the old ones: their first cells are kept, or their last.

    Where an axis grows its cells come again.
    """

    types: Types
    last: bool = False

    def call(self, old: Call) -> Call:
        """The call on these types; ``ShapeError`` where there is none."""
        reference = reference_of(old.problem)
        if not reference.takes(self.types):
            raise ShapeError(f"{reference.name} takes no {self.types}; use other sizes")
        problem = reference.problem(self.types, old.problem.interface.of)
        arrays, types = old.arrays(), array_types(problem, old.mode)
        cut = {name: recut(arrays[name], t.shape, self.last) for name, t in types.items()}
        for name in (name for name in problem.inputs if types[name].is_integer):
            cut[name] = np.minimum(cut[name], np.int64(classes(problem, name) - 1)).astype(types[name].dtype.numpy)
        cut |= {name: fitted(text, cut[name], room(problem, name)) for name, text in reference.values.items()}
        return replace(old, problem=problem, output=reference.output(problem).shape).with_arrays(cut).in_layout()


def classes(problem: Problem, name: str) -> int:
    """The largest number below which integers of an input name cells, by trial: the size of some axis.

    Those of one byte that name no cells are any of 256, of which half wrap around to negative ones.
    """
    sizes = sorted({n for shape in problem.shapes for n in shape or () if 0 < n <= MOST_CLASSES}, reverse=True)
    reference, place = reference_of(problem), problem.inputs.index(name)
    types = reference.types_of(problem)

    def find() -> int:
        takes = partial(_takes_integers, reference.graph(types), place)
        is_byte = types[place].is_integer and types[place].dtype.numpy.itemsize == 1
        return BYTE if is_byte and takes(BYTE) and takes(BYTE // 2 + 1) else next(filter(takes, sizes), 1)

    return reference.found.get_or_make((classes, types, place), find)  # type: ignore[no-any-return]


def room(problem: Problem, name: str) -> ValueRoom:
    """What the rest of a problem leaves for the values of an input."""
    below = classes(problem, name) if problem.dtype_of(name) not in FLOATS else 0
    others = (shape for other, shape in problem.named_shapes().items() if other != name)
    return ValueRoom(below, next((shape[0] for shape in others if shape), 0))


def admits(call: Call) -> bool:
    """Whether the inputs of a call have the values that are declared for them."""
    if not call.problem.is_reference:
        return True
    arrays, values = call.named(), reference_of(call.problem).values
    return all(holds(text, arrays[name], room(call.problem, name)) for name, text in values.items())


def _takes_integers(graph: Graph, place: int, size: int) -> bool:
    """Whether the reference gives numbers, and neither an error nor NaNs, for the last of so many places."""
    arrays = [np.ones(v.shape, v.dtype.numpy) for v in graph.inputs]
    arrays[place] = np.full(arrays[place].shape, size - 1).astype(arrays[place].dtype)
    try:
        found = graph(*arrays)
    except Exception:  # an index that names nothing
        return False
    results = found if isinstance(found, tuple) else (found,)
    return all(bool(np.isfinite(np.asarray(r, np.float64)).all()) for r in results)

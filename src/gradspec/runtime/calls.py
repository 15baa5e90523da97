"""Cache of compiled calls, keyed by array types and attributes: of operators, graphs, and functions of other libraries.

A compiled call is a function of its arrays. Calls that have no key, and calls that fail, are not cached.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from functools import partial, wraps
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy import ndarray

from gradspec.graph.arrays import (
    ArrayLibrary,
    accepts_foreign_arrays,
    as_array,
    device_library,
    foreign_array,
    library_of,
    to_library_of,
    wants_aligned,
)
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.hints import argument
from gradspec.graph.ir import Array, Attributes, Op, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType, number_as, type_of
from gradspec.runtime.compiled import Program, program_for
from gradspec.runtime.task import backend_named
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.transforms.copy import expand

MOST_CALLS = 2048

Made = TypeVar("Made")
Run: TypeAlias = Callable[[Sequence[Any]], Any]

_calls = LRUCache[Any](MOST_CALLS)
_programs: WeakKeyDictionary[Graph, Program] = WeakKeyDictionary()


def cached(key: Hashable, make: Callable[[], Made]) -> Made:
    """The cached object of this key, made now if there is none."""
    made: Made = _calls.get_or_make(key, make)
    return made


# --- graphs -----------------------------------------------------------------------------------------------------------


def run(graph: Graph, arrays: Sequence[Any]) -> Any:
    """One array for one output, a tuple for several. Results never share memory with inputs or constants."""
    if (library := device_library(arrays)) is not None:
        return library.run(graph, arrays)
    found = _programs.get(graph)
    if found is None:
        found = _programs[graph] = program_for(graph)
    return found.call(arrays, found.aligned_results() if wants_aligned() else None)


# --- single operators, applied inside functions that are not cached ---------------------------------------------------


def eager(op: Op, attrs: Attributes, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """One operator on arrays."""
    key = (op, repr(attrs), *[(a.shape, a.dtype) for a in arrays])
    results = cached(key, lambda: _function(_application(op, attrs, arrays)))(arrays)
    return results if isinstance(results, tuple) else (results,)


def _application(op: Op, attrs: Attributes, arrays: Sequence[Array]) -> Graph:
    types = [type_of(a) for a in arrays]
    op.types(attrs, *types)  # an error here speaks of types, not of the variables below
    builder = Builder()
    return builder.build(builder.apply(op, attrs, *map(builder.input, types)))


def _function(graph: Graph) -> Run:
    """A graph as a function of arrays: compiled, unless it only moves numbers, of which NumPy has views that last, or
    nothing of it is compiled."""
    lowering, graph = backend_named().lowering, expand(graph)
    if all(node.op.is_data_movement or lowering(node.op.name) is None for node in graph.nodes):
        return _by_numpy(graph)
    program = program_for(graph)

    def call(arrays: Sequence[Any]) -> Any:
        return program.call(arrays, program.aligned_results() if wants_aligned() else None)

    return call


def _by_numpy(graph: Graph) -> Run:
    kernel = backend_named().kernel
    steps = [(kernel(n.op, n.attrs, tuple(v.type for v in n.inputs)), n.inputs, n.outputs) for n in graph.nodes]

    def call(arrays: Sequence[Any]) -> Any:
        like = foreign_array(arrays)
        values: dict[Var, Array] = dict(zip(graph.inputs, map(as_array, arrays), strict=True))
        values.update(graph.constants)
        for function, inputs, outputs in steps:
            values.update(zip(outputs, function(*[values[v] for v in inputs]), strict=True))
        results = tuple(to_library_of(like, values[v]) for v in graph.outputs)
        return results[0] if len(results) == 1 else results

    return call


# --- operators as users call them -------------------------------------------------------------------------------------

_PLAIN = frozenset((type(None), bool, int, str))


class ParameterRole(Enum):
    """What a parameter of an operator takes."""

    OPERAND = "an array, or a number, which is an array without axes"
    ARRAYS = "arrays, and numbers that stay numbers"
    ATTRIBUTE = "anything else; arrays are read when the graph is built"


def parameter_roles(operator: Callable[..., Any]) -> dict[str, ParameterRole]:
    """The role of each parameter, by name, as ``Operand`` and ``TypedOperand`` in its annotation declare it."""
    declared = {p.name: str(p.annotation) for p in inspect.signature(operator).parameters.values()}
    found = {name: _role(annotation) for name, annotation in declared.items()}
    if set(found.values()) <= {ParameterRole.ATTRIBUTE}:
        raise TypeError(f"{operator.__name__} has no operand among {declared}; annotate its operands as Operand")
    return found


def _role(annotation: str) -> ParameterRole:
    if annotation.removesuffix(" | None") == "Operand":
        return ParameterRole.OPERAND
    return ParameterRole.ARRAYS if "Operand" in annotation else ParameterRole.ATTRIBUTE


def cache_calls(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator with cached calls. It takes arrays of any library, and variables."""
    carried_out = accepts_foreign_arrays(operator)
    role_of = parameter_roles(operator)
    places = tuple(role_of.values())

    @wraps(operator)
    def call(*args: object, **kwargs: object) -> Any:
        if not kwargs.keys() <= role_of.keys():
            unknown = next(name for name in kwargs if name not in role_of)
            raise TypeError(f"{operator.__name__} has {argument(unknown, role_of)}")
        arrays: list[Any] = []
        key: list[Hashable] = [operator]
        for value, role in zip(args, places):  # noqa: B905  (what is too much fails when it is carried out)
            if not _add(value, role, arrays, key):
                return carried_out(*args, **kwargs)
        for name, value in kwargs.items():
            key.append(name)
            if not _add(value, role_of[name], arrays, key):
                return carried_out(*args, **kwargs)
        known = tuple(key)
        found = _calls.get(known)
        if found is None and arrays and len(args) <= len(places):
            found = compile_call(operator, args, kwargs, role_of, arrays, device_library(arrays))
            if found is not None:
                _calls.put(known, found)
        return carried_out(*args, **kwargs) if found is None else found(arrays)

    return call


def _add(value: Any, role: ParameterRole, arrays: list[Any], key: list[Hashable]) -> bool:
    """Add an argument to the arrays and to the key of a call, if it can be part of them."""
    kind = type(value)
    if kind is ndarray and role is not ParameterRole.ATTRIBUTE:
        arrays.append(value)
        key.append((value.shape, value.dtype))
    elif role is ParameterRole.OPERAND and kind in (int, float):
        dtype = _dtype_beside(arrays)
        if dtype is None:
            return False
        arrays.append(number_as(value, dtype))
        key.append((kind, dtype))
    elif kind in _PLAIN:
        key.append((kind, value))
    elif kind is float:
        key.append(repr(value))  # 0.0 == −0.0
    elif kind in (tuple, list) and role is not ParameterRole.OPERAND:
        key.append((kind, len(value)))
        return all(_add(part, role, arrays, key) for part in value)
    elif role is not ParameterRole.ATTRIBUTE and (library := library_of(value)) is not None:
        is_on_device = library.is_on_device(value)
        seen = library.type_of(value) if is_on_device else as_array(value)
        arrays.append(value)
        key.append((library, is_on_device, seen.shape, seen.dtype))
    else:
        return False
    return True


def _type_of(value: object) -> TensorType:
    library = device_library([value])
    return type_of(as_array(value)) if library is None else library.type_of(value)


def _dtype_beside(arrays: Sequence[Any]) -> np.dtype[Any] | None:
    """The dtype that a number beside these arrays has; None where that takes a closer look."""
    if arrays and type(arrays[0]) is ndarray:
        dtype: np.dtype[Any] = arrays[0].dtype
    elif device_library(arrays[:1]) is not None:
        dtype = _type_of(arrays[0]).dtype.numpy
    else:
        return None
    return None if dtype.kind == "b" else dtype


def compile_call(
    operator: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    role_of: dict[str, ParameterRole],
    arrays: Sequence[Any],
    device: ArrayLibrary | None,
) -> Run | None:
    """The function of its arrays that a call is; None if it is refused, so that the error can speak of the arrays, or
    gives what it is given. A call on ``device`` has no other way to be carried out, or to fail."""
    builder = Builder()
    try:
        inputs = iter([builder.input(_type_of(a), f"x{i}") for i, a in enumerate(arrays)])
        named = [*zip(role_of, args, strict=False), *kwargs.items()]
        given = {name: _replace_arrays(value, role_of[name], inputs) for name, value in named}
        results = operator(*list(given.values())[: len(args)], **{name: given[name] for name in kwargs})
        graph = builder.build(results, allow_unused=True)
    except (ShapeError, DTypeError, UnsupportedError):
        if device is not None:
            raise
        return None
    if device is not None:
        return partial(device.run, graph)
    return _function(graph) if graph.nodes else None


def _replace_arrays(value: Any, role: ParameterRole, inputs: Iterator[Var]) -> Any:
    """An argument with variables in the place of arrays."""
    kind = type(value)
    if role is ParameterRole.ATTRIBUTE:
        return value
    if kind is ndarray or (role is ParameterRole.OPERAND and kind in (int, float)) or library_of(value) is not None:
        return next(inputs)
    return kind(_replace_arrays(part, role, inputs) for part in value) if kind in (tuple, list) else value

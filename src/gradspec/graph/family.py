"""Models whose sizes are open: a plain graph for each size and float dtype that is met, made then and remembered.

A graph has fixed shapes and dtypes, and that is what makes it fast and exact. A family has one way to make such graphs,
``make(sizes, dtype)``, and everything that can be asked of it is asked of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from gradspec.graph.arrays import as_array, plain_floats
from gradspec.graph.builder import is_symbolic_zero
from gradspec.graph.graph import Graph, Wrt
from gradspec.graph.ir import Array
from gradspec.graph.lru import LRUCache
from gradspec.graph.show import ascii_only
from gradspec.graph.types import DType, TensorType, type_of
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.window import whole_number

MOST_GRAPHS = 32
"""Graphs that a family remembers."""

Sizes: TypeAlias = Mapping[str, int]
Make: TypeAlias = Callable[[Sizes, DType | None], Graph]
"""The graph for these sizes, with another float dtype unless that is None."""


@dataclass(frozen=True)
class OpenType:
    """A type with names in the place of some sizes.

    >>> OpenType(gs.f32, ("batch", 3, 8, 8))
    f32[batch, 3, 8, 8]
    """

    dtype: DType
    dims: tuple[int | str, ...]

    def at(self, sizes: Sizes, dtype: DType | None = None) -> TensorType:
        """The type with these sizes, and with another dtype if it is one of floats."""
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        return TensorType(dtype if dtype and self.dtype.is_float else self.dtype, shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(ascii_only(str(d)) for d in self.dims) or '()'}]"


class Family:
    """A graph for each size, and each float dtype, of its inputs.

    ``family(x)`` runs the graph for arrays like ``x``; ``family.at(batch=8)`` or ``family.at(x)`` returns it. Graphs of
    a family share the memory of equal constants.

    >>> def make(sizes, dtype):
    ...     return gs.trace(lambda x: gs.sum(x * x, 1), (dtype or gs.f32)[sizes["batch"], 3])
    >>> squares = Family({"x": OpenType(gs.f32, ("batch", 3))}, make)
    >>> squares(np.ones((2, 3), np.float32)).tolist(), squares(np.ones((1, 3))).dtype
    ([3.0, 3.0], dtype('float64'))
    >>> print(squares)
    family(x: f32[batch, 3]), with graphs for:
      batch=2
      batch=1, f64
    """

    def __init__(
        self, inputs: Mapping[str, OpenType], make: Make, example: Graph | None = None, most: int = MOST_GRAPHS
    ) -> None:
        self.inputs = MappingProxyType(dict(inputs))
        """The inputs that settle sizes; graphs may have more, such as cotangents."""
        self.sizes = tuple(dict.fromkeys(d for t in inputs.values() for d in t.dims if isinstance(d, str)))
        """The names of the open sizes."""
        self._make, self._graphs, self._constants = make, LRUCache[Graph](most), _SharedConstants()
        self._lock = RLock()  # PyTorch captures one model at a time
        self._example: Graph | None = None
        if example is not None:
            self._example = self._constants.shared(example)
            self._graphs.put(self._key(*self._infer_sizes([v.type for v in example.inputs])), self._example)

    def __call__(self, *arrays: object) -> Any:
        """Run on arrays: one array for one output, a tuple for several."""
        return self.at(*arrays)(*arrays)

    def at(self, *like: object, dtype: DType | None = None, **sizes: int) -> Graph:
        """The graph for arrays or types like these, or for sizes by name, ``at(batch=8, dtype=gs.f64)``."""
        if like and (sizes or dtype):
            raise TypeError("give arrays or types of the inputs, or sizes by name and a dtype, not both")
        return self._graph(*(self._infer_sizes(like) if like else (self._check_names(sizes), self._new_dtype(dtype))))

    def jvp(self, wrt: Wrt = None) -> Family:
        """The family of the graphs' ``jvp``: ``(inputs…, tangents…) → (outputs…, output tangents…)``."""
        return self._derive(lambda graph: graph.jvp(wrt))

    def vjp(self, wrt: Wrt = None) -> Family:
        """The family of the graphs' ``vjp``: ``(inputs…, output cotangents…) → (outputs…, input cotangents…)``."""
        return self._derive(lambda graph: graph.vjp(wrt))

    def example(self) -> Graph:
        """The first graph that was made; it has the model's float dtype unless only others were requested."""
        if self._example is None:
            sizes = ", ".join(f"{name}=…" for name in self.sizes)
            raise ValueError(f"the family has made no graph so far, to show what all have; make one: at({sizes})")
        return self._example

    def _derive(self, how: Callable[[Graph], Graph]) -> Family:
        example = None if self._example is None else how(self._example)
        return Family(self.inputs, lambda sizes, dtype: how(self._graph(sizes, dtype)), example)

    # --- graphs -------------------------------------------------------------------------------------------------------

    def _graph(self, sizes: Sizes, dtype: DType | None) -> Graph:
        key = self._key(sizes, dtype)
        found = self._graphs.get(key)
        if found is not None:
            return found
        with self._lock:
            return self._graphs.get_or_make(key, lambda: self._new(sizes, dtype))

    def _key(self, sizes: Sizes, dtype: DType | None) -> tuple[Any, ...]:
        return tuple(sizes[name] for name in self.sizes), dtype

    def _new(self, sizes: Sizes, dtype: DType | None) -> Graph:
        made = self._make(sizes, dtype)
        wanted = [t.at(sizes, dtype) for t in self.inputs.values()]
        found = [v.type for v in made.inputs[: len(wanted)]]
        if found != wanted:
            raise ShapeError(f"for {self._said(sizes, dtype)} the inputs should be {wanted}, and the model has {found}")
        graph = self._constants.shared(made)
        if self._example is None:
            self._example = graph
        return graph

    # --- sizes and dtypes ---------------------------------------------------------------------------------------------

    def _check_names(self, sizes: Sizes) -> Sizes:
        if {*sizes} != {*self.sizes}:
            wanted = ", ".join(f"{name}=…" for name in self.sizes)
            given = ", ".join(f"{name}={n}" for name, n in sizes.items()) or "nothing"
            raise ShapeError(f"the open sizes are {wanted or 'none'}, and {given} was given; give each of them once")
        return {name: whole_number(name, sizes[name], 0) for name in self.sizes}

    def _infer_sizes(self, given: Sequence[Any]) -> tuple[Sizes, DType | None]:
        """The sizes and the other float dtype that arrays or types have; those beyond the inputs have no say."""
        if len(given) < len(self.inputs):
            raise TypeError(f"the family takes {len(self.inputs)} arrays {self.signature}, not {len(given)}")
        sizes: dict[str, tuple[int, str]] = {}
        dtypes: dict[str, DType] = {}
        for (name, stated), value in zip(self.inputs.items(), given, strict=False):
            found = _type(value, stated)
            _settle(name, stated, found, sizes)
            _require_kind(name, stated, found)
            if stated.dtype.is_float and not isinstance(value, int | float) and plain_floats(value) is None:
                dtypes[name] = found.dtype
        return {name: n for name, (n, _) in sizes.items()}, self._common(dtypes)

    def _common(self, dtypes: Mapping[str, DType]) -> DType | None:
        """The one dtype of all floats that are given, None if each is as stated."""
        if all(self.inputs[name].dtype == dtype for name, dtype in dtypes.items()):
            return None
        if len({*dtypes.values()}) > 1:
            given = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
            raise DTypeError(
                f"the family takes {self.signature} in these float dtypes, or all in one other; it was given "
                f"{given}; convert some of them"
            )
        return self._new_dtype(next(iter(dtypes.values())))

    def _new_dtype(self, dtype: DType | None) -> DType | None:
        """A float dtype that is asked for, None if all inputs have it."""
        if dtype is None:
            return None
        if not (isinstance(dtype, DType) and dtype.is_float):
            raise DTypeError(f"a family has graphs of other float dtypes, and {dtype} is none; give one such as gs.f64")
        stated = {t.dtype for t in self.inputs.values() if t.dtype.is_float}
        if len(stated) > 1:
            raise DTypeError(
                f"the family takes {self.signature}: with floats of more than one dtype it is not clear what "
                f"{dtype} would stand for; give arrays of these types"
            )
        return None if stated == {dtype} else dtype

    # --- words --------------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> str:
        """``(x: f32[batch, 3, 8, 8])``."""
        return f"({', '.join(f'{ascii_only(name)}: {t}' for name, t in self.inputs.items())})"

    def _said(self, sizes: Sizes, dtype: DType | None) -> str:
        parts = [*(f"{ascii_only(name)}={n}" for name, n in sizes.items()), *([str(dtype)] if dtype else [])]
        return ", ".join(parts) or "the sizes of the example"

    def __str__(self) -> str:
        keys: Any = self._graphs.keys()
        lines = [f"  {self._said(dict(zip(self.sizes, sizes, strict=True)), dtype)}" for sizes, dtype in keys]
        return "\n".join([f"family{self.signature}" + (", with graphs for:" if lines else ""), *lines])

    __repr__ = __str__

    def __deepcopy__(self, memo: object) -> Family:
        return self  # it never changes what it means

    def __reduce__(self) -> NoReturn:
        raise TypeError("a family holds the model that it was made of and cannot be pickled; save graphs of it: at(…)")


def _type(value: object, stated: OpenType) -> TensorType:
    """The type of an array; plain numbers, alone or in lists, take the dtype of their input."""
    if isinstance(value, TensorType):
        return value
    if isinstance(value, int | float):
        return TensorType(stated.dtype, ())
    plain = plain_floats(value, stated.dtype.numpy) if stated.dtype.is_float else None
    return type_of(as_array(value) if plain is None else plain)


def _settle(name: str, stated: OpenType, found: TensorType, sizes: dict[str, tuple[int, str]]) -> None:
    """Note the sizes that names stand for, each with the input that says so. All must fit."""
    given = f"input {name}: {stated} was given {found}"
    if found.ndim != len(stated.dims):
        raise ShapeError(f"{given}; pass an array of {len(stated.dims)} axes")
    for axis, (dim, n) in enumerate(zip(stated.dims, found.shape, strict=True)):
        if not isinstance(dim, str):
            if dim != n:
                raise ShapeError(f"{given}: axis {axis} is {dim}, and not open; pass an array of that size")
            continue
        settled, where = sizes.setdefault(dim, (n, name))
        if settled != n:
            raise ShapeError(f"{given}: {dim} is {n}, and {settled} in {where}; what has one name must have one size")


def _require_kind(name: str, stated: OpenType, found: TensorType) -> None:
    if found.dtype != stated.dtype and not (found.is_float and stated.dtype.is_float):
        fitting = "floats" if stated.dtype.is_float else f"numbers of {stated.dtype}"
        raise DTypeError(f"input {name}: {stated} was given {found}; convert it to {fitting}")


# --- shared memory ----------------------------------------------------------------------------------------------------


class _SharedConstants:
    """The constants of the graphs that are alive, by name and type: equal ones are kept once."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[tuple[str, TensorType], Array] = WeakValueDictionary()

    def shared(self, graph: Graph) -> Graph:
        constants = {v: self._first((v.name, v.type), array) for v, array in graph.constants.items()}
        return Graph(graph.inputs, graph.nodes, graph.outputs, MappingProxyType(constants))

    def _first(self, key: tuple[str, TensorType], array: Array) -> Array:
        if is_symbolic_zero(array):
            return array
        kept = self._kept.setdefault(key, array)
        return kept if kept is array or _same_bits(kept, array) else array


def _same_bits(a: Array, b: Array) -> bool:
    return a.flags.c_contiguous and b.flags.c_contiguous and np.array_equal(_bits(a), _bits(b))


def _bits(array: Array) -> Array:
    return array.reshape(-1).view(f"u{array.itemsize}")


def require_graph(caller: str, graph: object) -> None:
    """That what a function was given for a graph is one."""
    if isinstance(graph, Family):
        sizes = ", ".join(f"{name}=8" for name in graph.sizes)
        raise TypeError(f"{caller} needs a graph, whose sizes are settled, and not a family; give family.at({sizes})")
    if not isinstance(graph, Graph):
        makers = "gs.trace(function, *types) or gs.from_torch(module, *examples)"
        raise TypeError(f"{caller} needs a graph, such as {makers} gives, not {type(graph).__name__}")

"""The inputs of a model: their types, symbolic dimensions bound by ``shapes``, and those fixed by ``constants``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

import numpy as np
from onnx import TypeProto

from gradspec.graph.arrays import native
from gradspec.graph.ir import Array
from gradspec.interop.onnx.files import MAX_RANK, kind_of
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import DTypeError, FormatError, ShapeError, UnsupportedError

Dim: TypeAlias = int | str | None
"""A size, the name of one, or nothing."""


@dataclass(frozen=True)
class Declared:
    """The type of a value as the model states it; ``dims`` is None where not even the rank is stated."""

    kind: np.dtype[Any] | None
    dims: tuple[Dim, ...] | None

    @property
    def is_open(self) -> bool:
        return self.dims is None or any(not isinstance(dim, int) for dim in self.dims)

    def contradicts(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> bool:
        return self.contradicts_kind(kind) or self.contradicts_shape(shape)

    def contradicts_kind(self, kind: np.dtype[Any]) -> bool:
        return self.kind is not None and self.kind != kind

    def contradicts_shape(self, shape: tuple[int, ...]) -> bool:
        return self.dims is not None and (
            len(self.dims) != len(shape)
            or any(isinstance(d, int) and d != n for d, n in zip(self.dims, shape, strict=True))
        )

    def __str__(self) -> str:
        sizes = ", ".join("?" if dim is None else str(dim) for dim in self.dims or ())
        return f"{self.kind or 'any type'} {'any shape' if self.dims is None else f'[{sizes}]'}"


def declared(type_: TypeProto) -> Declared:
    """The stated type of a tensor; other kinds of values are not supported."""
    which = type_.WhichOneof("value")
    if which != "tensor_type":
        if which is None:
            return Declared(None, None)
        raise UnsupportedError(f"values of the kind {which.removesuffix('_type')}")
    tensor = type_.tensor_type
    kind = kind_of(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Declared(kind, None)
    if len(tensor.shape.dim) > MAX_RANK:
        raise FormatError(f"a tensor of {len(tensor.shape.dim)} axes; at most {MAX_RANK} are read")
    return Declared(kind, tuple(map(_dim, tensor.shape.dim)))


def _dim(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if dim.dim_param else None


# --- shapes= ----------------------------------------------------------------------------------------------------------


def bound_shapes(inputs: Mapping[str, Declared], given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every input: as stated, with the names and the whole shapes that the caller gave."""
    shapes, unbound = {}, {}
    for name, dims in partly_bound(inputs, given).items():
        sizes = tuple(d for d in dims or () if isinstance(d, int))
        if dims is None or len(sizes) < len(dims):
            unbound[name] = dims
        else:
            shapes[name] = sizes
    if unbound:
        said = "; ".join(f"{name}: {inputs[name]}" for name in [*unbound][:16])
        raise ShapeError(f"the model leaves sizes open: {said}; give them: shapes={_suggestion(unbound)}")
    return shapes


def partly_bound(inputs: Mapping[str, Declared], given: Mapping[str, Any]) -> dict[str, tuple[Dim, ...] | None]:
    """The sizes of every input as far as they are known, then their names; None where not even the rank is."""
    whole = {
        name: tuple(_size(name, size) for size in shape) for name, shape in given.items() if isinstance(shape, Sequence)
    }
    sizes = {name: _size(name, size) for name, size in given.items() if name not in whole}
    dimensions = [dim for stated in inputs.values() for dim in stated.dims or () if isinstance(dim, str)]
    # One number for an input is the size of its only axis.
    whole |= {name: (sizes.pop(name),) for name in list(sizes) if name in inputs and name not in dimensions}
    _require_known("shapes", whole, inputs, "an input")
    _require_known("shapes", sizes, dimensions, "a dimension")
    for name, shape in whole.items():
        _bind(name, inputs[name], shape, sizes)
    return {name: whole[name] if name in whole else _filled(stated, sizes) for name, stated in inputs.items()}


def open_shapes(inputs: Mapping[str, Declared], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Those of ``shapes`` that settle something: the others are compared with what the model states later."""
    return {name: shapes[name] for name, stated in inputs.items() if name in shapes and stated.is_open}


def _size(name: str, size: Any) -> int:
    try:
        number = None if isinstance(size, bool) else index(size)
    except TypeError:
        number = None
    if number is None or number < 0:
        raise ShapeError(f"shapes: {name!r} is given the size {size!r}; an int of at least 0 is needed")
    return number


def _require_known(argument: str, given: Iterable[str], known: Iterable[str], what: str) -> None:
    names = dict.fromkeys(known)
    unknown = [name for name in given if name not in names]
    if unknown:
        have = ", ".join(map(brief, [*names][:16])) or "none"
        raise ShapeError(f"{argument}: {', '.join(map(repr, unknown))} is not {what} of the model; it has {have}")


def _bind(name: str, stated: Declared, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Let a whole shape fix the names of its dimensions, which must agree wherever they are used."""
    if stated.dims is not None and len(stated.dims) != len(shape):
        raise ShapeError(f"{name!r} is {stated}, so the shape {shape} does not have its rank")
    for dim, size in zip(stated.dims or (), shape, strict=False):
        settled = sizes.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim
        if settled != size:
            known = f" with {settled} for {dim}" if isinstance(dim, str) else ""
            raise ShapeError(f"{name!r} is {stated}{known}, so the shape {shape} does not fit")


def _filled(stated: Declared, sizes: Mapping[str, int]) -> tuple[Dim, ...] | None:
    if stated.dims is None:
        return None
    return tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in stated.dims)


def _suggestion(unbound: Mapping[str, tuple[Dim, ...] | None]) -> str:
    """What to write: a number for each name, and whole shapes where a dimension has none."""
    names = dict.fromkeys(dim for dims in unbound.values() for dim in dims or () if isinstance(dim, str))
    nameless = [name for name, dims in unbound.items() if dims is None or None in dims]
    return f"{{{', '.join([*(f'{name!r}: …' for name in names), *(f'{name!r}: (…)' for name in nameless)])}}}"


# --- dynamic= ---------------------------------------------------------------------------------------------------------

OpenDims: TypeAlias = tuple[int | str, ...]
Axis: TypeAlias = str | tuple[str, int]
"""A dimension by its name in the model, or by input and axis."""


def open_dims(inputs: Mapping[str, Declared], shapes: Mapping[str, Any], dynamic: Any) -> dict[str, OpenDims]:
    """The dimensions of every input, with names for those that neither the model nor ``shapes`` settles.

    The names are the model's, or the input's with the axis where it has none; or those that ``dynamic`` says,
    ``{"x": {0: "batch"}}``, which then names all of them.
    """
    found = _with_rank(partly_bound(inputs, shapes))
    names = None if dynamic is True else _names(found, dynamic)

    def named(name: str, axis: int, dim: Dim) -> int | str | None:
        if isinstance(dim, int):
            return dim
        return names.get(dim or (name, axis)) if names is not None else dim or f"{name}.{axis}"

    opened = {name: tuple(named(name, i, dim) for i, dim in enumerate(dims)) for name, dims in found.items()}
    left = [f"{name}: {inputs[name]}" for name, dims in opened.items() if None in dims]
    if left:
        raise ShapeError(
            f"the model leaves sizes open that dynamic does not name: {'; '.join(left[:16])}; name them too, give them "
            "by shapes=, or open all: dynamic=True"
        )
    return {name: tuple(d for d in dims if d is not None) for name, dims in opened.items()}


def _with_rank(found: Mapping[str, tuple[Dim, ...] | None]) -> dict[str, tuple[Dim, ...]]:
    unknown = {name: dims for name, dims in found.items() if dims is None}
    if unknown:
        raise ShapeError(
            f"the model does not say how many axes {', '.join(map(brief, unknown))} has; give the whole shape: "
            f"shapes={_suggestion(unknown)}"
        )
    return {name: dims for name, dims in found.items() if dims is not None}


def _names(found: Mapping[str, tuple[Dim, ...]], dynamic: Any) -> dict[Axis, str]:
    """What ``dynamic`` calls the open dimensions."""
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise TypeError(
            f"dynamic={dynamic!r} does not name sizes; give True for all that are open, or names, such as "
            "dynamic={'x': {0: 'batch'}}"
        )
    names: dict[Axis, str] = {}
    for name, axes in dynamic.items():
        if name not in found:
            raise ValueError(f"dynamic names {name!r}; the model's inputs are {', '.join(map(brief, [*found][:16]))}")
        for axis, called in axes.items():
            key = _open_axis(name, found[name], axis)
            if not isinstance(called, str) or names.setdefault(key, called) != called:
                raise ValueError(f"dynamic calls axis {axis} of {name!r} {called!r}; a dimension has one name, a text")
    return names


def _open_axis(name: str, dims: tuple[Dim, ...], axis: Any) -> Axis:
    if not -len(dims) <= index(axis) < len(dims):
        raise ShapeError(f"dynamic names axis {axis} of {name!r}, which has {len(dims)} axes")
    dim = dims[index(axis)]
    if isinstance(dim, int):
        raise ShapeError(f"dynamic names axis {axis} of {name!r}, which the model or shapes= settles: it is {dim}")
    return dim or (name, index(axis) % len(dims))


# --- constants= -------------------------------------------------------------------------------------------------------


def bound_constants(inputs: Mapping[str, Declared], given: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays for the inputs that the caller fixes, of the types that the model states."""
    _require_known("constants", given, inputs, "an input")
    return {name: _constant(name, inputs[name], value) for name, value in given.items()}


def _constant(name: str, stated: Declared, value: Any) -> Array:
    array = native(np.array(value))
    if not hasattr(value, "dtype") and stated.kind is not None and _can_hold(stated.kind, array):
        array = array.astype(stated.kind)  # Python numbers have no kind of their own
    if stated.contradicts(array.shape, array.dtype):
        error = DTypeError if stated.kind != array.dtype else ShapeError
        raise error(f"constants: {name!r} is {stated}, so {array.dtype} {list(array.shape)} does not fit; convert it")
    array.flags.writeable = False
    return array


def _can_hold(kind: np.dtype[Any], numbers: Array) -> bool:
    """Whether numbers keep their values; floats may be rounded, but do not become integers."""
    if kind.kind not in "iub" or numbers.size == 0:
        return True
    return numbers.dtype.kind in "iub" and np.array_equal(numbers.astype(kind), numbers)

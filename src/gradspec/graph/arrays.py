"""Arrays of the caller's kind: what NumPy sees of them, without copies, and results as the caller has them.

Arrays of other libraries are known by what these libraries say of their types. ``gradspec.interop.arrays`` registers
PyTorch's tensors and JAX's arrays; everything else that NumPy can look into comes back as a NumPy array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, Protocol

import numpy as np

from gradspec.graph import tree
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError

DEFAULT = np.dtype(np.float32)
"""Of floats that have no dtype and nothing beside them that has one."""


class Kind(Protocol):
    """The arrays of one library."""

    name: str
    wants_aligned: bool
    """Whether memory is taken over as it is only if it begins at a multiple of 64 bytes."""

    def owns(self, type: type) -> bool:
        """Whether objects of ``type`` are arrays of this library."""

    def take(self, value: Any) -> Array:
        """The memory of one of its arrays, as NumPy sees it; an error if that would lose what the library tracks."""

    def give(self, array: Array, like: Any) -> Any:
        """A NumPy array as one of this library, where ``like`` is one."""

    def is_away(self, value: Any) -> bool:
        """Whether one of its arrays lies in the memory of a device, where ``run`` computes with it."""

    def type_of(self, value: Any) -> TensorType:
        """The type of an array that is away; an error if the library would lose track of it."""

    def run(self, graph: Any, arrays: Sequence[Any]) -> Any:
        """A graph on arrays that are away; numbers without axes may be among them, as NumPy's arrays."""


_KINDS: list[Kind] = []


def register_kind(kind: Kind) -> None:
    _KINDS.append(kind)
    _kind_of_type.cache_clear()


@lru_cache(maxsize=1024)
def _kind_of_type(type: type) -> Kind | None:
    return next((kind for kind in _KINDS if kind.owns(type)), None)


def kind_of(value: Any) -> Kind | None:
    """The library whose array this is; None for NumPy's, and for what is not an array."""
    return _kind_of_type(value.__class__)


def away_kind(values: Iterable[Any]) -> Kind | None:
    """The library of the first array that lies in the memory of a device."""
    for value in values:
        kind = None if type(value) is np.ndarray else kind_of(value)
        if kind is not None and kind.is_away(value):
            return kind
    return None


def as_array(value: Any) -> Array:
    """Any array, number or nested list as a NumPy array: the same memory wherever there is some.

    >>> import array
    >>> row = array.array("d", [1.0, 2.0])
    >>> seen = as_array(row)
    >>> row[0] = 5.0
    >>> seen
    array([5., 2.])
    """
    return native(value) if type(value) is np.ndarray else as_numpy(taken(value))


def native(array: Array) -> Array:
    """The array in the byte order of this machine, which kernels know: itself, unless the bytes must be exchanged.

    >>> native(np.array([1, 2], ">f4")).dtype
    dtype('float32')
    """
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class OtherKindError(Exception):
    """An array of another library was met where only NumPy's were expected."""


def require_numpy(value: Any) -> None:
    if kind_of(value) is not None:
        raise OtherKindError(type(value))


def as_numpy(value: Any) -> Array:
    """As ``as_array``, but the arrays of a library that has a kind raise OtherKindError."""
    if type(value) is np.ndarray:
        return native(value)
    require_numpy(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return _from_dlpack(value)
    floats = plain_floats(value)
    return native(np.asarray(value)) if floats is None else floats


def plain_floats(value: Any, dtype: np.dtype[Any] = DEFAULT) -> Array | None:
    """A float of Python, or a nested list of its numbers that has one, which have no dtype of their own, as ``dtype``.

    >>> plain_floats([1.0, 2]).dtype, plain_floats([1, 2]), plain_floats([np.float64(1)])
    (dtype('float32'), None, None)
    """
    is_list = isinstance(value, list | tuple)
    if type(value) is not float and not (is_list and {float} <= _kinds(value) <= {bool, int, float}):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype)


def _kinds(values: Any) -> set[type]:
    found: set[type] = set()
    for value in values:
        found |= _kinds(value) if isinstance(value, list | tuple) else {type(value)}
    return found


def _from_dlpack(value: Any) -> Array:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as error:
        raise UnsupportedError(
            f"NumPy cannot look into this {type(value).__name__} ({error}); move it to the CPU, or convert it to NumPy"
        ) from error


def taken(value: Any) -> Any:
    """An array of another library as NumPy sees it, anything else as it is."""
    kind = kind_of(value)
    return value if kind is None else kind.take(value)


def other_array(values: Iterable[Any]) -> Any:
    """The first array of another library, whose kind the results will have; None if all are NumPy's or numbers."""
    found, found_kind = None, None
    for value in values:
        kind = kind_of(value)
        if kind is None or kind is found_kind:
            continue
        if found_kind is not None:
            raise TypeError(
                f"arrays of {found_kind.name} and of {kind.name} were given together, so that the result could be "
                "either; convert one of them (NumPy arrays and numbers go with both)"
            )
        found, found_kind = value, kind
    return found


def returned(result: Any, like: Any) -> Any:
    """A NumPy array in the kind of ``like``; anything else as it is."""
    kind = kind_of(like)
    return kind.give(result, like) if kind is not None and isinstance(result, np.ndarray) else result


# --- functions of arrays ----------------------------------------------------------------------------------------------

_aligned: ContextVar[bool] = ContextVar("aligned", default=False)


def wants_aligned() -> bool:
    """Whether the arrays that are made now go to a library that takes over aligned memory only."""
    return _aligned.get()


def takes_aligned(like: Any) -> bool:
    """Whether the library that ``like`` belongs to takes over aligned memory only."""
    kind = kind_of(like)
    return kind is not None and kind.wants_aligned


@contextmanager
def _making_arrays_for(like: Any) -> Iterator[None]:
    token = _aligned.set(takes_aligned(like))
    try:
        yield
    finally:
        _aligned.reset(token)


def call_in_kind(function: Callable[..., Any], like: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of trees of NumPy arrays, on arrays of any kind: that of ``like``, and of the results."""
    like = other_array([like, *tree.leaves((args, kwargs))])
    if like is None:
        return function(*args, **kwargs)
    args, kwargs = tree.map_leaves(taken, (args, kwargs))
    with _making_arrays_for(like):
        results = function(*args, **kwargs)
    return tree.map_leaves(lambda result: returned(result, like), results)


def of_any_kind(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on NumPy arrays as one on arrays of any kind, which returns arrays of that kind."""

    @wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if type(value) not in _PLAIN and any(map(kind_of, _parts(value))):
                return call_in_kind(operator, None, *args, **kwargs)
        return operator(*args, **kwargs)

    return call


_PLAIN = frozenset((np.ndarray, Var, int, float, bool, str, type(None)))


def _parts(value: Any) -> list[Any]:
    return [part for child in value for part in _parts(child)] if isinstance(value, list | tuple) else [value]

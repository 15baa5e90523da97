"""Foreign arrays: NumPy's views of the caller's arrays, without copies, and results in the caller's library.

``gradspec.interop.arrays`` registers PyTorch and JAX. Arrays of other libraries that NumPy can read give NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from typing import Any, Protocol

import numpy as np

from gradspec.graph import tree
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError

DEFAULT = np.dtype(np.float32)
"""The dtype of Python floats that stand beside no array."""


class ArrayLibrary(Protocol):
    """A library with arrays of its own."""

    name: str
    wants_aligned: bool
    """Whether the library adopts memory without a copy only if it begins at a multiple of 64 bytes."""

    def owns(self, type: type) -> bool:
        """Whether objects of ``type`` are arrays of this library."""

    def to_numpy(self, value: object) -> Array:
        """A NumPy view of one of its arrays; an error if the library would lose track of it."""

    def from_numpy(self, array: Array, like: object) -> Any:
        """A NumPy array as an array of this library, like its array ``like``."""

    def is_on_device(self, value: object) -> bool:
        """Whether one of its arrays is in device memory, where ``run`` computes with it."""

    def type_of(self, value: object) -> TensorType:
        """The type of an array on a device; an error if the library would lose track of it."""

    def run(self, graph: object, arrays: Sequence[Any]) -> Any:
        """Run a graph on arrays on a device; NumPy arrays without axes may be among them."""


_LIBRARIES: list[ArrayLibrary] = []


def register_library(library: ArrayLibrary) -> None:
    _LIBRARIES.append(library)
    _library_of_type.cache_clear()


@lru_cache(maxsize=1024)
def _library_of_type(type: type) -> ArrayLibrary | None:
    return next((library for library in _LIBRARIES if library.owns(type)), None)


def library_of(value: Any) -> ArrayLibrary | None:
    """The library of a foreign array; None for NumPy's arrays, and for other objects."""
    return _library_of_type(value.__class__)


def device_library(values: Iterable[Any]) -> ArrayLibrary | None:
    """The library of the first array that is in device memory."""
    for value in values:
        library = None if type(value) is np.ndarray else library_of(value)
        if library is not None and library.is_on_device(value):
            return library
    return None


def as_array(value: object) -> Array:
    """Any array, number or nested list as a NumPy array: the same memory wherever there is some.

    >>> import array
    >>> row = array.array("d", [1.0, 2.0])
    >>> seen = as_array(row)
    >>> row[0] = 5.0
    >>> seen
    array([5., 2.])
    """
    return native(value) if type(value) is np.ndarray else as_numpy(to_numpy(value))


def native(array: Array) -> Array:
    """The array in the byte order of this machine, copied only if its bytes must be swapped.

    >>> native(np.array([1, 2], ">f4")).dtype
    dtype('float32')
    """
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class ForeignArrayError(Exception):
    """An array of another library stands where only NumPy's are expected."""


def require_numpy(value: object) -> None:
    if library_of(value) is not None:
        raise ForeignArrayError(type(value))


def as_numpy(value: object) -> Array:
    """As ``as_array``, but arrays of registered libraries raise ForeignArrayError."""
    if type(value) is np.ndarray:
        return native(value)
    require_numpy(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return _from_dlpack(value)
    floats = plain_floats(value)
    return native(np.asarray(value)) if floats is None else floats


def plain_floats(value: object, dtype: np.dtype[Any] = DEFAULT) -> Array | None:
    """A Python float, or a nested list of Python numbers with a float among them, as ``dtype``; None for the rest.

    >>> plain_floats([1.0, 2]).dtype, plain_floats([1, 2]), plain_floats([np.float64(1)])
    (dtype('float32'), None, None)
    """
    is_list = isinstance(value, list | tuple)
    if type(value) is not float and not (is_list and {float} <= _number_types(value) <= {bool, int, float}):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype)


def _number_types(values: Any) -> set[type]:
    types: set[type] = set()
    for value in values:
        types |= _number_types(value) if isinstance(value, list | tuple) else {type(value)}
    return types


def _from_dlpack(value: Any) -> Array:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as error:
        raise UnsupportedError(
            f"NumPy cannot look into this {type(value).__name__} ({error}); move it to the CPU, or convert it to NumPy"
        ) from error


def to_numpy(value: object) -> Any:
    """A NumPy view of a foreign array; any other object unchanged."""
    library = library_of(value)
    return value if library is None else library.to_numpy(value)


def foreign_array(values: Iterable[Any]) -> Any:
    """The first foreign array, whose library the results will have; None if there is none."""
    first, first_library = None, None
    for value in values:
        library = library_of(value)
        if library is None or library is first_library:
            continue
        if first_library is not None:
            raise TypeError(
                f"arrays of {first_library.name} and of {library.name} were given together, so that the result could "
                "be either; convert one of them (NumPy arrays and numbers go with both)"
            )
        first, first_library = value, library
    return first


def to_library_of(like: object, result: object) -> Any:
    """A NumPy array as an array of the library of ``like``; any other object unchanged."""
    library = library_of(like)
    return library.from_numpy(result, like) if library is not None and isinstance(result, np.ndarray) else result


# --- functions of arrays ----------------------------------------------------------------------------------------------

_aligned: ContextVar[bool] = ContextVar("aligned", default=False)


def wants_aligned() -> bool:
    """Whether arrays made now go to a library that adopts aligned memory only."""
    return _aligned.get()


def takes_aligned(like: object) -> bool:
    """Whether the library of ``like`` adopts aligned memory only."""
    library = library_of(like)
    return library is not None and library.wants_aligned


def call_on_foreign(function: Callable[..., Any], like: object, *args: object, **kwargs: object) -> Any:
    """Call a function of trees of NumPy arrays on foreign arrays; results are of their library, or ``like``'s."""
    like = foreign_array([like, *tree.leaves((args, kwargs))])
    if like is None:
        return function(*args, **kwargs)
    args, kwargs = tree.map_leaves(to_numpy, (args, kwargs))
    token = _aligned.set(takes_aligned(like))
    try:
        results = function(*args, **kwargs)
    finally:
        _aligned.reset(token)
    return tree.map_leaves(partial(to_library_of, like), results)


def accepts_foreign_arrays(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Let an operator on NumPy arrays accept foreign arrays, and return arrays of their library."""

    @wraps(operator)
    def call(*args: object, **kwargs: object) -> Any:
        for value in (*args, *kwargs.values()):
            if type(value) not in _PLAIN and any(map(library_of, _parts(value))):
                return call_on_foreign(operator, None, *args, **kwargs)
        return operator(*args, **kwargs)

    return call


_PLAIN = frozenset((np.ndarray, Var, int, float, bool, str, type(None)))


def _parts(value: object) -> list[Any]:
    return [part for child in value for part in _parts(child)] if isinstance(value, list | tuple) else [value]

"""What the lowerings ask of an array library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from gradspec.graph.types import DType
from gradspec.spec.window import Window

Array: TypeAlias = Any
"""An array of the library that a lowering is bound to."""

LibraryDType: TypeAlias = Any
"""A dtype of that library."""

Numbers = TypeVar("Numbers", bound=Any)
"""An array of any one library."""

Lowering: TypeAlias = Callable[..., Any]
"""A function of a namespace, an attribute record and arrays."""


class Namespace(ABC):
    """An array library under NumPy's names: its own functions, and as methods those that it names or does otherwise."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        setattr(self, name, function)  # so that Python finds it at once from now on
        return function

    # --- dtypes -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def dtype(self, dtype: DType) -> LibraryDType:
        """The library's own dtype."""

    @abstractmethod
    def cast(self, x: Array, dtype: LibraryDType) -> Array:
        """``x`` as numbers of one of the library's dtypes."""

    @abstractmethod
    def is_float(self, x: Array) -> bool:
        """Whether its numbers have fractions."""

    def rounds_twice(self, x: Array, dtype: DType) -> bool:
        """Whether ``cast`` to a small format rounds to float32 on the way."""
        return False

    # --- functions of numbers -----------------------------------------------------------------------------------------

    @abstractmethod
    def trunc_divide(self, a: Array, b: Array) -> Array:
        """The quotient of integers without its fraction; ``b`` is nowhere 0."""

    @abstractmethod
    def normal_cdf(self, x: Array) -> Array: ...

    @abstractmethod
    def normal_density(self, x: Array) -> Array: ...

    # --- functions of axes --------------------------------------------------------------------------------------------

    @abstractmethod
    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        """In the dtype of ``x``; over no axis where none is named."""

    @abstractmethod
    def cumsum(self, x: Array, axis: int) -> Array:
        """In the dtype of ``x``."""

    @abstractmethod
    def matmul(self, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array: ...

    # --- indices ------------------------------------------------------------------------------------------------------

    def checked(self, indices: Array, size: int, error: Callable[[int, int], Exception], least: int = 0) -> Array:
        """Indices as the library takes them, all from ``least`` to below ``size``: ``error`` of another is raised.

        On a GPU a wrong index would end the process's use of the device.
        """
        outside = (indices < least) | (indices >= size)
        if bool(outside.any()):
            raise error(int(indices[outside][0]), size)
        return self.cast(indices, self.int64)

    def zeros(self, shape: tuple[int, ...], like: Array) -> Array:
        """In the dtype, and on the device, of ``like``."""
        raise NotImplementedError

    def add_rows(self, size: int, places: Array, rows: Array) -> Array:
        """``size`` rows, each the sum of ``rows`` at its place, in their order and from 0 on."""
        raise NotImplementedError

    def put_rows(self, x: Array, places: Array, rows: Array) -> Array:
        """``x`` with ``rows`` at their places; of several in one place the last."""
        raise NotImplementedError

    # --- windows ------------------------------------------------------------------------------------------------------

    def reduce_windows(
        self, window: Window, function: Callable[..., Array], *arrays: Array, with_padding: bool = False
    ) -> Array:
        """``function(taps, *cells)`` of the windows of each array, whose last axis has one cell per tap."""
        raise NotImplementedError

    def spread_windows(
        self, window: Window, weights: Callable[..., Array], x: Array, g: Array, with_padding: bool = False
    ) -> Array:
        """The transpose of ``Σ weights(taps, cells of x) · u`` over windows, applied to a cotangent."""
        raise NotImplementedError

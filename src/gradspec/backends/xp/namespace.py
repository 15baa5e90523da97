"""What the lowerings ask of an array library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from gradspec.graph.types import DType

Array: TypeAlias = Any
"""An array of the library that a lowering is bound to."""


class Namespace(ABC):
    """An array library under NumPy's names: its own functions, and as methods those that it names or does otherwise."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        setattr(self, name, function)  # so that Python finds it at once from now on
        return function

    # --- dtypes -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def dtype(self, dtype: DType) -> Any:
        """The library's own dtype."""

    @abstractmethod
    def cast(self, x: Array, dtype: Any) -> Array:
        """``x`` as numbers of one of the library's dtypes."""

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

"""Types of tensors: a dtype and a shape, written ``gs.f32[3, 32, 32]``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gradspec.spec.errors import DTypeError
from gradspec.spec.window import whole_number


@dataclass(frozen=True)
class DType:
    """A kind of number in an array; ``dtype[shape]`` is a TensorType.

    >>> f32[3, 32, 32], f32[()]
    (f32[3, 32, 32], f32[()])
    """

    name: str
    numpy: np.dtype[Any]

    @property
    def public(self) -> str:
        """How a user writes it.

        >>> f32.public, boolean.public
        ('gs.f32', 'gs.boolean')
        """
        return "gs.boolean" if self is boolean else f"gs.{self.name}"

    @property
    def is_float(self) -> bool:
        return self.numpy.kind not in "iub"

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu"

    def __getitem__(self, shape: int | tuple[int, ...]) -> TensorType:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        return TensorType(self, tuple(whole_number(f"axis {i} of a type", n, 0) for i, n in enumerate(sizes)))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TensorType:
    """The dtype and shape of a variable."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @property
    def is_integer(self) -> bool:
        return self.dtype.is_integer

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape)) or '()'}]"


f16 = DType("f16", np.dtype(np.float16))
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16))
f32 = DType("f32", np.dtype(np.float32))
f64 = DType("f64", np.dtype(np.float64))
f8_e4m3 = DType("f8_e4m3", np.dtype(ml_dtypes.float8_e4m3fn))
f8_e5m2 = DType("f8_e5m2", np.dtype(ml_dtypes.float8_e5m2))
i8 = DType("i8", np.dtype(np.int8))
u8 = DType("u8", np.dtype(np.uint8))
i16 = DType("i16", np.dtype(np.int16))
u16 = DType("u16", np.dtype(np.uint16))
i32 = DType("i32", np.dtype(np.int32))
u32 = DType("u32", np.dtype(np.uint32))
i64 = DType("i64", np.dtype(np.int64))
u64 = DType("u64", np.dtype(np.uint64))
boolean = DType("bool", np.dtype(np.bool_))

STORED = (f8_e4m3, f8_e5m2)
"""Formats that numbers are stored in, moved and converted, and nothing is computed with."""
DTYPES = {d.name: d for d in (f16, bf16, f32, f64, i8, u8, i16, u16, i32, u32, i64, u64, boolean, *STORED)}
_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}


def dtype_of(array: NDArray[np.generic]) -> DType:
    """The DType of an array.

    >>> dtype_of(np.zeros(2, np.float32))
    f32
    """
    if array.dtype not in _BY_NUMPY:
        raise DTypeError(f"arrays of {array.dtype} are not supported; convert to one of {', '.join(DTYPES)}")
    return _BY_NUMPY[array.dtype]


def type_of(array: NDArray[np.generic]) -> TensorType:
    """The TensorType of an array.

    >>> type_of(np.zeros((2, 3)))
    f64[2, 3]
    """
    return TensorType(dtype_of(array), array.shape)


def number_as(value: float, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """A plain number as an array of ``dtype``; a fraction is not cut off to make it an integer."""
    if dtype.kind in "iu" and isinstance(value, float) and not value.is_integer():
        raise DTypeError(f"{value} is not an integer, so {dtype} cannot hold it; give an integer, or convert to floats")
    if dtype.kind == "b" and value not in (0, 1):
        raise DTypeError(f"{value} is neither true nor false, so {dtype} cannot hold it; give a boolean")
    try:
        return np.asarray(value, dtype)
    except OverflowError:
        raise DTypeError(f"{value} does not fit {dtype}; give a number that does, or convert the other") from None


def require_floats(operator: str, *types: TensorType) -> DType:
    """The one floating-point dtype of all ``types``."""
    for t in types:
        if not t.is_float:
            raise DTypeError(f"{operator} needs floating-point operands, not {t}; convert it first, by gs.convert")
    return require_numbers(operator, *types)


def require_numbers(operator: str, *types: TensorType) -> DType:
    """The one dtype of all ``types``, floating-point or integer."""
    for t in types:
        if t.dtype is boolean:
            raise DTypeError(f"{operator} needs numbers, not {t}; convert it first, as by gs.convert(x, gs.i32)")
        if t.dtype in STORED:
            raise DTypeError(f"{operator}: {t.dtype} is for storage; compute in another, as by gs.convert(x, gs.f32)")
    return require_one_dtype(operator, *types)


def require_sums(operator: str, *types: TensorType) -> DType:
    """The one dtype of all ``types``, which must hold sums of products: floats, or integers of 32 or 64 bits."""
    for t in types:
        if t.is_integer and t.dtype.numpy.itemsize < 4:
            raise DTypeError(f"{operator}: {t} is too narrow for sums of products; convert it by gs.convert(x, gs.i32)")
    return require_numbers(operator, *types)


def require_integers(what: str, t: TensorType, advice: str) -> None:
    if not t.is_integer:
        raise DTypeError(f"{what} are integers, not {t}; {advice}")


def require_one_dtype(operator: str, *types: TensorType) -> DType:
    """The dtype that all ``types`` share: nothing is converted behind the caller's back."""
    dtypes = dict.fromkeys(t.dtype for t in types)
    if len(dtypes) > 1:
        given = ", ".join(map(str, types))
        raise DTypeError(f"{operator} needs operands of one dtype, not {given}; convert one of them, by gs.convert")
    return next(iter(dtypes))

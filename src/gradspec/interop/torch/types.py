"""Tensors as arrays and arrays as tensors, on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradspec.graph.ir import Array
from gradspec.graph.types import DTYPES, STORED, DType, TensorType
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError

_TORCH: dict[str, torch.dtype] = {name: getattr(torch, dtype.numpy.name) for name, dtype in DTYPES.items()}
_GRADSPEC = {_TORCH[name]: dtype for name, dtype in DTYPES.items()}

_BITS = {DTYPES["bf16"].numpy: torch.int16, **{d.numpy: torch.uint8 for d in STORED}}
"""As what NumPy and PyTorch exchange dtypes that NumPy itself does not have."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's name for a dtype."""
    return _TORCH[dtype.name]


def gradspec_dtype(dtype: torch.dtype) -> DType:
    """The DType of PyTorch's dtype."""
    if dtype not in _GRADSPEC:
        names = ", ".join(map(str, _GRADSPEC))
        raise DTypeError(f"tensors of {dtype} are not supported; convert with .to() to one of {names}")
    return _GRADSPEC[dtype]


def gradspec_type(tensor: Tensor) -> TensorType:
    """The TensorType of a tensor, which may be a fake one."""
    if not all(isinstance(n, int) for n in tensor.shape):
        raise ShapeError(
            f"a tensor has the shape {list(tensor.shape)}, of which some sizes depend on values, as those of x[mask] "
            "do, and a graph has its sizes before it runs; choose by torch.where, which keeps them"
        )
    return TensorType(gradspec_dtype(tensor.dtype), tuple(tensor.shape))


# --- tensor to array --------------------------------------------------------------------------------------------------


def array_of(tensor: Tensor) -> Array:
    """The tensor's memory as an array: nothing is copied, and its strides are kept.

    >>> x = torch.zeros(2, 3).t()
    >>> array_of(x)[0, 1] = 5.0
    >>> x[0, 1]
    tensor(5.)
    """
    try:
        return tensor.numpy()
    except (AttributeError, RuntimeError, TypeError):
        plain = _plain(tensor)
    dtype = gradspec_dtype(plain.dtype).numpy
    return plain.view(_BITS[dtype]).numpy().view(dtype) if dtype in _BITS else plain.numpy()


def require_tensor(value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"a tensor is needed, not {type(value).__name__}; use torch.as_tensor")


def _plain(tensor: Tensor) -> Tensor:
    """A dense tensor in the CPU's memory that autograd does not watch, or the error that says why there is none."""
    require_tensor(tensor)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout)
        remedy = "dequantize()" if tensor.is_quantized else "to_dense()"
        raise UnsupportedError(f"a {kind} tensor of shape {tuple(tensor.shape)} is not supported; use .{remedy}")
    if tensor.device.type != "cpu":
        remedy = "create it with data: a meta tensor has none" if tensor.is_meta else "use .cpu()"
        raise UnsupportedError(
            f"a tensor on the device {tensor.device} is not supported: gradspec computes on the CPU; {remedy}"
        )
    gradspec_dtype(tensor.dtype)
    try:
        return tensor.detach().resolve_neg()
    except RuntimeError as error:
        raise UnsupportedError(f"a tensor hides its numbers: {error}") from error


# --- array to tensor --------------------------------------------------------------------------------------------------


def tensor_of(array: Array) -> Tensor:
    """The array's memory as a tensor, which keeps the array alive: nothing is copied.

    >>> x = np.zeros(2)
    >>> tensor_of(x)[1] = 5.0
    >>> x
    array([0., 5.])
    """
    if array.dtype in _BITS:
        return tensor_of(array.view(f"i{array.dtype.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class _Writable:
    """The memory of a read-only array: PyTorch has no tensors that are, and warns of every one it is given."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        self.array = array

"""JAX: graphs as functions of its arrays. Here: types of gradspec as JAX has them, and the other way round."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from gradspec.graph.types import DTYPES, DType, TensorType
from gradspec.spec.errors import DTypeError

_GRADSPEC = {dtype.numpy: dtype for dtype in DTYPES.values()}


def jax_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype in JAX: 64-bit numbers have 32 bits unless ``jax_enable_x64`` is set."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.numpy))


def gradspec_dtype(dtype: Any) -> DType:
    """The DType of one of JAX's dtypes, which are NumPy's and some of its own."""
    found = None if is_extended(dtype) else _GRADSPEC.get(np.dtype(dtype))
    if found is None:
        raise DTypeError(f"arrays of {dtype} are not supported; {_remedy(dtype)}")
    return found


def is_extended(dtype: Any) -> bool:
    """Whether it is one of those that NumPy does not have: keys of random numbers."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.extended))


def _remedy(dtype: Any) -> str:
    if dtype == jax.dtypes.float0:
        return "JAX has them for derivatives by integers, which a graph does not have: differentiate by floats only"
    if is_extended(dtype):
        return "a graph gives the same result each time: pass what is drawn as an argument, and not the key"
    return f"convert them to one of {', '.join(DTYPES)}"


def gradspec_type(shaped: Any) -> TensorType:
    """The TensorType of an array of JAX, or of what has its shape and dtype."""
    return TensorType(gradspec_dtype(shaped.dtype), tuple(shaped.shape))

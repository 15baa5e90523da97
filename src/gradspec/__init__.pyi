"""Written by tools/stubs.py, which says why."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gradspec import conformance as conformance
from gradspec import domains as domains
from gradspec import spec as spec
from gradspec import testing as testing
from gradspec import verify as verify
from gradspec.domains.ball import ball as ball
from gradspec.domains.dual import dual as dual
from gradspec.domains.exact import exact as exact
from gradspec.domains.ieee import ieee as ieee
from gradspec.domains.interval import interval as interval
from gradspec.folding import fold_batch_norm as fold_batch_norm
from gradspec.graph.builder import Builder as Builder
from gradspec.graph.family import Family as Family
from gradspec.graph.graph import Graph as Graph
from gradspec.graph.ir import Var as Var
from gradspec.graph.tree import register_pytree as register_pytree
from gradspec.graph.types import DType as DType
from gradspec.graph.types import TensorType as TensorType
from gradspec.graph.types import bf16 as bf16
from gradspec.graph.types import boolean as boolean
from gradspec.graph.types import f16 as f16
from gradspec.graph.types import f32 as f32
from gradspec.graph.types import f64 as f64
from gradspec.graph.types import i8 as i8
from gradspec.graph.types import i16 as i16
from gradspec.graph.types import i32 as i32
from gradspec.graph.types import i64 as i64
from gradspec.graph.types import u8 as u8
from gradspec.graph.types import u16 as u16
from gradspec.graph.types import u32 as u32
from gradspec.graph.types import u64 as u64
from gradspec.interop import from_jax as from_jax
from gradspec.interop import from_onnx as from_onnx
from gradspec.interop import from_torch as from_torch
from gradspec.interop import to_jax as to_jax
from gradspec.interop import to_onnx as to_onnx
from gradspec.interop import to_torch as to_torch
from gradspec.interop.weights import bind as bind
from gradspec.interop.weights import load_weights as load_weights
from gradspec.interop.weights import save_weights as save_weights
from gradspec.runtime.compiled import Compiled as Compiled
from gradspec.runtime.compiled import CompiledFamily as CompiledFamily
from gradspec.runtime.compiled import compile as compile
from gradspec.runtime.evaluate import evaluate as evaluate
from gradspec.runtime.threads import get_num_threads as get_num_threads
from gradspec.runtime.threads import set_num_threads as set_num_threads
from gradspec.saving.graphs import load as load
from gradspec.spec.errors import AmbiguityError as AmbiguityError
from gradspec.spec.errors import DTypeError as DTypeError
from gradspec.spec.errors import FormatError as FormatError
from gradspec.spec.errors import FormatWarning as FormatWarning
from gradspec.spec.errors import ShapeError as ShapeError
from gradspec.spec.errors import UnsupportedError as UnsupportedError
from gradspec.spec.resize import Place
from gradspec.spec.window import Ints, Padding
from gradspec.transforms.functions import grad as grad
from gradspec.transforms.functions import hvp as hvp
from gradspec.transforms.functions import jacobian as jacobian
from gradspec.transforms.functions import jvp as jvp
from gradspec.transforms.functions import value_and_grad as value_and_grad
from gradspec.transforms.functions import vjp as vjp
from gradspec.transforms.trace import trace as trace
from gradspec.verify.bounds import bounds as bounds

class _Shaped(Protocol):
    @property
    def shape(self) -> Any: ...

_A = TypeVar("_A", bound=_Shaped)
_Plain = float | np.generic | NDArray[Any] | Sequence[Any]

__version__: str

@overload
def abs(x: _Plain) -> NDArray[Any]:
    """|x|; its derivative at 0 is 0."""

@overload
def abs(x: _A) -> _A: ...
@overload
def adaptive_avg_pool(x: _Plain, output_size: Sequence[int | None]) -> NDArray[Any]:
    """The mean of each of ``output_size`` bins per axis; None keeps an axis as it is."""

@overload
def adaptive_avg_pool(x: _A, output_size: Sequence[int | None]) -> _A: ...
@overload
def adaptive_avg_pool1d(x: _Plain, output_size: int | Sequence[int | None]) -> NDArray[Any]:
    """``adaptive_avg_pool`` over 1 spatial axis."""

@overload
def adaptive_avg_pool1d(x: _A, output_size: int | Sequence[int | None]) -> _A: ...
@overload
def adaptive_avg_pool2d(x: _Plain, output_size: int | Sequence[int | None]) -> NDArray[Any]:
    """``adaptive_avg_pool`` over 2 spatial axes."""

@overload
def adaptive_avg_pool2d(x: _A, output_size: int | Sequence[int | None]) -> _A: ...
@overload
def adaptive_avg_pool3d(x: _Plain, output_size: int | Sequence[int | None]) -> NDArray[Any]:
    """``adaptive_avg_pool`` over 3 spatial axes."""

@overload
def adaptive_avg_pool3d(x: _A, output_size: int | Sequence[int | None]) -> _A: ...
@overload
def adaptive_max_pool(
    x: _Plain, output_size: Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> NDArray[Any]:
    """The largest cell of each of ``output_size`` bins per axis; None keeps an axis as it is."""

@overload
def adaptive_max_pool(
    x: _A, output_size: Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> _A: ...
@overload
def adaptive_max_pool(
    x: _Plain, output_size: Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool(
    x: _A, output_size: Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[_A, _A]: ...
@overload
def adaptive_max_pool(
    x: _Plain, output_size: Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool(
    x: _A, output_size: Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> _A | tuple[_A, _A]: ...
@overload
def adaptive_max_pool1d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> NDArray[Any]:
    """``adaptive_max_pool`` over 1 spatial axis."""

@overload
def adaptive_max_pool1d(
    x: _A, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> _A: ...
@overload
def adaptive_max_pool1d(
    x: _Plain, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool1d(
    x: _A, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[_A, _A]: ...
@overload
def adaptive_max_pool1d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool1d(
    x: _A, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> _A | tuple[_A, _A]: ...
@overload
def adaptive_max_pool2d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> NDArray[Any]:
    """``adaptive_max_pool`` over 2 spatial axes."""

@overload
def adaptive_max_pool2d(
    x: _A, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> _A: ...
@overload
def adaptive_max_pool2d(
    x: _Plain, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool2d(
    x: _A, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[_A, _A]: ...
@overload
def adaptive_max_pool2d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool2d(
    x: _A, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> _A | tuple[_A, _A]: ...
@overload
def adaptive_max_pool3d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> NDArray[Any]:
    """``adaptive_max_pool`` over 3 spatial axes."""

@overload
def adaptive_max_pool3d(
    x: _A, output_size: int | Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> _A: ...
@overload
def adaptive_max_pool3d(
    x: _Plain, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool3d(
    x: _A, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[_A, _A]: ...
@overload
def adaptive_max_pool3d(
    x: _Plain, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def adaptive_max_pool3d(
    x: _A, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> _A | tuple[_A, _A]: ...
@overload
def add(a: _Plain, b: _Plain) -> NDArray[Any]:
    """a + b."""

@overload
def add(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def avg_pool(
    x: _Plain,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """The sum of each window's real cells over its number of taps, of real cells, or ``divisor_override``."""

@overload
def avg_pool(
    x: _A,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> _A: ...
@overload
def avg_pool1d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``avg_pool`` over 1 spatial axis."""

@overload
def avg_pool1d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> _A: ...
@overload
def avg_pool2d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``avg_pool`` over 2 spatial axes."""

@overload
def avg_pool2d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> _A: ...
@overload
def avg_pool3d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``avg_pool`` over 3 spatial axes."""

@overload
def avg_pool3d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> _A: ...
@overload
def batch_norm(
    x: _Plain,
    running_mean: _Plain,
    running_var: _Plain,
    weight: _Plain | None = None,
    bias: _Plain | None = None,
    eps: float = 1e-05,
) -> NDArray[Any]:
    """``(x − mean) / √(var + eps) · weight + bias`` with given statistics, one per channel of ``x (N, C, ...)``."""

@overload
def batch_norm(
    x: _A | _Plain,
    running_mean: _A | _Plain,
    running_var: _A | _Plain,
    weight: _A | _Plain | None = None,
    bias: _A | _Plain | None = None,
    eps: float = 1e-05,
) -> _A: ...
@overload
def broadcast_to(x: _Plain, shape: Sequence[int]) -> NDArray[Any]:
    """``x`` repeated along new leading axes and axes of size 1."""

@overload
def broadcast_to(x: _A, shape: Sequence[int]) -> _A: ...
@overload
def clamp(x: _Plain, min: float | None = None, max: float | None = None) -> NDArray[Any]:
    """The number from ``min`` to ``max`` nearest to ``x``; its derivative is 1 from ``min`` to ``max``, both included."""

@overload
def clamp(x: _A, min: float | None = None, max: float | None = None) -> _A: ...
@overload
def concat(xs: Sequence[_Plain], axis: int = 0) -> NDArray[Any]:
    """The tensors one after another along ``axis``."""

@overload
def concat(xs: Sequence[_A | _Plain], axis: int = 0) -> _A: ...
@overload
def conv(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> NDArray[Any]:
    """Convolution of ``x (..., C, *spatial)`` with ``weight (M, C / groups, *kernel)``, which fixes the rank."""

@overload
def conv(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> _A: ...
@overload
def conv1d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> NDArray[Any]:
    """``conv`` over 1 spatial axis."""

@overload
def conv1d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> _A: ...
@overload
def conv2d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> NDArray[Any]:
    """``conv`` over 2 spatial axes."""

@overload
def conv2d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> _A: ...
@overload
def conv3d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> NDArray[Any]:
    """``conv`` over 3 spatial axes."""

@overload
def conv3d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> _A: ...
@overload
def conv_transpose(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """Transposed convolution of ``x (..., C, *spatial)`` with ``weight (C, M / groups, *kernel)``."""

@overload
def conv_transpose(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> _A: ...
@overload
def conv_transpose1d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``conv_transpose`` over 1 spatial axis."""

@overload
def conv_transpose1d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> _A: ...
@overload
def conv_transpose2d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``conv_transpose`` over 2 spatial axes."""

@overload
def conv_transpose2d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> _A: ...
@overload
def conv_transpose3d(
    x: _Plain,
    weight: _Plain,
    bias: _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> NDArray[Any]:
    """``conv_transpose`` over 3 spatial axes."""

@overload
def conv_transpose3d(
    x: _A | _Plain,
    weight: _A | _Plain,
    bias: _A | _Plain | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> _A: ...
@overload
def convert(x: _Plain, dtype: DType) -> NDArray[Any]:
    """``x`` as numbers of another dtype."""

@overload
def convert(x: _A, dtype: DType) -> _A: ...
@overload
def cos(x: _Plain) -> NDArray[Any]:
    """The cosine, right for large angles too; NaN at the infinities."""

@overload
def cos(x: _A) -> _A: ...
@overload
def cross_entropy(logits: _Plain, labels: _Plain, reduction: str = "mean") -> NDArray[Any]:
    """``−log softmax(logits)[label]``, its mean (the default), sum or, with ``"none"``, one for each label."""

@overload
def cross_entropy(logits: _A | _Plain, labels: _A | _Plain, reduction: str = "mean") -> _A: ...
@overload
def cumsum(x: _Plain, axis: int, exclusive: bool = False, reverse: bool = False) -> NDArray[Any]:
    """Each number added to all before it along ``axis``; with ``reverse``, to all after it."""

@overload
def cumsum(x: _A, axis: int, exclusive: bool = False, reverse: bool = False) -> _A: ...
@overload
def dequantize(q: _Plain, scale: _Plain, zero_point: _Plain | None = None) -> NDArray[Any]:
    """The numbers that integers stand for, ``(q − zero_point)·scale``, of the scale's dtype; linear in the scale."""

@overload
def dequantize(q: _A | _Plain, scale: _A | _Plain, zero_point: _A | _Plain | None = None) -> _A: ...
@overload
def detach(x: _Plain) -> NDArray[Any]:
    """``x`` as a constant: derivatives ignore what it depends on."""

@overload
def detach(x: _A) -> _A: ...
@overload
def div(a: _Plain, b: _Plain) -> NDArray[Any]:
    """a / b."""

@overload
def div(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def einsum(equation: str, *tensors: _Plain) -> NDArray[Any]:
    """The sum of products that an equation of axes describes, as in NumPy and PyTorch: ``"ij,jk->ik"``."""

@overload
def einsum(equation: str, *tensors: _A | _Plain) -> _A: ...
@overload
def equal(a: _Plain, b: _Plain) -> NDArray[Any]:
    """Whether ``a = b``, cell by cell; ``equal(x, False)`` is whether ``x`` is not true."""

@overload
def equal(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def erf(x: _Plain) -> NDArray[Any]:
    """The error function, ``2/√π · ∫₀ˣ exp(−t²) dt``."""

@overload
def erf(x: _A) -> _A: ...
@overload
def exp(x: _Plain) -> NDArray[Any]:
    """eˣ."""

@overload
def exp(x: _A) -> _A: ...
@overload
def flatten(x: _Plain, start_dim: int = 0, end_dim: int = -1) -> NDArray[Any]:
    """The axes from ``start_dim`` to ``end_dim`` as one; a scalar becomes a vector of one number."""

@overload
def flatten(x: _A, start_dim: int = 0, end_dim: int = -1) -> _A: ...
@overload
def floor(x: _Plain) -> NDArray[Any]:
    """The largest integer that is not above ``x``; its derivative is 0 everywhere."""

@overload
def floor(x: _A) -> _A: ...
@overload
def fold(
    x: _Plain,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> NDArray[Any]:
    """Columns ``(..., C·taps, windows)`` added back onto planes of ``output_size``; padding drops what falls on it."""

@overload
def fold(
    x: _A,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> _A: ...
@overload
def fold1d(
    x: _Plain,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> NDArray[Any]:
    """``fold`` over 1 spatial axis."""

@overload
def fold1d(
    x: _A,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> _A: ...
@overload
def fold2d(
    x: _Plain,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> NDArray[Any]:
    """``fold`` over 2 spatial axes."""

@overload
def fold2d(
    x: _A,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> _A: ...
@overload
def fold3d(
    x: _Plain,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> NDArray[Any]:
    """``fold`` over 3 spatial axes."""

@overload
def fold3d(
    x: _A,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> _A: ...
@overload
def gather(x: _Plain, axis: int, indices: _Plain) -> NDArray[Any]:
    """The cell of ``x`` along ``axis`` that each index names; on the other axes the position is unchanged."""

@overload
def gather(x: _A | _Plain, axis: int, indices: _A | _Plain) -> _A: ...
@overload
def gelu(x: _Plain, approximate: str = "none") -> NDArray[Any]:
    """``x · Φ(x)``, Φ the normal distribution; ``approximate="tanh"`` is the form with a tanh instead."""

@overload
def gelu(x: _A, approximate: str = "none") -> _A: ...
@overload
def global_avg_pool(x: _Plain, rank: int = 2, keepdims: bool = True) -> NDArray[Any]:
    """The mean over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed."""

@overload
def global_avg_pool(x: _A, rank: int = 2, keepdims: bool = True) -> _A: ...
@overload
def global_avg_pool1d(x: _Plain, keepdims: bool = True) -> NDArray[Any]:
    """``global_avg_pool`` over 1 spatial axis."""

@overload
def global_avg_pool1d(x: _A, keepdims: bool = True) -> _A: ...
@overload
def global_avg_pool2d(x: _Plain, keepdims: bool = True) -> NDArray[Any]:
    """``global_avg_pool`` over 2 spatial axes."""

@overload
def global_avg_pool2d(x: _A, keepdims: bool = True) -> _A: ...
@overload
def global_avg_pool3d(x: _Plain, keepdims: bool = True) -> NDArray[Any]:
    """``global_avg_pool`` over 3 spatial axes."""

@overload
def global_avg_pool3d(x: _A, keepdims: bool = True) -> _A: ...
@overload
def global_max_pool(x: _Plain, rank: int = 2, keepdims: bool = True, *, ties: str = "first") -> NDArray[Any]:
    """The largest cell over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed."""

@overload
def global_max_pool(x: _A, rank: int = 2, keepdims: bool = True, *, ties: str = "first") -> _A: ...
@overload
def global_max_pool1d(x: _Plain, keepdims: bool = True, *, ties: str = "first") -> NDArray[Any]:
    """``global_max_pool`` over 1 spatial axis."""

@overload
def global_max_pool1d(x: _A, keepdims: bool = True, *, ties: str = "first") -> _A: ...
@overload
def global_max_pool2d(x: _Plain, keepdims: bool = True, *, ties: str = "first") -> NDArray[Any]:
    """``global_max_pool`` over 2 spatial axes."""

@overload
def global_max_pool2d(x: _A, keepdims: bool = True, *, ties: str = "first") -> _A: ...
@overload
def global_max_pool3d(x: _Plain, keepdims: bool = True, *, ties: str = "first") -> NDArray[Any]:
    """``global_max_pool`` over 3 spatial axes."""

@overload
def global_max_pool3d(x: _A, keepdims: bool = True, *, ties: str = "first") -> _A: ...
@overload
def greater(a: _Plain, b: _Plain) -> NDArray[Any]:
    """Whether ``a > b``, cell by cell; ``maximum(greater(a, b), equal(a, b))`` is whether ``a ≥ b``."""

@overload
def greater(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def grid_sample(
    x: _Plain, grid: _Plain, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> NDArray[Any]:
    """Cells of ``x (N, C, d₁, …, dᵣ)`` at the positions ``grid (N, …, r)``, from −1 to 1, last axis first."""

@overload
def grid_sample(
    x: _A | _Plain, grid: _A | _Plain, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> _A: ...
@overload
def leaky_relu(x: _Plain, negative_slope: float = 0.01) -> NDArray[Any]:
    """``x`` above 0, ``negative_slope · x`` below; its derivative at 0 is ``negative_slope``."""

@overload
def leaky_relu(x: _A, negative_slope: float = 0.01) -> _A: ...
@overload
def less(a: _Plain, b: _Plain) -> NDArray[Any]:
    """Whether ``a < b``, cell by cell."""

@overload
def less(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def linear(x: _Plain, weight: _Plain, bias: _Plain | None = None) -> NDArray[Any]:
    """``x·weightᵀ + bias`` over the last axis: x ``(..., C)``, weight ``(M, C)``, bias ``(M,)`` or None."""

@overload
def linear(x: _A | _Plain, weight: _A | _Plain, bias: _A | _Plain | None = None) -> _A: ...
@overload
def log(x: _Plain) -> NDArray[Any]:
    """The natural logarithm: −∞ at 0, NaN below; the derivative is 1/x wherever that is."""

@overload
def log(x: _A) -> _A: ...
@overload
def log_softmax(x: _Plain, axis: int = -1) -> NDArray[Any]:
    """``log(exp xᵢ / Σ exp xⱼ)`` along ``axis``, computed without overflow; special values as in ``softmax``."""

@overload
def log_softmax(x: _A, axis: int = -1) -> _A: ...
@overload
def lp_pool(
    x: _Plain, p: float, kernel_size: Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> NDArray[Any]:
    """The p-norm ``(Σ |xᵢ|^p)^(1/p)`` of each window, p > 0; the largest ``|xᵢ|`` for p = ∞."""

@overload
def lp_pool(x: _A, p: float, kernel_size: Sequence[int], stride: Ints | None = None, ceil_mode: bool = False) -> _A: ...
@overload
def lp_pool1d(
    x: _Plain, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> NDArray[Any]:
    """``lp_pool`` over 1 spatial axis."""

@overload
def lp_pool1d(
    x: _A, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> _A: ...
@overload
def lp_pool2d(
    x: _Plain, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> NDArray[Any]:
    """``lp_pool`` over 2 spatial axes."""

@overload
def lp_pool2d(
    x: _A, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> _A: ...
@overload
def lp_pool3d(
    x: _Plain, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> NDArray[Any]:
    """``lp_pool`` over 3 spatial axes."""

@overload
def lp_pool3d(
    x: _A, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> _A: ...
@overload
def matmul(a: _Plain, b: _Plain) -> NDArray[Any]:
    """The product of matrices over the last two axes, for every index of the leading axes, which broadcast."""

@overload
def matmul(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def max_gather(x: _Plain, indices: _Plain, rank: int) -> NDArray[Any]:
    """The cells of ``x`` at ``indices``, over the last ``rank`` axes."""

@overload
def max_gather(x: _A | _Plain, indices: _A | _Plain, rank: int) -> _A: ...
@overload
def max_gather1d(x: _Plain, indices: _Plain) -> NDArray[Any]:
    """``max_gather`` over 1 spatial axis."""

@overload
def max_gather1d(x: _A | _Plain, indices: _A | _Plain) -> _A: ...
@overload
def max_gather2d(x: _Plain, indices: _Plain) -> NDArray[Any]:
    """``max_gather`` over 2 spatial axes."""

@overload
def max_gather2d(x: _A | _Plain, indices: _A | _Plain) -> _A: ...
@overload
def max_gather3d(x: _Plain, indices: _Plain) -> NDArray[Any]:
    """``max_gather`` over 3 spatial axes."""

@overload
def max_gather3d(x: _A | _Plain, indices: _A | _Plain) -> _A: ...
@overload
def max_pool(
    x: _Plain,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> NDArray[Any]:
    """The largest real cell of each window, and with ``return_indices`` the winner's position in its spatial plane."""

@overload
def max_pool(
    x: _A,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> _A: ...
@overload
def max_pool(
    x: _Plain,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool(
    x: _A,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[_A, _A]: ...
@overload
def max_pool(
    x: _Plain,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool(
    x: _A,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> _A | tuple[_A, _A]: ...
@overload
def max_pool1d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> NDArray[Any]:
    """``max_pool`` over 1 spatial axis."""

@overload
def max_pool1d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> _A: ...
@overload
def max_pool1d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool1d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[_A, _A]: ...
@overload
def max_pool1d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool1d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> _A | tuple[_A, _A]: ...
@overload
def max_pool2d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> NDArray[Any]:
    """``max_pool`` over 2 spatial axes."""

@overload
def max_pool2d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> _A: ...
@overload
def max_pool2d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool2d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[_A, _A]: ...
@overload
def max_pool2d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool2d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> _A | tuple[_A, _A]: ...
@overload
def max_pool3d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> NDArray[Any]:
    """``max_pool`` over 3 spatial axes."""

@overload
def max_pool3d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> _A: ...
@overload
def max_pool3d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool3d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[_A, _A]: ...
@overload
def max_pool3d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def max_pool3d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> _A | tuple[_A, _A]: ...
@overload
def max_unpool(x: _Plain, indices: _Plain, output_size: Sequence[int]) -> NDArray[Any]:
    """Zeros of ``output_size``, with each cell of ``x`` added at its index."""

@overload
def max_unpool(x: _A | _Plain, indices: _A | _Plain, output_size: Sequence[int]) -> _A: ...
@overload
def max_unpool1d(x: _Plain, indices: _Plain, output_size: int | Sequence[int]) -> NDArray[Any]:
    """``max_unpool`` over 1 spatial axis."""

@overload
def max_unpool1d(x: _A | _Plain, indices: _A | _Plain, output_size: int | Sequence[int]) -> _A: ...
@overload
def max_unpool2d(x: _Plain, indices: _Plain, output_size: int | Sequence[int]) -> NDArray[Any]:
    """``max_unpool`` over 2 spatial axes."""

@overload
def max_unpool2d(x: _A | _Plain, indices: _A | _Plain, output_size: int | Sequence[int]) -> _A: ...
@overload
def max_unpool3d(x: _Plain, indices: _Plain, output_size: int | Sequence[int]) -> NDArray[Any]:
    """``max_unpool`` over 3 spatial axes."""

@overload
def max_unpool3d(x: _A | _Plain, indices: _A | _Plain, output_size: int | Sequence[int]) -> _A: ...
@overload
def maximum(a: _Plain, b: _Plain) -> NDArray[Any]:
    """The larger of two numbers, NaN if one is; equal numbers get half of the derivative each."""

@overload
def maximum(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def mean(x: _Plain, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> NDArray[Any]:
    """The sum over ``axis`` divided by the number of its terms, of which there is at least one."""

@overload
def mean(x: _A, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> _A: ...
@overload
def minimum(a: _Plain, b: _Plain) -> NDArray[Any]:
    """The smaller of two numbers, NaN if one is; equal numbers get half of the derivative each."""

@overload
def minimum(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def mse_loss(input: _Plain, target: _Plain, reduction: str = "mean") -> NDArray[Any]:
    """``(input − target)²``, its mean (the default), sum or, with ``"none"``, every cell. The shapes are equal."""

@overload
def mse_loss(input: _A | _Plain, target: _A | _Plain, reduction: str = "mean") -> _A: ...
@overload
def mul(a: _Plain, b: _Plain) -> NDArray[Any]:
    """a · b."""

@overload
def mul(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def neg(x: _Plain) -> NDArray[Any]:
    """−x."""

@overload
def neg(x: _A) -> _A: ...
@overload
def pad(x: _Plain, padding: Sequence[tuple[int, int]], value: float = 0.0) -> NDArray[Any]:
    """``x`` with ``lo`` cells of ``value`` before it and ``hi`` after it, for the pair ``(lo, hi)`` of every axis."""

@overload
def pad(x: _A, padding: Sequence[tuple[int, int]], value: float = 0.0) -> _A: ...
@overload
def quantize(x: _Plain, scale: _Plain, zero_point: _Plain = 0, dtype: DType | None = None) -> NDArray[Any]:
    """``x / scale``, rounded to the nearest integer, of two the even one, plus ``zero_point``, as ``i8 u8 i16 u16``."""

@overload
def quantize(x: _A | _Plain, scale: _A | _Plain, zero_point: _A | _Plain = 0, dtype: DType | None = None) -> _A: ...
@overload
def relu(x: _Plain) -> NDArray[Any]:
    """``max(0, x)``; its derivative at 0 is 0."""

@overload
def relu(x: _A) -> _A: ...
@overload
def reshape(x: _Plain, shape: Sequence[int]) -> NDArray[Any]:
    """The same numbers in another shape; one size may be −1, for what is left."""

@overload
def reshape(x: _A, shape: Sequence[int]) -> _A: ...
@overload
def resize(
    x: _Plain,
    size: Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> NDArray[Any]:
    """The last ``len(size)`` axes resized to ``size``, by the nearest cell or linearly between cells."""

@overload
def resize(
    x: _A,
    size: Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> _A: ...
@overload
def resize1d(
    x: _Plain,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> NDArray[Any]:
    """``resize`` over 1 spatial axis."""

@overload
def resize1d(
    x: _A,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> _A: ...
@overload
def resize2d(
    x: _Plain,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> NDArray[Any]:
    """``resize`` over 2 spatial axes."""

@overload
def resize2d(
    x: _A,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> _A: ...
@overload
def resize3d(
    x: _Plain,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> NDArray[Any]:
    """``resize`` over 3 spatial axes."""

@overload
def resize3d(
    x: _A,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> _A: ...
@overload
def round(x: _Plain) -> NDArray[Any]:
    """The integer nearest to ``x``, of two the even one; its derivative is 0 everywhere."""

@overload
def round(x: _A) -> _A: ...
@overload
def scale(x: _Plain, factor: float) -> NDArray[Any]:
    """``factor · x`` for a constant factor, which is rounded to the dtype of ``x``."""

@overload
def scale(x: _A, factor: float) -> _A: ...
@overload
def scatter(x: _Plain, axis: int, indices: _Plain, source: _Plain) -> NDArray[Any]:
    """``x`` with the cells along ``axis`` that the indices name replaced by those of ``source``."""

@overload
def scatter(x: _A | _Plain, axis: int, indices: _A | _Plain, source: _A | _Plain) -> _A: ...
@overload
def scatter_add(x: _Plain, axis: int, indices: _Plain, source: _Plain) -> NDArray[Any]:
    """``x`` with every cell of ``source`` added to the cell along ``axis`` that its index names."""

@overload
def scatter_add(x: _A | _Plain, axis: int, indices: _A | _Plain, source: _A | _Plain) -> _A: ...
@overload
def sigmoid(x: _Plain) -> NDArray[Any]:
    """``1 / (1 + exp(−x))``."""

@overload
def sigmoid(x: _A) -> _A: ...
@overload
def silu(x: _Plain) -> NDArray[Any]:
    """``x · sigmoid(x)``."""

@overload
def silu(x: _A) -> _A: ...
@overload
def sin(x: _Plain) -> NDArray[Any]:
    """The sine, right for large angles too; NaN at the infinities."""

@overload
def sin(x: _A) -> _A: ...
@overload
def slice(
    x: _Plain, starts: Sequence[int | None], stops: Sequence[int | None], steps: Sequence[int | None] | None = None
) -> NDArray[Any]:
    """``x[start:stop:step, …]`` with one entry per axis, which means what Python's slices mean; None is an open end."""

@overload
def slice(
    x: _A, starts: Sequence[int | None], stops: Sequence[int | None], steps: Sequence[int | None] | None = None
) -> _A: ...
@overload
def smooth_max_pool(
    x: _Plain,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> NDArray[Any]:
    """``(1/β) · log Σ exp(β·xᵢ)`` over each window: a maximum without kinks, or a minimum for β < 0."""

@overload
def smooth_max_pool(
    x: _A,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> _A: ...
@overload
def smooth_max_pool1d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> NDArray[Any]:
    """``smooth_max_pool`` over 1 spatial axis."""

@overload
def smooth_max_pool1d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> _A: ...
@overload
def smooth_max_pool2d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> NDArray[Any]:
    """``smooth_max_pool`` over 2 spatial axes."""

@overload
def smooth_max_pool2d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> _A: ...
@overload
def smooth_max_pool3d(
    x: _Plain,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> NDArray[Any]:
    """``smooth_max_pool`` over 3 spatial axes."""

@overload
def smooth_max_pool3d(
    x: _A,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> _A: ...
@overload
def softmax(x: _Plain, axis: int = -1) -> NDArray[Any]:
    """``exp xᵢ / Σ exp xⱼ`` along ``axis``, computed without overflow."""

@overload
def softmax(x: _A, axis: int = -1) -> _A: ...
@overload
def softplus(x: _Plain, beta: float = 1.0) -> NDArray[Any]:
    """``log(1 + exp(β·x)) / β``, for every ``x``: there is no threshold above which it is the identity."""

@overload
def softplus(x: _A, beta: float = 1.0) -> _A: ...
@overload
def sort(x: _Plain, axis: int = -1, descending: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """The cells along ``axis`` from the smallest to the largest, and their positions; equal ones keep their order."""

@overload
def sort(x: _A, axis: int = -1, descending: bool = False) -> tuple[_A, _A]: ...
@overload
def sqrt(x: _Plain) -> NDArray[Any]:
    """√x: NaN below 0; the derivative at 0 is ∞."""

@overload
def sqrt(x: _A) -> _A: ...
@overload
def sub(a: _Plain, b: _Plain) -> NDArray[Any]:
    """a − b."""

@overload
def sub(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def sum(x: _Plain, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> NDArray[Any]:
    """The sum over ``axis`` (one, several, or None for all), which stays as a 1 with ``keepdims``."""

@overload
def sum(x: _A, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> _A: ...
@overload
def take(x: _Plain, indices: _Plain, axis: int = 0) -> NDArray[Any]:
    """The slices of ``x`` along ``axis`` that the indices name; the axis is replaced by those of the indices."""

@overload
def take(x: _A | _Plain, indices: _A | _Plain, axis: int = 0) -> _A: ...
@overload
def tanh(x: _Plain) -> NDArray[Any]:
    """The hyperbolic tangent."""

@overload
def tanh(x: _A) -> _A: ...
@overload
def topk(x: _Plain, k: int, axis: int = -1, largest: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
    """The ``k`` largest cells along ``axis``, largest first, and their positions; or the smallest."""

@overload
def topk(x: _A, k: int, axis: int = -1, largest: bool = True) -> tuple[_A, _A]: ...
@overload
def transpose(x: _Plain, axes: Sequence[int] | None = None) -> NDArray[Any]:
    """Axis ``k`` of the result is axis ``axes[k]`` of ``x``; all axes in reverse order unless given."""

@overload
def transpose(x: _A, axes: Sequence[int] | None = None) -> _A: ...
@overload
def trunc_divide(a: _Plain, b: _Plain) -> NDArray[Any]:
    """The quotient of integers without its fraction, rounded toward zero; 0 where ``b`` is 0."""

@overload
def trunc_divide(a: _A | _Plain, b: _A | _Plain) -> _A: ...
@overload
def unfold(
    x: _Plain, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> NDArray[Any]:
    """Every window of ``x (..., C, *spatial)`` as a column: ``(..., C·taps, windows)``, padding read as 0."""

@overload
def unfold(x: _A, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1) -> _A: ...
@overload
def unfold1d(
    x: _Plain, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> NDArray[Any]:
    """``unfold`` over 1 spatial axis."""

@overload
def unfold1d(
    x: _A, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> _A: ...
@overload
def unfold2d(
    x: _Plain, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> NDArray[Any]:
    """``unfold`` over 2 spatial axes."""

@overload
def unfold2d(
    x: _A, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> _A: ...
@overload
def unfold3d(
    x: _Plain, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> NDArray[Any]:
    """``unfold`` over 3 spatial axes."""

@overload
def unfold3d(
    x: _A, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> _A: ...
@overload
def where(condition: _Plain, a: _Plain, b: _Plain) -> NDArray[Any]:
    """``a`` where the condition is true, ``b`` elsewhere; tangents are chosen alike."""

@overload
def where(condition: _A | _Plain, a: _A | _Plain, b: _A | _Plain) -> _A: ...

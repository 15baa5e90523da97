"""Written by tools/stubs.py, which says why."""

from collections.abc import Sequence
from typing import Literal, overload

from gradspec.spec.conv import conv as conv
from gradspec.spec.conv import conv_jvp as conv_jvp
from gradspec.spec.conv import conv_transpose as conv_transpose
from gradspec.spec.conv import conv_transpose_jvp as conv_transpose_jvp
from gradspec.spec.conv import conv_transpose_vjp as conv_transpose_vjp
from gradspec.spec.conv import conv_vjp as conv_vjp
from gradspec.spec.convert import convert as convert
from gradspec.spec.errors import AmbiguityError as AmbiguityError
from gradspec.spec.errors import DTypeError as DTypeError
from gradspec.spec.errors import ShapeError as ShapeError
from gradspec.spec.errors import UnsupportedError as UnsupportedError
from gradspec.spec.gather import gather_rows as gather_rows
from gradspec.spec.gather import scatter_add_rows as scatter_add_rows
from gradspec.spec.gather import scatter_rows as scatter_rows
from gradspec.spec.layout import broadcast_to as broadcast_to
from gradspec.spec.layout import concat as concat
from gradspec.spec.layout import flatten as flatten
from gradspec.spec.layout import pad as pad
from gradspec.spec.layout import reshape as reshape
from gradspec.spec.layout import slice as slice
from gradspec.spec.layout import transpose as transpose
from gradspec.spec.linear import batch_norm as batch_norm
from gradspec.spec.linear import linear as linear
from gradspec.spec.linear import matmul as matmul
from gradspec.spec.loss import cross_entropy as cross_entropy
from gradspec.spec.loss import mse_loss as mse_loss
from gradspec.spec.loss import pick as pick
from gradspec.spec.loss import place as place
from gradspec.spec.lp_pool import lp_pool as lp_pool
from gradspec.spec.pointwise import abs as abs
from gradspec.spec.pointwise import add as add
from gradspec.spec.pointwise import clamp as clamp
from gradspec.spec.pointwise import cos as cos
from gradspec.spec.pointwise import detach as detach
from gradspec.spec.pointwise import div as div
from gradspec.spec.pointwise import erf as erf
from gradspec.spec.pointwise import exp as exp
from gradspec.spec.pointwise import floor as floor
from gradspec.spec.pointwise import gelu as gelu
from gradspec.spec.pointwise import leaky_relu as leaky_relu
from gradspec.spec.pointwise import log as log
from gradspec.spec.pointwise import maximum as maximum
from gradspec.spec.pointwise import minimum as minimum
from gradspec.spec.pointwise import mul as mul
from gradspec.spec.pointwise import neg as neg
from gradspec.spec.pointwise import relu as relu
from gradspec.spec.pointwise import round as round
from gradspec.spec.pointwise import scale as scale
from gradspec.spec.pointwise import sigmoid as sigmoid
from gradspec.spec.pointwise import silu as silu
from gradspec.spec.pointwise import sin as sin
from gradspec.spec.pointwise import softplus as softplus
from gradspec.spec.pointwise import sqrt as sqrt
from gradspec.spec.pointwise import sub as sub
from gradspec.spec.pointwise import tanh as tanh
from gradspec.spec.pointwise import trunc_divide as trunc_divide
from gradspec.spec.pool import adaptive_avg_pool as adaptive_avg_pool
from gradspec.spec.pool import adaptive_avg_pool_jvp as adaptive_avg_pool_jvp
from gradspec.spec.pool import adaptive_avg_pool_vjp as adaptive_avg_pool_vjp
from gradspec.spec.pool import avg_pool as avg_pool
from gradspec.spec.pool import avg_pool_jvp as avg_pool_jvp
from gradspec.spec.pool import avg_pool_vjp as avg_pool_vjp
from gradspec.spec.pool import global_avg_pool as global_avg_pool
from gradspec.spec.pool import global_avg_pool_jvp as global_avg_pool_jvp
from gradspec.spec.pool import global_avg_pool_vjp as global_avg_pool_vjp
from gradspec.spec.pool import global_max_pool as global_max_pool
from gradspec.spec.pool import global_max_pool_jvp as global_max_pool_jvp
from gradspec.spec.pool import global_max_pool_vjp as global_max_pool_vjp
from gradspec.spec.quantize import dequantize as dequantize
from gradspec.spec.quantize import quantize as quantize
from gradspec.spec.reduce import cumsum as cumsum
from gradspec.spec.reduce import log_softmax as log_softmax
from gradspec.spec.reduce import mean as mean
from gradspec.spec.reduce import share as share
from gradspec.spec.reduce import softmax as softmax
from gradspec.spec.reduce import sum as sum
from gradspec.spec.resize import Place
from gradspec.spec.resize import resize as resize
from gradspec.spec.scalar import Scalar
from gradspec.spec.select import equal as equal
from gradspec.spec.select import greater as greater
from gradspec.spec.select import where as where
from gradspec.spec.smooth_pool import smooth_max_pool as smooth_max_pool
from gradspec.spec.smooth_pool import smooth_max_pool_jvp as smooth_max_pool_jvp
from gradspec.spec.smooth_pool import smooth_max_pool_jvp_jvp as smooth_max_pool_jvp_jvp
from gradspec.spec.smooth_pool import smooth_max_pool_jvp_vjp as smooth_max_pool_jvp_vjp
from gradspec.spec.smooth_pool import smooth_max_pool_vjp as smooth_max_pool_vjp
from gradspec.spec.tensor import Tensor as Tensor
from gradspec.spec.tensor import TensorLike
from gradspec.spec.tensor import tensor as tensor
from gradspec.spec.topk import top_places as top_places
from gradspec.spec.topk import topk as topk
from gradspec.spec.unfold import fold as fold
from gradspec.spec.unfold import fold_jvp as fold_jvp
from gradspec.spec.unfold import fold_vjp as fold_vjp
from gradspec.spec.unfold import unfold as unfold
from gradspec.spec.unfold import unfold_jvp as unfold_jvp
from gradspec.spec.unfold import unfold_vjp as unfold_vjp
from gradspec.spec.unpool import max_gather as max_gather
from gradspec.spec.unpool import max_gather_jvp as max_gather_jvp
from gradspec.spec.unpool import max_gather_vjp as max_gather_vjp
from gradspec.spec.unpool import max_unpool as max_unpool
from gradspec.spec.unpool import max_unpool_jvp as max_unpool_jvp
from gradspec.spec.unpool import max_unpool_vjp as max_unpool_vjp
from gradspec.spec.window import Ints, Padding
from gradspec.spec.window import Window as Window
from gradspec.spec.window import adaptive as adaptive
from gradspec.spec.window import regular as regular
from gradspec.spec.window import transposed as transposed
from gradspec.spec.window import whole as whole

OPERATORS: tuple[str, ...]
RANKED: tuple[str, ...]

def adaptive_avg_pool1d(x: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool`` over 1 spatial axis."""

def adaptive_avg_pool1d_jvp(x: TensorLike, dx: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_jvp`` over 1 spatial axis."""

def adaptive_avg_pool1d_vjp(x: TensorLike, g: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_vjp`` over 1 spatial axis."""

def adaptive_avg_pool2d(x: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool`` over 2 spatial axes."""

def adaptive_avg_pool2d_jvp(x: TensorLike, dx: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_jvp`` over 2 spatial axes."""

def adaptive_avg_pool2d_vjp(x: TensorLike, g: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_vjp`` over 2 spatial axes."""

def adaptive_avg_pool3d(x: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool`` over 3 spatial axes."""

def adaptive_avg_pool3d_jvp(x: TensorLike, dx: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_jvp`` over 3 spatial axes."""

def adaptive_avg_pool3d_vjp(x: TensorLike, g: TensorLike, output_size: int | Sequence[int | None]) -> Tensor:
    """``adaptive_avg_pool_vjp`` over 3 spatial axes."""

@overload
def adaptive_max_pool(
    x: TensorLike, output_size: Sequence[int | None], return_indices: Literal[False] = False, *, ties: str = "first"
) -> Tensor:
    """The largest cell of each of ``output_size`` bins per axis."""

@overload
def adaptive_max_pool(
    x: TensorLike, output_size: Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool(
    x: TensorLike, output_size: Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d(
    x: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``adaptive_max_pool`` over 1 spatial axis."""

@overload
def adaptive_max_pool1d(
    x: TensorLike, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d(
    x: TensorLike, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_jvp`` over 1 spatial axis."""

@overload
def adaptive_max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_vjp`` over 1 spatial axis."""

@overload
def adaptive_max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d(
    x: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``adaptive_max_pool`` over 2 spatial axes."""

@overload
def adaptive_max_pool2d(
    x: TensorLike, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d(
    x: TensorLike, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_jvp`` over 2 spatial axes."""

@overload
def adaptive_max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_vjp`` over 2 spatial axes."""

@overload
def adaptive_max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d(
    x: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``adaptive_max_pool`` over 3 spatial axes."""

@overload
def adaptive_max_pool3d(
    x: TensorLike, output_size: int | Sequence[int | None], *, return_indices: Literal[True], ties: str = "first"
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d(
    x: TensorLike, output_size: int | Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_jvp`` over 3 spatial axes."""

@overload
def adaptive_max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``adaptive_max_pool_vjp`` over 3 spatial axes."""

@overload
def adaptive_max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The tangent of each bin's maximum."""

@overload
def adaptive_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: Sequence[int | None],
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The cotangent of ``x``: each bin's ``g`` goes to its winner, or to its tied cells."""

@overload
def adaptive_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: Sequence[int | None],
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
def avg_pool1d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool`` over 1 spatial axis."""

def avg_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_jvp`` over 1 spatial axis."""

def avg_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_vjp`` over 1 spatial axis."""

def avg_pool2d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool`` over 2 spatial axes."""

def avg_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_jvp`` over 2 spatial axes."""

def avg_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_vjp`` over 2 spatial axes."""

def avg_pool3d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool`` over 3 spatial axes."""

def avg_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_jvp`` over 3 spatial axes."""

def avg_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """``avg_pool_vjp`` over 3 spatial axes."""

def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv`` over 1 spatial axis."""

def conv1d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv_jvp`` over 1 spatial axis."""

def conv1d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_vjp`` over 1 spatial axis."""

def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv`` over 2 spatial axes."""

def conv2d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv_jvp`` over 2 spatial axes."""

def conv2d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_vjp`` over 2 spatial axes."""

def conv3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv`` over 3 spatial axes."""

def conv3d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """``conv_jvp`` over 3 spatial axes."""

def conv3d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_vjp`` over 3 spatial axes."""

def conv_transpose1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose`` over 1 spatial axis."""

def conv_transpose1d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose_jvp`` over 1 spatial axis."""

def conv_transpose1d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_transpose_vjp`` over 1 spatial axis."""

def conv_transpose2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose`` over 2 spatial axes."""

def conv_transpose2d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose_jvp`` over 2 spatial axes."""

def conv_transpose2d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_transpose_vjp`` over 2 spatial axes."""

def conv_transpose3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose`` over 3 spatial axes."""

def conv_transpose3d_jvp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    dx: TensorLike,
    dweight: TensorLike,
    dbias: TensorLike | None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """``conv_transpose_jvp`` over 3 spatial axes."""

def conv_transpose3d_vjp(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    g: TensorLike,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``conv_transpose_vjp`` over 3 spatial axes."""

def fold1d(
    x: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold`` over 1 spatial axis."""

def fold1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_jvp`` over 1 spatial axis."""

def fold1d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_vjp`` over 1 spatial axis."""

def fold2d(
    x: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold`` over 2 spatial axes."""

def fold2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_jvp`` over 2 spatial axes."""

def fold2d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_vjp`` over 2 spatial axes."""

def fold3d(
    x: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold`` over 3 spatial axes."""

def fold3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_jvp`` over 3 spatial axes."""

def fold3d_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``fold_vjp`` over 3 spatial axes."""

def global_avg_pool1d(x: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool`` over 1 spatial axis."""

def global_avg_pool1d_jvp(x: TensorLike, dx: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_jvp`` over 1 spatial axis."""

def global_avg_pool1d_vjp(x: TensorLike, g: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_vjp`` over 1 spatial axis."""

def global_avg_pool2d(x: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool`` over 2 spatial axes."""

def global_avg_pool2d_jvp(x: TensorLike, dx: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_jvp`` over 2 spatial axes."""

def global_avg_pool2d_vjp(x: TensorLike, g: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_vjp`` over 2 spatial axes."""

def global_avg_pool3d(x: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool`` over 3 spatial axes."""

def global_avg_pool3d_jvp(x: TensorLike, dx: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_jvp`` over 3 spatial axes."""

def global_avg_pool3d_vjp(x: TensorLike, g: TensorLike, keepdims: bool = True) -> Tensor:
    """``global_avg_pool_vjp`` over 3 spatial axes."""

def global_max_pool1d(x: TensorLike, keepdims: bool = True, *, ties: str = "first") -> Tensor:
    """``global_max_pool`` over 1 spatial axis."""

def global_max_pool1d_jvp(
    x: TensorLike, dx: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_jvp`` over 1 spatial axis."""

def global_max_pool1d_vjp(
    x: TensorLike, g: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_vjp`` over 1 spatial axis."""

def global_max_pool2d(x: TensorLike, keepdims: bool = True, *, ties: str = "first") -> Tensor:
    """``global_max_pool`` over 2 spatial axes."""

def global_max_pool2d_jvp(
    x: TensorLike, dx: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_jvp`` over 2 spatial axes."""

def global_max_pool2d_vjp(
    x: TensorLike, g: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_vjp`` over 2 spatial axes."""

def global_max_pool3d(x: TensorLike, keepdims: bool = True, *, ties: str = "first") -> Tensor:
    """``global_max_pool`` over 3 spatial axes."""

def global_max_pool3d_jvp(
    x: TensorLike, dx: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_jvp`` over 3 spatial axes."""

def global_max_pool3d_vjp(
    x: TensorLike, g: TensorLike, keepdims: bool = True, *, ties: str = "first", strict: bool = False
) -> Tensor:
    """``global_max_pool_vjp`` over 3 spatial axes."""

def lp_pool1d(
    x: TensorLike, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """``lp_pool`` over 1 spatial axis."""

def lp_pool2d(
    x: TensorLike, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """``lp_pool`` over 2 spatial axes."""

def lp_pool3d(
    x: TensorLike, p: float, kernel_size: int | Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """``lp_pool`` over 3 spatial axes."""

def max_gather1d(x: TensorLike, indices: TensorLike) -> Tensor:
    """``max_gather`` over 1 spatial axis."""

def max_gather1d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike) -> Tensor:
    """``max_gather_jvp`` over 1 spatial axis."""

def max_gather1d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike) -> Tensor:
    """``max_gather_vjp`` over 1 spatial axis."""

def max_gather2d(x: TensorLike, indices: TensorLike) -> Tensor:
    """``max_gather`` over 2 spatial axes."""

def max_gather2d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike) -> Tensor:
    """``max_gather_jvp`` over 2 spatial axes."""

def max_gather2d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike) -> Tensor:
    """``max_gather_vjp`` over 2 spatial axes."""

def max_gather3d(x: TensorLike, indices: TensorLike) -> Tensor:
    """``max_gather`` over 3 spatial axes."""

def max_gather3d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike) -> Tensor:
    """``max_gather_jvp`` over 3 spatial axes."""

def max_gather3d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike) -> Tensor:
    """``max_gather_vjp`` over 3 spatial axes."""

@overload
def max_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """The largest real cell of each window, and with ``return_indices`` the winner's position in its spatial plane."""

@overload
def max_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool1d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``max_pool`` over 1 spatial axis."""

@overload
def max_pool1d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool1d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_jvp`` over 1 spatial axis."""

@overload
def max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_vjp`` over 1 spatial axis."""

@overload
def max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool2d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``max_pool`` over 2 spatial axes."""

@overload
def max_pool2d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool2d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_jvp`` over 2 spatial axes."""

@overload
def max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_vjp`` over 2 spatial axes."""

@overload
def max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool3d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
) -> Tensor:
    """``max_pool`` over 3 spatial axes."""

@overload
def max_pool3d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool3d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_jvp`` over 3 spatial axes."""

@overload
def max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """``max_pool_vjp`` over 3 spatial axes."""

@overload
def max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The tangent of each maximum (indices are integers and have none)."""

@overload
def max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The cotangent of ``x``: each window's ``g`` goes to its winner, or to its tied cells."""

@overload
def max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
    ties: str = "first",
    strict: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...
def max_unpool1d(x: TensorLike, indices: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool`` over 1 spatial axis."""

def max_unpool1d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_jvp`` over 1 spatial axis."""

def max_unpool1d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_vjp`` over 1 spatial axis."""

def max_unpool2d(x: TensorLike, indices: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool`` over 2 spatial axes."""

def max_unpool2d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_jvp`` over 2 spatial axes."""

def max_unpool2d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_vjp`` over 2 spatial axes."""

def max_unpool3d(x: TensorLike, indices: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool`` over 3 spatial axes."""

def max_unpool3d_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_jvp`` over 3 spatial axes."""

def max_unpool3d_vjp(x: TensorLike, indices: TensorLike, g: TensorLike, output_size: int | Sequence[int]) -> Tensor:
    """``max_unpool_vjp`` over 3 spatial axes."""

def resize1d(
    x: TensorLike,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> Tensor:
    """``resize`` over 1 spatial axis."""

def resize2d(
    x: TensorLike,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> Tensor:
    """``resize`` over 2 spatial axes."""

def resize3d(
    x: TensorLike,
    size: int | Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> Tensor:
    """``resize`` over 3 spatial axes."""

def smooth_max_pool1d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool`` over 1 spatial axis."""

def smooth_max_pool1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp`` over 1 spatial axis."""

def smooth_max_pool1d_jvp_jvp(
    x: TensorLike,
    dx: TensorLike,
    ex: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_jvp`` over 1 spatial axis."""

def smooth_max_pool1d_jvp_vjp(
    x: TensorLike,
    dx: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_vjp`` over 1 spatial axis."""

def smooth_max_pool1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_vjp`` over 1 spatial axis."""

def smooth_max_pool2d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool`` over 2 spatial axes."""

def smooth_max_pool2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp`` over 2 spatial axes."""

def smooth_max_pool2d_jvp_jvp(
    x: TensorLike,
    dx: TensorLike,
    ex: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_jvp`` over 2 spatial axes."""

def smooth_max_pool2d_jvp_vjp(
    x: TensorLike,
    dx: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_vjp`` over 2 spatial axes."""

def smooth_max_pool2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_vjp`` over 2 spatial axes."""

def smooth_max_pool3d(
    x: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool`` over 3 spatial axes."""

def smooth_max_pool3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp`` over 3 spatial axes."""

def smooth_max_pool3d_jvp_jvp(
    x: TensorLike,
    dx: TensorLike,
    ex: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_jvp`` over 3 spatial axes."""

def smooth_max_pool3d_jvp_vjp(
    x: TensorLike,
    dx: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_jvp_vjp`` over 3 spatial axes."""

def smooth_max_pool3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``smooth_max_pool_vjp`` over 3 spatial axes."""

def unfold1d(
    x: TensorLike, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> Tensor:
    """``unfold`` over 1 spatial axis."""

def unfold1d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_jvp`` over 1 spatial axis."""

def unfold1d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_vjp`` over 1 spatial axis."""

def unfold2d(
    x: TensorLike, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> Tensor:
    """``unfold`` over 2 spatial axes."""

def unfold2d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_jvp`` over 2 spatial axes."""

def unfold2d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_vjp`` over 2 spatial axes."""

def unfold3d(
    x: TensorLike, kernel_size: int | Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> Tensor:
    """``unfold`` over 3 spatial axes."""

def unfold3d_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_jvp`` over 3 spatial axes."""

def unfold3d_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: int | Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """``unfold_vjp`` over 3 spatial axes."""

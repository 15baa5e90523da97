"""What the operators mean: value, forward and reverse derivative, over any scalar.

``f(x, ...)``, ``f_jvp(x, dx, ...)`` and ``f_vjp(x, g, ...)`` for every operator below, on nested lists or arrays of
any number type; results have ``.shape`` and ``.tolist()``. ``max_pool2d`` and the like are ``max_pool`` for two spatial
axes, which also take an int where the N-d form wants one size per axis.

>>> max_pool2d([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2, stride=1).tolist()
[[5, 6], [8, 9]]
"""

from types import ModuleType as _ModuleType
from typing import Any as _Any

from gradspec.spec.conv import conv, conv_jvp, conv_transpose, conv_transpose_jvp, conv_transpose_vjp, conv_vjp
from gradspec.spec.convert import convert, dequantize, quantize, round_to
from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
from gradspec.spec.gather import gather_rows, scatter_add_rows, scatter_rows, top_places, topk
from gradspec.spec.layout import broadcast_to, concat, flatten, pad, reshape, slice, transpose
from gradspec.spec.linear import batch_norm, linear, matmul
from gradspec.spec.loss import cross_entropy, mse_loss, put_label, take_label
from gradspec.spec.lp_pool import lp_pool
from gradspec.spec.pointwise import (
    abs,
    add,
    atan,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    clamp,
    cos,
    detach,
    div,
    equal,
    erf,
    exp,
    floor,
    gelu,
    greater,
    leaky_relu,
    left_shift,
    log,
    maximum,
    minimum,
    mul,
    neg,
    relu,
    right_shift,
    round,
    scale,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    sub,
    tanh,
    trunc_divide,
    where,
)
from gradspec.spec.pool import (
    adaptive_avg_pool,
    adaptive_avg_pool_jvp,
    adaptive_avg_pool_vjp,
    adaptive_max_pool,
    adaptive_max_pool_jvp,
    adaptive_max_pool_vjp,
    avg_pool,
    avg_pool_jvp,
    avg_pool_vjp,
    global_avg_pool,
    global_avg_pool_jvp,
    global_avg_pool_vjp,
    global_max_pool,
    global_max_pool_jvp,
    global_max_pool_vjp,
    max_pool,
    max_pool_jvp,
    max_pool_vjp,
)
from gradspec.spec.ranked import ranked_names as _ranked_names
from gradspec.spec.ranked import ranked_operator as _ranked_operator
from gradspec.spec.reduce import cumsum, log_softmax, mean, mean_transpose, softmax, sum
from gradspec.spec.resize import resize
from gradspec.spec.smooth_pool import (
    smooth_max_pool,
    smooth_max_pool_jvp,
    smooth_max_pool_jvp_jvp,
    smooth_max_pool_jvp_vjp,
    smooth_max_pool_vjp,
)
from gradspec.spec.tensor import Tensor, tensor
from gradspec.spec.unfold import fold, fold_jvp, fold_vjp, unfold, unfold_jvp, unfold_vjp
from gradspec.spec.unpool import max_gather, max_gather_jvp, max_gather_vjp, max_unpool, max_unpool_jvp, max_unpool_vjp
from gradspec.spec.window import Window, adaptive, regular, transposed, whole

OPERATORS = (
    "max_pool",
    "avg_pool",
    "smooth_max_pool",
    "adaptive_max_pool",
    "adaptive_avg_pool",
    "global_max_pool",
    "global_avg_pool",
    "conv",
    "conv_transpose",
    "max_unpool",
    "max_gather",
    "unfold",
    "fold",
)

RANKED = (*OPERATORS, "lp_pool", "resize")
"""The operators with 1d, 2d and 3d names."""

__all__ = sorted(name for name, value in globals().items() if name[0].isalpha() and not isinstance(value, _ModuleType))


def __getattr__(name: str) -> _Any:
    operator = _ranked_operator(name, RANKED, globals())
    if operator is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = operator
    return operator


def __dir__() -> list[str]:
    return sorted([*__all__, *_ranked_names(RANKED, __all__)])

"""What the operators mean: value, forward and reverse derivative, over any scalar.

``f(x, ...)``, ``f_jvp(x, dx, ...)`` and ``f_vjp(x, g, ...)`` for every operator below, on nested lists or arrays of
any number type; results have ``.shape`` and ``.tolist()``. ``max_pool2d`` and the like are ``max_pool`` for two spatial
axes, which also take an int where the N-d form wants one size per axis.

>>> max_pool2d([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2, stride=1).tolist()
[[5, 6], [8, 9]]
"""

from typing import Any

from gradspec.spec.bits import bitwise_and, bitwise_or, bitwise_xor, left_shift, right_shift
from gradspec.spec.conv import (
    conv,
    conv_jvp,
    conv_transpose,
    conv_transpose_jvp,
    conv_transpose_vjp,
    conv_vjp,
)
from gradspec.spec.convert import convert
from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
from gradspec.spec.gather import gather_rows, scatter_add_rows, scatter_rows
from gradspec.spec.layout import broadcast_to, concat, flatten, pad, reshape, slice, transpose
from gradspec.spec.linear import batch_norm, linear, matmul
from gradspec.spec.loss import cross_entropy, mse_loss, put_label, take_label
from gradspec.spec.lp_pool import lp_pool
from gradspec.spec.minifloat import round_to
from gradspec.spec.pointwise import (
    abs,
    add,
    atan,
    clamp,
    cos,
    detach,
    div,
    erf,
    exp,
    floor,
    gelu,
    leaky_relu,
    log,
    maximum,
    minimum,
    mul,
    neg,
    relu,
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
from gradspec.spec.quantize import dequantize, quantize
from gradspec.spec.ranked import ranked_names, ranked_operator
from gradspec.spec.reduce import cumsum, log_softmax, mean, mean_transpose, softmax, sum
from gradspec.spec.resize import resize
from gradspec.spec.select import equal, greater, where
from gradspec.spec.smooth_pool import (
    smooth_max_pool,
    smooth_max_pool_jvp,
    smooth_max_pool_jvp_jvp,
    smooth_max_pool_jvp_vjp,
    smooth_max_pool_vjp,
)
from gradspec.spec.tensor import Tensor, tensor
from gradspec.spec.topk import top_places, topk
from gradspec.spec.unfold import fold, fold_jvp, fold_vjp, unfold, unfold_jvp, unfold_vjp
from gradspec.spec.unpool import (
    max_gather,
    max_gather_jvp,
    max_gather_vjp,
    max_unpool,
    max_unpool_jvp,
    max_unpool_vjp,
)
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


def __getattr__(name: str) -> Any:
    operator = ranked_operator(name, RANKED, globals())
    if operator is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = operator
    return operator


__all__ = [
    "OPERATORS",
    "RANKED",
    "AmbiguityError",
    "DTypeError",
    "ShapeError",
    "Tensor",
    "UnsupportedError",
    "Window",
    "abs",
    "adaptive",
    "adaptive_avg_pool",
    "adaptive_avg_pool_jvp",
    "adaptive_avg_pool_vjp",
    "adaptive_max_pool",
    "adaptive_max_pool_jvp",
    "adaptive_max_pool_vjp",
    "add",
    "atan",
    "avg_pool",
    "avg_pool_jvp",
    "avg_pool_vjp",
    "batch_norm",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "clamp",
    "concat",
    "conv",
    "conv_jvp",
    "conv_transpose",
    "conv_transpose_jvp",
    "conv_transpose_vjp",
    "conv_vjp",
    "convert",
    "cos",
    "cross_entropy",
    "cumsum",
    "dequantize",
    "detach",
    "div",
    "equal",
    "erf",
    "exp",
    "flatten",
    "floor",
    "fold",
    "fold_jvp",
    "fold_vjp",
    "gather_rows",
    "gelu",
    "global_avg_pool",
    "global_avg_pool_jvp",
    "global_avg_pool_vjp",
    "global_max_pool",
    "global_max_pool_jvp",
    "global_max_pool_vjp",
    "greater",
    "leaky_relu",
    "left_shift",
    "linear",
    "log",
    "log_softmax",
    "lp_pool",
    "matmul",
    "max_gather",
    "max_gather_jvp",
    "max_gather_vjp",
    "max_pool",
    "max_pool_jvp",
    "max_pool_vjp",
    "max_unpool",
    "max_unpool_jvp",
    "max_unpool_vjp",
    "maximum",
    "mean",
    "mean_transpose",
    "minimum",
    "mse_loss",
    "mul",
    "neg",
    "pad",
    "put_label",
    "quantize",
    "regular",
    "relu",
    "reshape",
    "resize",
    "right_shift",
    "round",
    "round_to",
    "scale",
    "scatter_add_rows",
    "scatter_rows",
    "sigmoid",
    "silu",
    "sin",
    "slice",
    "smooth_max_pool",
    "smooth_max_pool_jvp",
    "smooth_max_pool_jvp_jvp",
    "smooth_max_pool_jvp_vjp",
    "smooth_max_pool_vjp",
    "softmax",
    "softplus",
    "sqrt",
    "sub",
    "sum",
    "take_label",
    "tanh",
    "tensor",
    "top_places",
    "topk",
    "transpose",
    "transposed",
    "trunc_divide",
    "unfold",
    "unfold_jvp",
    "unfold_vjp",
    "where",
    "whole",
]


def __dir__() -> list[str]:
    return sorted([*__all__, *ranked_names(RANKED, __all__)])

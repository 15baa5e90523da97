"""What the operators mean: value, forward and reverse derivative, over any scalar.

``f(x, ...)``, ``f_jvp(x, dx, ...)`` and ``f_vjp(x, g, ...)`` for every operator below, on nested lists or arrays of
any number type; results have ``.shape`` and ``.tolist()``. ``max_pool2d`` and the like are ``max_pool`` for two spatial
axes, which also take an int where the N-d form wants one size per axis.

>>> max_pool2d([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2, stride=1).tolist()
[[5, 6], [8, 9]]
"""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from gradspec.spec.conv import (
    conv,
    conv_jvp,
    conv_transpose,
    conv_transpose_jvp,
    conv_transpose_vjp,
    conv_vjp,
)
from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
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
from gradspec.spec.smooth_pool import (
    smooth_max_pool,
    smooth_max_pool_jvp,
    smooth_max_pool_jvp_jvp,
    smooth_max_pool_jvp_vjp,
    smooth_max_pool_vjp,
)
from gradspec.spec.tensor import Tensor, tensor
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

_RANKED = re.compile(rf"({'|'.join(OPERATORS)})([123])d((?:_jvp|_vjp)*)")


def _at_rank(operator: Callable[..., Any], rank: int, name: str) -> Callable[..., Any]:
    """``operator`` for ``rank`` spatial axes: sizes may be a single int, and no argument says the rank."""
    full = inspect.signature(operator)
    signature = full.replace(parameters=[p for p in full.parameters.values() if p.name != "rank"])

    @wraps(operator)
    def ranked(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        for size in ("kernel_size", "output_size"):
            if size in arguments:
                arguments[size] = _sizes(name, size, arguments[size], rank)
        if "weight" in arguments and tensor(arguments["weight"]).ndim != rank + 2:
            shape = tensor(arguments["weight"]).shape
            raise ShapeError(
                f"{name}: the weight has shape {shape}; two channel axes and {rank} kernel axes are needed"
            )
        if "rank" in full.parameters:
            arguments["rank"] = rank

        return operator(**arguments)

    ranked.__name__ = ranked.__qualname__ = name
    ranked.__signature__ = signature  # type: ignore[attr-defined]
    ranked.__doc__ = f"``{operator.__name__}`` over {rank} spatial {'axis' if rank == 1 else 'axes'}."
    return ranked


def _sizes(name: str, argument: str, value: Any, rank: int) -> Any:
    if not isinstance(value, list | tuple):
        return (value,) * rank
    if len(value) != rank:
        raise ShapeError(f"{name}: {argument}={value} has {len(value)} entries; give one int, or {rank} of them")
    return value


def __getattr__(name: str) -> Any:
    match = _RANKED.fullmatch(name)
    operator = globals().get(match[1] + match[3]) if match else None
    if match is None or operator is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _at_rank(operator, int(match[2]), name)
    return globals()[name]


__all__ = [
    "OPERATORS",
    "AmbiguityError",
    "DTypeError",
    "ShapeError",
    "Tensor",
    "UnsupportedError",
    "Window",
    "adaptive",
    "adaptive_avg_pool",
    "adaptive_avg_pool_jvp",
    "adaptive_avg_pool_vjp",
    "adaptive_max_pool",
    "adaptive_max_pool_jvp",
    "adaptive_max_pool_vjp",
    "avg_pool",
    "avg_pool_jvp",
    "avg_pool_vjp",
    "conv",
    "conv_jvp",
    "conv_transpose",
    "conv_transpose_jvp",
    "conv_transpose_vjp",
    "conv_vjp",
    "fold",
    "fold_jvp",
    "fold_vjp",
    "global_avg_pool",
    "global_avg_pool_jvp",
    "global_avg_pool_vjp",
    "global_max_pool",
    "global_max_pool_jvp",
    "global_max_pool_vjp",
    "max_gather",
    "max_gather_jvp",
    "max_gather_vjp",
    "max_pool",
    "max_pool_jvp",
    "max_pool_vjp",
    "max_unpool",
    "max_unpool_jvp",
    "max_unpool_vjp",
    "regular",
    "smooth_max_pool",
    "smooth_max_pool_jvp",
    "smooth_max_pool_jvp_jvp",
    "smooth_max_pool_jvp_vjp",
    "smooth_max_pool_vjp",
    "tensor",
    "transposed",
    "unfold",
    "unfold_jvp",
    "unfold_vjp",
    "whole",
]


def __dir__() -> list[str]:
    ranked = [f"{op}{rank}d{mode}" for op in OPERATORS for rank in (1, 2, 3) for mode in ("", "_jvp", "_vjp")]
    return [*__all__, *ranked]

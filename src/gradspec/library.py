"""Everything ``import gradspec as gs`` offers beyond the specification, loaded when a name of it is first used.

What is imported here under its own name is public.
"""

from typing import Any as _Any

from gradspec import wiring as _wiring  # what graphs can do
from gradspec.folding import fold_batch_norm
from gradspec.graph.builder import Builder
from gradspec.graph.family import Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.tree import register_pytree
from gradspec.graph.types import (
    DType,
    TensorType,
    bf16,
    boolean,
    f8_e4m3,
    f8_e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from gradspec.interop import arrays as _arrays
from gradspec.interop import from_jax, from_onnx, from_torch, to_jax, to_onnx, to_torch
from gradspec.interop.weights import bind, load_weights, save_weights
from gradspec.ops.bits import bitwise_and, bitwise_not, bitwise_or, bitwise_xor, left_shift, right_shift
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.convert import convert, round_to
from gradspec.ops.einsum import einsum
from gradspec.ops.gather import gather, scatter, scatter_add, sort, take, topk
from gradspec.ops.grid_sample import grid_sample
from gradspec.ops.layout import concat, pad, slice, transpose
from gradspec.ops.linear import batch_norm, linear, matmul
from gradspec.ops.loss import cross_entropy, mse_loss
from gradspec.ops.lp_pool import lp_pool
from gradspec.ops.pointwise import (
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
from gradspec.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, global_avg_pool, global_max_pool, max_pool
from gradspec.ops.quantize import dequantize, quantize
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.resize import resize
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to, flatten, reshape, sum
from gradspec.ops.smooth_pool import smooth_max_pool
from gradspec.ops.unfold import fold, unfold
from gradspec.ops.unpool import max_gather, max_unpool
from gradspec.runtime.calls import cache_calls as _cache_calls
from gradspec.runtime.compiled import Compiled, CompiledFamily, compile
from gradspec.runtime.evaluate import evaluate
from gradspec.runtime.threads import get_num_threads, set_num_threads
from gradspec.saving.graphs import load
from gradspec.spec import RANKED as _RANKED
from gradspec.spec.ranked import ranked_names as _ranked_names
from gradspec.spec.ranked import ranked_operator as _ranked_operator
from gradspec.transforms.functions import grad, hvp, jacobian, jvp, scan, value_and_grad, vjp
from gradspec.transforms.trace import trace
from gradspec.verify.bounds import bounds

__all__ = sorted(name for name in globals() if name[0].isalpha())


def __getattr__(name: str) -> _Any:
    """The 1d, 2d and 3d names."""
    operator = _ranked_operator(name, _RANKED, globals())
    if operator is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _cache_calls(operator)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, *_ranked_names(_RANKED, __all__)]


def _remember_calls() -> None:
    for name in __all__:
        value = globals()[name]
        if getattr(value, "__module__", "").startswith("gradspec.ops."):
            globals()[name] = _cache_calls(value)


_remember_calls()

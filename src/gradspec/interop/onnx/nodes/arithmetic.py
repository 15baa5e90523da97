"""Operators that work cell by cell, and those that reduce axes or multiply matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, prod
from types import ModuleType
from typing import Any

import numpy as np
from onnx import TensorProto

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import bf16, boolean, f16, f32, u8
from gradspec.interop import compose
from gradspec.interop.indexing import argmax, one_hot
from gradspec.interop.onnx.node import Handler, OnnxNode, apply_to_operands, normal_axes
from gradspec.interop.onnx.nodes.windows import spatial
from gradspec.ops import bits
from gradspec.ops import pointwise as ops
from gradspec.ops.convert import convert
from gradspec.ops.einsum import einsum
from gradspec.ops.linear import MATMUL, Product, batch_norm, matmul
from gradspec.ops.pointwise import STEP, Levels, abs, log, sqrt
from gradspec.ops.pool import avg_pool
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

FLOAT_MAX = float(np.finfo(np.float32).max)
MOST_EXPONENTS = 16
"""Whole exponents in one Pow, each of which becomes nodes of its own."""


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _mod(node: OnnxNode) -> Var:
    """What is left: with the sign of the dividend, or of the divisor unless ``fmod`` says otherwise."""
    a, b, fmod = node.variable(0), node.variable(1), node.flag("fmod")
    if a.type.is_float and not fmod and node.version < 28:
        raise FormatError(f"its fmod is 0, which opset {node.version} has for integers only")
    return (compose.float_remainder if a.type.is_float else compose.remainder)(a, b, sign_of_divisor=not fmod)


def _pow(node: OnnxNode) -> Var:
    """``x`` to known powers: every power is taken where it is meant, and of 1 elsewhere, where it is not chosen.

    Each whole exponent is a power of its own. The others need no sign: below 0 their powers are NaN, as the logarithm.
    What is not chosen has a cotangent of 0, which a derivative that is not finite would make NaN.
    """
    if isinstance(node.value(1), Var) and node.variable(0).type.is_float:
        x = node.variable(0)
        return compose.variable_power(x, convert(node.variable(1), x.dtype))
    node.scope.charge(node.known(1).size * (1 + MOST_EXPONENTS))
    x, powers = node.variable(0), node.known(1).astype(float)
    whole = np.unique(powers[powers == np.round(powers)])
    if whole.size > MOST_EXPONENTS or not np.all(np.isfinite(powers)):
        raise UnsupportedError(f"Pow with more than {MOST_EXPONENTS} whole exponents, or infinite ones")
    if not x.type.is_float and not np.all(powers == np.round(np.abs(powers))):
        raise UnsupportedError("Pow of integers with exponents that are negative or no integers")
    if powers.size and np.all(powers == powers.flat[0]):
        return broadcast_to(compose.power(x, float(powers.flat[0])), broadcast_shape("Pow", x.shape, powers.shape))
    fractional = powers != np.round(powers)
    y = compose.variable_power(where(fractional, x, 1.0), powers.astype(x.dtype.numpy)) if x.type.is_float else x
    for p in whole:
        y = where(powers == p, compose.power(where(powers == p, x, 1.0), float(p)), y)
    return y


# --- bounds and steps -------------------------------------------------------------------------------------------------


def _clip(node: OnnxNode) -> Var:
    """Bounds were attributes before they became inputs. The largest float32, their default then, is no bound."""
    x = node.variable(0)
    if "min" in node.attributes:
        low, high = node.attribute("min"), node.attribute("max")
        if low > high:
            return ops.minimum(ops.maximum(x, low), high)
        least, most = None if low <= -FLOAT_MAX else low, None if high >= FLOAT_MAX else high
        return x if least is None and most is None else ops.clamp(x, least, most)
    bounds = [node.value(i) if node.has(i) else None for i in (1, 2)]
    if any(isinstance(bound, Var) for bound in bounds):
        return _clip_by_variables(node, x)
    least, most = (node.known_number(i) if node.has(i) else None for i in (1, 2))
    if least is None and most is None:
        return x
    crossed = least is not None and most is not None and least > most
    return _clip_by_variables(node, x) if crossed else ops.clamp(x, least, most)


def _clip_by_variables(node: OnnxNode, x: Var) -> Var:
    """Where the bounds cross, the upper one wins."""
    low, high = node.optional(1), node.optional(2)
    raised = x if low is None else ops.maximum(x, low)
    return raised if high is None else ops.minimum(raised, high)


def _shrink(x: Var, bias: float, lambd: float) -> Var:
    """``x`` moved towards 0 by ``bias`` beyond ``±lambd``, and 0 between."""
    return where(less(x, -lambd), x + bias, where(greater(x, lambd), x - bias, 0.0))


def _sign(x: Var) -> Var:
    """NaN where ``x`` is."""
    return where(equal(x, x), compose.sign(x), ops.detach(x)) if x.type.is_float else compose.sign(x)


def _celu(x: Var, alpha: float) -> Var:
    if alpha == 0:
        raise FormatError("its alpha is 0, by which it divides")
    return compose.celu(x, alpha)


def _is_inf(node: OnnxNode) -> Any:
    x = node.variable(0)
    wanted = [inf] * node.flag("detect_positive") + [-inf] * node.flag("detect_negative")
    if not wanted:
        return np.broadcast_to(np.False_, x.shape)
    return reduce(ops.maximum, (equal(x, infinity) for infinity in wanted))


def _dropout(node: OnnxNode) -> Any:
    """The identity, in inference; its mask keeps everything."""
    x = node.value(0)
    if node.has(2) and node.known_number(2) and (not node.has(1) or node.known_number(1) != 0):
        raise UnsupportedError("Dropout in training mode")
    kind = x.dtype.numpy if isinstance(x, Var) else x.dtype
    mask = np.ones((), bool if node.version >= 10 else kind)
    return [x, np.broadcast_to(mask, x.shape)][: len(node.outputs)]


# --- the table --------------------------------------------------------------------------------------------------------

SHIFTS = {"LEFT": bits.left_shift, "RIGHT": bits.right_shift}


def _called_alike(module: ModuleType, *names: str) -> dict[str, tuple[Callable[..., Any]]]:
    return {name: (getattr(module, name.lower()),) for name in names}


FUNCTIONS: dict[str, tuple[Callable[..., Any], *tuple[str, ...]]] = {
    **_called_alike(
        ops,
        *("Abs", "Add", "Atan", "Cos", "Erf", "Exp", "Floor", "Log", "Mul", "Neg", "Relu", "Round"),
        *("Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Tanh"),
    ),
    **_called_alike(
        compose,
        *("Acos", "Acosh", "Asin", "Asinh", "Atanh", "Ceil", "Cosh", "HardSwish", "Mish", "Sinh"),
        *("Softsign", "Tan"),
    ),
    "And": (ops.minimum,),
    "BitShift": (lambda x, n, direction: SHIFTS[direction](x, n), "direction"),
    "BitwiseAnd": (bits.bitwise_and,),
    "BitwiseNot": (bits.bitwise_not,),
    "BitwiseOr": (bits.bitwise_or,),
    "BitwiseXor": (bits.bitwise_xor,),
    "Celu": (_celu, "alpha"),
    "Div": (compose.divide,),
    "Elu": (compose.elu, "alpha"),
    "Equal": (equal,),
    "Greater": (greater,),
    "GreaterOrEqual": (compose.greater_equal,),
    "HardSigmoid": (compose.hardsigmoid, "alpha", "beta"),
    "IsNaN": (lambda x: compose.unequal(x, x),),
    "LeakyRelu": (ops.leaky_relu, "alpha"),
    "Less": (less,),
    "LessOrEqual": (compose.less_equal,),
    "Max": (lambda *xs: reduce(ops.maximum, xs),),
    "Mean": (lambda *xs: reduce(ops.add, xs) / float(len(xs)),),
    "Min": (lambda *xs: reduce(ops.minimum, xs),),
    "Not": (compose.logical_not,),
    "Or": (ops.maximum,),
    "PRelu": (lambda x, slope: compose.prelu(x, broadcast_to(slope, x.shape)),),
    "Reciprocal": (lambda x: 1.0 / x,),
    "Selu": (lambda x, alpha, gamma: compose.elu(x, alpha, gain=gamma), "alpha", "gamma"),
    "Shrink": (_shrink, "bias", "lambd"),
    "Sign": (_sign,),
    "Sum": (lambda *xs: reduce(ops.add, xs),),
    "Swish": (lambda x, alpha: ops.silu(x) if alpha == 1 else x * ops.sigmoid(ops.scale(x, alpha)), "alpha"),
    "ThresholdedRelu": (lambda x, alpha: where(greater(x, alpha), x, 0.0), "alpha"),
    "Where": (where,),
    "Xor": (compose.unequal,),
}
"""Functions of all operands and of the attributes that are named behind them."""


# --- reductions over axes ---------------------------------------------------------------------------------------------

Axes = tuple[int, ...]
Reduction = Callable[[Var, Axes, bool], Var]


def _axes(node: OnnxNode, rank: int) -> Axes | None:
    """The axes that are reduced; None: leave it as it is."""
    named = node.axes()
    if not named:
        return None if node.flag("noop_with_empty_axes") else tuple(range(rank))
    return normal_axes(named, rank)


def _reduction(on_variables: Reduction, of_nothing: float | None = None, on_arrays: Any = None) -> Handler:
    """A handler; ``of_nothing`` is the result where there is no number, ``on_arrays`` reduces known integers."""

    def handler(node: OnnxNode) -> Any:
        x, keepdims = node.value(0), node.flag("keepdims")
        axes = _axes(node, len(x.shape))
        if axes is None:
            return _reduce_each(node, on_variables)
        if on_arrays is not None and isinstance(x, np.ndarray) and x.dtype.kind in "iu":
            node.scope.charge(x.size)
            return np.asarray(on_arrays(x, axis=axes, keepdims=keepdims), x.dtype)
        x = node.variable(0)
        if of_nothing is not None and any(x.shape[a] == 0 for a in axes):
            return _fill_reduced(x, axes, keepdims, of_nothing)
        if x.dtype == boolean:
            return convert(on_variables(convert(x, u8), axes, keepdims), boolean)
        return on_variables(x, axes, keepdims)

    return handler


def _reduce_each(node: OnnxNode, reduction: Reduction) -> Any:
    """Without axes every number is reduced by itself: what is done to numbers and sums remains."""
    if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        return node.value(0)
    x = node.variable(0)
    return reshape(reduction(reshape(x, (*x.shape, 1)), (x.ndim,), False), x.shape)


def _fill_reduced(x: Var, axes: Axes, keepdims: bool, number: float) -> Any:
    """The result where there is no number; integers have a largest and a least one for the infinities."""
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    kind = x.dtype.numpy
    if kind.kind in "iu":
        number = max(min(number, np.iinfo(kind).max), np.iinfo(kind).min)
    return np.broadcast_to(np.asarray(number > 0 if kind.kind == "b" else number, kind), shape)


def _cumsum(node: OnnxNode) -> Var:
    x = node.variable(0)
    (axis,) = normal_axes([int(node.known_number(1))], x.ndim)
    return cumsum(x, axis, node.flag("exclusive"), node.flag("reverse"))


def _softmax(function: Callable[..., Any]) -> Handler:
    def handler(node: OnnxNode) -> Any:
        x, axis = node.variable(0), node.attribute("axis")
        if node.version >= 13:
            return function(x, node.axis(x.ndim))
        if not -x.ndim <= axis <= x.ndim:
            raise FormatError(f"its axis is {axis}, and its input has {x.ndim}")
        # Until opset 12 the axes from this one on are taken together.
        at = axis if axis >= 0 else axis + x.ndim
        rows = reshape(x, (*x.shape[:at], -1 if x.type.size else 0))
        return reshape(function(rows, at), x.shape)

    return handler


# --- normalisations ---------------------------------------------------------------------------------------------------


def _batch_norm(node: OnnxNode) -> Var:
    x, _, _, _, variance = node.variables()
    if node.flag("training_mode") or any(node.wants(i) for i in range(1, 5)):
        raise UnsupportedError("BatchNormalization in training mode")
    eps = node.attribute("epsilon")
    kind = max(variance.dtype, x.dtype, key=lambda dtype: dtype.numpy.itemsize)
    wide, weight, bias, average, variance = (convert(v, kind) for v in node.variables())
    if node.attributes.get("spatial", 1) and x.ndim > 1:
        y = batch_norm(wide, average, variance, weight, bias, eps)
    else:  # one mean and variance for every cell of a sample
        y = (wide - average) / sqrt(variance + eps) * weight + bias
    return convert(y, x.dtype)


def _instance_norm(node: OnnxNode) -> Var:
    x, weight, bias = node.variables()
    spatial(x.shape)
    return compose.group_norm(x, x.shape[1], weight, bias, node.attribute("epsilon"))


def _group_norm(node: OnnxNode) -> Var:
    x, weight, bias = node.variables()
    groups, rank = node.attribute("num_groups"), len(spatial(x.shape))
    if node.version < 21:  # one number per group
        weight, bias = (_repeat_by_channel(v, groups, x.shape[1]) for v in (weight, bias))
    y = convert(compose.group_norm(_to_stash_type(node, x), groups, eps=node.attribute("epsilon")), x.dtype)
    by_channel = (x.shape[1], *(1,) * rank)
    return y * reshape(weight, by_channel) + reshape(bias, by_channel)


def _repeat_by_channel(v: Var, groups: int, channels: int) -> Var:
    if v.shape != (groups,) or groups < 1 or channels % groups:
        raise ShapeError(f"{v} does not hold one number for each of {groups} groups of {channels} channels")
    return compose.repeat_each(v, channels // groups, 0)


def _to_stash_type(node: OnnxNode, x: Var) -> Var:
    """``x`` in the precision that the statistics are computed in."""
    is_wider = node.attributes.get("stash_type", 0) == TensorProto.FLOAT and x.dtype in (f16, bf16)
    return convert(x, f32) if is_wider else x


def _layer_norm(node: OnnxNode) -> Any:
    x, weight, bias = node.variable(0), node.variable(1), node.optional(2)
    axes, wide = tuple(range(node.axis(x.ndim), x.ndim)), _to_stash_type(node, x)
    average = mean(wide, axes, keepdims=True)
    centred = wide - average
    deviation = sqrt(mean(centred * centred, axes, keepdims=True) + node.attribute("epsilon"))
    shift = None if bias is None else broadcast_to(bias, x.shape)
    y = compose.affine(convert(centred / deviation, x.dtype), broadcast_to(weight, x.shape), shift)
    return [y, average, 1.0 / deviation][: len(node.outputs)]


def _rms_norm(node: OnnxNode) -> Var:
    x, weight = node.variable(0), node.variable(1)
    axes, wide = tuple(range(node.axis(x.ndim), x.ndim)), _to_stash_type(node, x)
    deviation = sqrt(mean(wide * wide, axes, keepdims=True) + node.attribute("epsilon"))
    return convert(wide / deviation, x.dtype) * broadcast_to(weight, x.shape)


def _mean_variance_norm(node: OnnxNode) -> Var:
    """Divided by the deviation plus 1e-9, as the operator's own function body has it."""
    x = node.variable(0)
    axes = normal_axes(node.attribute("axes"), x.ndim)
    centred = x - mean(x, axes, keepdims=True)
    return centred / (sqrt(mean(centred * centred, axes, keepdims=True)) + 1e-9)


def _lrn(node: OnnxNode) -> Var:
    """``x / (bias + alpha/size · Σ x²)^beta``: the mean of squares over neighbouring channels is an average pooling."""
    x, size = node.variable(0), node.attribute("size")
    spatial(x.shape)
    if size < 1:
        raise FormatError(f"its size is {size}; 1 or more is needed")
    n, channels, *sizes = x.shape
    squares = reshape(x * x, (n, channels, prod(sizes)))
    before = (size - 1) // 2
    ends = ((min(before, channels), min(size - 1 - before, channels)), (0, 0))
    total = avg_pool(squares, (sum(ends[0]) + 1, 1), (1, 1), ends, divisor_override=size)
    base = reshape(total, x.shape) * node.attribute("alpha") + node.attribute("bias")
    return x / compose.power(base, node.attribute("beta"))


def _lp_normalization(node: OnnxNode) -> Var:
    """Divided by the 1-norm or 2-norm along an axis; 0 where that is 0."""
    x, p = node.variable(0), node.attribute("p")
    axis = node.axis(x.ndim)
    if p not in (1, 2):
        raise FormatError(f"its p is {p}; ONNX has 1 and 2")
    norm = sum_over(abs(x), axis, keepdims=True) if p == 1 else sqrt(sum_over(x * x, axis, keepdims=True))
    return x / (norm + apply(STEP, Levels(0.0, 1.0, 0.0), norm))


# --- products of matrices ---------------------------------------------------------------------------------------------


def _gemm(node: OnnxNode) -> Var:
    """``alpha · A·B + beta · C``. A C with one number per column joins the product, so that they are rounded once."""
    a, b, c = node.variable(0), node.variable(1), node.optional(2)
    product = Product(node.flag("transA"), node.flag("transB"))
    alpha, beta = node.attribute("alpha"), node.attribute("beta")
    columns = b.shape[-2 if product.transpose_b else -1] if b.ndim == 2 else 0
    if c is not None and alpha == 1 and c.shape in ((columns,), (1, columns)):
        return apply(MATMUL, product, a, b, compose.times(reshape(c, (columns,)), beta))
    y = compose.times(apply(MATMUL, product, a, b), alpha)
    return y if c is None else y + broadcast_to(compose.times(c, beta), y.shape)


HANDLERS: dict[str, Handler] = {
    **{name: apply_to_operands(*row) for name, row in FUNCTIONS.items()},
    "Clip": _clip,
    "Dropout": _dropout,
    "Gelu": lambda node: ops.gelu(node.variable(0), node.choice("approximate", "none", "tanh")),
    "IsInf": _is_inf,
    "Mod": _mod,
    "Pow": _pow,
    "BatchNormalization": _batch_norm,
    "CumSum": _cumsum,
    "Einsum": lambda node: einsum(node.attribute("equation"), *node.variables()),
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "Hardmax": _softmax(lambda x, axis: convert(one_hot(argmax(x, axis, False), x.shape[axis], axis), x.dtype)),
    "LogSoftmax": _softmax(log_softmax),
    "LpNormalization": _lp_normalization,
    "MatMul": apply_to_operands(matmul),
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
    "ReduceL1": _reduction(lambda x, axes, keepdims: sum_over(abs(x), axes, keepdims), 0.0),
    "ReduceL2": _reduction(lambda x, axes, keepdims: compose.norm(x, 2.0, axes, keepdims), 0.0),
    "ReduceLogSum": _reduction(lambda x, axes, keepdims: log(sum_over(x, axes, keepdims)), -inf),
    "ReduceLogSumExp": _reduction(compose.log_sum_exp, -inf),
    "ReduceMax": _reduction(compose.largest, -inf, np.max),
    "ReduceMean": _reduction(mean),
    "ReduceMin": _reduction(compose.smallest, inf, np.min),
    "ReduceProd": _reduction(compose.product, 1.0, np.prod),
    "ReduceSum": _reduction(sum_over, 0.0, np.sum),
    "ReduceSumSquare": _reduction(lambda x, axes, keepdims: sum_over(x * x, axes, keepdims), 0.0),
    "Softmax": _softmax(softmax),
}

"""Functions of each cell, and arithmetic, comparisons and logic that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, apply_to_operands
from gradspec.ops import pointwise as ops
from gradspec.ops.convert import convert
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to
from gradspec.spec.errors import FormatError, UnsupportedError

FLOAT_MAX = float(np.finfo(np.float32).max)
MOST_EXPONENTS = 16
"""Whole exponents in one Pow, each of which becomes nodes of its own."""


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _div(a: Var, b: Var) -> Any:
    return ops.div(a, b) if a.type.is_float else ops.trunc_divide(a, b)


def _mod(node: OnnxNode) -> Any:
    """What is left of integers: with the sign of the dividend, or of the divisor unless ``fmod`` says otherwise."""
    a, b = node.variable(0), node.variable(1)
    if a.type.is_float:
        raise UnsupportedError("Mod of floats that are not known at import")
    return compose.remainder(a, b, sign_of_divisor=not node.flag("fmod"))


def _pow(node: OnnxNode) -> Any:
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


def _clip(node: OnnxNode) -> Any:
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


def _clip_by_variables(node: OnnxNode, x: Any) -> Any:
    """Where the bounds cross, the upper one wins."""
    low, high = node.optional(1), node.optional(2)
    raised = x if low is None else ops.maximum(x, low)
    return raised if high is None else ops.minimum(raised, high)


def _shrink(x: Any, bias: float, lambd: float) -> Any:
    """``x`` moved towards 0 by ``bias`` beyond ``±lambd``, and 0 between."""
    return where(less(x, -lambd), x + bias, where(greater(x, lambd), x - bias, 0.0))


def _sign(x: Var) -> Any:
    """NaN where ``x`` is."""
    return where(equal(x, x), compose.sign(x), ops.detach(x)) if x.type.is_float else compose.sign(x)


def _celu(x: Any, alpha: float) -> Any:
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

FUNCTIONS: dict[str, tuple[Callable[..., Any], *tuple[str, ...]]] = {
    "Abs": (ops.abs,),
    "Add": (ops.add,),
    "And": (ops.minimum,),
    "Ceil": (compose.ceil,),
    "Celu": (_celu, "alpha"),
    "Cos": (ops.cos,),
    "Div": (_div,),
    "Elu": (compose.elu, "alpha"),
    "Equal": (equal,),
    "Erf": (ops.erf,),
    "Exp": (ops.exp,),
    "Floor": (ops.floor,),
    "Greater": (greater,),
    "GreaterOrEqual": (compose.greater_equal,),
    "HardSigmoid": (compose.hardsigmoid, "alpha", "beta"),
    "HardSwish": (compose.hardswish,),
    "IsNaN": (lambda x: compose.unequal(x, x),),
    "LeakyRelu": (ops.leaky_relu, "alpha"),
    "Less": (less,),
    "LessOrEqual": (compose.less_equal,),
    "Log": (ops.log,),
    "Max": (lambda *xs: reduce(ops.maximum, xs),),
    "Mean": (lambda *xs: reduce(ops.add, xs) / float(len(xs)),),
    "Min": (lambda *xs: reduce(ops.minimum, xs),),
    "Mish": (compose.mish,),
    "Mul": (ops.mul,),
    "Neg": (ops.neg,),
    "Not": (compose.logical_not,),
    "Or": (ops.maximum,),
    "PRelu": (lambda x, slope: compose.prelu(x, broadcast_to(slope, x.shape)),),
    "Reciprocal": (lambda x: 1.0 / x,),
    "Relu": (ops.relu,),
    "Round": (ops.round,),
    "Selu": (lambda x, alpha, gamma: compose.elu(x, alpha, gain=gamma), "alpha", "gamma"),
    "Shrink": (_shrink, "bias", "lambd"),
    "Sigmoid": (ops.sigmoid,),
    "Sign": (_sign,),
    "Sin": (ops.sin,),
    "Softplus": (ops.softplus,),
    "Softsign": (compose.softsign,),
    "Sqrt": (ops.sqrt,),
    "Sub": (ops.sub,),
    "Sum": (lambda *xs: reduce(ops.add, xs),),
    "Swish": (lambda x, alpha: ops.silu(x) if alpha == 1 else x * ops.sigmoid(ops.scale(x, alpha)), "alpha"),
    "Tan": (compose.tan,),
    "Tanh": (ops.tanh,),
    "ThresholdedRelu": (lambda x, alpha: where(greater(x, alpha), x, 0.0), "alpha"),
    "Where": (where,),
    "Xor": (compose.unequal,),
}
"""Functions of all operands and of the attributes that are named behind them."""

HANDLERS: dict[str, Handler] = {
    **{name: apply_to_operands(*row) for name, row in FUNCTIONS.items()},
    "Clip": _clip,
    "Dropout": _dropout,
    "Gelu": lambda node: ops.gelu(node.variable(0), node.choice("approximate", "none", "tanh")),
    "IsInf": _is_inf,
    "Mod": _mod,
    "Pow": _pow,
}

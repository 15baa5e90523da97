"""Functions of each cell, and arithmetic that broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.ops.convert import convert
from gradspec.ops.pointwise import (
    abs,
    add,
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
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to
from gradspec.spec.errors import FormatError, UnsupportedError

FLOAT_MAX = float(np.finfo(np.float32).max)
MOST_EXPONENTS = 16
"""Whole exponents in one Pow, each of which becomes nodes of its own."""


def _unary(function: Callable[[Any], Any]) -> Handler:
    return lambda node: function(node.variable(0))


def _binary(function: Callable[[Any, Any], Any]) -> Handler:
    return lambda node: function(node.variable(0), node.variable(1))


def _variadic(function: Callable[[Any, Any], Any]) -> Handler:
    return lambda node: reduce(function, node.variables())


def _with(function: Callable[..., Any], *names: str) -> Handler:
    """A function of the cell and of attributes."""
    return lambda node: function(node.variable(0), *(node.attribute(name) for name in names))


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _div(node: OnnxNode) -> Any:
    a, b = node.variable(0), node.variable(1)
    return div(a, b) if a.type.is_float else trunc_divide(a, b)


def _mean(node: OnnxNode) -> Any:
    return reduce(add, node.variables()) / float(len(node.operands))


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
            return minimum(maximum(x, low), high)
        least, most = None if low <= -FLOAT_MAX else low, None if high >= FLOAT_MAX else high
        return x if least is None and most is None else clamp(x, least, most)
    bounds = [node.value(i) if node.has(i) else None for i in (1, 2)]
    if any(isinstance(bound, Var) for bound in bounds):
        return _between(node, x)
    least, most = (node.known_number(i) if node.has(i) else None for i in (1, 2))
    if least is None and most is None:
        return x
    crossed = least is not None and most is not None and least > most
    return _between(node, x) if crossed else clamp(x, least, most)


def _between(node: OnnxNode, x: Any) -> Any:
    """Bounds that vary; where they cross, the upper one wins."""
    low, high = node.optional(1), node.optional(2)
    raised = x if low is None else maximum(x, low)
    return raised if high is None else minimum(raised, high)


def _thresholded_relu(x: Any, alpha: float) -> Any:
    """``x`` above ``alpha``, else 0."""
    return where(greater(x, alpha), x, 0.0)


def _shrink(x: Any, bias: float, lambd: float) -> Any:
    """``x`` moved towards 0 by ``bias`` beyond ``±lambd``, and 0 between."""
    return where(less(x, -lambd), x + bias, where(greater(x, lambd), x - bias, 0.0))


def _prelu(node: OnnxNode) -> Any:
    x, slope = node.variable(0), node.variable(1)
    return compose.prelu(x, broadcast_to(slope, x.shape))


def _sign(node: OnnxNode) -> Any:
    """NaN where ``x`` is."""
    x = node.variable(0)
    return where(equal(x, x), compose.sign(x), detach(x)) if x.type.is_float else compose.sign(x)


def _swish(x: Any, alpha: float) -> Any:
    return silu(x) if alpha == 1 else x * sigmoid(scale(x, alpha))


def _gelu(node: OnnxNode) -> Any:
    return gelu(node.variable(0), node.choice("approximate", "none", "tanh"))


def _celu(x: Any, alpha: float) -> Any:
    if alpha == 0:
        raise FormatError("its alpha is 0, by which it divides")
    return compose.celu(x, alpha)


def _selu(x: Any, alpha: float, gamma: float) -> Any:
    return compose.elu(x, alpha, gain=gamma)


# --- dropout ----------------------------------------------------------------------------------------------------------


def _dropout(node: OnnxNode) -> Any:
    """The identity, in inference; its mask keeps everything."""
    x = node.value(0)
    if node.has(2) and node.known_number(2) and (not node.has(1) or node.known_number(1) != 0):
        raise UnsupportedError("Dropout in training mode")
    kind = x.dtype.numpy if isinstance(x, Var) else x.dtype
    kept = np.ones((), bool if node.version >= 10 else kind)
    return [x, np.broadcast_to(kept, x.shape)][: len(node.outputs)]


HANDLERS: dict[str, Handler] = {
    "Abs": _unary(abs),
    "Add": _binary(add),
    "Ceil": _unary(compose.ceil),
    "Celu": _with(_celu, "alpha"),
    "Clip": _clip,
    "Cos": _unary(cos),
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _with(compose.elu, "alpha"),
    "Erf": _unary(erf),
    "Exp": _unary(exp),
    "Floor": _unary(floor),
    "Gelu": _gelu,
    "HardSigmoid": _with(compose.hardsigmoid, "alpha", "beta"),
    "HardSwish": _unary(compose.hardswish),
    "LeakyRelu": _with(leaky_relu, "alpha"),
    "Log": _unary(log),
    "Max": _variadic(maximum),
    "Mean": _mean,
    "Min": _variadic(minimum),
    "Mish": _unary(compose.mish),
    "Mul": _binary(mul),
    "Neg": _unary(neg),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _unary(lambda x: 1.0 / x),
    "Relu": _unary(relu),
    "Round": _unary(round),
    "Selu": _with(_selu, "alpha", "gamma"),
    "Shrink": _with(_shrink, "bias", "lambd"),
    "Sigmoid": _unary(sigmoid),
    "Sign": _sign,
    "Sin": _unary(sin),
    "Softplus": _unary(softplus),
    "Softsign": _unary(compose.softsign),
    "Sqrt": _unary(sqrt),
    "Sub": _binary(sub),
    "Sum": _variadic(add),
    "Swish": _with(_swish, "alpha"),
    "Tan": _unary(compose.tan),
    "Tanh": _unary(tanh),
    "ThresholdedRelu": _with(_thresholded_relu, "alpha"),
}

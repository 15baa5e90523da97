"""How JAX is asked for a value and its derivatives: functions of the arrays of a call, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def with_tangent(f: Function) -> Function:
    """Inputs, then their tangents, to the value and its tangent."""
    import jax

    return lambda *arrays: jax.jvp(f, arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :])


def with_cotangents(f: Function, fixed: int = 0) -> Function:
    """Inputs, then the value's cotangent, to the value and the inputs' cotangents, but for the first ``fixed`` ones."""
    import jax

    def pulled(*arrays: Any) -> tuple[Any, ...]:
        *inputs, g = arrays
        value, pullback = jax.vjp(lambda *moving: f(*inputs[:fixed], *moving), *inputs[fixed:])
        return value, *pullback(g)

    return pulled


def in_mode(mode: str, f: Function) -> Function:
    """What a mode gives alone, from inputs, the cotangent and directions as far as there are any, in this order."""
    import jax

    def vjp(*arrays: Any) -> Any:
        return with_cotangents(f)(*arrays)[1:]

    def second(*arrays: Any) -> Any:
        inputs = len(arrays) // 2 + 1
        return jax.vjp(vjp, *arrays[:inputs])[1](arrays[inputs:])

    return {"value": f, "jvp": lambda *arrays: with_tangent(f)(*arrays)[1], "vjp": vjp, "second": second}[mode]

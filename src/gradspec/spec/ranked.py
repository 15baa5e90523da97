"""The 1d, 2d and 3d names of N-d operators: thin functions, made when they are first asked for."""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import tensor

SIZES = ("kernel_size", "output_size", "size")
"""Arguments of which the N-d form wants one entry per axis."""


def ranked_operator(name: str, operators: Iterable[str], namespace: dict[str, Any]) -> Callable[..., Any] | None:
    """What ``max_pool2d`` or ``max_pool2d_jvp`` names: the ``namespace``'s operator at that rank, or None."""
    match = re.fullmatch(rf"({'|'.join(operators)})([123])d((?:_jvp|_vjp)*)", name)
    operator = namespace.get(match[1] + match[3]) if match else None
    return None if match is None or operator is None else _at_rank(operator, int(match[2]), name)


def ranked_names(operators: Iterable[str], namespace: Iterable[str]) -> list[str]:
    """The names that ``ranked_operator`` answers to.

    >>> ranked_names(["conv"], ["conv", "conv_vjp", "converted"])
    ['conv1d', 'conv2d', 'conv3d', 'conv1d_vjp', 'conv2d_vjp', 'conv3d_vjp']
    """
    matches = [re.fullmatch(rf"({'|'.join(operators)})((?:_jvp|_vjp)*)", name) for name in namespace]
    return [f"{match[1]}{rank}d{match[2]}" for match in matches if match for rank in (1, 2, 3)]


def _at_rank(operator: Callable[..., Any], rank: int, name: str) -> Callable[..., Any]:
    """``operator`` for ``rank`` spatial axes: sizes may be a single int, and no argument says the rank."""
    full = inspect.signature(operator)
    signature = full.replace(parameters=[_or_one_int(p) for p in full.parameters.values() if p.name != "rank"])

    @wraps(operator)
    def ranked(*args: object, **kwargs: object) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        for size in SIZES:
            if size in arguments:
                arguments[size] = _sizes(name, size, arguments[size], rank)
        if "weight" in arguments:
            _require_kernel_axes(name, arguments["weight"], rank)
        if "rank" in full.parameters:
            arguments["rank"] = rank
        return operator(**arguments)

    ranked.__name__ = ranked.__qualname__ = name
    ranked.__signature__ = signature  # type: ignore[attr-defined]
    ranked.__doc__ = f"``{operator.__name__}`` over {rank} spatial {'axis' if rank == 1 else 'axes'}."
    return ranked


def _or_one_int(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.name not in SIZES:
        return parameter
    return parameter.replace(annotation=f"int | {parameter.annotation}")


def _sizes(name: str, argument: str, value: object, rank: int) -> Any:
    if not isinstance(value, list | tuple):
        return (value,) * rank
    if len(value) != rank:
        raise ShapeError(f"{name}: {argument}={value} has {len(value)} entries; give one int, or {rank} of them")
    return value


def _require_kernel_axes(name: str, weight: object, rank: int) -> None:
    shape = tuple(weight.shape) if hasattr(weight, "shape") else tensor(weight).shape
    if len(shape) != rank + 2:
        raise ShapeError(f"{name}: the weight has shape {shape}; two channel axes and {rank} kernel axes are needed")

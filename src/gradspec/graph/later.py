"""What earlier rooms call and later rooms provide.

A variable is added to another by an operator, and a graph is differentiated by a transform, but neither belongs here:
imports point one way. So a later room registers what it provides under a name, and this room calls it by that name.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_PROVIDED: dict[str, Callable[..., Any]] = {}


def provides(name: str) -> Callable[[Function], Function]:
    """Register the decorated function as what ``later(name)`` calls."""

    def register(function: Function) -> Function:
        _PROVIDED[name] = function
        return function

    return register


def later(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call what a later room provides."""
    if name not in _PROVIDED:
        raise RuntimeError(f"nothing provides {name!r} yet; import gradspec, which loads the rooms that do")
    return _PROVIDED[name](*args, **kwargs)

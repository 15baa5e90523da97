"""A function of JAX as a program of primitives, for arguments like those given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import tree_util

from gradspec.graph.types import TensorType
from gradspec.interop.jax.types import gradspec_type, jax_dtype
from gradspec.spec.errors import DTypeError
from gradspec.transforms.trace import parameter_names


@dataclass(frozen=True)
class Captured:
    """The program, a ``ClosedJaxpr``, and the names and types of its inputs."""

    program: Any
    inputs: Sequence[tuple[str, TensorType]]


def captured(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
    """The program for the arrays among the arguments; what else there is in them stays as it is."""
    if not callable(function):
        raise TypeError(f"gs.from_jax needs a function of JAX arrays, not {type(function).__name__}")
    leaves, structure = tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    stems = parameter_names(function, len(args))
    given = {i: (_name(path, stems), _type(leaf)) for i, (path, leaf) in enumerate(leaves) if _is_array(leaf)}
    for name, t in given.values():
        _require_width(name, t)

    def of_arrays(*arrays: Any) -> Any:
        found = dict(zip(given, arrays, strict=True))
        filled = [found.get(i, leaf) for i, (_, leaf) in enumerate(leaves)]
        positional, named = tree_util.tree_unflatten(structure, filled)
        return function(*positional, **named)

    types = [jax.ShapeDtypeStruct(t.shape, t.dtype.numpy) for _, t in given.values()]  # type: ignore[no-untyped-call]
    try:
        return Captured(jax.make_jaxpr(of_arrays)(*types), [*given.values()])
    except Exception as error:
        error.add_note(
            "gs.from_jax traces a function with jax.make_jaxpr, which failed on this one; see that "
            "jax.make_jaxpr(function)(*arguments) works, or give a part of the function for which it does"
        )
        raise


def _is_array(leaf: Any) -> bool:
    """Types, arrays and what has their shape and dtype; numbers, texts and objects are not."""
    return isinstance(leaf, TensorType) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def _type(leaf: Any) -> TensorType:
    if isinstance(leaf, TensorType):
        return leaf
    try:
        return gradspec_type(leaf)
    except DTypeError:
        raise
    except TypeError:
        raise TypeError(
            f"an example is a {type(leaf).__name__} of {leaf.dtype}; give arrays of JAX or NumPy, or types: gs.f32[8]"
        ) from None


def _name(path: Sequence[Any], stems: Sequence[str]) -> str:
    """Of an argument its own name, and of what is in it the keys to it: ``params_conv_0``."""
    _, argument, *rest = path
    stem = stems[argument.idx] if isinstance(argument, tree_util.SequenceKey) else str(argument.key)
    return "_".join([stem, *(tree_util.keystr((key,), simple=True) for key in rest)])


def _require_width(name: str, t: TensorType) -> None:
    if jax_dtype(t.dtype) != t.dtype.numpy:
        raise DTypeError(
            f"the example {name} is {t}, which needs 64 bits, and JAX is set to 32; run "
            "jax.config.update('jax_enable_x64', True) first, or give 32-bit examples"
        )

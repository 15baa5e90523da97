"""Named weights: safetensors files, state dicts, and graphs whose named inputs become constants."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, overload

import numpy as np
from safetensors.numpy import save_file

from gradspec.graph import tree
from gradspec.graph.arrays import as_array, to_library_of
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.graph.types import DTYPES, TensorType, number_as, type_of
from gradspec.saving.files import regular_file, replacing
from gradspec.saving.graphs import METADATA, checked, read_header, stored_tensors
from gradspec.spec.errors import DTypeError, FormatError, ShapeError
from gradspec.transforms.copy import inline

Tree = TypeVar("Tree")


def save_weights(path: Any, weights: Any) -> None:
    """Write a state dict, or any tree of arrays, to a safetensors file, completely or not at all.

    The arrays may be of any kind. Each is named by its dotted path: ``{"conv": {"weight": w}}`` contains
    ``conv.weight``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(f"{folder}/w.safetensors", {"conv": {"weight": np.ones((1, 2)), "bias": np.zeros(1)}})
    ...     {name: array.shape for name, array in load_weights(f"{folder}/w.safetensors").items()}
    {'conv.bias': (1,), 'conv.weight': (1, 2)}
    """
    arrays = _storable(weights)
    with replacing(path) as partial:
        save_file(arrays, partial)


@overload
def load_weights(path: Any, like: None = None) -> dict[str, Array]: ...
@overload
def load_weights(path: Any, like: Tree) -> Tree: ...
def load_weights(path: Any, like: Any = None) -> Any:
    """The weights of a safetensors file by name: NumPy arrays that are read from the file when they are first used.

    They stay in the file, so they cannot be written to, and the file must not be shortened while they are used. With
    ``like``, a state dict or another tree, the result has its structure and kinds of arrays, in their own memory;
    names, shapes and dtypes must be the same. A damaged file raises ``gs.FormatError``.

    >>> import torch, tempfile
    >>> layer = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(f"{folder}/w.safetensors", layer.state_dict())
    ...     layer.load_state_dict(load_weights(f"{folder}/w.safetensors", like=layer.state_dict()))
    <All keys matched successfully>
    """
    found = _mapped(path)
    if like is None:
        return found
    wanted = {name: type_of(_numbers(value)) for name, value in tree.named_leaves(like)}
    _require_fit(f"the weights in {os.fspath(path)} are others", found, wanted)
    return tree.rebuild(like, (to_library_of(value, found[name].copy()) for name, value in tree.named_leaves(like)))


def bind(graph: Graph, weights: Any, *, inputs: Collection[str] | None = None, strict: bool = True) -> Graph:
    """The graph with some inputs turned into constants by name: from a state dict, or any tree of arrays.

    Names are dotted paths, as in ``save_weights``. Inputs that are not named stay inputs; pass ``inputs``, the names
    that should stay, to be sure that nothing else does. With ``strict=False``, names that the graph does not have are
    ignored, such as ``num_batches_tracked`` in the state dict of a model with batch normalisation. All mismatches are
    listed in one error.

    >>> g = gs.trace(lambda x, w: gs.sum(x * w), gs.f32[2], gs.f32[2])
    >>> bind(g, {"w": np.float32([3, 4])})(np.float32([1, 2]))
    array(11., dtype=float32)
    >>> bind(g, {"weight": np.ones(2), "w": np.ones(3, np.float32)})
    Traceback (most recent call last):
        ...
    gradspec.spec.errors.ShapeError: the weights do not fit the graph:
      w has shape (3,) and dtype float32; f32[2] is needed
      weight is not expected; strict=False leaves it alone
    """
    wanted = {v.name: v.type for v in graph.inputs}
    _require_names(weights)
    found = {name: _array(value, wanted.get(name)) for name, value in tree.named_leaves(weights)}
    if not strict:
        found = {name: array for name, array in found.items() if name in wanted}
    _require_fit(
        "the weights do not fit the graph", found, wanted, _staying(wanted, inputs), "; strict=False leaves it alone"
    )
    if not found:
        return graph
    builder = Builder()
    arguments = [
        builder.share(_frozen(found[v.name]), v.name) if v.name in found else builder.input(v.type, v.name)
        for v in graph.inputs
    ]
    return builder.build(inline(graph, arguments), allow_unused=True)


# --- arrays by name ---------------------------------------------------------------------------------------------------


def _staying(wanted: Mapping[str, TensorType], inputs: Collection[str] | None) -> Collection[str]:
    """The inputs that need no weight."""
    unknown = [name for name in inputs or () if name not in wanted]
    if unknown:
        raise ValueError(f"the graph has no inputs called {', '.join(unknown)}; it has {', '.join(wanted)}")
    return wanted if inputs is None else inputs


def _require_names(weights: Any) -> None:
    if any(name == "" for name, _ in tree.named_leaves(weights)):
        raise TypeError(
            f"weights with names are needed, not {type(weights).__name__}; give a dict, such as module.state_dict() or "
            "gs.load_weights(path)"
        )


def _array(value: Any, type: TensorType | None) -> Array:
    return number_as(value, type.dtype.numpy) if type and isinstance(value, int | float) else as_array(value)


def _numbers(value: Any) -> Array:
    """The array that a weight holds: of a parameter of PyTorch too, since autograd need not see that it is stored."""
    return as_array(value.detach() if hasattr(value, "detach") else value)


def _require_fit(
    what: str,
    found: Mapping[str, Array],
    wanted: Mapping[str, TensorType],
    optional: Collection[str] = (),
    advice: str = "",
) -> None:
    """Every array wanted is there, in its type, and no other: or one error that lists all that is not so.

    ``advice`` is what to do about an array that is not wanted.
    """
    shapes = [n for n in wanted if n in found and found[n].shape != wanted[n].shape]
    dtypes = [n for n in wanted if n in found and n not in shapes and found[n].dtype != wanted[n].dtype.numpy]
    missing = [n for n in wanted if n not in found and n not in optional]
    unexpected = [n for n in found if n not in wanted]
    error = ShapeError if shapes else DTypeError if dtypes else ValueError
    faults = [
        *(f"{n} has shape {found[n].shape} and dtype {found[n].dtype}; {wanted[n]} is needed" for n in shapes + dtypes),
        *(f"{n}: {wanted[n]} is missing" for n in missing),
        *(f"{n} is not expected{advice}" for n in unexpected),
    ]
    if faults:
        raise error("\n  ".join([f"{what}:", *faults]))


def _frozen(array: Array) -> Array:
    """The array if nobody can change it, such as one that lies in a file, else a copy."""
    part: Any = array
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return array.copy()
        part = part.base
    return array.view()


# --- files ------------------------------------------------------------------------------------------------------------


def _storable(weights: Any) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, value in tree.named_leaves(weights):
        if name in arrays:
            raise ValueError(f"two weights have the name {name!r}; rename one of them")
        if name in ("", METADATA):
            raise ValueError(f"a weight cannot have the name {name!r}; give a dict, or another tree with names")
        arrays[name] = np.asarray(_numbers(value), order="C")
    faults = [f"{name} holds {array.dtype}" for name, array in arrays.items() if array.dtype not in _DTYPES]
    if faults:
        raise DTypeError("\n  ".join([f"only {', '.join(DTYPES)} can be stored:", *faults]))
    return arrays


_DTYPES = {dtype.numpy for dtype in DTYPES.values()}


def _mapped(path: Any) -> dict[str, Array]:
    """The arrays as they lie in the file, which is checked first."""
    with regular_file(path) as file:
        try:
            header, size = read_header(file)
            header.pop(METADATA, None)
            found = stored_tensors(header, size)
            start = file.tell()
            stored = np.asarray(np.memmap(file, np.uint8, "r", start, (size,))) if size else np.empty(0, np.uint8)
            parts = {place.name: (stored[place.begin : place.end], place.type) for place in found}
            return {name: checked(part.view(t.dtype.numpy).reshape(t.shape)) for name, (part, t) in parts.items()}
        except (FormatError, OSError) as error:
            raise FormatError(f"{os.fspath(path)}: {error}") from error

"""PyTorch models of open sizes: a copy of the model is captured anew for each size and float dtype that is met.

The copy is what the model was when it was imported. ``torch.export`` knows symbolic sizes, too, but refuses models that
compare a size with a number; captured for one size at a time, a model may do with sizes what it likes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from gradspec.graph.family import Family, OpenType, Sizes
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType, TensorType, type_of
from gradspec.interop.torch.capture import as_model
from gradspec.interop.torch.reader import read
from gradspec.interop.torch.types import gradspec_type, torch_dtype
from gradspec.spec.errors import ShapeError


def read_family(
    model: Any,
    example_args: Sequence[Any],
    *,
    params: str | Sequence[str],
    example_kwargs: Mapping[str, Any],
    dynamic: Any,
    training: bool = False,
) -> Family:
    """The family of a model whose axes ``dynamic`` names; see ``gs.from_torch``."""
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise TypeError(f"dynamic={dynamic!r} does not name sizes; say which, such as dynamic={{'x': {{0: 'batch'}}}}")
    examples = _Examples(example_args, example_kwargs, training)
    first = examples.read(model, examples.types, params)
    inputs = first.inputs[: len(examples.types)]
    if [v.type for v in inputs] != examples.types:  # PyTorch may order arguments by keyword as the model does
        raise ValueError("give the arguments of example_kwargs in the order in which the model takes them")
    opened = named_axes({v.name: v.type for v in inputs}, dynamic)
    _require_open(model, dynamic)
    kept = _copy(model.module() if isinstance(model, ExportedProgram) else as_model(model))

    def make(sizes: Sizes, dtype: DType | None) -> Graph:
        module = kept if dtype is None else _copy(kept).to(torch_dtype(dtype))  # as by model.double()
        return examples.read(module, [t.at(sizes, dtype) for t in opened.values()], params)

    return Family(opened, make, first)


class _Examples:
    """Example arguments in any nesting: the types of the tensors among them, and the same nesting of others."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> None:
        self._training = training
        self._leaves, self._nesting = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._places = [i for i, leaf in enumerate(self._leaves) if _is_array(leaf)]
        self.types = [_type(self._leaves[i]) for i in self._places]

    def read(self, model: Any, types: Sequence[TensorType], params: str | Sequence[str]) -> Graph:
        """The graph of a model for arguments of these types, in the same nesting."""
        leaves = list(self._leaves)
        for i, t in zip(self._places, types, strict=True):
            leaves[i] = t
        args, kwargs = pytree.tree_unflatten(leaves, self._nesting)
        return read(model, args, params=params, example_kwargs=kwargs, training=self._training)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | TensorType) or hasattr(leaf, "__array_interface__")


def _type(leaf: Any) -> TensorType:
    if isinstance(leaf, TensorType):
        return leaf
    return gradspec_type(leaf) if isinstance(leaf, Tensor) else type_of(leaf)


# --- names of sizes ---------------------------------------------------------------------------------------------------


def named_axes(types: Mapping[str, TensorType], dynamic: Mapping[str, Mapping[int, Any]]) -> dict[str, OpenType]:
    """The types of the inputs with names for the axes that ``dynamic`` opens, ``{"x": {0: "batch"}}``."""
    unknown = [name for name in dynamic if name not in types]
    if unknown:
        raise ValueError(f"dynamic names {', '.join(map(repr, unknown))}; the model's inputs are {', '.join(types)}")
    opened = {name: OpenType(t.dtype, _dims(name, t, dynamic.get(name, {}))) for name, t in types.items()}
    sizes: dict[str, int] = {}
    for name, open_type in opened.items():
        for dim, n in zip(open_type.dims, types[name].shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, n) != n:
                raise ShapeError(
                    f"dynamic calls {dim!r} what is {sizes[dim]} in one example and {n} in {name}: {types[name]}; give "
                    "examples of one size, or other names"
                )
    return opened


def _dims(name: str, t: TensorType, axes: Mapping[Any, Any]) -> tuple[int | str, ...]:
    dims: list[int | str] = list(t.shape)
    for axis, dim in axes.items():
        if not -t.ndim <= index(axis) < t.ndim:
            raise ShapeError(f"dynamic names axis {axis} of {name}: {t}, which has {t.ndim} axes")
        called = getattr(dim, "__name__", dim)  # a torch.export.Dim has one
        if not isinstance(called, str) or not called:
            raise TypeError(f"dynamic calls axis {axis} of {name} {dim!r}; give a text, such as 'batch'")
        dims[index(axis)] = called
    return tuple(dims)


# --- models -----------------------------------------------------------------------------------------------------------


def _require_open(model: Any, dynamic: Mapping[str, Mapping[int, Any]]) -> None:
    if isinstance(model, ExportedProgram) and any(dynamic.values()):
        shapes = [node.meta["val"].shape for node in model.graph.find_nodes(op="placeholder") if "val" in node.meta]
        if not any(isinstance(n, torch.SymInt) for shape in shapes for n in shape):
            raise ShapeError(
                "the program was exported for fixed sizes, so it is no family; export it with dynamic_shapes, or give "
                "the module"
            )


def _copy(model: nn.Module) -> nn.Module:
    """The model as it is now, whatever becomes of it."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # of PyTorch's, about its own code
            return deepcopy(model)
    except Exception as error:
        error.add_note("a family keeps a copy of its model, to import it for other sizes, and this one has none")
        raise

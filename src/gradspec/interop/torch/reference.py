"""Modules and functions of PyTorch as references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from gradspec.graph.graph import Graph
from gradspec.graph.types import DType, TensorType
from gradspec.interop import from_torch
from gradspec.interop.torch.capture import as_model
from gradspec.interop.torch.reader import read_recorded
from gradspec.interop.torch.types import torch_dtype
from gradspec.system.host import leave

Types = Sequence[TensorType]


def torch_tracer(spec: Any, params: str | Sequence[str]) -> Callable[[Types], Graph]:
    """The function from types to the graph: the module in the mode it is in, converted to the types' dtype."""
    module, trial = as_model(spec), torch_trial(spec)
    training = any(part.training and any(True for _ in part.buffers(recurse=False)) for part in module.modules())

    def traced(types: Types) -> Graph:
        trial(types)  # which says what it does not take, and fills the caches that a model has with numbers
        with suppress(Exception):  # of PyTorch, of the model or ours
            return read_recorded(_converted(module, types), types, params, training)
        return from_torch(_converted(module, types), *types, params=params, training=training)

    return traced


def torch_trial(spec: Any) -> Callable[[Types], object]:
    """A call on zeros."""
    module = as_model(spec)

    def tried(types: Types) -> object:
        with torch.no_grad():
            given = (torch.zeros(t.shape, dtype=torch_dtype(t.dtype)) for t in types)
            return _converted(module, types)(*given)

    return tried


def _converted(module: nn.Module, types: Types) -> nn.Module:
    """A copy in the dtype of the types: running it may change its statistics."""
    dtype = next((t.dtype for t in types if t.is_float), None)
    return deepcopy(module) if dtype is None else deepcopy(module).to(torch_dtype(dtype))


def shared_parameters(spec: Any, theirs: Mapping[str, Sequence[int]]) -> list[str]:
    """The names of a module's parameters, if another has the same, of these shapes; none if they differ."""
    if not isinstance(spec, nn.Module):
        return []
    ours = {name: list(p.shape) for name, p in spec.named_parameters()}
    return list(ours) if ours and ours == {name: list(shape) for name, shape in theirs.items()} else []


def state_of(spec: Any) -> dict[str, NDArray[Any]]:
    """All that a module holds, as arrays of NumPy; nothing of a function."""
    return {k: leave(v) for k, v in spec.state_dict().items()} if isinstance(spec, nn.Module) else {}


def functional(kernel: nn.Module, spec: Any, dtype: DType, shared: Sequence[str]) -> Callable[..., Any]:
    """A module as a function of inputs and shared parameters; what else it holds is the reference's, where named so."""
    own = deepcopy(kernel)
    if isinstance(spec, nn.Module):
        ours = own.state_dict()
        same = {k: v for k, v in spec.state_dict().items() if k in ours and v.shape == ours[k].shape}
        own.load_state_dict(same, strict=False)
    own = own.to(torch_dtype(dtype))

    def call(*arrays: Any) -> Any:
        given = len(arrays) - len(shared)
        return torch.func.functional_call(own, dict(zip(shared, arrays[given:], strict=True)), arrays[:given])

    return call

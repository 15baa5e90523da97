"""A call of torch's carried out by a graph, where there is one that gives the same.

The graph is made once for the tensors' types and the other arguments, and then cached. Before that torch is asked
what it makes of the same call, on tensors without memory. What torch refuses, what it gives another type, what our
operators do not offer, and tensors that are no plain arrays are left to torch's own function. So is, on a GPU, all but
pooling.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as theirs
from torch import Tensor
from torch.overrides import has_torch_function, has_torch_function_unary

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType
from gradspec.interop.torch import private
from gradspec.interop.torch.device import POOLING, is_there
from gradspec.interop.torch.module import call
from gradspec.interop.torch.operators import is_watched, pooled
from gradspec.interop.torch.structure import PlannedPooling, opened
from gradspec.interop.torch.types import gradspec_dtype, torch_dtype
from gradspec.runtime.calls import cached
from gradspec.spec.errors import DTypeError, UnsupportedError

DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
KINDS = frozenset((Tensor, torch.nn.Parameter))
MOST_POOLINGS = 1024

Options = tuple[Any, ...]
Type = tuple[tuple[int, ...], torch.dtype]

_known: dict[str, tuple[Callable[..., Any], Callable[[Graph], bool]]] = {}


class LeftToTorchError(Exception):
    """Raised by an operator for a call that torch answers otherwise, or faster."""


class DropIn:
    """torch's function ``name``, and ``operator``, which does the same to graph variables.

    Both take the tensors first, None for one that is not given, and then everything else, by position. Graphs that are
    not ``worthwhile``, for all that a call of them costs, are not used.
    """

    def __init__(self, name: str, operator: Callable[..., Any], worthwhile: Callable[[Graph], bool]) -> None:
        self.name, self.pools = name, "pool" in name
        _known[name] = operator, worthwhile

    def __call__(self, tensors: Sequence[Tensor | None], options: Options) -> Any:
        x: Any = tensors[0]
        if not self.pools and type(x) in KINDS and not has_torch_function_unary(x) and is_there(x):
            return getattr(theirs, self.name)(*tensors, *options)
        key = _key(self.name, tensors, options)
        pooling = None if key is None else _poolings.get(key)
        if pooling is not None:
            results = pooled(pooling, x) if x.requires_grad and torch.is_grad_enabled() else pooling.value((x,))
            return results if len(results) > 1 else results[0]
        given = [t for t in tensors if t is not None]
        if are_plain(given):
            types = tuple([None if t is None else (t.shape, t.dtype) for t in tensors])
            graph = _graph(self.name, types, options, is_there(given[0]))
            if graph is not None:
                results = call(graph, given)
                wanted = _as_theirs(results, given[0])
                if key is not None and all(a is b for a, b in zip(results, wanted, strict=True)):
                    _poolings.put(key, opened(graph).structure.pooling(given))
                return wanted if len(wanted) > 1 else wanted[0]
        return getattr(theirs, self.name)(*tensors, *options)


_poolings = LRUCache[PlannedPooling | None](MOST_POOLINGS)
"""Calls of pooling on a GPU whose results lie in memory as torch's do."""


def _key(name: str, tensors: Sequence[Tensor | None], options: Options) -> Hashable | None:
    """What a call of pooling on a GPU is known by, if nobody but autograd's reverse mode watches."""
    x: Any = tensors[0]
    is_alone = len(tensors) == 1 and type(x) in KINDS and is_there(x)
    if not is_alone or is_watched((x,)) or has_torch_function_unary(x):
        return None
    return name, x.shape, x.stride(), x.dtype, x.device, _written(options)


def _written(options: Options) -> Hashable:
    """Options so that 1, 1.0 and True differ, inside of tuples, too."""
    try:
        return marshal.dumps(options, 2)
    except ValueError:  # of sizes of tensors, for one
        return repr(options)


def _as_theirs(results: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """Results in memory as torch's are: ours lie like the input."""
    form = torch.channels_last if like.ndim == 4 else torch.channels_last_3d
    form = form if _is_channels_last(like) else torch.contiguous_format
    return tuple([t.contiguous(memory_format=form) for t in results])


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are arrays that kernels can be given, and nobody watches for torch's own operators.

    Modes, tracing and export do, and autocasting on the CPU; on GPUs it leaves pooling alone.
    """
    if private.tracing_state() or (torch.is_autocast_enabled("cpu") and not all(map(is_there, tensors))):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting() and all(_stands_for_array(t) for t in tensors)
    if has_torch_function(tensors) or private.count_modes():
        return False
    return all(type(t) in KINDS and _is_dense(t) for t in tensors)


def _stands_for_array(tensor: Any) -> bool:
    """Whether a tensor without memory, which a compiler works with, will be an array of this size."""
    is_known = type(tensor) in KINDS or isinstance(tensor, private.FakeTensor | private.FunctionalTensor)
    return is_known and _is_dense(tensor) and all(type(n) is int for n in tensor.shape)


def _is_dense(tensor: Tensor) -> bool:
    """Tensors in channels_last memory stay with torch on the CPU, which keeps them so."""
    is_array = tensor.layout is torch.strided and not tensor.is_nested and tensor.dtype in DTYPES
    return is_array and (is_there(tensor) or (tensor.is_cpu and not _is_channels_last(tensor)))


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether torch takes the strides for those of channels_last memory, also where the sizes leave it open.

    Then its results lie so, too.
    """
    if tensor.ndim not in (4, 5) or tensor.stride(1) > tensor.stride(-1):  # as in the most usual memory
        return False
    return private.suggest_memory_format(tensor) is not torch.contiguous_format


def _graph(name: str, types: tuple[Type | None, ...], options: Options, there: bool) -> Graph | None:
    """The graph of a call; None if torch is to carry it out. ``there``: its tensors are on a GPU."""
    key = ("torch", name, types, there, _written(options))
    (found,) = cached(key, lambda: (_made(name, types, options, there),))
    return found


def _made(name: str, types: tuple[Type | None, ...], options: Options, there: bool) -> Graph | None:
    """A graph that gives what torch gives; None where torch or the operator refuses the call."""
    operator, worthwhile = _known[name]
    builder = Builder()
    expected = _expected(name, types, options)
    if expected is None:
        return None
    variables = [None if t is None else builder.input(TensorType(gradspec_dtype(t[1]), tuple(t[0]))) for t in types]
    try:
        results = operator(*variables, *options)
    except (LeftToTorchError, ValueError, DTypeError, UnsupportedError):
        return None
    graph = builder.build(results)
    is_same = [(v.shape, torch_dtype(v.dtype)) for v in graph.outputs] == expected
    pays = {node.op.name for node in graph.nodes} <= POOLING if there else worthwhile(graph)
    return graph if is_same and pays else None


def _expected(name: str, types: tuple[Type | None, ...], options: Options) -> list[Type] | None:
    """The types that torch's function gives, from tensors without memory; None if it fails, in whatever way."""
    empty = [None if t is None else torch.empty(t[0], dtype=t[1], device="meta") for t in types]
    function = getattr(theirs, name)
    try:
        results = function(*empty, *options)
    except Exception:  # only torch's code runs here, and it raises errors of many kinds
        return None
    return [(tuple(t.shape), t.dtype) for t in (results if isinstance(results, tuple) else (results,))]

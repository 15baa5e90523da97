"""Functions of ``torch.nn.functional`` on our kernels, with torch's arguments, results and errors.

Those are here that were measured to be faster so on Arm processors, gradients included: convolutions, sliding windows
and what is made of them. Functions of single cells, linear layers, softmax, losses and nearest cells are not, nor what
is done in no time; uneven bins and norms of windows are here for GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.interop.torch.dropin import DropIn, LeftToTorchError
from gradspec.interop.torch.private import boolean_dispatched
from gradspec.interop.torch.ranked import Function, at_rank
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.linear import batch_norm
from gradspec.ops.lp_pool import lp_pool
from gradspec.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.unfold import fold, unfold

theirs: Any = torch.nn.functional

Worthwhile = Callable[[Graph], bool]
Ints = int | Sequence[int]

FUNCTIONS: dict[str, Function] = {}
"""What replaces torch's functions, by name."""

MOST_ARGUMENTS = 255
"""More than any of them has."""


def _replace(name: str, operator: Function, is_worthwhile: Worthwhile, signature: str) -> None:
    """Let a function take the place of torch's ``name``, whose parameters are ``tensors | options``, as torch has them.

    ``torch.compile`` does not look into it: it is run on tensors without memory, when their sizes are known. It is made
    of the text in the table below, as dataclasses make their methods: a ``Signature`` binds no call in less than 10 µs.
    """
    tensors, options = (", ".join(re.findall(r"(\w+)(?:=[^,]+)?", part)) for part in signature.split(" | "))
    names = {"drop_in": DropIn(name, operator, is_worthwhile), "__name__": "gradspec.torch"}
    function = eval(f"lambda {signature.replace(' |', ',')}: drop_in(({tensors},), ({options},))", names)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``torch.nn.functional.{name}``, on gradspec's kernels where they offer it."
    FUNCTIONS[name] = torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]
    _script_as(getattr(theirs, name), function)


def _script_as(theirs: Function, ours: Function) -> None:
    """Let ``torch.jit.script``, which compiles Python code and so cannot know ours, take torch's function for it.

    It asks a table whether a function stands for two others, by the value of an argument. Here both are torch's, and
    the argument is one that is never given.
    """
    choice: dict[str, Any] = {"if_true": theirs, "if_false": theirs, "default": True}
    boolean_dispatched[ours] = choice | {"index": MOST_ARGUMENTS, "arg_name": ""}


# A call of ours takes some 50 µs longer than one of torch's, and a gradient as long again: that must be worth it.
LEAST_CELLS = 2**15
LEAST_PRODUCTS = 2**19
LEAST_BINS = inf  # on a CPU: torch's gradients of bins and norms take less time there, whatever their number


def _has_many_cells(graph: Graph) -> bool:
    return graph.inputs[0].type.size + graph.outputs[0].type.size >= LEAST_CELLS


def _has_many_bins(graph: Graph) -> bool:
    return graph.outputs[0].type.size >= LEAST_BINS


def _has_many_products(graph: Graph) -> bool:
    """Every cell of the result is a sum of as many products as a row of the weight is long."""
    weight, result = graph.inputs[1].type, graph.outputs[0].type
    return result.size * prod(weight.shape[1:]) >= LEAST_PRODUCTS


def _has_many_transposed(graph: Graph) -> bool:
    """Every cell of the input is multiplied by as many numbers as a row of the weight is long."""
    x, weight = graph.inputs[0].type, graph.inputs[1].type
    return x.size * prod(weight.shape[1:]) >= LEAST_PRODUCTS


# --- operators that do not always do the same -------------------------------------------------------------------------


def _norms(rank: int) -> Function:
    """torch adds up powers of cells, not of their sizes, and scales up windows that end outside."""
    norms = at_rank(lp_pool, rank)

    def same(x: Var, norm_type: float, kernel_size: Ints, stride: Ints | None, ceil_mode: bool) -> object:
        if norm_type % 2 or ceil_mode:
            raise LeftToTorchError
        return norms(x, norm_type, kernel_size, stride)

    return same


def _normal(x: Var, mean: Var | None, var: Var | None, weight: Var | None, bias: Var | None, *options: float) -> Var:
    training, _, eps = options
    if training or mean is None or var is None:
        raise LeftToTorchError
    return batch_norm(x, mean, var, weight, bias, eps)


def _resized(
    x: Var, size: Any, scale_factor: Any, mode: str, align_corners: object, recompute: object, antialias: object
) -> Var:
    """Between cells, and to no fewer: torch is as fast where it takes one cell, or leaves cells out."""
    sizes = x.shape[2:]
    outputs = _per_axis(size, len(sizes)) if scale_factor is None else _scaled(sizes, scale_factor)
    if mode not in ("linear", "bilinear", "trilinear") or antialias or prod(outputs) < prod(sizes):
        raise LeftToTorchError
    return resize(x, outputs, "linear", bool(align_corners))


def _per_axis(value: Any, rank: int) -> tuple[Any, ...]:
    return (value,) * rank if isinstance(value, int | float) else tuple(value)


def _scaled(sizes: Sequence[int], scale_factor: Any) -> tuple[int, ...]:
    """The sizes times their factors, if these are integers: else torch places the outputs by the factors alone."""
    products = [n * factor for n, factor in zip(sizes, _per_axis(scale_factor, len(sizes)), strict=True)]
    if any(p != int(p) for p in products):
        raise LeftToTorchError
    return tuple(map(int, products))


# --- the table --------------------------------------------------------------------------------------------------------

RANKED: tuple[tuple[Function, Worthwhile, str], ...] = (
    (conv, _has_many_products, "input, weight, bias=None | stride=1, padding=0, dilation=1, groups=1"),
    (
        conv_transpose,
        _has_many_transposed,
        "input, weight, bias=None | stride=1, padding=0, output_padding=0, groups=1, dilation=1",
    ),
    (
        max_pool,
        _has_many_cells,
        "input | kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False",
    ),
    (
        avg_pool,
        _has_many_cells,
        "input | kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None",
    ),
    (adaptive_max_pool, _has_many_bins, "input | output_size, return_indices=False"),
    (adaptive_avg_pool, _has_many_bins, "input | output_size"),
)
"""Operators that torch has for 1, 2 and 3 axes; of one axis its average has no ``divisor_override``."""

for rank in (1, 2, 3):
    for operator, is_worthwhile, signature in RANKED:
        name = f"{operator.__name__}{rank}d"
        parameters = signature.removesuffix(", divisor_override=None") if name == "avg_pool1d" else signature
        _replace(name, at_rank(operator, rank), is_worthwhile, parameters)
    norm = "input | norm_type, kernel_size, stride=None, ceil_mode=False"
    _replace(f"lp_pool{rank}d", _norms(rank), _has_many_bins, norm)

_replace(
    "batch_norm",
    _normal,
    _has_many_cells,
    "input, running_mean, running_var, weight=None, bias=None | training=False, momentum=0.1, eps=1e-5",
)
_replace("unfold", at_rank(unfold, 2), _has_many_cells, "input | kernel_size, dilation=1, padding=0, stride=1")
_replace("fold", at_rank(fold, 2), _has_many_cells, "input | output_size, kernel_size, dilation=1, padding=0, stride=1")
_replace(
    "interpolate",
    _resized,
    _has_many_cells,
    "input | size=None, scale_factor=None, mode='nearest', align_corners=None, recompute_scale_factor=None, "
    "antialias=False",
)


# --- modules ----------------------------------------------------------------------------------------------------------


class accelerated(TorchFunctionMode):  # noqa: N801  (used as a function: with accelerated():)
    """Inside ``with accelerated():`` torch's functions, and so its modules, run on gradspec's kernels.

    >>> import torch
    >>> layer = torch.nn.MaxPool1d(2)
    >>> with accelerated():
    ...     layer(torch.tensor([[1.0, 4.0, 2.0, 3.0]]))
    tensor([[4., 3.]])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


_OURS = {getattr(theirs, name): function for name, function in FUNCTIONS.items()}

"""Functions of ``torch.nn.functional`` on our kernels, with torch's arguments, results and errors.

Those are here that were measured to be faster so on Arm processors, gradients included: convolutions, sliding windows
and what is made of them. Functions of single cells, linear layers, softmax, losses and nearest cells are not, nor what
is done in no time; uneven bins and norms of windows are here for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.interop.torch.dropin import DropIn, LeftToTorchError
from gradspec.interop.torch.private import boolean_dispatched
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.linear import batch_norm as normalised
from gradspec.ops.lp_pool import lp_pool
from gradspec.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.unfold import fold as folded
from gradspec.ops.unfold import unfold as unfolded
from gradspec.spec.ranked import ranked_operator

theirs: Any = torch.nn.functional

Function = Callable[..., Any]
Define = Callable[[DropIn], Function]
Ints = int | Sequence[int]
Bins = int | Sequence[int | None]

FUNCTIONS: dict[str, Function] = {}
"""What replaces torch's functions, by name."""

MOST_ARGUMENTS = 255
"""More than any of them has."""


def _replaces(name: str) -> Callable[[Function], Function]:
    """A function that takes the place of torch's ``name``.

    ``torch.compile`` does not look into it: it is run on tensors without memory, when their sizes are known.
    """

    def named(function: Function) -> Function:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"``torch.nn.functional.{name}``, on gradspec's kernels where they offer it."
        FUNCTIONS[name] = torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]
        _script_as(getattr(theirs, name), function)
        return function

    return named


def _script_as(theirs: Function, ours: Function) -> None:
    """Let ``torch.jit.script``, which compiles Python code and so cannot know ours, take torch's function for it.

    It asks a table whether a function stands for two others, by the value of an argument. Here both are torch's, and
    the argument is one that is never given.
    """
    choice: dict[str, Any] = {"if_true": theirs, "if_false": theirs, "default": True}
    boolean_dispatched[ours] = choice | {"index": MOST_ARGUMENTS, "arg_name": ""}


def _for_ranks(operator: Function, is_worthwhile: Callable[[Graph], bool]) -> Callable[[Define], list[Function]]:
    """Functions for 1, 2 and 3 axes; the decorated one makes the function that calls a drop-in."""

    def defined(define: Define) -> list[Function]:
        names = [(f"{operator.__name__}{rank}d", rank) for rank in (1, 2, 3)]
        return [_replaces(name)(define(DropIn(name, _at_rank(operator, rank), is_worthwhile))) for name, rank in names]

    return defined


def _at_rank(operator: Function, rank: int) -> Function:
    stem = operator.__name__
    ranked: Any = ranked_operator(f"{stem}{rank}d", (stem,), {stem: operator})
    return lambda *arguments: ranked(*map(_without_brackets, arguments))


def _without_brackets(argument: Any) -> Any:
    """The entry of a sequence that has one, which torch takes for all axes, and None for an empty one."""
    if not isinstance(argument, list | tuple) or len(argument) > 1:
        return argument
    return argument[0] if argument else None


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


# --- convolution ------------------------------------------------------------------------------------------------------


@_for_ranks(conv, _has_many_products)
def _conv(own: DropIn) -> Function:
    def function(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Tensor:
        return own((input, weight, bias), (stride, padding, dilation, groups))  # type: ignore[no-any-return]

    return function


@_for_ranks(conv_transpose, _has_many_transposed)
def _conv_transpose(own: DropIn) -> Function:
    def function(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
    ) -> Tensor:
        options = (stride, padding, output_padding, groups, dilation)
        return own((input, weight, bias), options)  # type: ignore[no-any-return]

    return function


conv1d, conv2d, conv3d = _conv
conv_transpose1d, conv_transpose2d, conv_transpose3d = _conv_transpose


# --- pooling ----------------------------------------------------------------------------------------------------------


@_for_ranks(max_pool, _has_many_cells)
def _max_pool(own: DropIn) -> Function:
    def function(
        input: Tensor,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        return own((input,), (kernel_size, stride, padding, dilation, ceil_mode, return_indices))

    return function


@_for_ranks(avg_pool, _has_many_cells)
def _avg_pool(own: DropIn) -> Function:
    """Of one axis torch's has no ``divisor_override``."""

    def of_one_axis(
        input: Tensor,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Tensor:
        return own((input,), (kernel_size, stride, padding, ceil_mode, count_include_pad))  # type: ignore[no-any-return]

    def of_more_axes(
        input: Tensor,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return own((input,), options)  # type: ignore[no-any-return]

    return of_one_axis if own.name == "avg_pool1d" else of_more_axes


@_for_ranks(adaptive_max_pool, _has_many_bins)
def _adaptive_max_pool(own: DropIn) -> Function:
    def function(input: Tensor, output_size: Bins, return_indices: bool = False) -> Any:
        return own((input,), (output_size, return_indices))

    return function


@_for_ranks(adaptive_avg_pool, _has_many_bins)
def _adaptive_avg_pool(own: DropIn) -> Function:
    def function(input: Tensor, output_size: Bins) -> Tensor:
        return own((input,), (output_size,))  # type: ignore[no-any-return]

    return function


def _lp_pool(rank: int) -> Function:
    name, norms = f"lp_pool{rank}d", _at_rank(lp_pool, rank)

    def same(x: Var, norm_type: float, kernel_size: Ints, stride: Ints | None, ceil_mode: bool) -> Any:
        """torch adds up powers of cells, not of their sizes, and scales up windows that end outside."""
        if norm_type % 2 or ceil_mode:
            raise LeftToTorchError
        return norms(x, norm_type, kernel_size, stride)

    own = DropIn(name, same, _has_many_bins)

    @_replaces(name)
    def function(
        input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ) -> Tensor:
        return own((input,), (norm_type, kernel_size, stride, ceil_mode))  # type: ignore[no-any-return]

    return function


max_pool1d, max_pool2d, max_pool3d = _max_pool
avg_pool1d, avg_pool2d, avg_pool3d = _avg_pool
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = _adaptive_max_pool
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = _adaptive_avg_pool
lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))


# --- layers -----------------------------------------------------------------------------------------------------------


def _normal(x: Var, mean: Var | None, var: Var | None, weight: Var | None, bias: Var | None, *options: Any) -> Any:
    training, _, eps = options
    if training or mean is None or var is None:
        raise LeftToTorchError
    return normalised(x, mean, var, weight, bias, eps)


_batch_norm = DropIn("batch_norm", _normal, _has_many_cells)


@_replaces("batch_norm")
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    tensors = (input, running_mean, running_var, weight, bias)
    return _batch_norm(tensors, (training, momentum, eps))  # type: ignore[no-any-return]


# --- patches ----------------------------------------------------------------------------------------------------------

_unfold = DropIn("unfold", _at_rank(unfolded, 2), _has_many_cells)
_fold = DropIn("fold", _at_rank(folded, 2), _has_many_cells)


@_replaces("unfold")
def unfold(input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Tensor:
    return _unfold((input,), (kernel_size, dilation, padding, stride))  # type: ignore[no-any-return]


@_replaces("fold")
def fold(
    input: Tensor, output_size: Ints, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Tensor:
    return _fold((input,), (output_size, kernel_size, dilation, padding, stride))  # type: ignore[no-any-return]


# --- resizing ---------------------------------------------------------------------------------------------------------


def _resized(
    x: Var, size: Any, scale_factor: Any, mode: str, align_corners: Any, recompute: Any, antialias: Any
) -> Any:
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


_interpolate = DropIn("interpolate", _resized, _has_many_cells)


@_replaces("interpolate")
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    options = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    return _interpolate((input,), options)  # type: ignore[no-any-return]


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

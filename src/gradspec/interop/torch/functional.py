"""Functions of ``torch.nn.functional`` on our kernels, with torch's arguments, results and errors.

Those are here that were measured to be faster so, the value alone and with its gradient: windows of all kinds, where
torch's kernels for its default layout are slow, and not what is bound by memory in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isinf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, has_torch_function

from gradspec.graph.ir import Var
from gradspec.interop.torch.dropin import DropIn, LeftToTorchError
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.linear import batch_norm as normalised
from gradspec.ops.linear import linear as affine
from gradspec.ops.pool import avg_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.unfold import fold as folded
from gradspec.ops.unfold import unfold as unfolded
from gradspec.spec.ranked import ranked_operator

theirs: Any = torch.nn.functional

Function = Callable[..., Any]
Ints = int | Sequence[int]

FUNCTIONS: dict[str, Function] = {}
"""What replaces torch's functions, by name."""


def _replaces(name: str) -> Callable[[Function], Function]:
    """A function that takes the place of torch's ``name``.

    ``torch.compile`` does not look into it: it is run on tensors without memory, when their sizes are known.
    """

    def named(function: Function) -> Function:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"``torch.nn.functional.{name}``, on gradspec's kernels where they offer it."
        FUNCTIONS[name] = torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]
        return function

    return named


def _at_rank(operator: Function, rank: int) -> Function:
    stem = operator.__name__
    return ranked_operator(f"{stem}{rank}d", (stem,), {stem: operator})  # type: ignore[return-value]


def _sizes(value: Any, rank: int) -> tuple[Any, ...]:
    """One entry for each axis."""
    entries = (value,) * rank if isinstance(value, int | float) else tuple(value)
    if len(entries) != rank:
        raise LeftToTorchError
    return entries


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(rank: int) -> Function:
    name = f"conv{rank}d"
    own = DropIn(name, _at_rank(conv, rank))

    @_replaces(name)
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


def _conv_transpose(rank: int) -> Function:
    name = f"conv_transpose{rank}d"
    own = DropIn(name, _at_rank(conv_transpose, rank))

    @_replaces(name)
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


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


# --- pooling ----------------------------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Function:
    name = f"max_pool{rank}d"
    own = DropIn(name, _at_rank(max_pool, rank))

    @_replaces(name)
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


def _avg_pool(rank: int) -> Function:
    """Of one axis torch's has no ``divisor_override``."""
    name = f"avg_pool{rank}d"
    own = DropIn(name, _at_rank(avg_pool, rank))

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

    return _replaces(name)(of_one_axis if rank == 1 else of_more_axes)


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))


def _even_bins(x: Var, output_size: Any, rank: int) -> tuple[int, ...]:
    """The kernel, and stride, that cuts each axis into ``output_size`` equal bins.

    Uneven bins, and one bin for everything, are faster in torch.
    """
    sizes = x.shape[x.ndim - rank :]
    wanted = [n if m is None else m for n, m in zip(sizes, _sizes(output_size, rank), strict=True)]
    if any(n % m for n, m in zip(sizes, wanted, strict=True)) or prod(wanted) == 1:
        raise LeftToTorchError
    return tuple(n // m for n, m in zip(sizes, wanted, strict=True))


def _adaptive_avg_pool(rank: int) -> Function:
    name = f"adaptive_avg_pool{rank}d"
    own = DropIn(name, lambda x, output_size: avg_pool(x, _even_bins(x, output_size, rank)))

    @_replaces(name)
    def function(input: Tensor, output_size: Any) -> Tensor:
        return own((input,), (output_size,))  # type: ignore[no-any-return]

    return function


def _adaptive_max_pool(rank: int) -> Function:
    name = f"adaptive_max_pool{rank}d"

    def operator(x: Var, output_size: Any, return_indices: bool) -> Any:
        return max_pool(x, _even_bins(x, output_size, rank), return_indices=return_indices)

    own = DropIn(name, operator)

    @_replaces(name)
    def function(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        return own((input,), (output_size, return_indices))

    return function


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max_pool, (1, 2, 3))


def _lp_pool(rank: int) -> Function:
    """As torch composes it, of a mean of powers; the mean is taken here."""
    name = f"lp_pool{rank}d"
    mean = FUNCTIONS[f"avg_pool{rank}d"]

    @_replaces(name)
    def function(
        input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ) -> Tensor:
        if has_torch_function((input,)) or not _is_exponent(norm_type) or not _is_kernel(kernel_size, rank):
            return getattr(theirs, name)(input, norm_type, kernel_size, stride, ceil_mode)  # type: ignore[no-any-return]
        powers = mean(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
        total = (torch.sign(powers) * torch.relu(torch.abs(powers))).mul(prod(_sizes(kernel_size, rank)))
        return total.pow(1.0 / norm_type)

    return function


def _is_exponent(norm_type: Any) -> bool:
    return isinstance(norm_type, int | float) and norm_type != 0 and not isinf(norm_type)


def _is_kernel(kernel_size: Any, rank: int) -> bool:
    return isinstance(kernel_size, int) or (isinstance(kernel_size, tuple | list) and len(kernel_size) == rank)


lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))


# --- layers -----------------------------------------------------------------------------------------------------------

_linear = DropIn("linear", affine)


@_replaces("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _linear((input, weight, bias), ())  # type: ignore[no-any-return]


def _normal(x: Var, mean: Var | None, var: Var | None, weight: Var | None, bias: Var | None, *options: Any) -> Any:
    training, _, eps = options
    if training or mean is None or var is None:
        raise LeftToTorchError
    return normalised(x, mean, var, weight, bias, eps)


_batch_norm = DropIn("batch_norm", _normal)


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

_unfold = DropIn("unfold", _at_rank(unfolded, 2))
_fold = DropIn("fold", _at_rank(folded, 2))


@_replaces("unfold")
def unfold(input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Tensor:
    return _unfold((input,), (kernel_size, dilation, padding, stride))  # type: ignore[no-any-return]


@_replaces("fold")
def fold(
    input: Tensor, output_size: Ints, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Tensor:
    return _fold((input,), (output_size, kernel_size, dilation, padding, stride))  # type: ignore[no-any-return]


# --- resizing ---------------------------------------------------------------------------------------------------------

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}


def _resized(
    x: Var, size: Any, scale_factor: Any, mode: str, align_corners: Any, recompute: Any, antialias: Any
) -> Any:
    if mode not in MODES or antialias:
        raise LeftToTorchError
    sizes = x.shape[2:]
    outputs = _sizes(size, len(sizes)) if scale_factor is None else _scaled(sizes, scale_factor)
    if mode == "nearest" and not all(map(_has_exact_places, sizes, outputs)):
        raise LeftToTorchError
    return resize(x, outputs, MODES[mode], bool(align_corners))


def _scaled(sizes: Sequence[int], scale_factor: Any) -> tuple[int, ...]:
    """The sizes times their factors, if these are integers: else torch places the outputs by the factors alone."""
    products = [n * factor for n, factor in zip(sizes, _sizes(scale_factor, len(sizes)), strict=True)]
    if any(p != int(p) for p in products):
        raise LeftToTorchError
    return tuple(map(int, products))


def _has_exact_places(n: int, m: int) -> bool:
    """Whether ⌊o·n/m⌋ comes out right for every output in torch's floating-point arithmetic, single or double."""
    exact = np.arange(m) * n // m
    return all(_places(n, m, dtype) == exact.tolist() for dtype in (np.float32, np.float64))


def _places(n: int, m: int, dtype: Any) -> list[float]:
    step = np.full((), n, dtype) / np.full((), m, dtype)
    return np.floor(np.arange(m, dtype=dtype) * step).tolist()  # type: ignore[no-any-return]


_interpolate = DropIn("interpolate", _resized)


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

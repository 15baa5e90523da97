"""Max and average pooling: regular, adaptive and global, in any number of dimensions.

A tensor is ``(*lead, *spatial)``; every leading index is pooled independently. A window is a list of *taps* in
row-major order: positions of real cells, and None for padding (see ``window.py``). So an operator is a geometry (which
taps) and a reduction (what to do with them), and this file is three geometries times two reductions.

**Maximum.** The largest real cell; padding never competes. The *winner* is the first real cell that no other cell
exceeds, where a NaN exceeds every number and −0.0 and 0.0 do not exceed each other. Derivatives follow the winner, or
the cells tied with it, as ``ties`` says (``scalar.choose``). A window without a real cell has value 0, tangent 0,
index −1, and drops its cotangent.

**Average.** The sum of the real cells over a divisor. It is linear: its JVP is itself.

``f_jvp`` takes the inputs, then their tangents; ``f_vjp`` the inputs, then the output's cotangent; then the attributes
of ``f``. The two are adjoint: ⟨g, jvp(dx)⟩ = ⟨vjp(g), dx⟩, exactly where the arithmetic is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import TIES, Scalar, add_up, choose, embed, is_infinite, larger, refuse_fixed_width_integers
from gradspec.spec.tensor import Shaped, Tensor, TensorLike, require_shape, split_shape, tensor
from gradspec.spec.window import (
    Ints,
    Padding,
    Window,
    adaptive,
    regular,
    spatial_rank,
    spatial_sizes,
    whole,
    whole_number,
)

Plane: TypeAlias = list[Scalar]
Taps: TypeAlias = list[int | None]

# --- the two ways to walk over windows --------------------------------------------------------------------------------


def reduce_windows(window: Window, reduce: Callable[..., Scalar], *tensors: Tensor) -> Tensor:
    """One scalar per window: ``reduce(taps, *planes)``."""
    lead, _ = split_shape(tensors[0].shape, window.rank)
    taps = window.table()
    planes = zip(*(t.planes(window.rank) for t in tensors), strict=True)
    return Tensor(lead + window.outputs, [reduce(t, *plane) for plane in planes for t in taps])


def scatter_windows(
    window: Window, spread: Callable[..., Iterable[tuple[int, Scalar]]], g: Tensor, x: Tensor, *others: Tensor
) -> Tensor:
    """What the cells of ``x`` receive: each window sends ``spread(taps, cotangent, *planes)``, added up in order."""
    require_shape("cotangent", g, split_shape(x.shape, window.rank)[0] + window.outputs)
    taps, zero, cells = window.table(), g.zero, []
    planes = zip(*(t.planes(window.rank) for t in (x, *others)), strict=True)
    for cotangents, plane in zip(g.planes(window.rank), planes, strict=True):
        received = [zero] * len(plane[0])
        for t, cotangent in zip(taps, cotangents, strict=True):
            for cell, share in spread(t, cotangent, *plane):
                received[cell] = received[cell] + share
        cells += received
    return Tensor(x.shape, cells).stored()


def real(taps: Taps) -> list[int]:
    return [t for t in taps if t is not None]


# --- the maximum ------------------------------------------------------------------------------------------------------


def max_over(window: Window, x: Tensor) -> Tensor:
    def largest(taps: Taps, plane: Plane) -> Scalar:
        cells = [plane[t] for t in real(taps)]
        if not cells:
            return x.zero
        value = cells[0]
        for cell in cells[1:]:
            value = larger(value, cell)
        return value

    return reduce_windows(window, largest, x)


def winners_over(window: Window, x: Tensor) -> Tensor:
    def winner(taps: Taps, plane: Plane) -> int:
        cells = real(taps)
        return cells[choose([plane[t] for t in cells]).winner] if cells else -1

    return reduce_windows(window, winner, x)


def max_over_jvp(window: Window, x: Tensor, dx: Tensor, ties: str, strict: bool) -> Tensor:
    require_shape("tangent", dx, x.shape)

    def tangent(taps: Taps, plane: Plane, tangents: Plane) -> Scalar:
        cells = real(taps)
        if not cells:
            return dx.zero
        return choose([plane[t] for t in cells], ties, strict).push([tangents[t] for t in cells])

    return reduce_windows(window, tangent, x, dx).stored()


def max_over_vjp(window: Window, x: Tensor, g: Tensor, ties: str, strict: bool) -> Tensor:
    def to_the_chosen(taps: Taps, cotangent: Scalar, plane: Plane) -> list[tuple[int, Scalar]]:
        cells = real(taps)
        if not cells:
            return []
        choice = choose([plane[t] for t in cells], ties, strict)
        return [(cells[i], share) for i, share in choice.pull(cotangent)]

    return scatter_windows(window, to_the_chosen, g, x)


# --- the average ------------------------------------------------------------------------------------------------------

Divisor: TypeAlias = Callable[[Taps], Scalar]


def mean_over(window: Window, x: Tensor, divisor: Divisor) -> Tensor:
    refuse_fixed_width_integers("average pooling", x.zero)

    def mean(taps: Taps, plane: Plane) -> Scalar:
        cells = real(taps)
        return add_up((plane[t] for t in cells), x.zero) / divisor(taps) if cells else x.zero

    return reduce_windows(window, mean, x).stored()


def mean_over_jvp(window: Window, x: Tensor, dx: Tensor, divisor: Divisor) -> Tensor:
    refuse_fixed_width_integers("average pooling", x.zero)
    require_shape("tangent", dx, x.shape)
    return mean_over(window, dx, divisor)


def mean_over_vjp(window: Window, x: Tensor, g: Tensor, divisor: Divisor) -> Tensor:
    for number in (x.zero, g.zero):
        refuse_fixed_width_integers("average pooling", number)

    def to_every_cell(taps: Taps, cotangent: Scalar, _: Plane) -> list[tuple[int, Scalar]]:
        return [(t, cotangent / divisor(taps)) for t in real(taps)]

    return scatter_windows(window, to_every_cell, g, x)


def _number_of_cells(taps: Taps) -> int:
    return len(real(taps))


def divisor_rule(divided: Tensor, count_include_pad: bool, divisor_override: Scalar | None) -> Divisor:
    if divisor_override is not None:
        number = embed(divided.zero, divisor_override) if hasattr(divisor_override, "__float__") else None
        if (
            number is None
            or number == 0
            or number != number
            or is_infinite(number)
            or isinstance(divisor_override, bool)
        ):
            raise ShapeError(
                f"divisor_override={divisor_override!r} is not a number other than 0 in this number system; "
                "give one, or None to divide by the window's size"
            )
        return lambda taps: number
    return len if count_include_pad else _number_of_cells


# --- regular windows --------------------------------------------------------------------------------------------------


def sliding(
    x: Shaped, kernel_size: Sequence[int], stride: Ints | None, padding: Padding, dilation: Ints, ceil_mode: bool
) -> Window:
    sizes = spatial_sizes(x.shape, spatial_rank("kernel_size", kernel_size))
    return regular(sizes, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest real cell of each window, and with ``return_indices`` the winner's position in its spatial plane.

    >>> max_pool([[1, 2, 3], [4, 5, 6], [7, 8, 9]], (2, 2), 1).tolist()
    [[5, 6], [8, 9]]
    """
    x = tensor(x)
    require_ties(ties)
    window = sliding(x, kernel_size, stride, padding, dilation, ceil_mode)
    return (max_over(window, x), winners_over(window, x)) if return_indices else max_over(window, x)


def max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The tangent of each maximum (indices are integers and have none).

    >>> max_pool_jvp([[1, 2], [4, 3]], [[10, 20], [40, 30]], (2, 2)).tolist()
    [[40]]
    """
    x, dx = tensor(x), tensor(dx)
    require_ties(ties)
    return max_over_jvp(sliding(x, kernel_size, stride, padding, dilation, ceil_mode), x, dx, ties, strict)


def max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The cotangent of ``x``: each window's ``g`` goes to its winner, or to its tied cells.

    >>> max_pool_vjp([[3, 3], [1, 2]], [[6.0]], (2, 2), ties="split").tolist()
    [[3.0, 3.0], [0.0, 0.0]]
    """
    x, g = tensor(x), tensor(g)
    require_ties(ties)
    return max_over_vjp(sliding(x, kernel_size, stride, padding, dilation, ceil_mode), x, g, ties, strict)


def avg_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """The sum of each window's real cells over its number of taps, of real cells, or ``divisor_override``.

    >>> avg_pool([[1, 1], [1, 1]], (2, 2), 1, 1).tolist()
    [[0.25, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 0.25]]
    """
    x = tensor(x)
    window = sliding(x, kernel_size, stride, padding, dilation, ceil_mode)
    return mean_over(window, x, divisor_rule(x, count_include_pad, divisor_override))


def avg_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """The average of the tangents.

    >>> avg_pool_jvp([[1, 2], [3, 4]], [[1, 0], [0, 1]], (2, 2)).tolist()
    [[0.5]]
    """
    x, dx = tensor(x), tensor(dx)
    window = sliding(x, kernel_size, stride, padding, dilation, ceil_mode)
    return mean_over_jvp(window, x, dx, divisor_rule(dx, count_include_pad, divisor_override))


def avg_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Scalar | None = None,
    *,
    dilation: Ints = 1,
) -> Tensor:
    """The cotangent of ``x``: each window adds ``g / divisor`` to every real cell it reads.

    >>> avg_pool_vjp([1, 2, 3], [6, 6], (2,), 1).tolist()
    [3.0, 6.0, 3.0]
    """
    x, g = tensor(x), tensor(g)
    window = sliding(x, kernel_size, stride, padding, dilation, ceil_mode)
    return mean_over_vjp(window, x, g, divisor_rule(g, count_include_pad, divisor_override))


# --- adaptive windows -------------------------------------------------------------------------------------------------


def bins(x: Shaped, output_size: Sequence[int | None]) -> Window:
    return adaptive(spatial_sizes(x.shape, spatial_rank("output_size", output_size)), output_size)


def adaptive_max_pool(
    x: TensorLike, output_size: Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest cell of each of ``output_size`` bins per axis.

    >>> adaptive_max_pool([0, 4, 1, 3, 2], (3,)).tolist()
    [4, 4, 3]
    """
    x = tensor(x)
    require_ties(ties)
    window = bins(x, output_size)
    return (max_over(window, x), winners_over(window, x)) if return_indices else max_over(window, x)


def adaptive_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The tangent of each bin's maximum.

    >>> adaptive_max_pool_jvp([0, 4, 1], [10, 20, 30], (1,)).tolist()
    [20]
    """
    x, dx = tensor(x), tensor(dx)
    require_ties(ties)
    return max_over_jvp(bins(x, output_size), x, dx, ties, strict)


def adaptive_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: Sequence[int | None],
    return_indices: bool = False,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The cotangent of ``x``: each bin's ``g`` goes to its winner, or to its tied cells.

    >>> adaptive_max_pool_vjp([0, 4, 1, 3, 2], [1, 1, 1], (3,)).tolist()
    [0, 2, 0, 1, 0]
    """
    x, g = tensor(x), tensor(g)
    require_ties(ties)
    return max_over_vjp(bins(x, output_size), x, g, ties, strict)


def adaptive_avg_pool(x: TensorLike, output_size: Sequence[int | None]) -> Tensor:
    """The mean of each of ``output_size`` bins per axis.

    >>> adaptive_avg_pool([0, 1, 2, 3, 4], (3,)).tolist()
    [0.5, 2.0, 3.5]
    """
    x = tensor(x)
    return mean_over(bins(x, output_size), x, _number_of_cells)


def adaptive_avg_pool_jvp(x: TensorLike, dx: TensorLike, output_size: Sequence[int | None]) -> Tensor:
    """The mean of each bin's tangents.

    >>> adaptive_avg_pool_jvp([0, 1, 2], [2, 4, 6], (2,)).tolist()
    [3.0, 5.0]
    """
    x, dx = tensor(x), tensor(dx)
    return mean_over_jvp(bins(x, output_size), x, dx, _number_of_cells)


def adaptive_avg_pool_vjp(x: TensorLike, g: TensorLike, output_size: Sequence[int | None]) -> Tensor:
    """The cotangent of ``x``: each bin adds ``g / (its number of cells)`` to its cells.

    >>> adaptive_avg_pool_vjp([0, 1, 2], [2, 4], (2,)).tolist()
    [1.0, 3.0, 2.0]
    """
    x, g = tensor(x), tensor(g)
    return mean_over_vjp(bins(x, output_size), x, g, _number_of_cells)


# --- global windows ---------------------------------------------------------------------------------------------------


def everything(x: Shaped, rank: int) -> Window:
    return whole(spatial_sizes(x.shape, whole_number("rank", rank, least=0)))


def _flattened(y: Tensor, rank: int, keepdims: bool) -> Tensor:
    return y if keepdims else y.reshape(*split_shape(y.shape, rank)[0])


def _kept(g: Tensor, rank: int, keepdims: bool) -> Tensor:
    return g if keepdims else g.reshape(*g.shape, *(1,) * whole_number("rank", rank, least=0))


def global_max_pool(x: TensorLike, rank: int = 2, keepdims: bool = True, *, ties: str = "first") -> Tensor:
    """The largest cell over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed.

    >>> global_max_pool([[[1, 3], [3, 2]]]).tolist()
    [[[3]]]
    """
    x = tensor(x)
    require_ties(ties)
    return _flattened(max_over(everything(x, rank), x), rank, keepdims)


def global_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    rank: int = 2,
    keepdims: bool = True,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The tangent of the maximum.

    >>> global_max_pool_jvp([[1, 3], [3, 2]], [[1, 2], [4, 8]], keepdims=False, ties="all").tolist()
    6
    """
    x, dx = tensor(x), tensor(dx)
    require_ties(ties)
    return _flattened(max_over_jvp(everything(x, rank), x, dx, ties, strict), rank, keepdims)


def global_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    rank: int = 2,
    keepdims: bool = True,
    *,
    ties: str = "first",
    strict: bool = False,
) -> Tensor:
    """The cotangent of ``x``.

    >>> global_max_pool_vjp([[1, 3], [3, 2]], 1, keepdims=False).tolist()
    [[0, 1], [0, 0]]
    """
    x, g = tensor(x), _kept(tensor(g), rank, keepdims)
    require_ties(ties)
    return max_over_vjp(everything(x, rank), x, g, ties, strict)


def global_avg_pool(x: TensorLike, rank: int = 2, keepdims: bool = True) -> Tensor:
    """The mean over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed.

    >>> global_avg_pool([[[1, 3], [3, 2]]]).tolist()
    [[[2.25]]]
    """
    x = tensor(x)
    return _flattened(mean_over(everything(x, rank), x, _number_of_cells), rank, keepdims)


def global_avg_pool_jvp(x: TensorLike, dx: TensorLike, rank: int = 2, keepdims: bool = True) -> Tensor:
    """The mean of the tangents.

    >>> global_avg_pool_jvp([1, 2], [4, 8], rank=1).tolist()
    [6.0]
    """
    x, dx = tensor(x), tensor(dx)
    return _flattened(mean_over_jvp(everything(x, rank), x, dx, _number_of_cells), rank, keepdims)


def global_avg_pool_vjp(x: TensorLike, g: TensorLike, rank: int = 2, keepdims: bool = True) -> Tensor:
    """The cotangent of ``x``: ``g / (number of cells)`` everywhere.

    >>> global_avg_pool_vjp([1, 2], [4], rank=1).tolist()
    [2.0, 2.0]
    """
    x, g = tensor(x), _kept(tensor(g), rank, keepdims)
    return mean_over_vjp(everything(x, rank), x, g, _number_of_cells)


def require_ties(ties: str) -> None:
    if ties not in TIES:
        raise ValueError(f'ties={ties!r} is not known; use "first" (the default), "all" or "split"')

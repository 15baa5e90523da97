"""Correct kernels that add up in every order: a target each, in NumPy, none of them ours.

Leaves are gathered with explicit loops over taps, independently of the oracle's matrices, and added one addition at a
time in the accumulator's format: from the front, from the back, in pairs, in lanes, with fused multiply-adds, or in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.model.problem import FLOATS, Array, Call, Problem, Results
from gradspec.conformance.model.target import Target

OPS = ("conv", "conv_transpose", "avg_pool", "max_pool")
Order = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""The sums of ``a·b`` over the last axis, in the dtype of ``a``."""


# --- orders of summation ---------------------------------------------------------------------------------------------


def forwards(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    total = np.zeros(a.shape[:-1], a.dtype)
    for k in range(a.shape[-1]):
        total = total + a[..., k] * b[..., k]
    return total


def backwards(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return forwards(a[..., ::-1], b[..., ::-1])


def pairwise(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    terms = a * b
    while terms.shape[-1] > 1:
        odd = terms[..., -1:] if terms.shape[-1] % 2 else terms[..., :0]
        even = terms[..., : terms.shape[-1] // 2 * 2]
        terms = np.concatenate([even[..., ::2] + even[..., 1::2], odd], axis=-1)
    return terms.sum(axis=-1, dtype=a.dtype)


def lanes(count: int) -> Order:
    """``count`` sums side by side, as in a vector register, added up at the end."""

    def order(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        turns = -(-a.shape[-1] // count)
        wide = [(0, 0)] * (a.ndim - 1) + [(0, turns * count - a.shape[-1])]
        a, b = (np.pad(part, wide).reshape(*part.shape[:-1], turns, count) for part in (a, b))
        partial = forwards(np.moveaxis(a, -2, -1), np.moveaxis(b, -2, -1))
        return pairwise(partial, np.ones_like(partial))

    return order


def fused(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Multiply-adds rounded once: in float64 the product of two float32 is exact, and the sum is rounded to odd."""
    total = np.zeros(a.shape[:-1], a.dtype)
    for k in range(a.shape[-1]):
        total = _multiply_add(a[..., k], b[..., k], total)
    return total


def _multiply_add(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    if a.dtype != np.float32:
        return a * b + c
    exact, wide = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = exact + wide
    of_c = total - exact
    lost = (exact - (total - of_c)) + (wide - of_c)
    # A rounding to odd keeps the second rounding, to float32, from rounding the wrong way.
    toward = np.where((lost > 0) == (total > 0), total, np.nextafter(total, 0))
    odd = np.where((lost != 0) & np.isfinite(lost), (toward.view(np.int64) | 1).view(np.float64), total)
    return odd.astype(np.float32)


ORDERS: dict[str, Order] = {
    "forwards": forwards,
    "backwards": backwards,
    "pairwise": pairwise,
    "4 lanes": lanes(4),
    "8 lanes": lanes(8),
    "16 lanes": lanes(16),
    "fused": fused,
}


# --- leaves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a regular window, read from settled attributes."""

    size: int
    kernel: int
    stride: int
    padding: tuple[int, int]
    dilation: int
    outputs: int

    @staticmethod
    def of(size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int, ceil: bool) -> Axis:
        low, high = padding
        room = size + low + high - dilation * (kernel - 1) - 1
        outputs = room // stride + 1
        one_more = ceil and room % stride > 0 and outputs * stride < size + low
        return Axis(size, kernel, stride, (low, high), dilation, outputs + one_more)

    def position(self, output: Any, tap: Any) -> Any:
        return output * self.stride - self.padding[0] + tap * self.dilation


def axes_of(problem: Problem) -> tuple[Axis, ...]:
    """The axes of the windows: of the input for pooling and convolution, of the output for a transposed one."""
    given, rank = problem.attributes, problem.rank
    x, weight = problem.shapes[0], problem.shapes[1] if len(problem.shapes) > 1 else None
    assert x is not None
    sizes = x[len(x) - rank :]
    kernel = weight[len(weight) - rank :] if weight is not None else given["kernel_size"]
    stride = given.get("stride") or ((1,) * rank if weight is not None else kernel)
    padding = given.get("padding") or ((0, 0),) * rank
    dilation = given.get("dilation") or (1,) * rank
    if problem.op == "conv_transpose":
        more = given.get("output_padding") or (0,) * rank
        sizes = tuple(
            (n - 1) * s - lo - hi + d * (k - 1) + o + 1
            for n, s, (lo, hi), d, k, o in zip(sizes, stride, padding, dilation, kernel, more, strict=True)
        )
    ceil = bool(given.get("ceil_mode"))
    axes = [Axis.of(*each, ceil) for each in zip(sizes, kernel, stride, padding, dilation, strict=True)]
    if problem.op == "conv_transpose":  # its output may have room for more windows than it was made from
        axes = [replace(axis, outputs=outputs) for axis, outputs in zip(axes, x[len(x) - rank :], strict=True)]
    return tuple(axes)


@lru_cache(maxsize=64)
def places(axes: tuple[Axis, ...]) -> NDArray[np.int64]:
    """``[output, tap]``: flat positions, −1 for padding, −2 for taps beyond the padding, which no window has."""
    flat, inside, within = np.zeros((1, 1), np.int64), np.ones((1, 1), bool), np.ones((1, 1), bool)
    for axis in axes:
        here = axis.position(np.arange(axis.outputs)[:, None], np.arange(axis.kernel))
        flat = _outer(flat * axis.size, here, np.add)
        inside = _outer(inside, (here >= 0) & (here < axis.size), np.logical_and)
        within = _outer(within, here < axis.size + axis.padding[1], np.logical_and)
    return np.where(within, np.where(inside, flat, -1), -2)


def _outer(all_before: Array, axis: Array, combine: Callable[[Any, Any], Any]) -> Array:
    """``[outputs, taps]`` of some axes with one more, row-major in both."""
    both = combine(all_before[:, None, :, None], axis[None, :, None, :])
    return both.reshape(both.shape[0] * both.shape[1], both.shape[2] * both.shape[3])


class InOrder(Target):
    """Convolution, its transpose, average pooling and max pooling, each sum in one order."""

    def __init__(self, order: str, accumulate: str | None = None) -> None:
        self.name, self._add, self._accumulate = f"numpy {order} {accumulate or ''}".strip(), ORDERS[order], accumulate

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.op not in OPS or problem.dtype not in FLOATS or mode == "second":
            return "not written"
        return None if problem.attributes.get("ties", "first") == "first" else "ties"

    def reproducer(self, call: Call) -> str:
        return f"{self.name} {call.problem.op}"

    def run(self, call: Call) -> Results:
        with np.errstate(all="ignore"):
            results = {"conv": self._conv, "conv_transpose": self._conv}.get(call.problem.op, self._pool)(call)
            return {
                name: array if name == "indices" else array.astype(call.named()["x"].dtype)
                for name, array in results.items()
            }

    def _wide(self, array: Array | None) -> Any:
        """In the format that sums are made in."""
        if array is None:
            return None
        narrow = array.dtype.itemsize < 4
        return array.astype(self._accumulate or (np.float32 if narrow else array.dtype))

    # --- pooling

    def _pool(self, call: Call) -> Results:
        rank, x = call.problem.rank, call.named()["x"]
        axes = axes_of(call.problem)
        taps, shape = places(axes), tuple(axis.outputs for axis in axes)
        lead = x.shape[: x.ndim - rank]
        planes = x.reshape(prod(lead), prod(x.shape[len(lead) :]))
        return (self._max if call.problem.op == "max_pool" else self._average)(call, planes, taps, lead, shape)

    def _max(self, call: Call, planes: Array, taps: NDArray[np.int64], lead: Any, shape: Any) -> Results:
        winners = np.full((len(planes), len(taps)), -1, np.int64)
        for column in taps.T:
            place = np.broadcast_to(np.maximum(column, 0), winners.shape)
            cell = np.take_along_axis(planes, place, axis=1)
            best = np.take_along_axis(planes, np.maximum(winners, 0), axis=1)
            better = (winners < 0) | (cell > best) | (np.isnan(cell) & ~np.isnan(best))
            winners = np.where((column >= 0) & better, place, winners)
        if call.mode == "vjp":
            return {"grad_x": self._scattered(call, planes, winners)}
        source = planes if call.mode == "value" else call.directions[0].reshape(planes.shape)
        chosen = np.take_along_axis(source, np.maximum(winners, 0), axis=1)
        y = np.where(winners >= 0, chosen, np.zeros(1, chosen.dtype)).reshape(*lead, *shape)
        return {"dy": y} if call.mode == "jvp" else {"y": y, "indices": winners.reshape(*lead, *shape)}

    def _scattered(self, call: Call, planes: Array, winners: NDArray[np.int64]) -> Array:
        assert call.cotangent is not None
        g = self._wide(call.cotangent).reshape(winners.shape)
        hit = winners[:, :, None] == np.arange(planes.shape[1])
        sent = np.where(hit, g[:, :, None], np.zeros(1, g.dtype)).transpose(0, 2, 1)
        return self._add(sent, np.ones_like(sent)).reshape(call.named()["x"].shape)

    def _average(self, call: Call, planes: Array, taps: NDArray[np.int64], lead: Any, shape: Any) -> Results:
        options = call.problem.attributes
        counted = (taps != -2) if options.get("count_include_pad", True) else (taps >= 0)
        divisors = np.maximum(counted.sum(axis=1), 1).astype(np.float64)
        if options.get("divisor_override") is not None:
            divisors = np.full(len(taps), float(options["divisor_override"]))
        if call.mode == "vjp":
            assert call.cotangent is not None
            g = self._wide(call.cotangent).reshape(len(planes), len(taps))
            shares = g / divisors.astype(g.dtype)
            reads = (taps[:, :, None] == np.arange(planes.shape[1])).any(axis=1).T
            sent = np.where(reads, shares[:, None, :], np.zeros(1, g.dtype))
            return {"grad_x": self._add(sent, np.ones_like(sent)).reshape(call.named()["x"].shape)}
        source = self._wide(planes if call.mode == "value" else call.directions[0].reshape(planes.shape))
        cells = np.where(taps >= 0, source[:, np.maximum(taps, 0)], np.zeros(1, source.dtype))
        y = self._add(cells, np.ones_like(cells)) / divisors.astype(cells.dtype)
        return {"dy" if call.mode == "jvp" else "y": y.reshape(*lead, *shape)}

    # --- convolution

    def _conv(self, call: Call) -> Results:
        x, w, b = (self._wide(array) for array in call.inputs)
        form = Form(call)
        if call.mode == "vjp":
            return self._conv_vjp(call, form, x, w, b)
        pairs, added = [(x, w)], b
        if call.mode == "jvp":
            named = dict(zip(call.problem.differentiable, map(self._wide, call.directions), strict=True))
            pairs, added = [(named["x"], w), (x, named["weight"])], named.get("bias")
        leaves = [(form.write if form.transposed else form.read)(*pair) for pair in pairs]
        if added is not None:
            one = np.broadcast_to(added[:, None, None], (*leaves[0][0].shape[:3], 1))
            leaves.append((one, np.ones_like(one)))
        return {"dy" if call.mode == "jvp" else "y": self._added(leaves).reshape(form.output)}

    def _conv_vjp(self, call: Call, form: Form, x: Any, w: Any, b: Any) -> Results:
        g = self._wide(call.cotangent)
        grad_x = (form.read if form.transposed else form.write)(g, w)
        grad_weight = form.compare(g, x) if form.transposed else form.compare(x, g)
        found = {"grad_x": self._added([grad_x]).reshape(x.shape), "grad_weight": self._added([grad_weight])}
        found["grad_weight"] = found["grad_weight"].reshape(w.shape)
        if b is not None:
            flat = form.split(g).transpose(1, 0, 2).reshape(len(b), g.size // max(len(b), 1))
            found["grad_bias"] = self._added([(flat, np.ones_like(flat))])
        return found

    def _added(self, leaves: list[tuple[Any, Any]]) -> Any:
        factors = [np.broadcast_arrays(*pair) for pair in leaves]
        return self._add(*(np.concatenate(side, axis=-1) for side in zip(*factors, strict=True)))


class Form:
    """The leaves ``(a, b)`` of convolution's three transposes, ``[…, leaf]``.

    ``x`` is the side that windows read and ``g`` the other: a transposed convolution goes from ``g`` to ``x``.
    """

    def __init__(self, call: Call) -> None:
        problem = call.problem
        self.transposed = problem.op == "conv_transpose"
        self.rank, self.groups = problem.rank, problem.attributes.get("groups", 1)
        axes = axes_of(problem)
        self.taps = places(axes)
        given, weight = problem.shapes[0], problem.shapes[1]
        assert given is not None
        assert weight is not None
        self.m, self.c = weight[0], weight[1] * self.groups
        lead = given[: len(given) - self.rank - 1]
        self.cells = prod(axis.size for axis in axes)
        sides = ((self.c, [axis.size for axis in axes]), (self.m, [axis.outputs for axis in axes]))
        channels, sizes = sides[not self.transposed]
        self.output = (*lead, channels, *sizes)

    def split(self, array: Any) -> Any:
        """``[sample, channel, cell]``."""
        plane = prod(array.shape[array.ndim - self.rank :])
        channels = array.shape[array.ndim - self.rank - 1]
        return array.reshape(prod(array.shape[: array.ndim - self.rank - 1]), channels, plane)

    def _padded(self, array: Any) -> Any:
        """With zeros where negative places read."""
        return np.pad(self.split(array), ((0, 0), (0, 0), (0, 2)))

    def _channels_of(self, count: int, others: int) -> NDArray[np.int64]:
        """``[channel, j]``: the channels of the other side in the same group."""
        group = np.arange(count) // max(count // self.groups, 1)
        return group[:, None] * (others // self.groups) + np.arange(others // self.groups)

    def read(self, x: Any, w: Any) -> tuple[Any, Any]:
        near = self._channels_of(self.m, self.c)
        cells = self._padded(x)[:, near][..., self.taps]  # sample, m, c, output, tap
        a = cells.transpose(0, 1, 3, 2, 4).reshape(
            len(cells), self.m, len(self.taps), near.shape[1] * self.taps.shape[1]
        )
        return a, w.reshape(1, self.m, 1, a.shape[-1])

    def write(self, g: Any, w: Any) -> tuple[Any, Any]:
        near = self._channels_of(self.c, self.m)
        output, tap = self._readers()
        there = output >= 0
        a = self._padded(g)[:, near][..., output]  # sample, c, m, cell, reader
        taps = w.reshape(self.m, self.c // self.groups, self.taps.shape[1])
        inner = np.arange(self.c) % max(self.c // self.groups, 1)
        b = np.where(there, taps[near, inner[:, None]][..., tap], np.zeros(1, w.dtype))[None]
        shape = (self.c, self.cells, near.shape[1] * output.shape[1])
        return a.transpose(0, 1, 3, 2, 4).reshape(len(a), *shape), b.transpose(0, 1, 3, 2, 4).reshape(1, *shape)

    def _readers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """``[cell, tap]``: the output whose tap reads the cell, or −1, and the tap."""
        found = np.full((self.cells, self.taps.shape[1]), -1, np.int64)
        outputs, taps = np.nonzero(self.taps >= 0)
        found[self.taps[outputs, taps], taps] = outputs
        return found, np.broadcast_to(np.arange(self.taps.shape[1]), found.shape)

    def compare(self, x: Any, g: Any) -> tuple[Any, Any]:
        near = self._channels_of(self.m, self.c)
        cells = self._padded(x)[:, near][..., self.taps.T]  # sample, m, c, tap, output
        leaves = len(cells) * len(self.taps)
        a = cells.transpose(1, 2, 3, 0, 4).reshape(self.m, near.shape[1], self.taps.shape[1], leaves)
        return a, self.split(g).transpose(1, 0, 2).reshape(self.m, 1, 1, leaves)

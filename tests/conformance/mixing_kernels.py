"""Right kernels that mix what their outputs do not read, written from the textbook, in the precision of their arrays.

Each class has one place, a method, that a planted mistake replaces.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def wide(array):
    """Float16 is added up in float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def flattened(array, rank):
    """One batch axis before channels and space, and the axes that it was."""
    lead = array.shape[: array.ndim - rank - 1]
    return wide(array).reshape(-1 if array.size else prod(lead), *array.shape[array.ndim - rank - 1 :]), lead


def padded(array, padding):
    return np.pad(array, [(0, 0)] * (array.ndim - len(padding)) + list(padding))


# --- transforms -------------------------------------------------------------------------------------------------------


class Convolution:
    """A convolution and its derivatives, of what one group and stride 1 need: read, write, compare."""

    def __init__(self, **declared):
        self.__dict__.update(declared)

    def framed(self, cells, padding):
        return padded(cells, padding)

    def conv(self, x, weight, bias, stride, padding, dilation, groups):
        self.require(weight, stride, dilation)
        cells, lead = flattened(x, len(stride))
        if 0 in (*cells.shape, *weight.shape):
            raise NotImplementedError("empty arrays")
        parts = [
            self.read(self.framed(part, padding), w, stride, dilation)
            for part, w in zip(np.split(cells, groups, 1), np.split(wide(weight), groups), strict=True)
        ]
        y = np.concatenate(parts, 1)
        if bias is not None:
            y = y + wide(bias).reshape(-1, *(1,) * len(stride))
        return y.reshape(*lead, *y.shape[1:]).astype(x.dtype)

    def conv_jvp(self, x, weight, bias, dx, dweight, dbias, **attributes):
        along = self.conv(dx, weight, None, **attributes)
        return along + self.conv(x, dweight, dbias, **attributes)

    def conv_transpose(self, x, weight, bias, stride, padding, output_padding, groups, dilation):
        self.require(weight, stride, dilation)
        cells, lead = flattened(x, len(stride))
        if 0 in (*cells.shape, *weight.shape):
            raise NotImplementedError("empty arrays")
        each = zip(cells.shape[2:], weight.shape[2:], stride, dilation, output_padding, strict=True)
        sizes = [(n - 1) * s + d * (k - 1) + 1 + more for n, k, s, d, more in each]
        parts = zip(np.split(cells, groups, 1), np.split(wide(weight), groups), strict=True)
        y = np.concatenate([self.write(part, w, sizes, stride, dilation) for part, w in parts], 1)
        y = y[(..., *(slice(lo, n - hi) for n, (lo, hi) in zip(sizes, padding, strict=True)))]
        if bias is not None:
            y = y + wide(bias).reshape(-1, *(1,) * len(stride))
        return y.reshape(*lead, *y.shape[1:]).astype(x.dtype)

    def conv_vjp(self, x, weight, bias, g, stride, padding, dilation, groups):
        self.require(weight, stride, dilation)
        cells, _ = flattened(x, len(stride))
        if 0 in (*cells.shape, *weight.shape):
            raise NotImplementedError("empty arrays")
        sent, _ = flattened(g, len(stride))
        found = [
            (self.write(b, w, p.shape[2:], stride, dilation), self.compare(p, b, w.shape[2:], stride, dilation))
            for p, w, b in zip(
                np.split(self.framed(cells, padding), groups, 1),
                np.split(wide(weight), groups),
                np.split(sent, groups, 1),
                strict=True,
            )
        ]
        inner = tuple(slice(lo, lo + n) for (lo, _), n in zip(padding, cells.shape[2:], strict=True))
        grad_x = np.concatenate([grad[(..., *inner)] for grad, _ in found], 1).reshape(x.shape).astype(x.dtype)
        grad_w = np.concatenate([grad for _, grad in found]).astype(x.dtype)
        return grad_x, grad_w, None if bias is None else sent.sum(axis=(0, *range(2, sent.ndim))).astype(x.dtype)


def spread(array, sizes, steps):
    """The array's cells so many steps apart, among zeros."""
    apart = np.zeros((*array.shape[:2], *sizes), array.dtype)
    apart[(..., *(slice(0, (n - 1) * s + 1, s) for n, s in zip(array.shape[2:], steps, strict=True)))] = array
    return apart


class FFT(Convolution):
    """By transforms of whole planes, of a length that holds a window beyond the last cell, or the next power of two."""

    algorithm = "fft"
    powers_of_two = False

    def require(self, weight, stride, dilation):
        pass

    def lengths(self, sizes, kernel, dilation):
        least = [n + d * (k - 1) for n, k, d in zip(sizes, kernel, dilation, strict=True)]
        return [1 << (n - 1).bit_length() for n in least] if self.powers_of_two else least

    def forward(self, array, lengths):
        return np.fft.rfftn(array, lengths, axes=range(2, array.ndim))

    def back(self, spectrum, lengths):
        return np.fft.irfftn(spectrum, lengths, axes=range(2, spectrum.ndim))

    def read(self, x, weight, stride, dilation):
        lengths = self.lengths(x.shape[2:], weight.shape[2:], dilation)
        extents = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
        w = self.forward(spread(weight, extents, dilation), lengths)
        y = self.back(np.einsum("nc...,oc...->no...", self.forward(x, lengths), w.conj()), lengths)
        steps = (slice(0, n - e + 1, s) for n, e, s in zip(x.shape[2:], extents, stride, strict=True))
        return y[(..., *steps)]

    def write(self, g, weight, sizes, stride, dilation):
        lengths = self.lengths(sizes, weight.shape[2:], dilation)
        extents = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
        w = self.forward(spread(weight, extents, dilation), lengths)
        x = self.back(np.einsum("no...,oc...->nc...", self.forward(spread(g, sizes, stride), lengths), w), lengths)
        return x[(..., *(slice(0, n) for n in sizes))]

    def compare(self, x, g, kernel, stride, dilation):
        lengths = self.lengths(x.shape[2:], kernel, dilation)
        sent = self.forward(spread(g, x.shape[2:], stride), lengths).conj()
        w = self.back(np.einsum("nc...,no...->oc...", self.forward(x, lengths), sent), lengths)
        return w[(..., *(slice(0, d * (k - 1) + 1, d) for k, d in zip(kernel, dilation, strict=True)))]


POINTS = [Fraction(p) for p in (0, 1, -1, 2, -2)] + [Fraction(1, 2), Fraction(-1, 2)]


def cook_toom(m, r):
    """``Aᵀ, G, Bᵀ`` of F(m, r) as fractions, at the usual points and infinity."""
    points = POINTS[: m + r - 2]
    back = [[p**i for p in points] + [Fraction(int(i == m - 1))] for i in range(m)]
    scales = [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    kernel = [[p**i / scale for i in range(r)] for p, scale in zip(points, scales, strict=True)]
    kernel.append([Fraction(int(i == r - 1)) for i in range(r)])
    data = [[*_polynomial([q for q in points if q != p]), Fraction(0)] for p in points]
    return back, kernel, [*data, _polynomial(points)]


def _polynomial(roots):
    found = [Fraction(1)]
    for root in roots:
        found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def along_axes(matrix, array, rank):
    """A matrix applied to each of the last axes."""
    for axis in range(array.ndim - rank, array.ndim):
        array = np.moveaxis(np.tensordot(matrix, array, (1, axis)), 0, axis)
    return array


class Winograd(Convolution):
    """F(m, 3) along every axis: tiles of m + 2 cells, transformed, multiplied, added up, transformed back."""

    algorithm = "winograd"
    ranks = (1, 2, 3)
    outputs = 2

    def require(self, weight, stride, dilation):
        if set(weight.shape[2:]) != {3} or {*stride, *dilation} != {1}:
            raise NotImplementedError("kernels of 3, stride 1")

    def matrices(self, m, r, dtype):
        return (np.asarray([[float(v) for v in row] for row in part], dtype) for part in cook_toom(m, r))

    def tiles(self, cells, counts):
        """``[n, c, *tile, *cell]``, with zeros behind the last cell."""
        m, rank = self.outputs, len(counts)
        room = [(0, max(0, m * t + 2 - n)) for t, n in zip(counts, cells.shape[2:], strict=True)]
        views = sliding_window_view(padded(cells, room), (m + 2,) * rank, tuple(range(2, 2 + rank)))
        return views[(slice(None), slice(None), *(slice(0, m * t, m) for t in counts))]

    def read(self, x, weight, stride, dilation):
        m, rank = self.outputs, x.ndim - 2
        back, kernel, data = self.matrices(m, 3, x.dtype)
        sizes = [n - 2 for n in x.shape[2:]]
        counts = [-(-n // m) for n in sizes]
        d, w = along_axes(data, self.tiles(x, counts), rank), along_axes(kernel, weight, rank)
        letters, tile = "uvw"[:rank], "ijk"[:rank]
        products = np.einsum(f"nc{tile}{letters},oc{letters}->no{tile}{letters}", d, w)
        y = along_axes(back, products, rank)
        order = [0, 1, *(axis for i in range(rank) for axis in (2 + i, 2 + rank + i))]
        whole = y.transpose(order).reshape(*y.shape[:2], *(m * t for t in counts))
        return whole[(..., *(slice(0, n) for n in sizes))]

    def write(self, g, weight, sizes, stride, dilation):
        rank = g.ndim - 2
        turned = np.flip(weight, range(2, 2 + rank)).swapaxes(0, 1)
        return self.read(padded(g, [(2, 2)] * rank), turned, stride, dilation)

    def compare(self, x, g, kernel, stride, dilation):
        """F(3, m): the cotangents of a tile are the kernel, and the taps the outputs."""
        m, rank = self.outputs, x.ndim - 2
        back, kernels, data = self.matrices(3, m, x.dtype)
        counts = [-(-n // m) for n in g.shape[2:]]
        d = along_axes(data, self.tiles(x, counts), rank)
        room = [(0, m * t - n) for t, n in zip(counts, g.shape[2:], strict=True)]
        views = sliding_window_view(padded(g, room), (m,) * rank, tuple(range(2, 2 + rank)))
        views = views[(slice(None), slice(None), *(slice(None, None, m),) * rank)]
        letters, tile = "uvw"[:rank], "ijk"[:rank]
        sent = along_axes(kernels, views, rank)
        return along_axes(back, np.einsum(f"nc{tile}{letters},no{tile}{letters}->oc{letters}", d, sent), rank)


# --- running sums -----------------------------------------------------------------------------------------------------


class Averages:
    """Window sums as differences of running sums."""

    ranks = (1, 2, 3)

    def __init__(self, **declared):
        self.__dict__.update(declared)

    def avg_pool(self, x, kernel_size, stride, padding, count_include_pad, divisor_override):
        rank = len(kernel_size)
        sums = self.sums(padded(wide(x), padding), kernel_size, stride, rank)
        divisors = self.divisors(x, sums, kernel_size, stride, padding, count_include_pad, divisor_override)
        return (sums / divisors).astype(x.dtype)

    def avg_pool_vjp(self, x, g, kernel_size, stride, padding, count_include_pad, divisor_override):
        rank = len(kernel_size)
        shares = wide(g)
        shares = shares / self.divisors(x, shares, kernel_size, stride, padding, count_include_pad, divisor_override)
        sizes = [n + lo + hi for n, (lo, hi) in zip(x.shape[x.ndim - rank :], padding, strict=True)]
        whole = self.spread(shares.astype(wide(x).dtype), sizes, kernel_size, stride, rank)
        inner = (slice(lo, lo + n) for (lo, _), n in zip(padding, x.shape[x.ndim - rank :], strict=True))
        return whole[(..., *inner)].astype(x.dtype)

    def divisors(self, x, sums, kernel_size, stride, padding, count_include_pad, divisor_override):
        rank = len(kernel_size)
        if divisor_override is not None:
            return sums.dtype.type(divisor_override)
        if count_include_pad:
            return sums.dtype.type(prod(kernel_size))
        real = padded(np.ones(x.shape[x.ndim - rank :]), padding)
        views = sliding_window_view(real, kernel_size)[tuple(slice(None, None, s) for s in stride)]
        return np.maximum(views.sum(axis=tuple(range(rank, 2 * rank))), 1).astype(sums.dtype)

    def scan(self, array, axis):
        """Sums up to each place, and a zero before them."""
        room = [(0, 0)] * array.ndim
        room[axis] = (1, 0)
        return np.cumsum(np.pad(array, room), axis=axis, dtype=array.dtype)

    def spread(self, g, sizes, kernel_size, stride, rank):
        """What windows send, as a difference at both their ends along every axis, and running sums of it."""
        for axis, (n, k, s) in enumerate(zip(sizes, kernel_size, stride, strict=True), start=g.ndim - rank):
            moved = np.moveaxis(g, axis, 0)
            ends = np.zeros((n + 1, *moved.shape[1:]), g.dtype)
            for o, sent in enumerate(moved):
                ends[o * s] += sent
                ends[o * s + k] -= sent
            g = np.moveaxis(np.cumsum(ends, axis=0, dtype=g.dtype)[:n], 0, axis)
        return g


class PrefixSum(Averages):
    """Along one axis after the other."""

    algorithm = "prefix_sum"

    def sums(self, x, kernel_size, stride, rank):
        for axis, (k, s) in enumerate(zip(kernel_size, stride, strict=True), start=x.ndim - rank):
            total = np.moveaxis(self.scan(x, axis), axis, 0)
            x = np.moveaxis((total[k:] - total[: len(total) - k])[::s], 0, axis)
        return x


class IntegralImage(Averages):
    """A table of sums over all rectangles from the origin."""

    algorithm = "integral_image"

    def table(self, x, rank):
        for axis in range(x.ndim - rank, x.ndim):
            x = self.scan(x, axis)
        return x

    def sums(self, x, kernel_size, stride, rank):
        table = self.table(x, rank)
        sums = table.dtype.type(0)
        for corner in product((0, 1), repeat=rank):
            ends = zip(table.shape[table.ndim - rank :], kernel_size, stride, corner, strict=True)
            places = (slice(k * end, n - k * (1 - end), s) for n, k, s, end in ends)
            part = table[(..., *places)]
            sums = sums + part if (rank - sum(corner)) % 2 == 0 else sums - part
        return sums


class OnePassTable(IntegralImage):
    """The table by its recurrence, each entry from those before it."""

    def table(self, x, rank):
        table = np.zeros((*x.shape[: x.ndim - rank], *(n + 1 for n in x.shape[x.ndim - rank :])), x.dtype)
        for place in np.ndindex(*x.shape[x.ndim - rank :]):
            total = x[(..., *place)]
            for back in product((0, 1), repeat=rank):
                if any(back):
                    before = table[(..., *(p + 1 - b for p, b in zip(place, back, strict=True)))]
                    total = total + before if sum(back) % 2 else total - before
            table[(..., *(p + 1 for p in place))] = total
        return table

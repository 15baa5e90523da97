"""Kernels that keep something from call to call: rightly, or by a key that lacks what it depends on."""

import ctypes
import threading
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided


def places(size, kernel, stride, padding, dilation):
    """For each output of an axis the places of its taps in the padded axis."""
    outputs = (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(outputs)[:, None] * stride + np.arange(kernel) * dilation


def gathered(x, tables, padding, fill):
    """``[*lead, *outputs, *taps]`` of the padded array."""
    lead = x.ndim - len(tables)
    cells = np.pad(x, [(0, 0)] * lead + list(padding), constant_values=fill)
    for i, table in enumerate(tables):
        cells = np.take(cells, table.ravel(), axis=lead + i)
        cells = cells.reshape(*cells.shape[: lead + i], *table.shape, *cells.shape[lead + i + 1 :])
        cells = np.moveaxis(cells, lead + i + 1, -1)
    return cells


class Kernels:
    """Right ones. ``key`` and the other methods are what planted mistakes change."""

    dtypes = ("f32", "f64")

    def __init__(self):
        self.kept = {}

    def keep(self, key, make):
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def key(self, sizes, kernel, stride, padding, dilation):
        return "tables", sizes, kernel, stride, padding, dilation

    def tables(self, sizes, kernel, stride, padding, dilation):
        made = zip(sizes, kernel, stride, padding, dilation, strict=True)
        return self.keep(self.key(sizes, kernel, stride, padding, dilation), lambda: [places(*axis) for axis in made])

    def packed(self, weight, groups):
        return weight.reshape(groups, weight.shape[0] // groups, prod(weight.shape[1:]))

    def columns(self, cells, shape):
        """The taps of every place beside each other."""
        return np.moveaxis(cells, 0, -2).reshape(shape)

    def returned(self, y):
        return y

    def read(self, x):
        return x

    def conv2d(self, x, weight, stride, padding, dilation, groups):
        x, kernel = self.read(x), weight.shape[2:]
        lead, channels, outputs = x.shape[:-3], x.shape[-3], len(weight)
        tables = self.tables(x.shape[-2:], kernel, stride, padding, dilation)
        size = tuple(len(table) for table in tables)
        cells = gathered(x, tables, padding, 0).reshape(
            prod(lead), groups, channels // groups, prod(size), prod(kernel)
        )
        shape = (groups, prod(lead), prod(size), channels // groups * prod(kernel))
        columns = self.columns(cells.transpose(2, 1, 0, 3, 4), shape)
        y = columns @ self.packed(weight, groups).transpose(0, 2, 1)[:, None]
        y = y.transpose(1, 0, 3, 2).reshape(*lead, outputs, *size)
        return self.returned(np.ascontiguousarray(y))


class PoolKernels(Kernels):
    """Averages, whose divisors are kept, too."""

    def divisor_key(self, x, kernel, stride, padding, ceil_mode, count_include_pad):
        return "divisors", x.shape[-1:], x.dtype, kernel, stride, padding, ceil_mode, count_include_pad

    def avg_pool1d(self, x, kernel_size, stride, padding, ceil_mode, count_include_pad):
        (kernel,), (step,), ((lo, hi),) = kernel_size, stride, padding
        x, n = self.read(x), x.shape[-1]
        outputs = -(-(n + lo + hi - kernel) // step) if ceil_mode else (n + lo + hi - kernel) // step
        outputs += (outputs * step < n + lo) if ceil_mode else 1

        def divisors():
            starts = np.arange(outputs) * step - lo
            ends = np.minimum(starts + kernel, n + hi)
            real = np.minimum(ends, n) - np.maximum(starts, 0)
            return (ends - starts if count_include_pad else np.maximum(real, 1)).astype(x.dtype)

        divided = self.keep(self.divisor_key(x, kernel, step, (lo, hi), ceil_mode, count_include_pad), divisors)
        table = np.arange(outputs)[:, None] * step + np.arange(kernel)
        more = max(0, int(table.max(initial=0)) + 1 - n - lo - hi)
        cells = gathered(x, [table], [(lo, hi + more)], 0)
        return self.returned(cells.sum(-1, dtype=np.float64) / divided).astype(x.dtype)


# --- keys that lack something ----------------------------------------------------------------------------------------


class WithoutStride(Kernels):
    def key(self, sizes, kernel, stride, padding, dilation):
        return super().key(sizes, kernel, None, padding, dilation)


class WithoutPadding(Kernels):
    def key(self, sizes, kernel, stride, padding, dilation):
        return super().key(sizes, kernel, stride, None, dilation)


class WithoutDilation(Kernels):
    def key(self, sizes, kernel, stride, padding, dilation):
        return super().key(sizes, kernel, stride, padding, None)


class WithoutShape(Kernels):
    """As many cells, whatever the axes."""

    def key(self, sizes, kernel, stride, padding, dilation):
        return super().key(prod(sizes), kernel, stride, padding, dilation)


class WithoutGroups(Kernels):
    def packed(self, weight, groups):
        made = super().packed(weight, groups)
        kept = self.keep(("groups", weight.shape[0], weight.shape[2:], prod(weight.shape[1:]) * groups), lambda: groups)
        return made if kept == groups else made[::-1].reshape(made.shape)


class WeightByShape(Kernels):
    def packed(self, weight, groups):
        return self.keep(
            ("packed", weight.shape, weight.dtype), lambda: super(WeightByShape, self).packed(weight, groups).copy()
        )


class WeightById(Kernels):
    """Rightly while a weight is never changed: the array is kept, so that its id is nobody else's."""

    def packed(self, weight, groups):
        made = super().packed
        _, packed = self.keep(("packed", id(weight), groups), lambda: (weight, made(weight, groups).copy()))
        return packed


class WithoutDType(Kernels):
    """The scratch has the format of the first call."""

    def columns(self, cells, shape):
        made = super().columns(cells, shape)
        scratch = self.keep(("scratch", shape), lambda: np.empty(shape, made.dtype)).copy()
        scratch[...] = made
        return scratch


class WithoutLayout(Kernels):
    """Cells are read by steps in memory that are kept for a shape."""

    def read(self, x):
        return as_strided(x, x.shape, self.keep(("strides", x.shape, x.dtype), lambda: x.strides)) if x.size else x


class CeilModeForgotten(PoolKernels):
    def divisor_key(self, x, kernel, stride, padding, ceil_mode, count_include_pad):
        return super().divisor_key(x, kernel, stride, padding, None, count_include_pad)

    def keep(self, key, make):
        kept, made = super().keep(key, make), make()
        return kept[: len(made)] if len(kept) >= len(made) else np.append(kept, made[len(kept) :] + 1)


class PaddingRuleForgotten(PoolKernels):
    def divisor_key(self, x, kernel, stride, padding, ceil_mode, count_include_pad):
        return super().divisor_key(x, kernel, stride, padding, ceil_mode, None)


# --- memory that is shared -------------------------------------------------------------------------------------------


class SharedScratch(Kernels):
    """Right for one caller at a time."""

    def columns(self, cells, shape):
        made = super().columns(cells, shape)
        scratch = self.keep(("scratch", shape, made.dtype), lambda: np.empty(shape, made.dtype))
        scratch[...] = made
        return scratch


class SharedInC(Kernels):
    """The same, and no other thread of Python waits while it is filled."""

    def columns(self, cells, shape):
        made = np.ascontiguousarray(super().columns(cells, shape))
        scratch = self.keep(("scratch", shape, made.dtype), lambda: np.empty(shape, made.dtype))
        ctypes.CDLL(None).memcpy(
            ctypes.c_void_p(scratch.ctypes.data), ctypes.c_void_p(made.ctypes.data), ctypes.c_size_t(made.nbytes)
        )
        return scratch


class OneCaller(SharedScratch):
    threadsafe = False


class Locked(SharedScratch):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def conv2d(self, x, weight, stride, padding, dilation, groups):
        with self.lock:
            return super().conv2d(x, weight, stride, padding, dilation, groups)


class OneResult(Kernels):
    """Every result of a shape in the same memory."""

    def returned(self, y):
        kept = self.keep(("y", y.shape, y.dtype), lambda: np.empty_like(y))
        kept[...] = y
        return kept


class Remembering(Kernels):
    """The result of a call is kept, and handed out again to whoever asks for the same."""

    def conv2d(self, x, weight, stride, padding, dilation, groups):
        key = (x.tobytes(), x.shape, weight.tobytes(), weight.shape, x.dtype, stride, padding, dilation, groups)
        return self.keep(key, lambda: super(Remembering, self).conv2d(x, weight, stride, padding, dilation, groups))


class StridesTakenForPositive(Kernels):
    """From the lowest address on, upwards."""

    def read(self, x):
        low, _ = np.lib.array_utils.byte_bounds(x)
        offset = x.ctypes.data - low
        if not offset:
            return x
        back = tuple(slice(None, None, -1) if step < 0 else slice(None) for step in x.strides)
        return x[back]


class EvenSides(Kernels):
    """Declines every second neighbour, and says so only when it is called."""

    def conv2d(self, x, weight, stride, padding, dilation, groups):
        if sum(x.shape[-2:]) % 2 or stride[0] > 1:
            raise NotImplementedError("sides of an even sum, in single steps")
        return super().conv2d(x, weight, stride, padding, dilation, groups)


RIGHT = (Kernels, PoolKernels, OneCaller, Locked, EvenSides)
WRONG = (
    WithoutStride,
    WithoutPadding,
    WithoutDilation,
    WithoutShape,
    WithoutGroups,
    WeightByShape,
    WeightById,
    WithoutDType,
    WithoutLayout,
    CeilModeForgotten,
    PaddingRuleForgotten,
    SharedScratch,
    SharedInC,
    OneResult,
    Remembering,
    StridesTakenForPositive,
)

"""Targets whose arithmetic or manners are wrong in one known way, and one that has nothing wrong."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from gradspec.conformance.model.problem import Call, Problem, Results
from gradspec.conformance.model.target import ExpectedError, NotOfferedError, Target
from gradspec.conformance.oracle.meaning import round_array
from gradspec.domains.formats import F32, Format

Array = np.ndarray[Any, Any]
TF32 = Format("tf32", 11, 127)
Rounding = Callable[[Array], Array]


class Fake(Target):
    """Calls a function of the call's arrays: ``run(call) -> {name: array}``."""

    name = "fake"
    repeatable = True
    fresh_results = True
    attributes: Mapping[str, Any] | None = None
    """Those that a problem must have, if any may not."""

    def __init__(self, run: Callable[[Call], Results], ops: Iterable[str] = ("conv",), dtypes: str = "f32") -> None:
        self._run, self.ops, self.dtypes, self.threads = run, tuple(ops), dtypes.split(), 1

    def versions(self) -> dict[str, str]:
        return {}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        offered = problem.op in self.ops and problem.dtype in self.dtypes and mode == "value"
        known = self.attributes in (None, problem.attributes)
        return None if offered and known else "no such thing"

    def run(self, call: Call) -> Results:
        return self._run(call)

    def reproducer(self, call: Call) -> str:
        return ""


class Gradients(Fake):
    """Weight gradients of windows of one cell, in float16: a sample's sum in float32, all of them in ``sums``."""

    def __init__(self, sums: Any) -> None:
        super().__init__(self._gradient, dtypes="f16")
        self._sums = sums

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return None if (problem.op, problem.dtype, mode) == ("conv", "f16", "vjp") else "no such thing"

    def _gradient(self, call: Call) -> Results:
        (x, weight), g = factors_of(call), call.cotangent
        assert g is not None
        rows = (part.astype(np.float32).reshape(*part.shape[:2], -1) for part in (g, x))
        total = np.zeros(weight.shape[:2], self._sums)
        for g_sample, x_sample in zip(*rows, strict=True):
            total = (total + (g_sample @ x_sample.T).astype(self._sums)).astype(self._sums)
        return {"grad_weight": total.astype(x.dtype).reshape(weight.shape)}


class Writing(Fake):
    """A function that writes an average of pairs into a given array."""

    attributes = MappingProxyType({"kernel_size": (2,), "stride": (1,)})

    def __init__(self, write: Callable[[Array, Array], None]) -> None:
        super().__init__(lambda call: {"y": averages(call.named()["x"])}, ("avg_pool",))
        self._write = write

    def run_into(self, call: Call, outs: Results) -> None:
        self._write(call.named()["x"], outs["y"])


class Threaded(Fake):
    """Conv that sums in another order, or another sum, with more than one thread."""

    attributes = MappingProxyType[str, Any]({})

    def __init__(self, together: Callable[[Call], Results], repeatable: bool) -> None:
        super().__init__(lambda call: (convolution() if self.threads == 1 else together)(call))
        self.repeatable = repeatable

    def set_threads(self, count: int) -> bool:
        self.threads = count
        return True


class ExpectingErrors(Fake):
    def __init__(self, *errors: ExpectedError) -> None:
        super().__init__(refuse)
        self._errors = errors

    def expected_errors(self) -> tuple[ExpectedError, ...]:
        return self._errors


def refuse(call: Call) -> Results:
    raise NotOfferedError("nothing")


# --- averages ---------------------------------------------------------------------------------------------------------


def averages(x: Array) -> Array:
    """Of neighbours, at stride 1; exact in float32 for the numbers used here."""
    return (x[..., :-1] + x[..., 1:]) / x.dtype.type(2)


def write(x: Array, out: Array) -> None:
    out[...] = averages(x)


def write_too_far(x: Array, out: Array) -> None:
    longer = as_strided(out, (out.size + 1,), (out.itemsize,))
    longer[:-1] = averages(x).ravel()
    longer[-1] = 0


def write_too_early(x: Array, out: Array) -> None:
    write(x, out)
    before = np.ndarray((2,), out.dtype, np.asarray(out.base), out.ctypes.data - np.asarray(out.base).ctypes.data - 4)
    before[0] = 0


def leave_one_out(x: Array, out: Array) -> None:
    out[..., 1:] = averages(x)[..., 1:]


def add_to(x: Array, out: Array) -> None:
    out += averages(x)


def change_input(x: Array, out: Array) -> None:
    write(x, out)
    x[..., 0] += 1


def read_too_far(call: Call) -> Results:
    """The cell behind the last takes part with factor zero, which a NaN shows."""
    x = call.named()["x"]
    behind = as_strided(x, (x.size + 1,), (x.itemsize,))[-1]
    return {"y": averages(x) + behind * x.dtype.type(0)}


class OneBuffer:
    """Every result in the same memory."""

    def __init__(self) -> None:
        self.buffer = np.zeros(1 << 12, np.float32)

    def __call__(self, call: Call) -> Results:
        result = averages(call.named()["x"])
        y = self.buffer[: result.size].reshape(result.shape)
        y[...] = result
        return {"y": y}


# --- convolutions without padding and stride --------------------------------------------------------------------------


def factors_of(call: Call) -> tuple[Array, Array]:
    given = call.named()
    return given["x"], given["weight"]


def leaves_of(x: Array, weight: Array) -> tuple[Array, Array]:
    """``[leaf, sample, place]`` of cells and ``[leaf, output]`` of weights, the channel outermost."""
    rank = weight.ndim - 2
    windows = sliding_window_view(x, weight.shape[2:], tuple(range(-rank, 0)))
    taps = np.moveaxis(windows, (1, *range(-rank, 0)), range(rank + 1))
    return taps.reshape(-1, len(x), int(np.prod(windows.shape[2:-rank]))), weight.reshape(len(weight), -1).T


def shaped(y: Array, x: Array, weight: Array) -> Array:
    """``[sample, place, output]`` as the operator's value, in the dtype of its input."""
    sizes = (n - k + 1 for n, k in zip(x.shape[2:], weight.shape[2:], strict=True))
    return np.moveaxis(y, -1, 1).reshape(len(x), len(weight), *sizes).astype(x.dtype)


def unchanged(x: Array) -> Array:
    return x


def convolution(
    inputs: Rounding = unchanged, sums: Rounding = unchanged, order: Callable[[int], Iterable[int]] = range
) -> Callable[[Call], Results]:
    """Convolution that adds leaf by leaf in float32 (or float64), with roundings of one's own."""

    def run(call: Call) -> Results:
        x, weight = factors_of(call)
        wide = np.promote_types(np.float32, x.dtype) if x.dtype == np.float64 else np.dtype(np.float32)
        cells, factors = leaves_of(inputs(x.astype(wide)), inputs(weight.astype(wide)))
        total = np.zeros((*cells.shape[1:], factors.shape[1]), wide)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in order(len(cells)):
                total = sums(total + sums(cells[i][..., None] * factors[i])).astype(wide)
            return {"y": shaped(total, x, weight)}

    return run


def rounded_to(format: Format) -> Rounding:
    return lambda x: round_array(x.astype(np.float64), format).astype(x.dtype)


def rounded_to_half(x: Array) -> Array:
    return x.astype(np.float16).astype(x.dtype)


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < float(F32.normal), x.dtype.type(0), x)


def random_order() -> Callable[[int], Iterable[int]]:
    return np.random.default_rng(5).permutation


def truncating(call: Call) -> Results:
    """Sums of float32 that round toward zero: in float64, where the sum of two is exact or nearly, then cut."""
    x, weight = factors_of(call)
    cells, factors = leaves_of(x.astype(np.float64), weight.astype(np.float64))
    total = np.zeros((*cells.shape[1:], factors.shape[1]))
    for cell, factor in zip(cells, factors, strict=True):
        total = cut(total + cut(cell[..., None] * factor))
    return {"y": shaped(total, x, weight)}


def cut(x: Array) -> Array:
    """Toward zero, to 24 bits."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, 24)), exponent - 24)


def in_parts(call: Call) -> Results:
    """Float16: a partial sum in float32 for every eight channels, stored; the parts added in float16."""
    x, weight = factors_of(call)
    parts = [
        convolution()(Call(call.problem, "value", (x[:, c : c + 8], weight[:, c : c + 8], None)))["y"]
        for c in range(0, x.shape[1], 8)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return {"y": total}


def by_fft(call: Call) -> Results:
    x, weight = factors_of(call)
    axes = tuple(range(2, x.ndim))
    sizes = x.shape[2:]
    spectrum = np.einsum("bc...,oc...->bo...", np.fft.rfftn(x, sizes, axes), np.conj(np.fft.rfftn(weight, sizes, axes)))
    full = np.fft.irfftn(spectrum, sizes, axes)
    valid = (slice(0, n - k + 1) for n, k in zip(sizes, weight.shape[2:], strict=True))
    return {"y": full[(..., *valid)].astype(x.dtype)}


DATA = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
KERNEL = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
BACK = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)


def by_winograd(call: Call) -> Results:
    """F(2×2, 3×3) in float32: tiles of 4 × 4 cells, transformed, multiplied, added over channels, transformed back."""
    x, weight = factors_of(call)
    if call.problem.rank != 2 or min(x.shape[2:]) < 4:
        return convolution()(call)
    sizes = tuple(n - 2 for n in x.shape[2:])
    tiles = tuple(-(-n // 2) for n in sizes)
    padded = np.zeros((*x.shape[:2], *(2 * t + 2 for t in tiles)), np.float32)
    padded[..., : x.shape[2], : x.shape[3]] = x
    windows = sliding_window_view(padded, (4, 4), (2, 3))[:, :, ::2, ::2]
    cells = DATA @ windows @ DATA.T
    kernels = KERNEL @ weight.astype(np.float32) @ KERNEL.T
    products = np.einsum("bcijuv,ocuv->boijuv", cells, kernels)
    y = BACK @ products @ BACK.T
    whole = y.transpose(0, 1, 2, 4, 3, 5).reshape(len(x), len(weight), 2 * tiles[0], 2 * tiles[1])
    return {"y": whole[..., : sizes[0], : sizes[1]].astype(x.dtype)}

"""The numbers of a case, in three regimes, and special ones among them.

``impulse``: each result adds up at most one non-zero leaf, which uses every bit of a significand: a result is right or
it is not. ``exact_sum``: small integers, so that every sum is exact in any order. ``rounding``: full significands of
several exponents and both signs. What no result adds up (the cells a maximum chooses from, tangents that are only
copied) is dense and distinct in every regime, so that a wrong choice shows.
"""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from gradspec.backends.tables import table
from gradspec.conformance.cases.features import MANY_HITS
from gradspec.conformance.cases.numbers import SPECIALS, Numbers, generator, planes
from gradspec.conformance.cases.reference_numbers import ReferenceDrawing
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.geometry import WindowGeometry, extent, geometry_of, leaves
from gradspec.conformance.model.problem import AVERAGES, CONVOLUTIONS, SELECTIONS, Array, Call, Shape
from gradspec.conformance.model.reference import array_types, call_of
from gradspec.spec.conv import Form
from gradspec.spec.window import Adaptive, AxisWindow


def drawn(case: CheckCase) -> Call:
    """The call of a case: the same for the same case, on every machine."""
    rng = generator(case.seed)
    arrays = ReferenceDrawing(case, rng).arrays() if case.problem.is_reference else _operator_arrays(case, rng)
    return call_of(case.problem, case.mode, arrays, case.layout).in_layout()


def _operator_arrays(case: CheckCase, rng: np.random.Generator) -> dict[str, Array]:
    numbers = Numbers(rng, case.problem.dtype)
    drawing = _DRAWINGS.get(case.problem.op, LinearDrawing)(case, numbers)
    drawing.fill()
    arrays = {name: np.asarray(array, order="C") for name, array in drawing.arrays.items()}
    if case.special in SPECIALS:
        SPECIALS[case.special](case, arrays, numbers)
    return arrays


class Drawing:
    """The arrays of a call, by name: the inputs, ``d`` and an input's name for a direction, ``g`` for the cotangent."""

    def __init__(self, case: CheckCase, numbers: Numbers) -> None:
        self.case, self.problem, self.mode = case, case.problem, case.mode
        self.numbers, self.rng, self.regime = numbers, numbers.rng, case.regime
        self.parts: WindowGeometry = geometry_of(case.problem)
        self.arrays: dict[str, Array] = {}
        self.shapes = {name: t.shape for name, t in array_types(case.problem, case.mode).items()}

    def fill(self) -> None:
        """Put numbers into ``arrays``, one for each of ``shapes``."""
        raise NotImplementedError

    def _only(self, there: Array, array: Array) -> Array:
        return np.where(there, array, self.numbers.type.type(0))

    def dense(self, shape: Shape) -> Array:
        if self.regime == "exact_sum":
            return self.numbers.small(shape, min(1 << (self.numbers.format.precision - 1), 1 << 12))
        return self.numbers.full(shape)

    def summed(self, shape: Shape, terms: int, unit: int = 1) -> Array:
        """Numbers of which ``terms`` together are added up: for exact sums, multiples of ``unit`` if there is room."""
        if self.regime != "exact_sum":
            return self.numbers.full(shape)
        room, terms = 1 << self.numbers.format.precision, max(terms, 2)
        unit = unit if unit * terms <= room else 1
        whole = self.numbers.small(shape, min(max(room // (terms * unit), 1), 1000), min(1.0, room / (2 * terms)))
        return np.asarray(whole * self.numbers.type.type(unit))


# --- one linear map: averages, columns, unpooling --------------------------------------------------------------------


ACTIVE = {"value": "x", "jvp": "dx", "vjp": "g", "second": "dx"}
"""The array that a linear map adds up."""


class LinearDrawing(Drawing):
    """The value is a linear map of ``x``; one array is added up, and which one the mode says."""

    def fill(self) -> None:
        for name, shape in self.shapes.items():
            self.arrays[name] = self._indices(shape) if name == "indices" else self.dense(shape)
        name = ACTIVE[self.mode]
        shape = self.shapes[name]
        self.arrays[name] = self.summed(shape, leaves(self.problem, self.mode), self._divisor())
        if self.regime == "impulse":
            self.arrays[name] = self._only(self._alone(shape), self.arrays[name])

    def _divisor(self) -> int:
        if self.problem.op not in AVERAGES or self.parts.window is None:
            return 1
        override = self.problem.attributes.get("divisor_override")
        return int(override) if override is not None else prod(self.problem.attributes.get("kernel_size", (1,)))

    def _alone(self, shape: Shape) -> Array:
        """Where a number may stand so that no result adds it to another."""
        if self.parts.window is None and self.mode != "vjp":
            return self._first_of_repeated(shape)
        copied = leaves(self.problem, self.mode) == 1
        return np.ones(shape, np.bool_) if copied else self._apart(shape)

    def _apart(self, shape: Shape) -> Array:
        """Every so many cells, or windows for what windows send out, with some that are read or read something."""
        window = self.parts.window
        assert window is not None
        backward = (self.mode == "vjp") != (self.problem.op == "fold")
        found = np.ones(window.outputs if backward else window.sizes, np.bool_)
        for i, axis in enumerate(window.axes):
            output, position = self._real_pair(axis)
            place, gap = (output, windows_apart(axis)) if backward else (position, cells_apart(axis))
            chosen = np.arange(found.shape[i]) % gap == place % gap
            found &= chosen.reshape([-1 if j == i else 1 for j in range(found.ndim)])
        return np.broadcast_to(found.reshape(-1), (prod(shape) // found.size, found.size)).reshape(shape)

    def _real_pair(self, axis: AxisWindow) -> tuple[int, int]:
        """A window and a real position that it reads."""
        for _ in range(100):
            output = int(self.rng.integers(axis.outputs))
            real = [position for position in axis.positions(output) if 0 <= position < axis.size]
            if real:
                return output, real[self.rng.integers(len(real))]
        return 0, 0

    def _first_of_repeated(self, shape: Shape) -> Array:
        alone = np.ones(shape, np.bool_)
        if self.case.special == "many_hits_one_cell":
            planes(alone, self.problem.rank)[:, 1 : MANY_HITS + 1] = False
        return alone

    def _indices(self, shape: Shape) -> Array:
        """A place for each cell: all different, some of them none, or many the same."""
        rank = self.problem.rank
        cells, places = prod(shape[len(shape) - rank :]), prod(self.parts.output[len(shape) - rank :])
        lines = prod(shape[: len(shape) - rank])
        found = np.argsort(self.rng.random((lines, places)), axis=1)[:, :cells]
        if self.case.special == "padding_only_window":
            found[:, :: max(cells // 2, 1)] = -1
        if self.case.special == "many_hits_one_cell":
            found[:, : MANY_HITS + 1] = found[:, :1]
        return np.ascontiguousarray(found.reshape(shape).astype(np.int64))


def cells_apart(axis: AxisWindow) -> int:
    """How far apart two cells must lie for no window to read both."""
    return -(-axis.size // axis.outputs) + 1 if isinstance(axis, Adaptive) else extent(axis)


def windows_apart(axis: AxisWindow) -> int:
    """How far apart two windows must lie to share no cell."""
    return -(-axis.outputs // axis.size) + 1 if isinstance(axis, Adaptive) else -(-extent(axis) // axis.stride)


# --- maxima ----------------------------------------------------------------------------------------------------------


class SelectionDrawing(LinearDrawing):
    """The cells are distinct; the tangents are copied, the cotangents added up where one cell wins several windows."""

    def fill(self) -> None:
        for name in self.shapes:
            self.arrays[name] = self._cells(self.shapes[name]) if name == "x" else self._other(name)

    def _other(self, name: str) -> Array:
        shape = self.shapes[name]
        if name == "g" and self.mode == "vjp":
            received = self.summed(shape, self.parts.hits)
            return self._only(self._apart(shape), received) if self.regime == "impulse" else received
        split = len(shape) - self.problem.rank
        found = self.numbers.distinct(prod(shape[:split]), prod(shape[split:])) if name == "dx" else None
        return self.dense(shape) if found is None else found.reshape(shape)

    def _cells(self, shape: Shape) -> Array:
        rank = self.problem.rank
        lines, cells = prod(shape[: len(shape) - rank]), prod(shape[len(shape) - rank :])
        found = self.numbers.distinct(lines, cells)
        if found is None:
            found = self._distinct_in_windows(lines, shape[len(shape) - rank :])
        if self.parts.hits >= MANY_HITS and self.rng.random() < 0.5:  # the largest goes to the middle
            sizes = shape[len(shape) - rank :]
            middle = int(np.ravel_multi_index([n // 2 for n in sizes], sizes))
            for plane in found:
                top = int(np.argmax(plane))
                plane[top], plane[middle] = plane[middle], plane[top]
        return found.reshape(shape)

    def _distinct_in_windows(self, lines: int, sizes: Shape) -> Array:
        """Numbers repeated with the period of the window, or at random where even one window has too many cells."""
        window = self.parts.window
        assert window is not None
        periods = [min(cells_apart(axis), axis.size) for axis in window.axes]
        few = self.numbers.distinct(lines, prod(periods))
        if few is None:
            few = self.numbers.distinct(lines, 128)
            assert few is not None
            return few[:, self.rng.integers(0, 128, prod(sizes))]
        place = np.ravel_multi_index([i % p for i, p in zip(np.indices(sizes), periods, strict=True)], periods)
        return few[:, place.ravel()]


OFFSET = 1000.0
"""Of all cells of some smooth maxima: their differences decide, and are lost if products with β are rounded first."""


class SmoothDrawing(LinearDrawing):
    """No sum is exact here; in ``impulse`` all but one tangent or cotangent of a window vanish."""

    def fill(self) -> None:
        for name, shape in self.shapes.items():
            is_small = self.regime == "exact_sum"
            self.arrays[name] = self.numbers.small(shape, 12, exponent=-2) if is_small else self.numbers.full(shape)
        if self.regime == "rounding" and self.rng.random() < 1 / 3:
            self.arrays["x"] = (self.arrays["x"].astype(np.float64) + OFFSET).astype(self.numbers.type)
        if self.regime == "impulse" and self.mode != "value":
            name = ACTIVE[self.mode]
            self.arrays[name] = self._only(self._apart(self.shapes[name]), self.arrays[name])


# --- convolutions ----------------------------------------------------------------------------------------------------


class ConvolutionDrawing(Drawing):
    """Products of ``x``, weight and cotangent, and a bias."""

    def fill(self) -> None:
        getattr(self, f"_{self.regime}")()

    @property
    def form(self) -> Form:
        assert self.parts.form is not None
        return self.parts.form

    def _rounding(self) -> None:
        for name, shape in self.shapes.items():
            self.arrays[name] = self.numbers.full(shape)

    def _exact_sum(self) -> None:
        """Integers whose products add up to less than 2^p; the bias has their common power of two."""
        room, terms = 1 << self.numbers.format.precision, max(leaves(self.problem, self.mode), 1)
        largest = min(max(isqrt(room // terms), 1), 64)
        density = min(1.0, (room / (4 * terms)) ** 0.5)
        data, weights = (int(e) for e in self.rng.integers(-2, 3, 2))
        exponents = {"x": data, "dx": data, "weight": weights, "dweight": weights, "g": 0}
        # The gradient of the bias adds up the cotangents themselves, of which there are more than products in a sum.
        cotangents = self.parts.samples * prod(self.parts.output[-self.problem.rank :])
        densities = {"g": min(density, room / (4 * max(cotangents, 1)))}
        for name, shape in self.shapes.items():
            exponent = exponents.get(name, data + weights)
            self.arrays[name] = self.numbers.small(shape, largest, densities.get(name, density), exponent)

    def _impulse(self) -> None:
        self._rounding()
        getattr(self, f"_impulse_{self.mode}")()

    def _zero(self, *names: str) -> None:
        for name in names:
            if name in self.arrays:
                self.arrays[name] = np.zeros_like(self.arrays[name])

    def _impulse_value(self) -> None:
        self.arrays["weight"] = self._one_tap()
        self._zero("bias")

    def _impulse_jvp(self) -> None:
        """One of the three terms ``dx·w + x·dw + db``."""
        term = self.rng.choice(3, p=[0.45, 0.45, 0.1])
        if term == 0:
            self.arrays["weight"] = self._one_tap()
        if term == 1:
            self.arrays["dweight"] = self._one_tap()
        self._zero(*[name for i, name in enumerate(("dx", "dweight", "dbias")) if i != term])

    def _impulse_vjp(self) -> None:
        """One cotangent of each group against dense data, or one cell of each channel and one tap against dense ones.

        The gradient of the bias, which adds up all cotangents, has one leaf in the first form only.
        """
        if self.rng.random() < 0.5:
            self.arrays["g"] = self._one_cotangent()
        else:
            channels = self.shapes["x"][-1 - self.problem.rank]  # with one power of two in each
            self.arrays["x"] = self._sparse(self.shapes["x"], channels, 1)
            self.arrays["weight"] = self._one_tap(once=True)

    def _impulse_second(self) -> None:
        if self.rng.random() < 0.5:
            self.arrays["weight"], self.arrays["g"] = self._one_tap(), self._one_cotangent()
            self._zero("dweight", "dbias")
        else:
            self.arrays["dweight"] = self._one_tap(once=True)
            self._zero("dx", "dbias")

    def _one_tap(self, once: bool = False) -> Array:
        """Weights with one power of two for each output channel; with ``once``, at most one for each input channel."""
        form, transposed = self.form, self.problem.op == "conv_transpose"
        groups = form.groups
        ins, outs = form.x_channels // groups, form.g_channels // groups
        taps = prod(form.kernel)
        weight = np.zeros((groups, outs, ins, taps), np.float64)
        live = np.flatnonzero((table(form.window) >= 0).any(axis=0))
        # The value of a transposed convolution has the channels that x has in the form.
        givers, takers = (outs, ins) if transposed else (ins, outs)
        if givers == 0 or takers == 0 or len(live) == 0:
            return weight.reshape(self.shapes["weight"]).astype(self.numbers.type)
        for group in weight:
            giver = self.rng.permutation(max(givers, takers))[:takers]
            alive = giver < givers if once else np.ones(takers, np.bool_)
            out, inside = (giver % givers, np.arange(takers)) if transposed else (np.arange(takers), giver % givers)
            tap = self.rng.choice(live, takers)
            group[out[alive], inside[alive], tap[alive]] = self.numbers.powers((int(alive.sum()),)).astype(np.float64)
        return weight.reshape(self.shapes["weight"]).astype(self.numbers.type)

    def _one_cotangent(self) -> Array:
        """One power of two in each group: in one channel, at one place of one sample."""
        shape, groups = self.shapes["g"], self.form.groups
        channels = shape[len(shape) - self.problem.rank - 1]
        return self._sparse(shape, groups, channels // groups)

    def _sparse(self, shape: Shape, parts: int, each: int) -> Array:
        lead, spatial = prod(shape[: len(shape) - self.problem.rank - 1]), prod(shape[len(shape) - self.problem.rank :])
        cells = np.zeros((lead, parts, each * spatial), np.float64)
        if cells.size:
            where = self.rng.integers(0, lead, parts), np.arange(parts), self.rng.integers(0, each * spatial, parts)
            cells[where] = self.numbers.powers((parts,)).astype(np.float64)
        return cells.reshape(shape).astype(self.numbers.type)


_DRAWINGS: dict[str, type[Drawing]] = {
    **dict.fromkeys(CONVOLUTIONS, ConvolutionDrawing),
    **dict.fromkeys(SELECTIONS, SelectionDrawing),
    "smooth_max_pool": SmoothDrawing,
}
"""The others are linear maps."""

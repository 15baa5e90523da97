"""Convolution on float arrays: the trilinear form of the specification as matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from flint import fmpq
from numpy.typing import ArrayLike

from gradspec.backends.tables import readers, table, take
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle import mixing
from gradspec.conformance.oracle.meaning import (
    Bools,
    Decision,
    Floats,
    Ints,
    Meaning,
    MeaningRule,
    float_array,
    has_exact_products,
    lead_of,
    planes_of,
    round_array,
    stored_errors,
)
from gradspec.conformance.oracle.sums import (
    MISSING,
    PADDED,
    REAL,
    SLACK,
    Mixture,
    ProductChunk,
    SumMeaning,
    leaf_sums,
    slices,
)
from gradspec.conformance.oracle.tolerance import Permitted, error_of, gamma, stored_error
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format
from gradspec.spec.conv import Form, conv_form, require_tangents, transposed_form
from gradspec.spec.tensor import require_shape
from gradspec.spec.window import Regular


class SumsOfParts(SumMeaning):
    """``first + second``, with ``added`` a term of the second that is a number of the format already.

    The tangent of a convolution is ``conv(dx, w) + conv(x, dw, db)``: two convolutions and an addition, to whoever
    differentiates by the product rule. In float16 and bfloat16 that stores oftener than one long sum does.

    Three parts at most are stored and added: ``A₁``, ``A₂ − added`` and ``added``, of which only the first two round.
    """

    def __init__(self, whole: SumMeaning, first: SumMeaning, second: SumMeaning, added: Floats | None) -> None:
        super().__init__(whole.shape, whole.chunks, whole.mixed)
        self.parts = first, second
        self.added = np.zeros(whole.shape) if added is None else np.broadcast_to(added, whole.shape)

    def _decide(self, got: Floats, arithmetic: Arithmetic) -> Decision:
        decided = super()._decide(got, arithmetic)
        left = np.flatnonzero(~decided.ok)
        if arithmetic.storage != arithmetic.accumulate and len(left):
            decided.ok[left] = self._in_parts(got[left], left, arithmetic)
        return decided

    def _in_parts(self, got: Floats, places: Ints, arithmetic: Arithmetic) -> Bools:
        """Whether results are sums of stored parts: equal to one where the parts are exact, near it otherwise."""
        (a, a_error, a_exact), (b, b_error, b_exact) = (part.summary(places, arithmetic) for part in self.parts)
        added = self.added.ravel()[places]
        equal = _is_stored_sum(got, [a, b - added, added], arithmetic.storage)
        with np.errstate(invalid="ignore", over="ignore"):
            mass = np.abs(a) + np.abs(b) + 2 * np.abs(added)
            stored = stored_errors(a, a_error, arithmetic.storage) + stored_errors(b, b_error, arithmetic.storage)
            # ``F + Γ^T_{J−1}(Σ|A_j| + F)`` for J = 3
            error = stored + float(gamma(rational(arithmetic.storage.unit), 2)) * (mass + stored)
            near = np.abs(got - (a + b)) * (1 + SLACK) <= error * (1 - SLACK)
            overflows = mass + error >= float(arithmetic.storage.largest)
        return np.asarray(np.where(np.isfinite(got), np.where(a_exact & b_exact, equal, near), overflows))

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        alone = super().permitted_at(place, arithmetic)
        if arithmetic.storage == arithmetic.accumulate or alone.low is None or alone.high is None:
            return alone
        facts = [part.facts_at(place, arithmetic) for part in self.parts]
        if all(fact.is_exact_sum(arithmetic) for fact in facts):
            return alone
        errors = [stored_error(fact.value, error_of(fact, arithmetic), arithmetic.storage) for fact in facts]
        mass = sum((abs(fact.value) for fact in facts), 2 * abs(rational(float(self.added.ravel()[place]))))
        stored = sum(errors, fmpq(0))
        error = stored + gamma(rational(arithmetic.storage.unit), 2) * (mass + stored)
        y = facts[0].value + facts[1].value
        return replace(alone, low=min(alone.low, y - error), high=max(alone.high, y + error))


def _is_stored_sum(got: Floats, parts: list[Floats], storage: Format) -> Bools:
    """Whether a result is the sum of exact parts, with a rounding after each part and each addition, in some order."""
    found = np.zeros(got.shape, np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        for a, b, c in permutations(parts):
            stored_a, stored_b, stored_c = (round_array(part, storage) for part in (a, b, c))
            in_turn = round_array(round_array(stored_a + stored_b, storage) + stored_c, storage)
            two_at_once = round_array(round_array(a + b, storage) + stored_c, storage)
            found |= (got == in_turn) | (got == two_at_once)
    return found


# --- the form ---------------------------------------------------------------------------------------------------------

Pair: TypeAlias = tuple[Array, Array]
"""A tensor and the weight it meets."""


class _Trilinear:
    """The three partial transposes of one form, each as matrix products per sample and group."""

    def __init__(self, form: Form) -> None:
        self.form, self.rank = form, form.window.rank
        self.taps = table(form.window)
        self.readers = readers(self.taps, int(np.prod(form.window.sizes)))
        self.axes = [axis for axis in form.window.axes if isinstance(axis, Regular)]

    def _split(self, array: Array) -> Floats:
        """``[sample, group, channel, position]``."""
        *lead, channels = lead_of(array, self.rank)
        planes = planes_of(array, self.rank)
        return planes.reshape(prod(lead), self.form.groups, channels // self.form.groups, planes.shape[-1])

    def _weights(self, w: Array) -> Floats:
        """``[group, m, c, k]``."""
        groups, outs, ins = self.form.groups, self.form.g_channels, self.form.x_channels
        return w.astype(np.float64).reshape(groups, outs // groups, ins // groups, self.taps.shape[1])

    def read(self, pairs: Sequence[Pair], added: Array | None) -> SumMeaning:
        """``read(x, W)`` over one pair or, for a JVP, two, plus one addend per channel of ``g``."""
        return self._gather(pairs, added, self.taps, PADDED, (1, 2, 0), self.form.g_shape, mixing.cells_near)

    def write(self, pairs: Sequence[Pair], added: Array | None) -> SumMeaning:
        """``write(g, W)``, likewise, plus one addend per channel of ``x``."""
        return self._gather(pairs, added, self.readers, MISSING, (0, 2, 1), self.form.x_shape, mixing.outputs_near)

    def _mix(
        self,
        pairs: Sequence[Pair],
        addends: Floats,
        near: Callable[[Regular], mixing.Near],
        summed: int,
        arithmetic: Arithmetic,
    ) -> Mixture | None:
        """``[sample, group, channel, place]``: a sample's planes, or what is near the place, times the weights.

        ``summed`` is the axis of the weights over which they are added up; ``addends`` are ``[group, channel, place]``.
        """
        if arithmetic.algorithm not in mixing.TRANSFORMS:
            return None
        is_local, regions = arithmetic.algorithm == "winograd", list[tuple[mixing.Region, mixing.Region]]()
        for x, w in pairs:
            cells, weights = mixing.region(self._split(x)), mixing.region(self._weights(w))
            cells = mixing.nearby(cells, list(map(near, self.axes))).over((2,)) if is_local else cells.over((2, 3))
            weights = weights.largest(3).over((summed,)) if is_local else weights.over((summed, 3))
            regions.append((cells, weights.turned(summed, 0, 3 - summed, 3)))
        terms = len(pairs) * self._split(pairs[0][0]).shape[2] + 1
        return mixing.transforms(arithmetic.algorithm, self.axes, terms).mixture(regions, addends, arithmetic)

    def _gather(
        self,
        pairs: Sequence[Pair],
        added: Array | None,
        places: Ints,
        otherwise: int,
        order: tuple[int, int, int],
        out: tuple[int, ...],
        near: Callable[[Regular], mixing.Near],
    ) -> SumMeaning:
        """Rows gather one channel group's cells at ``places``; columns are its weights, axes in ``order``."""
        first, groups, rows = pairs[0][0], self.form.groups, len(places)
        lead = first.shape[: first.ndim - self.rank - 1]
        samples, width = int(np.prod(lead)), out[0] // groups
        depth = first.shape[-1 - self.rank] // groups * places.shape[1]
        # Zeros after the last position, which the negative places of padding and of nothing read.
        wide = (np.pad(self._split(x), ((0, 0), (0, 0), (0, 0), (0, 2))) for x, _ in pairs)
        split = list(zip(wide, (self._weights(w) for _, w in pairs), strict=True))
        narrow = has_exact_products(*(array for pair in pairs for array in pair), *(() if added is None else (added,)))
        extra = None if added is None else added.astype(np.float64).reshape(groups, 1, width)
        addends = np.zeros(rows) if extra is None else extra.swapaxes(1, 2) + np.zeros(rows)
        mixed = partial(self._mix, pairs, addends, near, order[0] + 1)
        where = np.arange(samples * groups * width * rows, dtype=np.int64).reshape(samples, groups, width, rows)

        def chunk(group: int, part: slice) -> ProductChunk:
            sample, row = np.divmod(np.arange(part.start, part.stop), max(rows, 1))
            here = places[row]
            cells = [_cells(x, sample, group, here).reshape(len(sample), depth) for x, _ in split]
            columns = [w[group].transpose(order).reshape(depth, width) for _, w in split]
            roles = np.tile(np.where(here >= 0, REAL, otherwise), len(split) * depth // places.shape[1])
            addend = None if extra is None else extra[group]
            target = where[sample, group, :, row]
            return ProductChunk(target, np.concatenate(cells, 1), roles, np.concatenate(columns), addend, narrow)

        each = list(product(range(groups), slices(samples * rows, depth * len(split))))
        return SumMeaning(lead + out, lambda: (chunk(*which) for which in each), mixed)

    def compare(self, x: Array, g: Array) -> SumMeaning:
        """``compare(x, g)``: rows are ``(c, k)``, columns ``m``, summed over samples and outputs."""
        xs, gs, form, narrow = self._split(x), self._split(g), self.form, has_exact_products(x, g)
        samples, _, channels, _ = xs.shape
        outputs, taps = self.taps.shape
        rows, width, depth = channels * taps, gs.shape[2], samples * outputs
        where = np.arange(int(np.prod(form.w_shape)), dtype=np.int64).reshape(form.groups, width, rows)
        roles = np.tile(np.where(self.taps.T >= 0, REAL, PADDED), (channels, samples)).reshape(rows, depth)

        def chunks() -> Iterator[ProductChunk]:
            for group in range(form.groups):
                cells = take(xs[:, group], self.taps.T).transpose(1, 2, 0, 3).reshape(rows, depth)
                columns = gs[:, group].transpose(0, 2, 1).reshape(depth, width)
                for part in slices(rows, depth):
                    yield ProductChunk(where[group, :, part].T, cells[part], roles[part], columns, None, narrow)

        def mixed(arithmetic: Arithmetic) -> Mixture | None:
            """``[group, g's channel, x's channel, tap]``: the planes of two channels, in all samples."""
            if arithmetic.algorithm not in mixing.TRANSFORMS:
                return None
            ours, theirs = mixing.region(xs).over((0, 3)), mixing.region(gs).over((0, 3))
            pair = ours.turned(1, 0, 2, 3), theirs.turned(1, 2, 0, 3)
            every = mixing.transforms(arithmetic.algorithm, self.axes, samples, gradient=True)
            return every.mixture([pair], np.zeros(taps), arithmetic)

        return SumMeaning(form.w_shape, chunks, mixed)


def _cells(x: Floats, sample: Ints, group: int, places: Ints) -> Floats:
    """``[row, channel, place]`` of one group, each row from its sample."""
    _, groups, channels, size = x.shape
    here = np.where(places < 0, places + size, places)
    plane = (sample[:, None] * groups + group) * channels + np.arange(channels)
    return np.asarray(np.take(x, plane[:, :, None] * size + here[:, None, :]))


def _bias_sums(form: Form, g: Array, b: Array | None) -> SumMeaning | None:
    if b is None:
        return None
    by_channel = np.moveaxis(g.astype(np.float64), -1 - form.window.rank, 0)
    return leaf_sums(b.shape, by_channel.reshape(len(b), g.size // max(len(b), 1)), None, g)


def _optional(data: ArrayLike | None) -> Array | None:
    return None if data is None else float_array(data)


def _conv(transposed: bool, mode: str) -> MeaningRule:
    """Convolution or its transpose: the same form, entered from either side."""
    make_form: Any = transposed_form if transposed else conv_form

    def build(
        x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, **arguments: Any
    ) -> Meaning | tuple[Meaning | None, ...]:
        x, w, b = float_array(x), float_array(weight), _optional(bias)
        other = {name: arguments.pop(name) for name in ("dx", "dweight", "dbias", "g") if name in arguments}
        form = make_form(x, w, b, **arguments)
        trilinear = _Trilinear(form)
        forward, backward = (trilinear.write, trilinear.read) if transposed else (trilinear.read, trilinear.write)
        if mode == "value":
            return forward([(x, w)], b)
        if mode == "jvp":
            dx, dw, db = float_array(other["dx"]), float_array(other["dweight"]), _optional(other["dbias"])
            require_tangents(x, w, b, dx, dw, db)  # type: ignore[arg-type]
            added = None if db is None else db.astype(np.float64).reshape(-1, *(1,) * form.window.rank)
            return SumsOfParts(forward([(dx, w), (x, dw)], db), forward([(dx, w)], None), forward([(x, dw)], db), added)
        g = float_array(other["g"])
        out = form.x_shape if transposed else form.g_shape
        require_shape("cotangent", g, x.shape[: x.ndim - form.window.rank - 1] + out)  # type: ignore[arg-type]
        weight_gradient = trilinear.compare(g, x) if transposed else trilinear.compare(x, g)
        return backward([(g, w)], None), weight_gradient, _bias_sums(form, g, b)

    return build


MEANINGS: dict[str, MeaningRule] = {
    f"{op}{suffix}": _conv(op == "conv_transpose", mode)
    for op in ("conv", "conv_transpose")
    for suffix, mode in {"": "value", "_jvp": "jvp", "_vjp": "vjp"}.items()
}

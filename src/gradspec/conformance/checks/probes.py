"""What a target's arithmetic is like, measured when its first cases have been judged.

One call adds up leaves of our choice (``adders``): a convolution, or an average that divides by one, with a window over
everything, or a weight gradient. Leaves that cancel except for a small one show what becomes of it on the way.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradspec.conformance.checks.repeat import describe_error
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import DTYPES, Array, Call, Problem, Shape
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import Probe
from gradspec.conformance.oracle.meaning import Bools, Floats, Ints
from gradspec.conformance.oracle.mixing import RUNNING_SUMS, TILE, TRANSFORMS
from gradspec.domains.formats import F32, Format, format_named

ROWS, CHANNELS, WEIGHTS, SAMPLES = 64, 32, 8, 16
POOLED = 256
"""Cells of a pooling window: a power of two, so that dividing by it is exact."""
RANKS = (2, 1, 3, 4)
"""The ranks tried, commonest first."""


@dataclass(frozen=True)
class Adder:
    """A call whose every value is ``Σ x·w / divisor`` over a whole sample; ``w`` is one where there is no weight."""

    target: Target
    problem: Problem
    divisor: int = 1

    mode = "value"

    @property
    def label(self) -> str:
        return self.problem.op

    @property
    def adds(self) -> bool:
        return self.problem.op != "max_pool"

    @property
    def weighted(self) -> bool:
        return self.problem.op == "conv"

    @property
    def format(self) -> Format:
        return format_named(self.problem.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether results are stored in fewer bits than every kernel adds in."""
        return self.format.precision < F32.precision

    @property
    def arithmetic(self) -> Arithmetic:
        return self.target.arithmetic(self.problem)

    @property
    def transforms(self) -> bool:
        """Whether it is declared to transform what it adds up, so that no leaf arrives exactly."""
        return self.arithmetic.algorithm in TRANSFORMS and self.adds

    @property
    def leaves(self) -> int:
        return math.prod(self.problem.x_shape[1:])

    @property
    def block(self) -> int:
        """Leaves that lie together in memory: a channel's, or a row's."""
        return math.prod(self.problem.x_shape[2:]) if self.weighted else self.problem.x_shape[-1]

    def is_offered(self) -> bool:
        """By the documentation, and, where that shows only then, by a call; another error is one to report."""
        if self.target.declines(self.problem, self.mode) is not None:
            return False
        try:
            self.sums(np.zeros((1, self.leaves)))
        except Exception as error:  # each probe says so
            return not isinstance(error, NotOfferedError)
        return True

    def sums(self, x: Floats, weight: Floats | None = None) -> Floats:
        """Of every row of ``x``, of which there are at most ``ROWS``, times ``weight``: ``[row, output]``."""
        rows = np.zeros((ROWS, self.leaves))
        rows[: len(x)] = x * self.divisor
        factors = np.broadcast_to(np.ones(self.leaves) if weight is None else weight, (WEIGHTS, self.leaves))
        return self._add(rows, factors)[: len(x)]

    def _add(self, rows: Floats, factors: Floats) -> Floats:
        arrays = (rows, factors, None) if self.weighted else (rows,)
        return call_value(self.target, self.problem, arrays).reshape(ROWS, -1)


class WeightGradient(Adder):
    """The VJP of a convolution with windows of one cell: each weight receives ``Σ x·g`` over samples and places."""

    mode = "vjp"

    @property
    def label(self) -> str:
        return "conv grad_weight"

    @property
    def leaves(self) -> int:
        return SAMPLES * self.block

    def _add(self, rows: Floats, factors: Floats) -> Floats:
        sizes, dtype = self.problem.x_shape[2:], DTYPES[self.problem.dtype]
        x, g = (np.moveaxis(part.reshape(-1, SAMPLES, *sizes), 0, 1).astype(dtype) for part in (rows, factors))
        inputs = (np.ascontiguousarray(x), np.zeros(self.problem.shapes[1] or (), dtype), None)
        call = Call(self.problem, "vjp", inputs, cotangent=np.ascontiguousarray(g), output=g.shape)
        return result_of(self.target, call, "grad_weight").reshape(WEIGHTS, ROWS).T


def call_value(target: Target, problem: Problem, arrays: tuple[Floats | None, ...]) -> Floats:
    """The value of a problem on given numbers, in float64."""
    dtype = DTYPES[problem.dtype]
    pairs = zip(arrays, problem.shapes, strict=True)
    inputs = tuple(None if a is None or s is None else a.astype(dtype).reshape(s) for a, s in pairs)
    return result_of(target, Call(problem, "value", inputs, output=geometry_of(problem).output), "y")


def result_of(target: Target, call: Call, name: str) -> Floats:
    results = target.run(call)
    if name not in results:
        raise NotOfferedError(f"{target.name} gives no {name}")
    result: Array = results[name]
    return np.asarray(result).astype(np.float64)


def adders(target: Target, dtype: str, ops: Collection[str] = ("conv",)) -> Iterator[Adder]:
    """What a dtype is measured with: the first of these sums that the target offers, and a weight gradient."""
    values: list[Callable[[int], Adder]] = [
        lambda rank: Adder(target, conv(dtype, (ROWS, CHANNELS, *(3,) * rank), WEIGHTS, 3)),
        lambda rank: Adder(target, _pool("avg_pool", rank, dtype, divisor_override=1)),
        lambda rank: Adder(target, _pool("avg_pool", rank, dtype), POOLED),
        lambda rank: Adder(target, _pool("max_pool", rank, dtype)),
    ]
    gradients = (WeightGradient(target, conv(dtype, (SAMPLES, ROWS, *(4,) * rank), WEIGHTS, 1)) for rank in RANKS)
    for candidates in ((value(rank) for value in values for rank in RANKS), gradients):
        found = next((adder for adder in candidates if adder.problem.op in ops and adder.is_offered()), None)
        if found is not None:
            yield found


def conv(dtype: str, x: Shape, outputs: int, kernel: int) -> Problem:
    """A convolution without padding whose kernel has one size on every axis."""
    rank = len(x) - 2
    return Problem("conv", rank, (x, (outputs, x[1], *(kernel,) * rank), None), {}, dtype)


def _pool(op: str, rank: int, dtype: str, **attributes: object) -> Problem:
    kernel = {1: (256,), 2: (16, 16), 3: (4, 8, 8), 4: (4, 4, 4, 4)}[rank]
    return Problem(op, rank, ((ROWS, 1, *kernel),), {"kernel_size": kernel, **attributes}, dtype)


# --- probes -----------------------------------------------------------------------------------------------------------

WIDEST = 64
"""Accumulators are not measured beyond so many bits."""
NO_TIME = "not measured: no time left"
RAISED = "raised"
DTYPE_ORDER = ("f32", "f64", "f16", "bf16")
EVERYTHING = Selection()
SLOW = 0.02
"""A small call that takes longer than so many seconds is not followed by a large one."""


def probe(
    target: Target,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    selection: Selection = EVERYTHING,
) -> list[Probe]:
    """What is measured of every float dtype that is selected and offered, while there is time: compiling takes most.

    >>> from gradspec.conformance.targets import target_named
    >>> [p.result for p in probe(target_named("native"))][:2]
    ['24 of 24', '24 bits, rounded to nearest']
    """
    deadline = clock() + seconds

    def is_late() -> bool:
        return clock() > deadline

    dtypes = [dtype for dtype in DTYPE_ORDER if dtype in (selection.dtypes or DTYPE_ORDER)]
    return [found for dtype in dtypes for found in _probes_of(target, dtype, selection.chosen_ops, is_late)]


def rounds_factors(target: Target) -> bool:
    """Whether factors of float32 lose what TF32 drops of them."""
    weighted = (adder for adder in adders(target, "f32") if adder.weighted)
    measured = (_measure("", adder, _significand) for adder in weighted)
    return any(found is not None and re.match(r"(\d|1[01]) of", found.result) for found in measured)


def _probes_of(target: Target, dtype: str, ops: Sequence[str], is_late: Callable[[], bool]) -> Iterator[Probe]:
    """Nothing of what is not offered, and no more of an operator that has raised an error."""
    if is_late():
        yield Probe("arithmetic", ops[0], dtype, NO_TIME)
        return
    for adder in adders(target, dtype, ops):
        for name, (measure, applies) in _MEASURES.items():
            if not applies(adder) or (adder.transforms and measure is not _leakage):
                continue
            found = _measure(name, adder, (lambda _: (NO_TIME, True)) if is_late() else measure)
            if found is not None:
                yield found
            if found is not None and found.result.startswith(RAISED):
                break


def _measure(name: str, adder: Adder, measure: Callable[[Adder], tuple[str, bool]]) -> Probe | None:
    try:
        result, normal = measure(adder)
    except NotOfferedError:
        return None
    except Exception as error:  # whatever the target raises is its own doing
        return Probe("arithmetic", adder.label, adder.problem.dtype, f"{RAISED} {describe_error(error)}", normal=False)
    return Probe(name, adder.label, adder.problem.dtype, result, normal)


# --- what is measured: a result in words, and whether the tolerance takes it for granted ------------------------------


def _significand(adder: Adder) -> tuple[str, bool]:
    """Numbers ``1 + 2^−k``, each alone among zeros: the first that changes has lost its last bit."""
    precision = adder.format.precision
    numbers: Floats = 1 + np.ldexp(1.0, -np.arange(1, precision))
    rows, places = np.arange(len(numbers)), (7 * np.arange(len(numbers))) % adder.leaves
    x = np.zeros((len(numbers), adder.leaves))
    x[rows, places] = numbers
    kept = [_first_wrong(adder.sums(x), numbers) + 1]
    if adder.weighted:
        weight = np.ones(adder.leaves)
        weight[places] = numbers
        kept.append(_first_wrong(adder.sums(np.where(x != 0, 1.0, 0.0), weight), numbers) + 1)
    lost = adder.arithmetic.input_error
    needed = precision if lost == 0 else math.floor(-math.log2(float(lost)))
    words = f"{kept[0]} of {precision}"
    return words if min(kept) == kept[0] else f"{words}, of weights {kept[1]}", min(kept) >= min(needed, precision)


def _first_wrong(sums: Floats, numbers: Floats) -> int:
    wrong = np.flatnonzero((sums != numbers[:, None]).any(axis=1))
    return int(wrong[0]) if len(wrong) else len(numbers)


def _accumulator(adder: Adder) -> tuple[str, bool]:
    """A p-bit sum holds ``2^k + 1`` for k < p: there ``2^k``, 1 and ``−2^k`` add up to 1 in every order."""
    # There is room for the bits of a sum of the largest leaf and the smallest normal one.
    most = min(WIDEST, adder.format.emax - adder.format.emin - adder.divisor.bit_length() + 2)
    bits = _bits(adder, most)
    needed = min(adder.arithmetic.accumulate.precision, most)
    if bits == most:
        return f"at least {bits} bits", True
    rounding = _rounding(adder, bits)
    normal = bits >= needed and (rounding == "to nearest" or adder.arithmetic.truncating)
    return f"{bits} bits, rounded {rounding}", normal


def _bits(adder: Adder, most: int) -> int:
    low, high = 0, most  # the small leaf survives beside one of `low` bits; `high` + 1 bits have no room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _survives(adder, middle - 1).all() else (low, middle - 1)
    return low


def _survives(adder: Adder, k: int, places: Ints | None = None) -> Bools:
    """For each row whether a small leaf is left of ``2^k, 1, −2^k`` at its three places, all scaled to fit."""
    small = 2.0 ** -max(k // 2, k - adder.format.emax + adder.divisor.bit_length() - 1)
    x = _triples(adder, _places(adder) if places is None else places, small * 2.0**k, small)
    return np.asarray((adder.sums(x) == small).all(axis=1))


def _places(adder: Adder) -> Ints:
    """Three places for each row, in any order."""
    random = np.random.Generator(np.random.Philox(7))
    return np.asarray([random.permutation(adder.leaves)[:3] for _ in range(ROWS)])


def _triples(adder: Adder, places: Ints, large: float, small: float) -> Floats:
    x = np.zeros((len(places), adder.leaves))
    for place, number in zip(places.T, (large, small, -large), strict=True):
        x[np.arange(len(places)), place] = number
    return x


def _rounding(adder: Adder, bits: int) -> str:
    """``2^p + 3`` lies halfway between ``2^p + 2`` and ``2^p + 4``: to nearest even is up, toward zero is down."""
    small = 2.0 ** -(bits // 2)
    sums = adder.sums(_triples(adder, _places(adder), small * 2.0**bits, 3 * small))
    if (sums == 2 * small).any():
        return "toward zero"
    return "to nearest" if (sums == 4 * small).any() else "in some other way"


def _flushes(adder: Adder) -> tuple[str, bool]:
    """Subnormal numbers as inputs, as sums of normal ones and as products of normal ones."""
    form, first = adder.format, np.eye(1, adder.leaves)
    normal = float(form.normal)
    tests: dict[str, tuple[Floats, Floats | None, float]] = {"inputs": (normal / 2 * first, None, normal / 2)}
    if adder.adds:
        sum_of_two = normal * (1.5 * first - np.eye(1, adder.leaves, 1))
        tests["sums"] = (sum_of_two, None, normal / 2)
    if adder.weighted:
        half = form.emin // 2 - 1
        tests["products"] = (2.0**half * first, 2.0 ** (form.emin - 2 - half) * np.ones(adder.leaves), normal / 4)
    flushed = [name for name, (x, w, y) in tests.items() if (adder.sums(x, w) != y).any()]
    words = f"flushed: subnormal {', '.join(flushed)}" if flushed else "none"
    return words, not flushed or adder.arithmetic.flush_to_zero


def _storage(adder: Adder) -> tuple[str, bool]:
    """Leaves ``1, ε, −1`` where 1 + ε needs more bits than are stored: each rounding between them loses ε."""
    narrow = adder.format.precision
    if _survives(adder, narrow + 2).all():
        return "once", True
    starts = np.arange(adder.block, adder.leaves, adder.block)[:ROWS]
    between = ~_survives(adder, narrow + 2, starts[:, None] + np.arange(-2, 1))
    inside = ~_survives(adder, narrow + 2, starts[:, None] + np.arange(3))
    words = "after every addition" if inside.all() else "more than once"
    if not inside.any() and between.any():
        words = f"{between.sum() + 1} times, in parts"
    return words, adder.arithmetic.accumulate.precision <= narrow


# --- what outputs learn of cells outside their windows ---------------------------------------------------------------


def _leakage(adder: Adder) -> tuple[str, bool]:
    """Two calls that differ in one huge cell: outputs that do not read it are sums of small integers in both."""
    near, far = _neighbours(adder, 1, 16, 12 if adder.problem.rank < 3 else 6), _neighbours(adder, 4, 32, 32)
    if adder.target.declines(near, "value") is not None:
        raise NotOfferedError
    started = time.perf_counter()
    leak = _leak(adder, near)
    quick = time.perf_counter() - started < 2 * SLOW
    once = adder.weighted and adder.problem.rank == 2 and adder.problem.dtype == "f32"
    if leak == 0 and once and quick and adder.target.declines(far, "value") is None:
        leak = _leak(adder, far)
    if leak == 0:
        return "none", True
    off = f"off by 2^{math.ceil(math.log2(leak))} of it" if math.isfinite(leak) else "not finite"
    where, likely = _mixed(adder)
    words = f"outputs that do not read a huge cell are {off}, {where}"
    if adder.arithmetic.algorithm in likely:
        return f"{words}, as declared", True
    return f"{words}; if it is meant to, declare algorithm={' or '.join(map(repr, likely))}" if likely else words, False


def _mixed(adder: Adder) -> tuple[str, tuple[str, ...]]:
    """Which outputs a huge cell changes, and the algorithms that mix so much."""
    problem = _neighbours(adder, 2, 2, 4 * TILE if adder.problem.rank < 3 else 2 * TILE + 4)
    change, place, _ = _change(adder, problem)
    far = np.argwhere(~(change == 0))
    own = place[:1] if adder.weighted else place[:2]
    if (far[:, : len(own)] != own).any():
        return "in other samples too", ()
    if not adder.weighted:
        return "in its whole plane", RUNNING_SUMS
    distance = np.abs(far[:, 2:] - np.asarray(place[2:])).max(initial=0)
    return ("near it", ("winograd",)) if distance < TILE + 2 else ("in its whole sample", ("fft",))


def _neighbours(adder: Adder, batch: int, channels: int, size: int) -> Problem:
    """3 × 3 windows at every place, where Winograd's algorithm, the FFT and running sums are used."""
    rank, dtype = adder.problem.rank, adder.problem.dtype
    sizes = (size,) * rank
    if adder.weighted:
        return conv(dtype, (batch, channels, *sizes), channels, 3)
    attributes = {**adder.problem.attributes, "kernel_size": (3,) * rank, "stride": (1,) * rank}
    return replace(adder.problem, shapes=((batch, channels, *sizes),), attributes=attributes)


def _leak(adder: Adder, problem: Problem) -> float:
    """The largest change of an output that reads nothing that changed, in parts of the huge cell."""
    change, _, huge = _change(adder, problem)
    return float(change.max()) / huge


def _change(adder: Adder, problem: Problem) -> tuple[Floats, tuple[int, ...], float]:
    """How much a huge cell changes outputs that do not read it, and the cell.

    Every other weight is zero: Winograd's smallest tiles mix only cells of one window, and show it there.
    """
    random = np.random.Generator(np.random.Philox(11))
    wide = adder.format.emax > 15
    power, grain = (2 * adder.arithmetic.accumulate.precision, 1.0) if wide else (14, 2.0**-12)
    huge = adder.format.nearest(2.0**power * 4 / 3)  # of many bits, so that its multiples round
    arrays = [None if s is None else random.integers(1, 3, s) * random.choice([-1.0, 1.0], s) for s in problem.shapes]
    x, taps = arrays[0], np.indices((3,) * problem.rank).sum(axis=0) % 2 == 0
    assert x is not None
    x *= grain
    if adder.weighted:
        arrays[1] = arrays[1] * taps
    place = tuple(n // 2 for n in x.shape)
    small = call_value(adder.target, problem, tuple(arrays))
    x[place] = huge
    with np.errstate(invalid="ignore"):
        change = np.abs(call_value(adder.target, problem, tuple(arrays)) - small)
    for tap in np.argwhere(taps if adder.weighted else np.ones_like(taps)):
        reader = tuple(p - t for p, t in zip(place[2:], tap.tolist(), strict=True))
        change[(place[0], slice(None) if adder.weighted else place[1], *reader)] = 0
    return change, place, huge


_MEASURES: dict[str, tuple[Callable[[Adder], tuple[str, bool]], Callable[[Adder], bool]]] = {
    "significand bits kept": (_significand, lambda adder: True),
    "accumulator": (_accumulator, lambda adder: adder.adds),
    "normwise leakage": (_leakage, lambda adder: adder.adds and adder.mode == "value"),
    "flush to zero": (_flushes, lambda adder: True),
    "storage roundings": (_storage, lambda adder: adder.adds and adder.is_narrow),
}
"""By name: what measures, and on which adders that says something."""

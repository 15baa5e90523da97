"""Kernels by FFT, Winograd's algorithm, summed-area tables and running sums: right ones pass, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log2

import numpy as np
import pytest

from gradspec.conformance import Arithmetic, meaning
from gradspec.conformance.campaign.check import repeat_command
from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.model.arithmetic import ALGORITHMS
from gradspec.conformance.model.case import CampaignSettings, Selection
from gradspec.conformance.oracle.mixing import (
    SMALL_TILE_GAIN,
    STAGE_ROUNDINGS,
    TILE,
    TILE_GAIN,
    cells_near,
    outputs_near,
)
from gradspec.conformance.oracle.sums import Limits
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.spec.window import regular
from gradspec.testing import check_kernel

from .mixing_kernels import FFT, IntegralImage, OnePassTable, PrefixSum, Winograd, cook_toom

RIGHT = {
    "fft": FFT(),
    "fft of powers of two": FFT(powers_of_two=True),
    "winograd 2": Winograd(),
    "winograd 4": Winograd(outputs=4),
    "winograd 6": Winograd(outputs=6),
    "prefix sums": PrefixSum(),
    "integral image": IntegralImage(),
    "one-pass table": OnePassTable(),
}


def defects(kernels, batches=3, seed=5, **declared):
    """What is wrong in some cases, one after the other."""
    target = UserKernels(kernels).declaring(strict=True, is_tried=True, **declared)
    selection = Selection(ops=target.ops, modes=target.modes, dtypes=("f32", "f16", "f64"), ranks=(1, 2))
    judge = InProcess(target, CampaignSettings(target.name, seed, selection))
    with np.errstate(all="ignore"):
        for case in (case for batch in judge.plan(0, batches) for case in judge.judged(batch)):
            assert not case.error
            yield from (failure.verdict for failure in case.failures if failure.verdict.kind == "defect")


@pytest.mark.rows(1)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right(name):
    assert list(defects(RIGHT[name])) == []


@pytest.mark.parametrize("name", ["fft", "winograd 4", "prefix sums"])
def test_undeclared_they_are_not(name):
    kernels = RIGHT[name]
    assert any(defects(type(kernels)(**vars(kernels), algorithm=None), batches=4))


# --- mistakes ---------------------------------------------------------------------------------------------------------


class WrongTwiddle(FFT):
    """One of the frequencies is turned by a hundredth."""

    def forward(self, array, lengths):
        spectrum = super().forward(array, lengths)
        turned = spectrum.copy()
        turned[..., -1:] *= np.exp(0.01j).astype(spectrum.dtype)
        return turned


class WrappedBorder(FFT):
    """Planes have no room for the padding, so that windows at one end read the other."""

    def framed(self, cells, padding):
        return np.pad(cells, [(0, 0), (0, 0), *padding], mode="wrap")


class MixedSamples(FFT):
    """What is not finite in one sample arrives in the others."""

    def forward(self, array, lengths):
        return super().forward(array, lengths) + 0 * array.sum()


class WrongTileEdge(Winograd):
    """The last cell of each tile is not read."""

    def tiles(self, cells, counts):
        views = super().tiles(cells, counts).copy()
        views[..., -1] = 0
        return views


class WrongTransform(Winograd):
    """One sign of the transform of the data."""

    def matrices(self, m, r, dtype):
        back, kernel, data = super().matrices(m, r, dtype)
        data[1, 1] *= -1
        return back, kernel, data


class OffByOne(IntegralImage):
    """The table begins at the first cell instead of before it."""

    def scan(self, array, axis):
        return np.roll(super().scan(array, axis), -1, axis)


class WithoutTheFirst(PrefixSum):
    """Sums begin with the second cell."""

    def scan(self, array, axis):
        first = np.take(array, [0], axis)
        return super().scan(array, axis) - np.concatenate([0 * first, np.repeat(first, array.shape[axis], axis)], axis)


class WideSpread(PrefixSum):
    """A running sum over planes, too."""

    def scan(self, array, axis):
        return super().scan(array, axis) + 0 * array.sum()


WRONG = [
    WrongTwiddle,
    WrappedBorder,
    MixedSamples,
    WrongTileEdge,
    WrongTransform,
    OffByOne,
    WithoutTheFirst,
    WideSpread,
]


@pytest.mark.parametrize("kernels", WRONG)
def test_mistakes_are_found(kernels):
    assert any(defects(kernels(), batches=9))


# --- the bounds -------------------------------------------------------------------------------------------------------


def gain(m, r):
    """By how much F(m, r) in absolute values exceeds the largest cell times the largest weight."""
    back, kernel, data = ([list(map(abs, row)) for row in part] for part in cook_toom(m, r))
    inner = [sum(k) * sum(d) for k, d in zip(kernel, data, strict=True)]
    return max(sum(a * b for a, b in zip(row, inner, strict=True)) for row in back)


@pytest.mark.parametrize("m", range(2, TILE - 1))
def test_tiles_exceed_their_numbers_by_no_more(m):
    assert gain(m, 3) <= TILE_GAIN
    assert gain(m, 5) <= 2 * TILE_GAIN or m + 4 > TILE  # pieces of three cells
    assert gain(m, 3) == SMALL_TILE_GAIN or m > 2
    assert 2 * gain(3, m) ** 2 <= (2 * SMALL_TILE_GAIN) ** 2 or m > 2  # every cell is in two tiles


@pytest.mark.parametrize("radix", [2, 3, 5, 7, 11])
def test_stages_err_by_no_more(radix):
    """In units of u: a sum of p products, by twiddles that are off by 4, in two factors; its norm is that of ones."""
    turned = 2 * 2**0.5 + 4
    exact = 4 + 4 * (2**0.5 + 2.0**-20) if radix == 2 else (radix - 1 + 2 * turned) * radix**0.5  # Higham, 24.2
    assert exact <= STAGE_ROUNDINGS * log2(radix)


def ratio(exact, y, algorithm):
    """The largest error in parts of the tolerance."""
    arithmetic = Arithmetic.of("f32", algorithm=algorithm)
    return max(
        float((np.abs(y.ravel()[chunk.places] - e.value) / Limits.of(chunk, e, arithmetic).tolerance).max())
        for chunk, _, e in exact.estimate_chunks(arithmetic)
    )


@pytest.mark.parametrize("name", RIGHT)
def test_bounds_hold_and_are_not_idle(name):
    kernels, rng = RIGHT[name], np.random.default_rng(3)
    x = rng.standard_normal((1, 4, 13, 17), np.float32)
    if isinstance(kernels, PrefixSum | IntegralImage):
        y = kernels.avg_pool(x, (3, 3), (1, 1), ((0, 0), (0, 0)), True, None)
        exact = meaning("avg_pool", x, (3, 3), 1)
    else:
        w = rng.standard_normal((3, 4, 3, 3), np.float32)
        y = kernels.conv(x, w, None, (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
        exact = meaning("conv", x, w, padding=1)
    assert 1e-6 < ratio(exact, y, kernels.algorithm) < 0.05


@pytest.mark.parametrize("algorithm", ["prefix_sum", "integral_image"])
def test_running_sums_may_round_as_badly_as_they_can(algorithm):
    """Every one by itself, all its additions up or all of them down, in turns."""
    x = 1 + np.random.default_rng(4).random((1, 300), np.float32)
    count = np.arange(301)
    sums = np.append(0, np.cumsum(x.astype(np.float64))) * (1 + 2.0**-24) ** (count * (-1.0) ** count)
    assert 0.2 < ratio(meaning("avg_pool", x, (3,), 1), (sums[3:] - sums[:-3]) / 3, algorithm) < 1


def test_small_integers_are_added_exactly_by_running_sums():
    x = np.float32([[3, 1, 4, 1, 5, 9, 2, 6]])
    exact = meaning("avg_pool", x, (4,), 1)
    right = exact.rounded("f32").astype(np.float32)
    for algorithm in ("prefix_sum", "integral_image"):
        assert exact.judge(right, Arithmetic.of("f32", algorithm=algorithm)).passed
        off = np.nextafter(right, np.float32(9))
        assert not exact.judge(off, Arithmetic.of("f32", algorithm=algorithm)).ok.any()
    assert exact.judge(off * np.float32(1 + 2**-20), Arithmetic.of("f32", algorithm="fft")).ok.sum() == 0


@pytest.mark.parametrize("algorithm", ["fft", "winograd"])
def test_nothing_times_anything_is_nothing(algorithm):
    exact = meaning("conv", np.zeros((1, 2, 9), np.float32), np.ones((1, 2, 3), np.float32))
    arithmetic = Arithmetic.of("f32", algorithm=algorithm)
    assert exact.judge(np.zeros((1, 1, 7), np.float32), arithmetic).passed
    assert not exact.judge(np.full((1, 1, 7), 1e-45, np.float32), arithmetic).ok.any()


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_not_finite_spreads_over_its_region_alone(special):
    """Over a whole sample by FFT, over some cells by tiles; where it must be NaN, nothing else will do."""
    x = np.ones((2, 1, 40), np.float32)
    x[0, 0, 3] = special
    exact = meaning("conv", x, np.ones((1, 1, 3), np.float32))
    everything = np.full((2, 1, 38), np.nan, np.float32)
    for algorithm, reach in (("fft", 38), ("winograd", 3 + TILE)):
        ok = exact.judge(everything, Arithmetic.of("f32", algorithm=algorithm)).ok
        assert (ok[0, 0] == (np.arange(38) < reach)).all()
        assert not ok[1].any()
        finite = exact.judge(np.full_like(everything, 3), Arithmetic.of("f32", algorithm=algorithm)).ok
        assert (finite[0, 0] == (np.abs(np.arange(38) - 2) > 1)).all()
        assert finite[1].all()
        infinite = exact.judge(np.full_like(everything, np.inf), Arithmetic.of("f32", algorithm=algorithm)).ok
        assert (infinite[0, 0, 1:4] == np.isinf(special)).all()
        assert str(exact.permitted_at(5, Arithmetic.of("f32", algorithm=algorithm))).endswith(" or inf or -inf or nan")


@pytest.mark.parametrize("name", ["fft", "winograd 4", "prefix sums", "integral image"])
def test_an_intermediate_result_may_overflow_where_numbers_are_huge(name):
    kernels = RIGHT[name]
    for size, overflows in ((9e37, True), (1e30, False)):
        x = np.full((1, 1, 12), size, np.float32)
        with np.errstate(all="ignore"):
            if isinstance(kernels, PrefixSum | IntegralImage):
                y = kernels.avg_pool(x, (1,), (1,), ((0, 0),), True, None)
                exact = meaning("avg_pool", x, (1,))
            else:
                w = np.float32([[[1e-9, 2e-9, 3e-9]]])
                y = kernels.conv(x, w, None, (1,), ((0, 0),), (1,), 1)
                exact = meaning("conv", x, w)
        assert np.isfinite(y).all() != overflows
        mixed = Arithmetic.of("f32", algorithm=kernels.algorithm)
        assert exact.judge(y, mixed).passed
        assert exact.judge(np.full_like(y, np.nan), mixed).ok.all() == overflows
        assert not exact.judge(y).passed or not overflows


@pytest.mark.parametrize("name", ["fft", "winograd 4"])
def test_what_underflows_in_a_transform_is_multiplied_by_large_weights(name):
    kernels, rng = RIGHT[name], np.random.default_rng(2)
    x = (rng.integers(-99, 99, (1, 1, 40)) * 2.0**-149).astype(np.float32)
    w = np.float32([[[1001.3, -703.7, 331.9]]])
    exact = meaning("conv", x, w)
    y = kernels.conv(x, w, None, (1,), ((0, 0),), (1,), 1)
    assert exact.judge(y, Arithmetic.of("f32", algorithm=kernels.algorithm)).passed
    assert not exact.judge(y).passed


AXES = [regular((40,), (3,), 1, 1), regular((61,), (2,), 3, 2, 2), regular((30,), (5,), 2)]


@pytest.mark.parametrize("axis", [window.axes[0] for window in AXES], ids=str)
def test_a_tile_holds_whatever_its_outputs_read_and_no_more(axis):
    """Nearness is one relation, seen from outputs and from cells."""
    forward, backward = cells_near(axis).stretches, outputs_near(axis).stretches
    for output, cell in product(range(axis.outputs), range(axis.size)):
        taps = axis.positions(output)
        room = 7 * axis.stride * axis.dilation
        near = taps[0] - room <= cell <= taps[-1] + room
        assert near == (forward[output].start <= cell < forward[output].stop)
        assert near == (backward[cell].start <= output < backward[cell].stop)


EMPTY = {"batch": (0, 2, 3, 1), "channels": (2, 0, 3, 1), "outputs": (2, 2, 0, 1), "nothing, but groups": (1, 2, 4, 2)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("empty", EMPTY)
def test_every_result_may_be_rounded_once_in_empty_arrays_too(empty, algorithm):
    batch, channels, outputs, groups = EMPTY[empty]
    x, w = np.ones((batch, channels, 5, 6), np.float32), np.ones((outputs, channels // groups, 3, 2), np.float32)
    b, y = np.ones(outputs, np.float32), np.ones((batch, outputs, 5, 7), np.float32)
    attributes = {"padding": 1, "groups": groups}
    found = [
        meaning("conv", x, w, b, **attributes),
        meaning("conv_jvp", x, w, b, x, w, b, **attributes),
        *meaning("conv_vjp", x, w, b, y, **attributes),
        meaning("conv_transpose", y, w, np.ones(channels, np.float32), **attributes),
        *(meaning(name, x, **how) for name, how in AVERAGES.items()),
        *(meaning(f"{name}_vjp", x, x[..., :2, :2], **how) for name, how in AVERAGES.items()),
    ]
    for exact in found:
        once = exact.rounded("f32").astype(np.float32)
        assert exact.judge(once, Arithmetic.of("f32", algorithm=algorithm)).passed


AVERAGES = {"avg_pool": {"kernel_size": (2, 3)}, "adaptive_avg_pool": {"output_size": (2, 2)}}


def test_spreading_is_a_convention_that_the_word_declares():
    run = check_kernel(FFT(), ops=["conv"], features=["nan"], cases=12, dtypes=["f32"], ranks=[1], modes=["value"])
    assert {(f.kind, f.rule) for f in run.findings} == {("convention", "special")}
    assert "(algorithm_spreads)" in run.findings[0].explanation


# --- the word ---------------------------------------------------------------------------------------------------------


def test_the_word_is_known_and_means_something():
    with pytest.raises(ValueError, match=r"there is no algorithm 'ftt'; declare one of fft, winograd, "):
        Arithmetic.of("f32", algorithm="ftt")
    with pytest.raises(ValueError, match=r"'winograd' is one for conv, conv_transpose; .* has avg_pool"):
        check_kernel(PrefixSum(), algorithm="winograd")
    with pytest.raises(ValueError, match="algorithm is declared of kernels of your own; native documents what it does"):
        target_named("native").declaring(algorithm="fft")


def test_the_word_is_said_in_any_place():
    kernels = {name: getattr(FFT(), name) for name in ("conv", "conv_vjp")}
    inside = UserKernels({**kernels, "arithmetic": {"algorithm": "fft"}})
    beside = UserKernels(kernels).declaring(algorithm="fft")
    for target in (UserKernels({**kernels, "algorithm": "fft"}), inside, beside):
        assert all(p.normal and "as declared" in p.result for p in probe(target) if p.name == "normwise leakage")
        assert "algorithm_spreads" in target.conventions()
    settings = CampaignSettings("mine:kernels", 7, algorithm="fft")
    assert repeat_command(settings, 40) == "gradspec check mine:kernels --algorithm fft --seed 7 --cases 40"


def test_other_operators_are_judged_as_ever():
    x, how = np.float32([[1e8, 1, -1e8]]), Arithmetic.of("f32")
    for name in ALGORITHMS:
        other = replace(how, algorithm=name)
        assert meaning("max_pool", x, (2,)).judge(np.float32([[1e8]]), other).passed
        assert not meaning("max_pool", x, (2,)).judge(np.float32([[1]]), other).passed

"""Two ways to say the same thing must agree exactly: identities between operators, over random geometry.

(Permutations of axes and of batches, scaling and linearity hold for every case of the table: see ``laws.py``.)
"""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gradspec as gs
from cases import CASES, TRAITS
from laws import as_array, assert_equivalent, assert_same, changed, full, jvp, value, vjp
from strategies import column_cases, convolution_cases, many, pooling_cases


def padded(t, padding, fill):
    """``t`` with explicit cells around its last axes."""
    sizes = [n + lo + hi for n, (lo, hi) in zip(t.shape[-len(padding) :], padding, strict=True)]
    around = full((*t.shape[: -len(padding)], *sizes), fill)
    around[..., *(slice(lo, size - hi) for size, (lo, hi) in zip(sizes, padding, strict=True))] = t
    return around


def spread_out(t, steps, zero):
    """``t`` with ``step − 1`` zeros between neighbours along each of its last axes."""
    sizes = [step * (n - 1) + 1 for n, step in zip(t.shape[-len(steps) :], steps, strict=True)]
    spread = full((*t.shape[: -len(steps)], *sizes), zero)
    spread[..., *(slice(None, None, step) for step in steps)] = t
    return spread


def every(steps):
    return (..., *(slice(None, None, step) for step in steps))


# --- reversal ---------------------------------------------------------------------------------------------------------


@many
@given(drawn=pooling_cases() | convolution_cases(), data=st.data())
def test_reversing_an_axis_swaps_its_padding(drawn, data):
    """Windows leave the last ``r`` cells of the padded axis unread; backwards, these are the first and must go."""
    case, window = drawn
    axis = data.draw(st.integers(0, len(window.sizes) - 1))
    lo, hi = window.padding[axis]
    if case.operator == "conv_transpose":
        unread = case.attributes["output_padding"][axis]
        assume(unread <= hi)
    else:
        unread = window.slack[axis] % window.stride[axis]
    cut, size = max(unread - hi, 0), window.sizes[axis]
    assume(cut < size)
    axis_from_end = axis - len(window.sizes)

    def backwards(i, t):
        if i == 2:
            return t
        return np.flip(np.delete(t, range(size - cut, size), axis_from_end) if i == 0 else t, axis_from_end)

    mirrored = {"padding": _with(window.padding, axis, (max(hi - unread, 0), lo))}
    if case.operator == "conv_transpose":
        mirrored["output_padding"] = _with(case.attributes["output_padding"], axis, 0)
    assert_equivalent(
        case, changed(case, **mirrored), backwards, lambda y: np.flip(y, axis_from_end), bijective=cut == 0
    )


def _with(entries, place, entry):
    return (*entries[:place], entry, *entries[place + 1 :])


# --- channels and groups ----------------------------------------------------------------------------------------------


@many
@given(drawn=convolution_cases(), inside=st.booleans())
def test_channels_permute_inside_groups_and_groups_permute(drawn, inside):
    case, window = drawn
    groups, channel_axis = case.attributes["groups"], -1 - len(window.sizes)

    def reorder(t, axis):
        blocks = np.split(t, groups, axis)
        return np.concatenate([np.flip(b, axis) for b in blocks] if inside else blocks[::-1], axis)

    def move_in(i, t):
        if i == 1:
            return reorder(np.flip(t, 1) if inside else t, 0)
        return reorder(t, channel_axis if i == 0 else 0)

    assert_equivalent(case, case, move_in, lambda y: reorder(y, channel_axis))


@many
@given(drawn=convolution_cases())
def test_groups_are_convolutions_side_by_side(drawn):
    case, window = drawn
    groups, channel_axis = case.attributes["groups"], -1 - len(window.sizes)
    x, w, b = case.inputs()
    biases = [None] * groups if b is None else np.split(b, groups)
    parts = zip(np.split(x, groups, channel_axis), np.split(w, groups), biases, strict=True)
    alone = changed(case, groups=1)
    assert_same(value(case, (x, w, b)), np.concatenate([value(alone, part) for part in parts], channel_axis))


# --- padding, stride, dilation ----------------------------------------------------------------------------------------

PADDING_IS_NO_CELL = ("by cells", "min, padding ignored")


@many
@given(drawn=pooling_cases(without=PADDING_IS_NO_CELL) | convolution_cases("conv") | column_cases("unfold"))
def test_padding_is_explicit_cells(drawn):
    """Zeros, except under a maximum, where a cell smaller than all others never wins."""
    case, window = drawn
    unpadded = changed(case, padding=0)
    (x, *rest), (dx, *drest), g = case.inputs(), case.tangents(), case.cotangent()
    zero, lowest = case.domain.scalar(0), case.domain.scalar(-100 if case.ordered else 0)
    explicit = (padded(x, window.padding, lowest), *rest)
    y = value(unpadded, explicit)
    y[y == -100] = zero  # no real cell in the window
    assert_same(value(case, (x, *rest)), y, "value")
    tangents = (padded(dx, window.padding, zero), *drest)
    assert_same(jvp(case, (x, *rest), (dx, *drest)), jvp(unpadded, explicit, tangents), "jvp")
    pulled, *others = vjp(unpadded, explicit, g)
    inner = (slice(lo, lo + n) for n, (lo, _) in zip(window.sizes, window.padding, strict=True))
    assert_same(vjp(case, (x, *rest), g), (pulled[..., *inner], *others), "vjp")


@many
@given(drawn=pooling_cases() | convolution_cases("conv"))
def test_stride_subsamples(drawn):
    case, window = drawn
    every_output = changed(case, stride=1)
    inputs, tangents = case.inputs(), case.tangents()
    assert_same(value(case, inputs), value(every_output, inputs)[every(window.stride)], "value")
    assert_same(jvp(case, inputs, tangents), jvp(every_output, inputs, tangents)[every(window.stride)], "jvp")


def with_output_padding_below(case, limits):
    """Output padding is legal below the stride or the dilation; when one of them becomes 1 the other must allow it."""
    if "output_padding" not in case.attributes:
        return case
    extra = zip(case.attributes["output_padding"], limits, strict=True)
    return changed(case, output_padding=tuple(min(more, limit - 1) for more, limit in extra))


@many
@given(drawn=convolution_cases("conv_transpose"))
def test_stride_of_a_transposed_convolution_spreads_the_input_out(drawn):
    case, window = drawn
    case, zero = with_output_padding_below(case, window.dilation), case.domain.scalar(0)

    def spread(i, t):
        return spread_out(t, window.stride, zero) if i == 0 else t

    assert_equivalent(case, changed(case, stride=1), spread, bijective=False)


@many
@given(drawn=convolution_cases())
def test_dilation_of_a_convolution_puts_zeros_into_its_kernel(drawn):
    case, window = drawn
    case, zero = with_output_padding_below(case, window.stride), case.domain.scalar(0)

    def spread(i, t):
        return spread_out(t, window.dilation, zero) if i == 1 else t

    assert_equivalent(case, changed(case, dilation=1), spread, bijective=False)


@many
@given(drawn=pooling_cases())
def test_dilation_of_a_pooling_reads_every_dth_cell(drawn):
    """If stride and padding are multiples of d too, the cells in between are never read."""
    case, window = drawn
    d = window.dilation
    lo = tuple((low + high, 0) for low, high in window.padding)
    undilated = changed(case, padding=lo, dilation=1)
    (x,), (dx,), unread = case.inputs(), case.tangents(), case.domain.scalar(7)
    dilated = changed(
        case,
        stride=tuple(s * step for s, step in zip(window.stride, d, strict=True)),
        padding=tuple((low * step, 0) for (low, _), step in zip(lo, d, strict=True)),
    )
    wide, dwide = spread_out(x, d, unread), spread_out(dx, d, unread)
    assert_same(value(dilated, (wide,)), value(undilated, (x,)), "value")
    assert_same(jvp(dilated, (wide,), (dwide,)), jvp(undilated, (x,), (dx,)), "jvp")


# --- operators as other operators -------------------------------------------------------------------------------------


@many
@given(drawn=pooling_cases("avg_pool"))
def test_average_times_divisor_is_a_depthwise_convolution_with_ones(drawn):
    case, window = drawn
    (x,), one = case.inputs(), case.domain.scalar(1)
    planes = x.reshape(-1, *window.sizes)
    ones = full((len(planes), 1, *window.kernel), one)

    def sums(t):
        return as_array(gs.spec.conv(t, ones, groups=len(planes), **window.steps)).reshape(case.output)

    if case.attributes.get("count_include_pad", True):
        divisor = case.domain.scalar(case.attributes.get("divisor_override", prod(window.kernel)))
    else:
        divisor = sums(full(planes.shape, one))
    assert_same(value(case, (x,)) * divisor, sums(planes))


def as_regular(case, kernel_size):
    """The sliding pooling of the same kind."""
    ties = {"ties": case.ties} if case.ordered else {}
    return replace(case, operator=case.operator.split("_", 1)[1], attributes={"kernel_size": kernel_size, **ties})


@many
@given(data=st.data())
def test_adaptive_with_a_dividing_size_is_regular(data):
    kernel, bins = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3).map(_columns))
    operator = data.draw(st.sampled_from(["adaptive_max_pool", "adaptive_avg_pool"]))
    variant = data.draw(st.sampled_from(sorted(TRAITS[operator].variants)))
    sizes = tuple(k * m for k, m in zip(kernel, bins, strict=True))
    case = TRAITS[operator].case(operator, variant, f"{sizes}", (2, *sizes), (2, *bins), {"output_size": bins})
    assert_equivalent(case, as_regular(case, kernel))


def _columns(pairs):
    return tuple(first for first, _ in pairs), tuple(second for _, second in pairs)


@pytest.mark.parametrize("case", [case for case in CASES if case.operator.startswith("global")], ids=lambda c: c.id)
def test_global_is_one_window_over_everything(case):
    sizes = case.shapes[0][len(case.lead) :]
    kept = (*case.lead, *(1 for _ in sizes))
    assert_equivalent(case, as_regular(case, sizes), move_out=lambda y: np.reshape(y, kept))


@many
@given(drawn=convolution_cases("conv_transpose"))
def test_transposed_convolution_scatters_and_crops(drawn):
    """Each cell adds its multiple of the kernel onto an uncropped canvas."""
    case, window = drawn
    (x, w, b), groups, zero = case.inputs(), case.attributes["groups"], case.domain.scalar(0)
    rank, per_group = len(window.sizes), w.shape[1]
    lows, highs = zip(*window.padding, strict=True)
    shape = [size + lo + hi for size, lo, hi in zip(case.output[-rank:], lows, highs, strict=True)]
    canvas = full((*case.output[:-rank], *shape), zero)
    for (*lead, c), place in product(np.ndindex(x.shape[:-rank]), np.ndindex(window.sizes)):
        first = c * groups // case.shapes[1][0] * per_group
        spots = zip(place, window.stride, window.kernel, window.dilation, strict=True)
        under = tuple(slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, k, d in spots)
        canvas[*lead, first : first + per_group, *under] += x[*lead, c, *place] * w[c]
    cropped = canvas[..., *(slice(lo, n - hi) for n, lo, hi in zip(shape, lows, highs, strict=True))]
    bias = 0 if b is None else b.reshape(-1, *(1 for _ in window.sizes))
    assert_same(value(case, (x, w, b)), cropped + bias)


@many
@given(drawn=convolution_cases("conv"))
def test_convolution_is_the_weight_matrix_times_unfold(drawn):
    case, window = drawn
    (x, w, b), groups = case.inputs(), case.attributes["groups"]
    columns = as_array(gs.spec.unfold(x, window.kernel, window.dilation, window.padding, window.stride))
    matrices = np.split(w.reshape(len(w), -1), groups)
    rows = [m @ part for m, part in zip(matrices, np.split(columns, groups, axis=-2), strict=True)]
    bias = 0 if b is None else b[:, None]
    assert_same(value(case, (x, w, b)), (np.concatenate(rows, axis=-2) + bias).reshape(case.output))


@many
@given(drawn=column_cases("unfold"))
def test_folding_the_columns_back_counts_the_readers(drawn):
    case, window = drawn
    (x,) = case.inputs()
    times = np.zeros([n + lo + hi for n, (lo, hi) in zip(window.sizes, window.padding, strict=True)], dtype=int)
    for place in np.ndindex(window.outputs()):
        spots = zip(place, window.stride, window.kernel, window.dilation, strict=True)
        times[*(slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, k, d in spots)] += 1
    real = times[*(slice(lo, lo + n) for n, (lo, _) in zip(window.sizes, window.padding, strict=True))]
    back = gs.spec.fold(value(case, (x,)), window.sizes, **case.attributes)
    assert_same(as_array(back), x * real)


@many
@given(
    drawn=pooling_cases("max_pool", without=("all", "split"), ceil_mode=True),
    kind=st.sampled_from(["tied", "constant"]),
)
def test_max_pooling_gathers_at_its_winners_and_scatters_to_them(drawn, kind):
    case, window = drawn
    (x,), (dx,), g, rank = case.inputs(kind), case.tangents(), case.cotangent(), len(window.sizes)
    largest, winners = gs.spec.max_pool(x, return_indices=True, **case.attributes)
    assert_same(as_array(largest), value(case, (x,)), "value")
    assert_same(as_array(gs.spec.max_gather(x, winners, rank)), as_array(largest), "gathered")
    assert_same(as_array(gs.spec.max_gather(dx, winners, rank)), jvp(case, (x,), (dx,)), "jvp")
    assert_same(as_array(gs.spec.max_unpool(g, winners, window.sizes)), vjp(case, (x,), g)[0], "vjp")


# --- the three partial transposes of one form are each other's derivatives --------------------------------------------


@many
@given(drawn=convolution_cases("conv"))
def test_input_gradient_of_convolution_is_a_transposed_convolution(drawn):
    """Its output padding restores the cells that the stride left unread."""
    case, window = drawn
    (x, w, b), g = case.inputs(), case.cotangent()
    unread = tuple(slack % s for slack, s in zip(window.slack, window.stride, strict=True))
    attributes = {**case.attributes, "output_padding": unread}
    assert_same(as_array(gs.spec.conv_transpose(g, w, **attributes)), vjp(case, (x, w, b), g)[0])


@many
@given(drawn=convolution_cases("conv_transpose"))
def test_input_gradient_of_transposed_convolution_is_a_convolution(drawn):
    """(Output padding of a stride or more makes room for further windows, which are not the input's.)"""
    case, window = drawn
    (x, w, b), g = case.inputs(), case.cotangent()
    attributes = {name: given for name, given in case.attributes.items() if name != "output_padding"}
    read = as_array(gs.spec.conv(g, w, **attributes))
    assert_same(read[..., *(slice(n) for n in window.sizes)], vjp(case, (x, w, b), g)[0])


@many
@given(drawn=convolution_cases("conv", max_groups=1, leads=((2,),)))
def test_weight_gradient_is_a_convolution_with_stride_and_dilation_exchanged(drawn):
    """Over the batch as channels: each channel of x is read by the cotangent as a kernel."""
    case, window = drawn
    (x, w, b), g = case.inputs(), case.cotangent()
    exchanged = {"stride": window.dilation, "padding": window.padding, "dilation": window.stride}
    by_channel = as_array(gs.spec.conv(np.swapaxes(x, 0, 1), np.swapaxes(g, 0, 1), **exchanged))
    assert_same(np.swapaxes(by_channel, 0, 1)[..., *(slice(k) for k in window.kernel)], vjp(case, (x, w, b), g)[1])

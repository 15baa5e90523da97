"""Kernels that work in blocks: cases go beyond them, early, and mistakes in the last block are found by their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, wraps
from itertools import count, islice
from math import inf
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from conformance.test_cases import takes_all
from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.cases.axes import BLOCKS, MOST_BESIDE
from gradspec.conformance.cases.combinations import GEOMETRY
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CampaignSettings, CheckCase, Selection
from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.model.run import Judged
from gradspec.conformance.shrink.search import shrink
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.testing import check_kernel

# --- the cases --------------------------------------------------------------------------------------------------------


def lengths(problem: Problem) -> dict[str, set[int]]:
    """How long the axes of a problem are, of input and output, by the features that long ones are."""
    parts, rank = geometry_of(problem), problem.rank
    ends = [parts.spatial, parts.output[-rank:] if parts.window is None else parts.window.outputs]
    out = parts.output[-1 - rank] if parts.form is not None else 0
    return {
        "block_width": {sizes[-1] for sizes in ends},
        "block_height": {size for sizes in ends for size in sizes[:-1]},
        "block_channels": {parts.channels or 0},
        "block_out_channels": {out},
        "block_groups": {problem.attributes.get("groups", 1)},
        "block_batch": {parts.samples},
    }


@cache
def default_cases(op: str, *own: int) -> list[CheckCase]:
    """The 300 that `check_kernel` makes for a kernel of one operator."""
    modes = ("value", "jvp", "vjp")
    stream = Stream(0, Selection((op,), modes=modes, dtypes=("f16", "f32", "f64"), sizes=own), takes_all)
    return first(300, stream)


def first(number: int, stream: Stream) -> list[CheckCase]:
    return list(islice((case for batch in count() for case in stream.batch(batch)), number))


@pytest.mark.parametrize("op", ["max_pool", "conv", "unfold"])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_axis_is_long_early_in_every_mode(op: str, block: str) -> None:
    """Longer than any usual block, with one cell left over, and with one missing."""
    if block not in GEOMETRY[op]:
        return
    largest = MOST_BESIDE if block == "block_groups" else 2049
    for mode in ("value", "jvp", "vjp"):
        met = {size for case in default_cases(op) if case.mode == mode for size in lengths(case.problem)[block]}
        assert largest in met
        assert block != "block_batch" or 65_537 in met
        assert len({size for size in met if size > 100}) >= 3


@pytest.mark.parametrize("block", ["block_width", "block_channels", "block_out_channels"])
def test_ones_own_blocks_come_first(block: str) -> None:
    met = {size for case in default_cases("conv", 97) for size in lengths(case.problem)[block]}
    assert met >= {97 + 1, 97, 3 * 97 + 1, 3 * 97}


def test_long_axes_can_be_asked_for() -> None:
    stream = Stream(0, Selection(("conv",), ("block_out_channels",), sizes=(40,)), takes_all)
    cases = [case for number in (*range(8), stream.covering + 3) for case in stream.batch(number)]
    assert all("block_out_channels" in case.features for case in cases)
    assert 121 in {size for case in cases for size in lengths(case.problem)["block_out_channels"]}


@pytest.mark.parametrize("given", [[0], [1], [1.5], [1 << 20]])
def test_blocks_are_sizes(given: list[Any]) -> None:
    with pytest.raises(ValueError, match="no block of a kernel; a block has from 2"):
        check_kernel(max_pool, blocks=given)
    with pytest.raises(ValueError, match="no block of a kernel"):
        UserKernels({"max_pool": max_pool, "blocks": given})


def test_blocks_may_be_declared() -> None:
    assert UserKernels({"max_pool": max_pool, "blocks": (96, 100)}).blocks == (96, 100)


# --- mistakes in the last block ---------------------------------------------------------------------------------------

Kernel = Callable[..., Any]


def max_pool(x, kernel_size, stride, padding):
    return np.array(gs.max_pool(x, kernel_size, stride, padding))


def conv(x, weight, bias, stride, padding, groups):
    return np.array(gs.conv(x, weight, bias, stride=stride, padding=padding, groups=groups))


def last_block(size: int, block: int) -> slice:
    """What is left over behind whole blocks, if there are any; nothing otherwise."""
    return slice(size - size % block if size > block else size, None)


def without_tail(kernel: Kernel, axis: int, block: int) -> Kernel:
    """The last block along an axis of the result, counted from behind, is not written."""

    @wraps(kernel)
    def broken(x, **attributes):
        y = kernel(x, **attributes)
        if y.ndim >= -axis:
            np.moveaxis(y, axis, 0)[last_block(y.shape[axis], block)] = 0
        return y

    return broken


def flattened(x, kernel_size, stride, padding):
    """All outputs in blocks of 512, the last of which takes its numbers from the one before."""
    y = max_pool(x, kernel_size, stride, padding).ravel()
    rest = last_block(y.size, 512)
    y[rest] = y[rest.start - 512 :][: y.size - rest.start]
    return y.reshape(max_pool(x, kernel_size, stride, padding).shape)


def fewer_channels(x, weight, bias, stride, padding, groups):
    """Sums over input channels in blocks of 48, without the last."""
    shorter = weight.copy()
    shorter[:, last_block(weight.shape[1], 48)] = 0
    return conv(x, shorter, bias, stride, padding, groups)


def two_at_a_time(x, weight, bias, stride, padding, groups):
    """Output channels in pairs of blocks of 16; of an odd number of blocks, the last is dropped."""
    y, blocks = conv(x, weight, bias, stride, padding, groups), len(weight) // 16
    if blocks > 2 and blocks % 2:
        np.moveaxis(y, -3, 0)[16 * blocks - 16 : 16 * blocks] = 0
    return y


MISTAKES: dict[str, Kernel] = {
    "max_pool2d width 100": without_tail(max_pool, -1, 100),
    "max_pool2d height 1024": without_tail(max_pool, -2, 1024),
    "max_pool2d planes 256": without_tail(max_pool, -3, 256),
    "max_pool2d outputs 512": flattened,
    "conv2d input channels 48": fewer_channels,
    "conv2d odd blocks of output channels": two_at_a_time,
}


@cache
def value_cases(op: str) -> list[CheckCase]:
    right = UserKernels({f"{op}2d": {"max_pool": max_pool, "conv": conv}[op]})
    return first(150, Stream(1, Selection((op,), modes=("value",), dtypes=("f32",), ranks=(2,)), right.refusal))


def judged(target: UserKernels, op: str) -> Iterator[Judged]:
    return InProcess(target, CampaignSettings("")).judged(value_cases(op))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_last_block_is_found(name: str) -> None:
    target = UserKernels({name.split()[0]: MISTAKES[name]})
    (op,) = target.ops
    assert any(case.kind == "defect" for case in judged(target, op))


@pytest.mark.exhaustive
def test_a_wrong_last_block_is_shrunk_to_its_size() -> None:
    target = UserKernels({"max_pool2d": without_tail(max_pool, -1, 100)})
    (failure, *_), *_ = (case.failures for case in judged(target, "max_pool") if case.failures)
    shrunk = shrink(target, failure, seconds=inf).call
    assert shrunk.output[-1] == 101
    assert target.reproducer(shrunk).count("\n") < 8

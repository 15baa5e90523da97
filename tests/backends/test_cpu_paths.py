"""Geometries of paths that random trials seldom take, each compared as a trial of the fuzzer is."""

import pytest

from gradspec.testing.fuzz import SPEC_WORK, Trial, attempt_trial


def pool(shape, kernel, stride=1, padding=0, mode="value", dtype="f32", op="max_pool", **attributes):
    """A pooling; an average has a divisor of 1, so that it is a sum."""
    rank = len(kernel)
    stride, padding, dilation = (
        (n,) * rank if isinstance(n, int) else n for n in (stride, padding, attributes.pop("dilation", 1))
    )
    sides = tuple((n, n) if isinstance(n, int) else n for n in padding)
    layout = attributes.pop("layout", "contiguous")
    given = {"kernel_size": kernel, "stride": stride, "padding": sides, "dilation": dilation, **attributes}
    given |= {"divisor_override": 1} if op == "avg_pool" else {}
    return Trial(1, op, rank, (shape,), given, dtype, layout, mode, 2, 1, SPEC_WORK)


def conv(shape, weight, stride, padding, mode="value", op="conv", **attributes):
    given = {"stride": stride, "padding": tuple((n, n) for n in padding), "dilation": (1,) * len(stride), "groups": 1}
    given |= {"output_padding": (0,) * len(stride)} if op == "conv_transpose" else {}
    return Trial(1, op, len(stride), (shape, weight), given | attributes, "f32", "contiguous", mode, 2, 1, SPEC_WORK)


def bins(shape, sizes, mode, dtype="f32", **attributes):
    layout = attributes.pop("layout", "contiguous")
    given = {"output_size": sizes, **attributes}
    return Trial(1, "adaptive_max_pool", len(sizes), (shape,), given, dtype, layout, mode, 2, 1, SPEC_WORK)


TRIALS = {
    "slabs": pool((2, 6, 7, 9), (2, 2, 2), 2),
    "slabs of sums": pool((2, 6, 7, 9), (2, 2, 2), 2, op="avg_pool"),
    "slabs of threes": pool((2, 6, 6, 6, 6), (3, 3, 3, 3), 3),
    "slabs with gaps": pool((2, 8, 7, 9), (2, 3, 3), (3, 2, 2), (0, 1, 1)),
    "pairs of slabs": pool((2, 4, 4, 4, 8), (2, 2, 2, 2), 2),
    "pairs of slabs of sums": pool((2, 5, 4, 4, 8), (2, 2, 2, 2), 2, op="avg_pool"),
    "rows of 3x3 by 2": pool((2, 9, 75), (3, 3), 2, 1, "vjp"),
    "rows of 3x3 by 2, odd": pool((2, 8, 76), (3, 3), 2, 1, "vjp"),
    "rows of 3x3": pool((2, 9, 40), (3, 3), 1, 1, "vjp"),
    "rows of 3x3 without padding": pool((2, 9, 42), (3, 3), 1, 0, "vjp"),
    "rows of 3x3 by 2 in bf16": pool((2, 12, 76), (3, 3), 2, 1, "vjp", "bf16"),
    "rows of 3x3 in f16": pool((2, 12, 40), (3, 3), 1, 1, "vjp", "f16"),
    "rows of 3x3 padded behind": pool((2, 9, 40), (3, 3), 1, ((0, 2), (0, 2)), "vjp"),
    "rows of 3x3 by 2 padded behind": pool((2, 10, 40), (3, 3), 2, ((0, 1), (0, 1)), "vjp"),
    "3x3 of 4x4": pool((40, 4, 4), (3, 3), 1, 0, "vjp"),
    "2x2 of longer rows": pool((40, 6, 9), (2, 2), 2, 0, "vjp"),
    "2x2 of more rows": pool((40, 7, 8), (2, 2), 2, 0, "vjp"),
    "one row at the border": pool((2, 5, 33), (3, 3), 2, ((2, 1), 1)),
    "one row at the border, sums": pool((2, 5, 33), (3, 2), (2, 2), ((2, 1), 1), op="avg_pool"),
    "fours": pool((2, 39), (4,), 4),
    "fours with dilation": pool((2, 39), (4,), 4, dilation=2),
    "sums of fours with dilation": pool((2, 39), (4,), 4, mode="vjp", op="avg_pool", dilation=2),
    "padding beyond the windows": pool((3, 21), (5,), 2, (4,), "vjp", ties="all"),
    "ties by 2, padded": pool((2, 5, 22), (5, 7), 2, (1, 3), "vjp", ties="all"),
    "ties by 2, padded, tangents": pool((2, 5, 22), (5, 7), 2, (1, 3), "jvp", ties="all"),
    "ties of a wide window": pool((2, 70), (33,), 3, (5,), "vjp", ties="all"),
    "ties with the channels last": pool((1, 19, 6, 7), (3, 3), 2, 1, "vjp", ties="all", layout="channels_last"),
    "ties of bins": bins((2, 7, 23), (3, 5), "vjp", ties="all"),
    "ties of bins, tangents": bins((2, 7, 23), (3, 5), "jvp", ties="all"),
    "bins that overlap": bins((2, 5, 7), (4, 6), "vjp", "bf16"),
    "one bin of a turned plane": bins((3, 2, 5), (1, 1), "value", layout="turned"),
    "many channels last": pool((1, 70, 6, 7), (3, 3), 1, 1, "vjp", layout="channels_last"),
    "sums of sums": pool((2, 9, 30), (3, 4), (2, 3), (1, 2), "vjp", op="avg_pool", ceil_mode=True),
    "rows joined without a stride": conv((1, 3, 9, 16), (5, 3, 3, 3), (2, 1), (1, 1)),
    "rows joined without a stride, transposed": conv((1, 5, 5, 16), (5, 3, 3, 3), (2, 1), (1, 1), op="conv_transpose"),
    "remainders": conv((2, 5, 5, 7), (5, 4, 4, 5), (3, 2), (1, 2), op="conv_transpose"),
    "remainders, cotangents": conv((2, 5, 15, 15), (6, 5, 4, 5), (3, 2), (1, 2), "vjp"),
}


@pytest.mark.rows(len(TRIALS))
@pytest.mark.parametrize("name", TRIALS)
def test_a_path_is_right(name):
    outcome = attempt_trial(TRIALS[name], libraries=("spec",))
    assert outcome.failure == ""
    assert outcome.agreed == ("spec",)

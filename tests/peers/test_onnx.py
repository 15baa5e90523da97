"""Agreement with the cases that ship inside the ``onnx`` package: its node tests, and those converted from PyTorch.

Cases are found by asking the package, so a newer ``onnx`` brings its new cases along. This file translates a node into
a call of the specification; what cannot be judged is named in ``NOT_RUN``, with the reason.

Maxima must be equal. A stored sum was rounded to float32 at most once per addition, product and quotient, in an unknown
order, so it is within ((1+u)^(N+2) − 1)·S of the truth (u = 2⁻²⁴, N terms, S the sum of their absolute values), and our
float64 sum is within u·S of it: together at most (N + 4)·u·S, for N up to 1000. S is at most the largest |x| times the
sum of the |weights|.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest

from gradspec import spec
from peers.agreement import plain
from peers.onnx_cases import Case, shipped

UNIT_ROUNDOFF = 2.0**-24
PARTS = 4

NOT_RUN = {
    "test_maxunpool_export_with_output_shape": (
        "places the indices in a 4×4 plane, although by the operator's text they index the flattened output, which "
        "output_shape makes 5×5"
    ),
    "test_MaxPool1d_stride_padding_dilation": "4 million taps",
    "test_MaxPool2d_stride_padding_dilation": "5 million taps",
    "test_operator_conv": "70 million products",
}

PRINTED = {
    # Typed with four decimals: inputs and outputs are off by half a unit each, and an average enlarges neither.
    "test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4,
}

Array = np.ndarray
Attributes = Mapping[str, Any]
Judged = list[tuple[spec.Tensor, float]]
"""Each result with how far the stored one may be from it."""


def rounding(terms: int, scale: float) -> float:
    return (terms + 4) * UNIT_ROUNDOFF * float(scale)


# --- attributes, as the ONNX operators document them ------------------------------------------------------------------


def window(a: Attributes, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    ones = [1] * len(sizes)
    stride, dilation = tuple(a.get("strides", ones)), tuple(a.get("dilations", ones))
    return {"stride": stride, "dilation": dilation, "padding": padding(a, sizes, kernel, stride, dilation)}


def padding(a: Attributes, sizes: tuple[int, ...], kernel: Any, stride: Any, dilation: Any) -> Any:
    match a.get("auto_pad", b"NOTSET"):
        case b"NOTSET":
            return pads(a, len(sizes))
        case b"VALID":
            return "valid"
        case b"SAME_UPPER":
            return "same"
        case b"SAME_LOWER":
            axes = zip(sizes, kernel, stride, dilation, strict=True)
            totals = [max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0) for n, k, s, d in axes]
            return tuple((total - total // 2, total // 2) for total in totals)


def pads(a: Attributes, rank: int) -> tuple[tuple[int, int], ...]:
    """All the low ends come first, then all the high ends."""
    ends = a.get("pads", [0] * 2 * rank)
    return tuple(zip(ends[:rank], ends[rank:], strict=True))


def pooling(a: Attributes, x: Array) -> dict[str, Any]:
    kernel = tuple(a["kernel_shape"])
    # With auto_pad="VALID" the documented size is the same in both modes.
    ceil_mode = bool(a.get("ceil_mode", 0)) and a.get("auto_pad", b"NOTSET") != b"VALID"
    return {"kernel_size": kernel, "ceil_mode": ceil_mode, **window(a, x.shape[2:], kernel)}


# --- nodes, as calls of the specification -----------------------------------------------------------------------------


def max_pool(a: Attributes, x: Array) -> Judged:
    values, winners = spec.max_pool(plain(x), **pooling(a, x), return_indices=True)
    return [(values, 0.0), (numbered_over_the_tensor(winners, x.shape, a.get("storage_order", 0)), 0.0)]


def numbered_over_the_tensor(winners: spec.Tensor, shape: tuple[int, ...], storage_order: int) -> spec.Tensor:
    """ONNX counts a winner's place from the first plane on, in row- or column-major order inside its plane."""
    sizes = shape[2:]
    places = np.unravel_index(np.array(winners.cells), sizes)
    within = np.ravel_multi_index(places, sizes, order="F" if storage_order else "C")
    before = np.repeat(np.arange(prod(shape[:2])) * prod(sizes), len(winners.cells) // prod(shape[:2]))
    return spec.Tensor(winners.shape, (before + within).tolist())


def average_pool(a: Attributes, x: Array) -> Judged:
    y = spec.avg_pool(plain(x), **pooling(a, x), count_include_pad=bool(a.get("count_include_pad", 0)))
    return [(y, rounding(prod(a["kernel_shape"]), np.abs(x).max()))]


def global_max_pool(a: Attributes, x: Array) -> Judged:
    return [(spec.global_max_pool(plain(x), x.ndim - 2), 0.0)]


def global_average_pool(a: Attributes, x: Array) -> Judged:
    return [(spec.global_avg_pool(plain(x), x.ndim - 2), rounding(prod(x.shape[2:]), np.abs(x).max()))]


def conv(a: Attributes, x: Array, weight: Array, bias: Array | None = None) -> Judged:
    options = window(a, x.shape[2:], weight.shape[2:])
    y = spec.conv(plain(x), plain(weight), plain(bias), **options, groups=a.get("group", 1))
    return [(y, product_rounding(x, weight, bias, output_axis=0))]


def conv_transpose(a: Attributes, x: Array, weight: Array, bias: Array | None = None) -> Judged:
    sizes, kernel, rank = x.shape[2:], weight.shape[2:], x.ndim - 2
    stride, dilation = tuple(a.get("strides", [1] * rank)), tuple(a.get("dilations", [1] * rank))
    extra = tuple(a.get("output_padding", [0] * rank))
    crops, auto_pad = pads(a, rank), a.get("auto_pad", b"NOTSET")
    wanted = a.get("output_shape", [n * s for n, s in zip(sizes, stride, strict=True)] if b"SAME" in auto_pad else None)
    if wanted is not None:
        axes = zip(sizes, kernel, stride, dilation, extra, wanted, strict=True)
        totals = [s * (n - 1) + e + (k - 1) * d + 1 - size for n, k, s, d, e, size in axes]
        halves = [total // 2 for total in totals]
        crops = [(h, t - h) if auto_pad == b"SAME_UPPER" else (t - h, h) for t, h in zip(totals, halves, strict=True)]
    # A negative crop at the high end adds cells there, which is what output padding does.
    extra = tuple(e + max(-hi, 0) for e, (_, hi) in zip(extra, crops, strict=True))
    crops = tuple((lo, max(hi, 0)) for lo, hi in crops)
    y = spec.conv_transpose(plain(x), plain(weight), plain(bias), stride, crops, extra, a.get("group", 1), dilation)
    return [(y, product_rounding(x, weight, bias, output_axis=1))]


def product_rounding(x: Array, weight: Array, bias: Array | None, output_axis: int) -> float:
    per_output = np.abs(weight).sum(axis=tuple(i for i in range(weight.ndim) if i != output_axis))
    scale = np.abs(x).max() * per_output.max() + (0.0 if bias is None else np.abs(bias).max())
    return rounding(weight.size // weight.shape[output_axis] + 1, scale)


def max_unpool(a: Attributes, x: Array, indices: Array, output_shape: Array | None = None) -> Judged:
    rank = x.ndim - 2
    strides = a.get("strides", [1] * rank)
    axes = zip(x.shape[2:], a["kernel_shape"], strides, pads(a, rank), strict=True)
    sizes = tuple((n - 1) * s + k - lo - hi for n, k, s, (lo, hi) in axes)
    if output_shape is not None:
        sizes = tuple(output_shape[2:].tolist())
    return [(spec.max_unpool(plain(x), plain(indices % prod(sizes)), sizes), 0.0)]


def col2im(a: Attributes, x: Array, image_shape: Array, block_shape: Array) -> Judged:
    sizes, kernel = tuple(image_shape.tolist()), tuple(block_shape.tolist())
    y = spec.fold(plain(x), sizes, kernel, **window(a, sizes, kernel))
    return [(y, rounding(prod(kernel), prod(kernel) * np.abs(x).max()))]


TRANSLATIONS: dict[str, Callable[..., Judged]] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalMaxPool": global_max_pool,
    "GlobalAveragePool": global_average_pool,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxUnpool": max_unpool,
    "Col2Im": col2im,
}


# --- the cases --------------------------------------------------------------------------------------------------------


def judged() -> Iterator[Case]:
    """Every case whose graph is one node that can be translated."""
    for case in shipped():
        if len(case.model.graph.node) == 1 and case.operators <= TRANSLATIONS.keys():
            yield case


def disagreement(case: Case) -> str | None:
    (node,), graph = case.model.graph.node, case.model.graph
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer}
    free = [i.name for i in graph.input if i.name not in weights]
    for inputs, expected in case.data_sets():
        values = weights | dict(zip(free, inputs, strict=True))
        judged = TRANSLATIONS[node.op_type](attributes, *(values[name] for name in node.input))
        for (ours, bound), theirs in zip(judged[: len(expected)], expected, strict=True):
            if ours.shape != theirs.shape:
                return f"shape {ours.shape}, expected {theirs.shape}"
            error = np.abs(np.array(ours.cells).reshape(ours.shape) - theirs).max()
            if not error <= max(bound, PRINTED.get(case.name, 0.0)):
                return f"off by {error}, allowed {bound}"
    return None


@pytest.mark.exhaustive  # by default some are imported and run: interop/test_onnx_cases.py
@pytest.mark.parametrize("part", range(PARTS))
def test_every_shipped_case(part):
    cases = {case.name: case for case in judged()}
    assert NOT_RUN.keys() | PRINTED.keys() <= cases.keys()
    assert {operator for case in cases.values() for operator in case.operators} == TRANSLATIONS.keys()
    run = [name for name in cases if name not in NOT_RUN][part::PARTS]
    disagreements = {name: disagreement(cases[name]) for name in run}
    assert not {name: what for name, what in disagreements.items() if what is not None}

"""Rows of convolution, unfolding and resizing: ranks 0 to 5, and every option where it is awkward."""

from fractions import Fraction

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.conv import WEIGHT_GRAD, Convolution
from gradspec.spec.window import regular
from graph.op_cases import GraphCase


def conv(id, x, weight, bias=False, **options):
    shapes = (x, weight, (weight[0],)) if bias else (x, weight)
    return GraphCase(f"conv {id}", lambda x, w, *b: gs.conv(x, w, *b, **options), shapes, "tied")


def conv_transpose(id, x, weight, bias=False, **options):
    channels = weight[1] * options.get("groups", 1)
    shapes = (x, weight, (channels,)) if bias else (x, weight)
    return GraphCase(f"conv_transpose {id}", lambda x, w, *b: gs.conv_transpose(x, w, *b, **options), shapes, "tied")


def weight_gradient(id, x, g, kernel, groups=1, **options):
    """The third partial transpose, which has no public name."""
    window = regular(x[len(x) - len(kernel) :], kernel, **options)
    attrs = Convolution.of(window, groups=groups)
    return GraphCase(f"conv weight gradient {id}", lambda x, g: apply(WEIGHT_GRAD, attrs, x, g), (x, g), "tied")


ROWS = [
    conv("rank 0", (2, 3), (2, 3), bias=True),
    conv("rank 0 no lead", (3,), (2, 3)),
    conv("rank 1 bias", (2, 5), (2, 2, 3), bias=True),
    conv("leftover cells", (1, 8), (1, 1, 3), stride=3),
    conv("padding wider than the kernel", (1, 2), (1, 1, 2), padding=3, stride=2),
    conv("asymmetric padding", (1, 1, 3, 4), (1, 1, 2, 2), padding=((0, 2), (1, 0)), stride=(2, 1)),
    conv("two leading axes, groups, bias", (2, 1, 4, 4), (2, 2, 2), bias=True, groups=2, dilation=2),
    conv("depthwise", (2, 3, 3), (4, 1, 2, 2), groups=2, bias=True),
    conv("same", (1, 4), (1, 1, 2), padding="same"),
    conv("dilated beyond the stride", (1, 5, 4), (1, 1, 2, 2), dilation=(3, 2), stride=2, padding=1),
    conv("rank 3", (1, 2, 3, 2), (2, 1, 1, 2, 2), padding=(0, 1, 0)),
    conv("few large blocks", (2, 1, 2, 3, 4), (3, 2, 3, 2), stride=(3, 2), bias=True),
    conv("rank 4", (1, 2, 2, 2, 2), (1, 1, 2, 1, 2, 2), padding=(0, 1, 0, 0), bias=True),
    conv("rank 5", (1, 2, 1, 2, 1, 2), (1, 1, 2, 1, 1, 1, 2)),
    conv("no input channels", (0, 3), (2, 0, 2), bias=True),
    conv("no output channels", (1, 3), (0, 1, 2)),
    conv("empty batch", (0, 1, 3), (1, 1, 2)),
    conv_transpose("rank 0", (2, 3), (3, 2), bias=True),
    conv_transpose("output padding, bias", (2, 3), (2, 2, 2), bias=True, stride=3, output_padding=2),
    conv_transpose("cropped to overlap", (1, 4), (1, 1, 4), padding=2, stride=2),
    conv_transpose("asymmetric", (1, 2, 3), (1, 1, 2, 3), padding=((1, 0), (0, 2)), dilation=(2, 1), stride=(1, 2)),
    conv_transpose("two leading axes, groups", (2, 1, 4, 2), (4, 1, 2), groups=2, bias=True),
    conv_transpose("rank 3", (1, 1, 2, 2), (1, 2, 2, 1, 2), stride=(2, 1, 1)),
    conv_transpose("rank 4", (1, 1, 2, 1, 2), (1, 1, 1, 2, 1, 2), dilation=(1, 2, 1, 1)),
    weight_gradient("leading axes", (2, 2, 2, 4), (2, 2, 2, 3), (2,), stride=1, groups=2),
    weight_gradient("strided", (1, 5, 4), (2, 2, 2), (2, 3), stride=2, padding=((0, 0), (1, 0))),
    GraphCase("unfold", lambda x: gs.unfold(x, (2,), dilation=2, padding=((1, 0),), stride=2), ((2, 2, 4),), "tied"),
    GraphCase("unfold rank 2", lambda x: gs.unfold(x, (2, 1), stride=(1, 2)), ((1, 3, 3),), "tied"),
    GraphCase("unfold rank 0", lambda x: gs.unfold(x, ()), ((2, 3),), "tied"),
    GraphCase("unfold2d", lambda x: gs.unfold2d(x, 2, padding=1), ((1, 2, 2),), "tied"),
    GraphCase("fold", lambda x: gs.fold(x, (4,), (2,), padding=1, stride=2), ((1, 4, 3),), "tied"),
    GraphCase("fold rank 2", lambda x: gs.fold(x, (3, 2), (2, 2)), ((4, 2),), "tied"),
    GraphCase("fold3d", lambda x: gs.fold3d(x, (2, 2, 2), (1, 2, 1)), ((2, 4),), "tied"),
    GraphCase("resize nearest", lambda x: gs.resize(x, (5, 2)), ((2, 3, 4),), "tied"),
    GraphCase("resize linear", lambda x: gs.resize(x, (5,), "linear"), ((2, 3),), "tied"),
    GraphCase("resize linear smaller", lambda x: gs.resize(x, (3, 2), "linear"), ((4, 5),), "tied"),
    GraphCase("resize corners", lambda x: gs.resize(x, (1, 4), "linear", align_corners=True), ((3, 2),), "tied"),
    GraphCase("resize rank 3", lambda x: gs.resize(x, (2, 3, 1), "linear"), ((1, 2, 3),), "tied"),
    GraphCase(
        "resize ceil", lambda x: gs.resize(x, (4, 3), step=(0.75, 1), start=-1, rounding="ceil"), ((3, 2),), "tied"
    ),
    GraphCase("resize half down", lambda x: gs.resize(x, (6,), step=0.5, rounding="half_down"), ((2, 3),), "tied"),
    GraphCase("resize half up", lambda x: gs.resize(x, (6,), step=0.5, rounding="half_up"), ((2, 3),), "tied"),
    GraphCase("resize stepping", lambda x: gs.resize(x, (5,), "linear", step=Fraction(1, 3)), ((2, 3),), "tied"),
    GraphCase("resize backwards", lambda x: gs.resize(x, (2, 4), "linear", step=-0.75, start=2), ((3, 2),), "tied"),
    GraphCase("resize nothing", lambda x: gs.resize(x, ()), ((2,),), "tied"),
]

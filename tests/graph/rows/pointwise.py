"""Rows of the pointwise operators."""

import gradspec as gs
from graph.op_cases import GraphCase, Integers


def as_f64(x):
    return gs.convert(x, gs.f64)


ROWS = [
    GraphCase("neg", lambda x: -x, ((2, 3),), "tied"),
    GraphCase("add broadcast", lambda x, y: x + y, ((2, 3), (3,)), "tied"),
    GraphCase("sub broadcast", lambda x, y: x - y, ((3,), (2, 1)), "tied"),
    GraphCase("mul broadcast", lambda x, y: x * y, ((2, 1), (3,)), "tied"),
    GraphCase("div broadcast", lambda x, y: x / y, ((2, 3), (3,))),
    GraphCase("one operand twice", lambda x: x * x + x, ((2, 2),), "tied"),
    GraphCase("div method", lambda x, y: gs.div(x, y), ((2,), (2,))),
    GraphCase("scale", lambda x: gs.scale(x, -0.75), ((2, 3),), "tied"),
    GraphCase("detach", lambda x, y: x * gs.detach(y) + gs.detach(x * x), ((2, 2), (2, 2)), "tied"),
    GraphCase("convert", lambda x: gs.convert(gs.convert(x, gs.bf16) * 0.5, gs.f64), ((2, 3),), "tied"),
    GraphCase("convert to eight bits", lambda x: as_f64(gs.convert(x * x, gs.f8_e5m2)) * 0.5, ((2, 3),), "tied", True),
    GraphCase("round to eight bits", lambda x: gs.round_to(x * x * 17.0, "f8_e4m3") * x, ((2, 3),)),
    GraphCase("round to four bits", lambda x: gs.round_to(x, "f4_e2m1", True), ((7,),), "wide"),
    GraphCase("convert to integers", lambda x: as_f64(x) * as_f64(gs.convert(x, gs.i16)), ((2, 3),), "wide"),
    GraphCase("convert to booleans", lambda x: as_f64(x) * as_f64(gs.convert(x, gs.boolean)), ((2, 3),), "wide"),
    GraphCase(
        "convert from integers",
        lambda x, i: (x * x, as_f64(i * i + 1) / 3.0, gs.convert(i, gs.u8)),
        ((2,), Integers((2, 3), 0, 9)),
        "tied",
    ),
    GraphCase(
        "arithmetic of integers",
        lambda x, i, j: (x * x, gs.sum(-i * j + gs.abs(i), 0) - gs.relu(j), gs.trunc_divide(i, j)),
        ((2,), Integers((2, 3), -9, 9), Integers((3,), -3, 3)),
        "tied",
    ),
    GraphCase(
        "bits of integers",
        lambda x, i, j: (x * x, i & j, i | j, i ^ j, ~i, i << j, i >> j),
        ((2,), Integers((2, 3), -9, 9), Integers((3,), -1, 5)),
        "tied",
    ),
    GraphCase("relu", gs.relu, ((2, 3),)),
    GraphCase("leaky_relu", gs.leaky_relu, ((2, 3),)),
    GraphCase("leaky_relu steep", lambda x: gs.leaky_relu(x, -1.5), ((5,),)),
    GraphCase("abs", gs.abs, ((2, 3),)),
    GraphCase("clamp", lambda x: gs.clamp(x, -1, 2), ((7,),), "wide"),
    GraphCase("clamp below", lambda x: gs.clamp(x, min=1), ((2, 3),), "wide"),
    GraphCase("clamp above", lambda x: gs.clamp(x, max=-1), ((2, 3),), "wide"),
    GraphCase("maximum broadcast", gs.maximum, ((3, 1), (4,)), "tied"),
    GraphCase("minimum broadcast", gs.minimum, ((3, 1), (4,)), "tied"),
    GraphCase("maximum of a product", lambda x, y: gs.maximum(x * y, y), ((4,), (4,))),
    GraphCase("minimum with itself", lambda x: gs.minimum(x, x) * x, ((4,),)),
    GraphCase(
        "maximum of integers",
        lambda x, i, j: (x * x, gs.maximum(i, j), gs.minimum(i, j)),
        ((2,), Integers((2, 3), -3, 3), Integers((3,), -3, 3)),
        "tied",
    ),
    GraphCase("floor", lambda x: x * gs.floor(x), ((2, 3),), "wide"),
    GraphCase("round", lambda x: x * gs.round(x * 0.5), ((7,),), "wide"),
    GraphCase("exp", gs.exp, ((2, 2),), irrational=True),
    GraphCase("log", gs.log, ((2, 3),), "positive", irrational=True),
    GraphCase("sqrt", gs.sqrt, ((2, 3),), "positive", irrational=True),
    GraphCase("tanh", gs.tanh, ((2, 3),), irrational=True),
    GraphCase("sin", gs.sin, ((2, 3),), "tied", irrational=True),
    GraphCase("cos", gs.cos, ((2, 3),), "tied", irrational=True),
    GraphCase("sigmoid", gs.sigmoid, ((2, 3),), "tied", irrational=True),
    GraphCase("softplus", gs.softplus, ((2, 3),), "tied", irrational=True),
    GraphCase("softplus beta", lambda x: gs.softplus(x, 2.5), ((2, 3),), irrational=True),
    GraphCase("softplus negative beta", lambda x: gs.softplus(x, -0.5), ((2, 3),), irrational=True),
    GraphCase("silu", gs.silu, ((2, 3),), "tied", irrational=True),
    GraphCase("gelu", gs.gelu, ((2, 3),), "tied", irrational=True),
    GraphCase("gelu tanh", lambda x: gs.gelu(x, approximate="tanh"), ((2, 3),), "tied", irrational=True),
    GraphCase("atan", gs.atan, ((2, 3),), "tied", irrational=True),
    GraphCase("erf", gs.erf, ((2, 3),), "tied", irrational=True),
    GraphCase("a chain", lambda x: gs.tanh(gs.exp(-gs.abs(x)) * gs.relu(x)), ((5,),), irrational=True),
]

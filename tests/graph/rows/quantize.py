"""Rows of quantisation and of integers that are multiplied. Derivatives are of scales, and of what is not quantised."""

import gradspec as gs
from graph.op_cases import GraphCase, Integers


def staircase(x, scale, zero_point=0, dtype=gs.i8):
    """Numbers on the grid: constants of differentiation, but for the scale that they are multiplied by."""
    return gs.dequantize(gs.quantize(gs.detach(x), gs.detach(scale), zero_point, dtype), scale, zero_point)


def narrow(i, dtype=gs.i8):
    return gs.convert(i, dtype)


def whole(i, *zero_point):
    """Integers of 8 bits, less a zero point of theirs, in 32 bits."""
    q, *zero = (gs.convert(narrow(n), gs.i32) for n in (i, *zero_point))
    return q - zero[0] if zero else q


ROWS = [
    GraphCase("quantize", lambda x, s: x * staircase(x, s, 3, gs.u8), ((2, 3), ())),
    GraphCase("quantize along an axis", lambda x, s: x * staircase(x, s), ((3, 2, 2), (2, 1))),
    GraphCase("quantize blocks", lambda x, s: x * staircase(x, s, 5, gs.i16), ((2, 6), (1, 2))),
    GraphCase(
        "quantize about computed zero points",
        lambda x, s, i: x * staircase(x, s, narrow(i), None),
        ((2, 3), (2, 1), Integers((3,), -100, 100)),
    ),
    GraphCase("dequantize", lambda i, s: gs.dequantize(narrow(i, gs.u8), s, 100), (Integers((2, 3), 0, 255), ())),
    GraphCase(
        "dequantize along an axis",
        lambda i, s, z: gs.dequantize(narrow(i), s, narrow(z)) * s,
        (Integers((2, 3), -99, 99), (2, 1), Integers((3,), -9, 9)),
    ),
    GraphCase("dequantize blocks", lambda i, s: gs.dequantize(whole(i), s), (Integers((4, 6), -99, 99), (2, 3))),
    GraphCase(
        "products of integers",
        lambda x, i, j: x * gs.dequantize(gs.matmul(whole(i), whole(j)), x),
        ((2, 2), Integers((2, 3), -99, 99), Integers((3, 2), -99, 99)),
    ),
    GraphCase(
        "convolution of integers",
        lambda s, i, j, z, b: gs.dequantize(gs.conv1d(whole(i), whole(j, z), whole(b), 2, 1), s),
        (
            (3, 1),
            Integers((2, 2, 5), -99, 99),
            Integers((3, 2, 2), -99, 99),
            Integers((), -9, 9),
            Integers((3,), -99, 99),
        ),
    ),
]

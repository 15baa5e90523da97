"""The one JSON codec of the judge's model: everything comes back, and what does not fit says where."""

import json
from collections import Counter

import numpy as np
import pytest

from gradspec.conformance.model.case import CampaignSettings, CheckCase, Selection
from gradspec.conformance.model.codec import _codec, decode, encode
from gradspec.conformance.model.problem import DTYPES, Call, Problem
from gradspec.conformance.model.run import Batch, Judged, Run, Tally
from gradspec.conformance.model.verdict import Failure, Finding, Probe, Verdict
from gradspec.spec.errors import FormatError

PROBLEM = Problem("conv", 1, ((2, 3), (1, 2, 2), None), {"padding": ((1, 0),), "groups": 1}, "bf16")
CALL = Call(
    PROBLEM, "vjp", (np.zeros((2, 3), DTYPES["bf16"]), None, None), (), np.float32([np.nan, -np.inf, -0.0, 0.1])
)
VERDICT = Verdict("defect", "vjp.sum", "grad_x", place=(0, 1), got="1")
TALLY = Tally(Counter(passed=3), Counter({("conv", "vjp", "nan", "pass"): 2}), Counter({("conv", "vjp", "pass"): 3}))
VALUES = [
    PROBLEM,
    VERDICT,
    TALLY,
    Probe("bits", "conv", "f32", "24 of 24", normal=False),
    CheckCase(1, 2, PROBLEM, "vjp", "rounding", None, "contiguous", 2**63, frozenset({"nan", "dilated"})),
    CampaignSettings("native", 3, Selection(ops=("conv",), ranks=(1, 2)), ("tf32",), timeout=1.5, path=("a", "b")),
    Finding.of(VERDICT, "conv", "vjp", case=encode(CALL), seen=("conv jvp f16",)),
    Run("native", "0.1", "a machine", 7, findings=[Finding.of(VERDICT, "conv", "vjp")], tally=TALLY, errors=["one"]),
    Batch(4, (Judged("conv", "vjp", ("nan",), "defect", unkept=(("a", "b"),)),), worker="here"),
]


def through_json(value):
    return decode(type(value), json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_model_survives_json(value):
    assert through_json(value) == value
    assert encode(through_json(value)) == encode(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_survive_bit_by_bit_but_for_payloads_of_nan(dtype):
    bits = np.random.default_rng(1).integers(0, 256, 24 * DTYPES[dtype].itemsize, np.uint8).view(DTYPES[dtype])
    for array in (bits.reshape(2, 3, 4), bits[:0].reshape(0, 3), bits[0].reshape(())):
        again = through_json(Call(PROBLEM, "value", (array,))).inputs[0]
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        same = again.view(f"u{array.itemsize}") == np.ascontiguousarray(array).view(f"u{array.itemsize}")
        assert (same | (array != array)).all()


def test_a_failure_keeps_its_call():
    again = through_json(Failure(CALL, VERDICT, ("nan",), "3.1"))
    assert (again.call.problem, again.verdict, again.number) == (PROBLEM, VERDICT, (3, 1))
    assert np.array_equal(again.call.cotangent, CALL.cotangent, equal_nan=True)
    assert np.signbit(again.call.cotangent).tolist() == np.signbit(CALL.cotangent).tolist()
    assert again.call.problem.attributes["padding"] == ((1, 0),)  # tuples, as nobody changes them


def test_what_came_after_a_file_was_written_has_its_default():
    data = encode(Run("native", "0.1", "a machine", 7))
    assert (
        decode(Run, {name: part for name, part in data.items() if name not in ("unjudged", "shrinking")}).unjudged == 0
    )


ARRAY = {"dtype": "f32", "shape": [2], "cells": [1.0, 2.0]}
GOOD = {"problem": encode(PROBLEM), "mode": "value", "inputs": [ARRAY]}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (Call, [], r"^data: expected dict, not list of 0"),
        (Call, {**GOOD, "mode": 3}, r"data\.mode: expected str, not 3"),
        (Call, {**GOOD, "modes": "value"}, r"Call has no 'modes'; it has problem, mode"),
        (Call, {"mode": "value"}, r"Call needs problem, inputs; it has mode"),
        (Call, {**GOOD, "output": [1, 2.5]}, r"data\.output\[1\]: expected int, not 2\.5"),
        (Call, {**GOOD, "output": [True]}, r"data\.output\[0\]: expected int, not True"),
        (
            Call,
            {**GOOD, "inputs": [{**ARRAY, "dtype": "f8"}]},
            r"data\.inputs\[0\]\.dtype: 'f8' is not known; use one of f16",
        ),
        (Call, {**GOOD, "inputs": [{**ARRAY, "shape": [3]}]}, r"data\.inputs\[0\]: .* no f32 array of shape \(3,\)"),
        (Call, {**GOOD, "inputs": [{**ARRAY, "cells": ["one", 2]}]}, r"data\.inputs\[0\]: .* could not convert"),
        (Call, {**GOOD, "inputs": [{"dtype": "f32"}]}, r"data\.inputs\[0\]\.shape: expected list, not None"),
        (Tally, {"grid": [["conv", "vjp", 1]]}, r"data\.grid\[0\]: expected 4 words and a number, not 3 entries"),
        (Tally, {"cases": {"pass": "3"}}, r"data\.cases\.pass: expected int, not '3'"),
        (Run, {"target": "native"}, r"Run needs version, machine, seed"),
    ],
)
def test_what_does_not_fit_says_where(kind, data, words):
    with pytest.raises(FormatError, match=words):
        decode(kind, data)


def test_arrays_are_known_by_any_name_of_theirs() -> None:
    """From NumPy 2.5 on, ``NDArray`` is an alias that names its meaning, as ``type NDArray[T] = …`` makes one."""

    class Alias:
        __value__ = np.ndarray

    written = _codec(Alias()).write(np.arange(3))
    np.testing.assert_array_equal(_codec(Alias()).read(written, "array"), np.arange(3))

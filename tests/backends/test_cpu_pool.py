"""Compiled max and average pooling means what the specification says: windows, formats, layouts, threads, memory."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from backends.pooling import (
    LAYOUTS,
    PULL,
    PUSH,
    REPEATED,
    SPREAD,
    VALUE,
    Arrays,
    Block,
    Fenced,
    Job,
    Pooling,
    carry_out,
    everything,
    jobs_of,
    lowered,
    rubbish,
    types_of,
)
from cases import CASES
from gradspec.backends import numpy as numpy_backend
from gradspec.backends.cpu import pool as cpu_pool
from gradspec.backends.cpu.kernels import fields
from gradspec.conformance import meaning
from gradspec.graph.types import DType, TensorType
from gradspec.ops import pool as ops
from gradspec.spec.tensor import Tensor
from strategies import Geometry

FLOATS = {t.name: t for t in (gs.f32, gs.f64, gs.f16, gs.bf16)}
INTEGERS = {t.name: t for t in (gs.i8, gs.u8, gs.i32, gs.i64)}


# --- numbers ----------------------------------------------------------------------------------------------------------


def halves(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Few dyadic values, zeros of both signs among them: windows have ties, and sums are exact in every format."""
    return (rng.integers(-3, 4, shape) * np.where(rng.random(shape) < 0.5, 0.5, -0.5)).astype(dtype)


def rough(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Full significands over many exponents: nearly every sum rounds."""
    return (rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """One cell in five is an infinity, a zero of either sign, or a NaN of its own."""
    infinities_and_zeros = np.asarray([np.inf, -np.inf, 0.0, -0.0]).astype(dtype)
    unlike = np.where(rng.random(shape) < 0.5, rng.choice(infinities_and_zeros, shape), nans(rng, shape, dtype))
    return np.where(rng.random(shape) < 0.2, unlike, halves(rng, shape, dtype))


def nans(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Quiet NaNs of either sign with payloads, so that one can be told from another."""
    kind = np.dtype(f"u{dtype.itemsize}")
    quiet = np.asarray(np.nan).astype(dtype).view(kind)
    return (quiet | rng.integers(0, 8, shape).astype(kind) | (rng.integers(0, 2, shape).astype(kind) << (8 * dtype.itemsize - 1))).view(dtype)


def infinitely_low(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Nearly all −∞, which padding must not win against."""
    return np.where(rng.random(shape) < 0.05, halves(rng, shape, dtype), np.asarray(-np.inf).astype(dtype))


def lowest(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """The least integer everywhere."""
    return np.full(shape, np.iinfo(dtype).min, dtype)


def extremes(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.choice(np.array([info.min, info.min, info.min + 1, info.max], dtype), shape)


def digits(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 4, shape).astype(dtype)


Numbers = Callable[[np.random.Generator, Any, np.dtype], np.ndarray]


def drawn(pooling: Pooling, numbers: Numbers, others: Numbers | None = None) -> dict[str, np.ndarray]:
    """``x`` of some numbers, and tangents and cotangents of the same or others."""
    rng, types = np.random.default_rng(prod(pooling.x.shape) + len(numbers.__name__)), types_of(pooling)
    kinds = {"x": numbers, "dx": others or numbers, "g": others or numbers}
    return {name: kind(rng, types[name].shape, types[name].dtype.numpy) for name, kind in kinds.items()}


# --- what is right ----------------------------------------------------------------------------------------------------


def spec_winners(pooling: Pooling, x: np.ndarray) -> np.ndarray:
    """By the specification, cell by cell."""
    numbers = x.ravel().tolist() if x.dtype.kind in "iu" else x.astype(np.float64).ravel().tolist()
    _, indices = ops.MAX_POOL.spec(replace(pooling.attrs, return_indices=True), Tensor(x.shape, numbers))
    return np.asarray(indices.cells, np.int64).reshape(indices.shape)


def numpy_winners(pooling: Pooling, x: np.ndarray) -> np.ndarray:
    """By the NumPy backend, for arrays that the specification would take long for."""
    return numpy_backend.apply(ops.MAX_POOL, replace(pooling.attrs, return_indices=True), x)[1]


def planes(pooling: Pooling, array: np.ndarray) -> np.ndarray:
    rank = pooling.attrs.window(pooling.x).rank
    at = array.ndim - rank
    return array.reshape(prod(array.shape[:at]), prod(array.shape[at:]))


def gathered(pooling: Pooling, array: np.ndarray, winners: np.ndarray) -> np.ndarray:
    chosen = planes(pooling, winners)
    found = np.take_along_axis(planes(pooling, array), np.maximum(chosen, 0), axis=-1)
    return np.where(chosen >= 0, found, np.zeros((), array.dtype)).reshape(winners.shape)


def received(pooling: Pooling, g: np.ndarray, winners: np.ndarray) -> np.ndarray:
    """What cells receive from the windows that they won, in float64."""
    sent, chosen = planes(pooling, g).astype(np.float64), planes(pooling, winners)
    total = np.zeros((len(sent), prod(pooling.attrs.window(pooling.x).sizes)))
    for plane, places, values in zip(total, chosen, sent, strict=True):
        np.add.at(plane, places[places >= 0], values[places >= 0])
    return total.reshape(pooling.x.shape)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    wrong = np.argwhere(bits(found) != bits(wanted))
    assert not len(wrong), (*context, wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_same_numbers(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    """But for the signs of zeros and NaNs, and the payloads of NaNs."""
    assert found.shape == wanted.shape
    if found.dtype.kind not in "iu":
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    wrong = np.argwhere((found != wanted) & ((found == found) | (wanted == wanted)))
    assert not len(wrong), (*context, wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_maxima(pooling: Pooling, job: Job, arrays: Arrays, found: Arrays, winners: np.ndarray) -> None:
    """All but sums of cotangents: with winners bit for bit, without them the same number."""
    context = pooling, job
    value = gathered(pooling, arrays["x"], winners)
    if job == VALUE:
        assert_same_numbers(found["y"], value, *context)
    elif "y" in found:
        assert_same_bits(found["y"], value, *context, "y")
    if "indices" in found:
        assert_same_bits(found["indices"], winners, *context, "indices")
    if "dy" in found:
        assert_same_bits(found["dy"], gathered(pooling, arrays["dx"], winners), *context, "dy")


def meant(pooling: Pooling, mode: str, *arrays: np.ndarray) -> Any:
    """The oracle's meaning of a derivative, or of an average."""
    attrs, name = pooling.attrs, f"{'max' if pooling.is_max else 'avg'}_pool{mode}"
    if attrs.output_size is not None:
        return meaning(f"adaptive_{name}", *arrays, attrs.output_size)
    unsaid = {"output_size", "ties", "return_indices"}
    return meaning(name, *arrays, **{key: value for key, value in vars(attrs).items() if key not in unsaid})


def assert_permitted(exact: Any, found: np.ndarray, *context: Any) -> None:
    judgement = exact.judge(found)
    assert judgement.passed, (*context, judgement.failures())


def assert_meant(pooling: Pooling, arrays: Arrays, count: int = 1) -> None:
    """Every job: selections exactly, sums as far as the certified tolerance allows, few hits rounded once."""
    if not pooling.is_max:
        for job, found in everything(pooling, arrays, count):
            exact = meant(pooling, "", arrays["x"]) if job == VALUE else meant(pooling, "_vjp", arrays["x"], arrays["g"])
            assert_permitted(exact, *found.values(), pooling, job)
        return
    winners, pulled = spec_winners(pooling, arrays["x"]), None
    for job, found in everything(pooling, arrays, count):
        assert_maxima(pooling, job, arrays, found, winners)
        if "ct" in found:
            pulled = pulled or meant(pooling, "_vjp", arrays["x"], arrays["g"])
            assert_permitted(pulled, found["ct"], pooling, job)
            few = received(pooling, np.ones(winners.shape), winners) <= 2
            right = pulled.rounded(pooling.x.dtype.name)
            assert_same_numbers(found["ct"][few], right[few], pooling, job)


# --- the table --------------------------------------------------------------------------------------------------------


def pooling_of(case: Any, dtype: DType) -> Pooling:
    attributes = {name: float(v) if name == "divisor_override" else v for name, v in case.attributes.items()}
    graph = gs.trace(lambda x: getattr(gs, case.operator)(x, **attributes), dtype[case.shapes[0]])
    return Pooling(graph.nodes[0].attrs, graph.inputs[0].type)


TABLE = [c for c in CASES if c.operator.endswith(("max_pool", "avg_pool")) and not c.needs_exp and c.ties in ("first", None)]
MAXIMA = [c for c in TABLE if c.ordered]


@pytest.mark.parametrize("numbers", [halves, rough, special, infinitely_low])
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.id)
def test_kernels_are_the_specification(case, numbers):
    for dtype in FLOATS.values():
        pooling = pooling_of(case, dtype)
        assert_meant(pooling, drawn(pooling, numbers))


@pytest.mark.parametrize("numbers", [lowest, extremes, digits])
@pytest.mark.parametrize("case", MAXIMA, ids=lambda case: case.id)
def test_integers_are_pooled_too(case, numbers):
    for dtype in INTEGERS.values():
        pooling = pooling_of(case, dtype)
        assert_meant(pooling, drawn(pooling, numbers))

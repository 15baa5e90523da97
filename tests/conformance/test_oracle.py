"""The oracle says what the specification says, bit for bit, and judges as the theorem allows."""

from fractions import Fraction
from random import Random

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from cases import CASES, OpCase, Places
from gradspec.conformance import Arithmetic, meaning
from gradspec.conformance.oracle.meaning import Selected
from gradspec.domains import FORMATS, Ball, rational
from gradspec.domains.ball import endpoints

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
MODES = ("", "_jvp", "_vjp")
SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def floats(shape, random, dtype, kind):
    """Full significands over a wide range of exponents, so that nearly every sum rounds; some cells special."""
    count = int(np.prod(shape))
    values = [random.uniform(-1, 1) * 2.0 ** random.randint(-6, 6) for _ in range(count)]
    if kind == "special":
        values = [random.choice(SPECIALS) if random.random() < 0.1 else v for v in values]
    if kind == "small integers":
        values = [float(random.randint(-2, 2)) for _ in range(count)]
    return np.asarray(values).astype(dtype).reshape(shape)


def arguments(case: OpCase, mode: str, dtype, kind: str):
    """The arguments of ``case`` in a mode, as float arrays."""
    random = Random(f"{case.id} {mode} {kind}")
    inputs = [
        shape.draw(random)
        if isinstance(shape, Places)
        else shape
        if shape is None
        else floats(shape, random, dtype, kind)
        for shape in case.shapes
    ]
    if mode == "_jvp":
        inputs += [
            None if case.shapes[i] is None else floats(case.shapes[i], random, dtype, kind) for i in case.differentiable
        ]
    if mode == "_vjp":
        inputs.append(floats(case.output, random, dtype, kind))
    return inputs


def attributes(case: OpCase):
    """Divisors as the floats that a kernel would be given."""
    return {k: float(v) if isinstance(v, Fraction) else v for k, v in case.attributes.items()}


def several(result):
    return result if isinstance(result, tuple) else (result,)


def in_domain(domain, array):
    return array if array is None or array.dtype == int else domain.tensor(array)


def rounded_once(scalar, format):
    """The specification's exact result in a format: from a rational, or from a ball narrow enough to tell."""
    ends = endpoints(scalar.arb) if isinstance(scalar, Ball) else [rational(scalar)]
    (rounded,) = {format.nearest_ratio(int(end.p), int(end.q)) for end in ends}
    return rounded


def beta_in(format, settings):
    """Smooth max means the β of the format it computes in."""
    if "beta" not in settings:
        return settings
    return {**settings, "beta": Arithmetic.of(format).accumulate.nearest(settings["beta"])}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rounds_to_the_exact_meaning(case, mode):
    """Every operator and mode, in two formats: the rational (or ball) result of the specification, rounded once."""
    for name in ("f32", "f64") if not case.needs_exp else ("f32",):
        args, settings = arguments(case, mode, DTYPES[name], "plain"), attributes(case)
        expected = getattr(gs.spec, case.operator + mode)(
            *(in_domain(case.domain, a) for a in args), **beta_in(name, settings)
        )
        for actual, exact in zip(
            several(meaning(case.operator + mode, *args, **settings)), several(expected), strict=True
        ):
            assert (actual is None) == (exact is None)
            if exact is not None:
                right = [rounded_once(cell, FORMATS[name]) for cell in exact.cells]
                assert actual.shape == exact.shape
                assert actual.rounded(name).ravel().tolist() == right


RATIONAL = [case for case in CASES if not case.needs_exp]
IN_TURN = [(case, mode, [*DTYPES][(i + j) % 4]) for i, case in enumerate(RATIONAL) for j, mode in enumerate(MODES)]


@pytest.mark.parametrize(("case", "mode", "name"), IN_TURN, ids=lambda v: getattr(v, "id", v))
def test_accepts_the_specification_in_every_format(case, mode, name):
    """The spec's own order of summation in IEEE arithmetic is one correct kernel, on special values too."""
    for kind in ("plain", "special", "small integers"):
        args, settings = arguments(case, mode, DTYPES[name], kind), attributes(case)
        arithmetic = Arithmetic.of(name)
        domain = gs.ieee(name, accumulate=arithmetic.accumulate)
        results = getattr(gs.spec, case.operator + mode)(*(in_domain(domain, a) for a in args), **settings)
        for exact, result in zip(
            several(meaning(case.operator + mode, *args, **settings)), several(results), strict=True
        ):
            if exact is None:
                continue
            got = np.asarray(result.map(float).cells, np.float64).reshape(result.shape)
            judgement = exact.judge(got.astype(DTYPES[name]), None if isinstance(exact, Selected) else arithmetic)
            assert judgement.passed, (kind, judgement.failures())

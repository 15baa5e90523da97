"""What VNN-LIB texts mean: a point satisfies the assertions iff it is a counterexample of the property."""

import gzip
import warnings
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.verify.property import Inequality
from gradspec.verify.vnnlib import read_vnnlib, read_vnnlib_text
from verify.formulas import RELATIONS, is_satisfied, names_of, parsed

DECLARED = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "Y_0", "Y_1", "Y_2"))
BOXED = f"{DECLARED} (assert (<= -1 X_0 2)) (assert (<= X_1 0.3)) (assert (>= X_1 0.1))"
NETWORK = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,2]) (declare-input s real []) (declare-output Y float32 [2, 1]))
(assert (>= X[0,0] -1.0)) (assert (<= X[0,0] 1.0)) (assert (== X[0,1] 0.5)) (assert (<= 0.0 s)) (assert (<= s 2.0))
"""

TEXTS = {
    "no condition on outputs": BOXED,
    "one output": BOXED + "(assert (>= Y_0 3.991125645861615))",
    "outputs compared": BOXED + "(assert (<= Y_0 Y_1)) (assert (>= Y_2 Y_1))",
    "strict": BOXED + "(assert (< Y_0 1)) (assert (> Y_1 Y_2))",
    "equal": BOXED + "(assert (= Y_0 1)) (assert (= Y_1 Y_2 X_0))",
    "unequal": BOXED + "(assert (not (= Y_0 1))) (assert (!= Y_1 1)) (assert (distinct Y_2 X_0))",
    "either": BOXED + "(assert (or (and (<= Y_0 0)) (and (>= Y_0 1.5) (<= Y_1 Y_2))))",
    "or in and in or": BOXED
    + "(assert (or (<= Y_0 0) (and (or (<= Y_1 0) (<= Y_2 0)) (or (>= Y_1 Y_0) (>= Y_2 Y_0)))))",
    "several choices": BOXED + "(assert (or (<= Y_0 0) (>= Y_0 1))) (assert (or (<= Y_1 0) (>= Y_1 1)))",
    "negated": BOXED + "(assert (not (or (<= Y_0 0) (and (< Y_1 1) (not (>= Y_2 Y_0))))))",
    "negated twice": BOXED + "(assert (not (not (and (<= Y_0 0) (or (not (> Y_1 1)) (= Y_2 1))))))",
    "negated chain": BOXED + "(assert (not (<= 0 Y_0 Y_1 1)))",
    "sums": BOXED + "(assert (<= (+ Y_0 (* 2 Y_1) (- Y_2) 1) (- (* Y_0 -0.5) Y_1 1 X_0)))",
    "nested products": BOXED + "(assert (<= (* 2 (+ 1 (* 3 Y_0) (/ Y_1 4)) (- 1.5)) (/ 1 3)))",
    "terms that cancel": BOXED + "(assert (<= (- Y_0 Y_0) 0)) (assert (< (+ Y_1 X_0 (- X_0)) 1))",
    "numbers": BOXED + "(assert (>= Y_0 1e-1)) (assert (<= Y_0 +1.5E0)) (assert (<= Y_1 1.)) (assert (>= Y_1 .5))",
    "numbers only": BOXED + "(assert (<= 0 1)) (assert (or (< 1 1) (<= Y_0 (* 0 Y_1))))",
    "truth": BOXED
    + "(assert true) (assert (or false (<= Y_0 1))) (assert (not false)) (assert (or (not true) (> Y_1 0)))",
    "box in a choice": DECLARED
    + "(assert (or (and (<= 0 X_0 1) (<= 0 X_1 1) (<= Y_0 0)) (and (<= 1 X_0 2) (= X_1 1))))",
    "box tightened": BOXED + "(assert (<= X_0 1)) (assert (or (and (>= X_0 0) (<= Y_0 0)) (<= Y_0 -1)))",
    "box scaled": DECLARED + "(assert (<= (* -2 X_0) 1)) (assert (<= (+ X_0 X_0 1) 3)) (assert (<= 0 (/ X_1 3) 1))",
    "box open": DECLARED + "(assert (< 0 X_0 1)) (assert (not (<= X_1 0))) (assert (<= X_1 1))",
    "inputs related": BOXED + "(assert (<= (+ (* -1.5 X_0) X_1) 0.25)) (assert (or (< X_0 (* 2 X_1)) (<= Y_0 X_0)))",
    "one of the cases is empty": BOXED + "(assert (or (and (>= X_0 3) (<= Y_0 0)) (and (<= X_0 1) (<= Y_0 1))))",
    "other commands": '(set-logic QF_LRA)(set-info :source "a; (b")' + BOXED + "(check-sat)(exit)",
    "functions": BOXED.replace("declare-const", "declare-fun").replace(" Real", " () Real"),
    "outputs first": "(declare-const Y_1 Real)(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= 0 X_0 Y_1))"
    "(assert (<= X_0 2))",
    "2.0": NETWORK + "(assert (or (<= Y[0,0] Y [1 , 0]) (!= s X[0,1])))",
    "2.1": NETWORK.replace("2.0>", "2.1>") + "(assert (<= (- Y[0,0] s) (* 2 X[0,0])))",
    "1.0 said": "(vnnlib-version <1.0>)" + BOXED,
}


def read(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.FormatWarning)
        return read_vnnlib_text(text)


def numbers_in(commands):
    for part in commands:
        if isinstance(part, list):
            yield from numbers_in(part)
        else:
            try:
                yield Fraction(part)
            except ValueError:
                continue


def points(text, found, count, seed=0):
    """Points of which many lie on the planes of a text, or just beside."""
    inputs, outputs = names_of(found)
    near = sorted(
        {number + shift for number in numbers_in(parsed(text)) for shift in (0, 0, Fraction(1, 7), Fraction(-1, 7))}
    )
    draw = Random(seed)
    for _ in range(count):
        some = draw.choices(near, k=draw.randint(1, 4))  # few, so that equations hold now and then
        point = {name: draw.choice(some) for name in (*inputs, *outputs)}
        yield point, [point[name] for name in inputs], [point[name] for name in outputs]


def assert_means(text, found, count, seed=0):
    answers = set()
    for point, x, y in points(text, found, count, seed):
        answers.add(is_satisfied(text, point))
        assert found.is_counterexample(x, y) == is_satisfied(text, point), point
    return answers


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_point_satisfies_the_assertions_iff_it_is_a_counterexample(text):
    assert assert_means(text, read(text), 250) == {True, False}


def in_floats_unsafe(conjunction, x, y):
    """What a verifier is told in floats, decided exactly."""

    def product(matrix, cells, row):
        return sum(Fraction(float(c)) * cell for c, cell in zip(matrix[row], cells, strict=True))

    def size(cells):
        return [abs(cell) for cell in cells]

    return all(
        product(conjunction.C, y, row) + product(conjunction.D, x, row)
        <= Fraction(float(b)) + product(conjunction.C_error, size(y), row) + product(conjunction.D_error, size(x), row)
        for row, b in enumerate(conjunction.b)
    )


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_floats_lose_no_counterexample(text, dtype):
    found = read(text)
    boxes = [[list(map(Fraction, end.astype(float).tolist())) for end in case.box.outer(dtype)] for case in found.cases]
    for _, x, y in points(text, found, 100):
        if found.is_counterexample(x, y):
            assert any(
                all(low <= cell <= high for low, cell, high in zip(box[0], x, box[1], strict=True))
                and any(in_floats_unsafe(conjunction, x, y) for conjunction in case.unsafe)
                for box, case in zip(boxes, found.cases, strict=True)
            )


# --- how it is written does not matter --------------------------------------------------------------------------------

BLANKS = [" ", "\n", "\t", ' ; (a] comment "\n', "\r\n", ";\n", "\f "]


def written(part, draw):
    """A list as a text again, with other blanks; an assertion may become one of a conjunction, a longer way to read."""
    if isinstance(part, str):
        return part
    if part[:1] == ["assert"] and draw.random() < 0.5:
        part = ["assert", ["and", part[1]]]
    return f"({draw.choice(['', *BLANKS])}{draw.choice(BLANKS).join(written(inner, draw) for inner in part)})"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_spelling_does_not_matter(text, seed):
    draw = Random(seed)
    respelt = "".join(written(command, draw) + draw.choice(BLANKS) for command in parsed(text))
    assert set(read(respelt).cases) == set(read(text).cases)


NUMBERS = st.sampled_from(["0", "1", "-1", "0.5", "-2.25", "1e-1", ["/", "1", "3"], ["-", "2"]])
NAMES = st.sampled_from(["X_0", "X_1", "Y_0", "Y_1", "Y_2"])


def linear(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda parts: ["+", *parts]),
        several.map(lambda parts: ["-", *parts]),
        st.tuples(NUMBERS, inner).map(lambda parts: ["*", *parts]),
        st.tuples(inner, st.sampled_from(["2", "-0.3"])).map(lambda parts: ["/", *parts]),
    )


def connected(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda parts: ["and", *parts]),
        several.map(lambda parts: ["or", *parts]),
        inner.map(lambda f: ["not", f]),
    )


TERMS = st.recursive(NUMBERS | NAMES, linear, max_leaves=5)
COMPARISONS = st.builds(lambda head, *parts: [head, *parts], st.sampled_from([*RELATIONS]), TERMS, TERMS)
FORMULAS = st.recursive(COMPARISONS | st.sampled_from(["true", "false"]), connected, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(FORMULAS, min_size=1, max_size=3), st.integers(0, 99))
def test_random_formulas_mean_what_they_say(formulas, seed):
    text = BOXED + "".join(written(["assert", formula], Random(seed)) for formula in formulas)
    assert_means(text, read(text), 20, seed)


# --- the property -----------------------------------------------------------------------------------------------------


def test_numbers_are_exact_and_conjunctions_with_one_box_share_it():
    found = read(
        BOXED + "(assert (or (<= Y_0 0.1) (and (<= X_0 1) (<= Y_0 0)) (>= Y_1 Y_0) (and (<= X_0 1) (<= Y_1 0))))"
    )
    assert [case.box.upper for case in found.cases] == [(2, Fraction(3, 10)), (1, Fraction(3, 10))]
    assert [case.box.lower for case in found.cases] == [(-1, Fraction(1, 10))] * 2
    tenth = Inequality(((0, Fraction(1)),), (), Fraction(1, 10))
    assert [len(case.unsafe) for case in found.cases] == [2, 2]
    assert found.cases[0].unsafe[0].inequalities == (tenth,)


def test_a_case_that_is_stated_once_is_read_as_matrices():
    found = read(BOXED + "(assert (and (<= (+ (* 2 Y_0) (* -0.1 Y_2)) 0.7) (> X_0 Y_1)))")
    ((conjunction,),) = (case.unsafe for case in found.cases)
    assert conjunction.C.tolist() == [[2, 0, -0.1], [0, 1, 0]]
    assert conjunction.D.tolist() == [[0, 0], [-1, 0]]
    assert conjunction.C_error[0, 2] > abs(Fraction(0.1) - Fraction(1, 10)) > 0 == conjunction.C_error[0, 0]
    assert not conjunction.C_error[1].any()
    assert conjunction.b.tolist() == [np.nextafter(0.7, 1), 0]  # the float 0.7 is below seven tenths
    assert conjunction.strict.tolist() == [False, True]
    assert conjunction.names_inputs


def test_tensors_of_a_network_lie_one_after_the_other():
    found = read(NETWORK)
    assert [(port.name, port.dtype, port.shape) for port in (*found.inputs, *found.outputs)] == [
        ("X", "float32", (1, 2)),
        ("s", "real", ()),
        ("Y", "float32", (2, 1)),
    ]
    assert found.cases[0].box.lower == (-1, Fraction(1, 2), 0)


@pytest.mark.parametrize(
    "assertion", ["(assert (>= X_0 3))", "(assert (< 1 1))", "(assert (or (<= X_0 -2) (and (>= X_1 1) (<= Y_0 0))))"]
)
def test_what_nothing_satisfies_is_a_warning_and_has_no_cases(assertion):
    with pytest.warns(gs.FormatWarning, match=r"my\.vnnlib: no input satisfies"):
        assert read_vnnlib_text(BOXED + assertion, "my.vnnlib").cases == ()


def test_files_may_be_packed(tmp_path):
    for name, content in {
        "a": BOXED.encode(),
        "b.gz": gzip.compress(BOXED.encode()),
        "c": b"\xef\xbb\xbf" + BOXED.encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert read_vnnlib(tmp_path / name) == read(BOXED)


def test_many_cases_are_read():
    boxes = (f"(and (<= {n} X_0 {n}.5) (= X_1 1) (or (<= Y_0 {n}) (>= Y_1 {n})))" for n in range(500))
    found = read(f"{DECLARED} (assert (or {' '.join(boxes)}))")
    assert [len(case.unsafe) for case in found.cases] == [2] * 500
    assert found.cases[-1].box.lower == (499, 1)

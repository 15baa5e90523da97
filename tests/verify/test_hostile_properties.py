"""VNN-LIB files from an enemy: each is refused with an error that says where and what, in bounded time and memory."""

import gzip
import math
import os
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.verify import formulas, vnnlib
from gradspec.verify.property import Property
from gradspec.verify.vnnlib import read_vnnlib, read_vnnlib_text
from saving.test_hostile_files import MEGABYTE, bounded
from verify.test_vnnlib import BOXED, NETWORK, TEXTS

REFUSALS = (gs.FormatError, gs.UnsupportedError)
XY = "(declare-const X_0 Real)(declare-const Y_0 Real)\n"
GOOD = XY + "(assert (<= 0 X_0 1))\n"


def asserted(formula):
    return f"{GOOD}(assert {formula})"


def network(*parts, version="2.0", name="N"):
    return f"(vnnlib-version <{version}>)\n(declare-network {name} {' '.join(parts)})"


X, Y = "(declare-input X real [2])", "(declare-output Y real [])"
TWO = network(X, Y) + "(assert (<= 0 X[0] 1)) (assert (<= 0 X[1] 1))\n"

MALFORMED = {
    "empty": ("", "line 1, column 1: X_0 is not declared"),
    "a comment": ("; nothing", "X_0 is not declared"),
    "a word": ("hello", "line 1, column 1: 'hello' was found; expected .assert"),
    "a list of nothing": ("()", r"'\(\)' was found"),
    "a list without a word": ("((assert true))", r"line 1, column 1: '\(' was found"),
    "an unknown command": (GOOD + "(push 1)", r"line 3, column 2: '\(push' was found; expected \(vnnlib-version"),
    "not closed": (GOOD + "(assert (<= Y_0 1)", r"line 3, column 2: \(assert is not closed"),
    "not closed, within": (GOOD + "(assert\n (<= Y_0 1", r"line 4, column 3: \(<= is not closed"),
    "closed twice": (GOOD + "(assert (<= Y_0 1)))", r"line 3, column 20: '\)' was found, and no list is open"),
    "a text": (GOOD + '(assert (<= Y_0 "1"))', "line 3, column 17: '\"1\"' was found"),
    "an open text": (GOOD + '(set-info :a "b)', "line 3, column 14: '\"' was found"),
    "NUL": (GOOD + "\0", r"line 3, column 1: '\\x00' was found"),
    "NUL in a comment": (GOOD + "; a\0b", r"line 3, column 4: '\\x00' was found"),
    "NUL in a name": (GOOD + "(assert (<= Y_0\0 1))", r"line 3, column 16: '\\x00' was found"),
    "another blank": (GOOD + "(assert (<=\u00a0Y_0 1))", r"line 3, column 12: '\\xa0' was found"),
    "a bracket": (GOOD + "(assert ] (<= Y_0 1))", r"line 3, column 9: '\]' was found"),
    "a comma": (GOOD + "(assert (<= Y_0, 1))", "line 3, column 16: ',' was found"),
    "a name that leads on": (asserted("(<= Y_0 Y_00)"), "line 3, column 17: 'Y_00' was found"),
    "NaN": (asserted("(<= Y_0 nan)"), "line 3, column 17: 'nan' was found; expected a number"),
    "infinity": (asserted("(<= X_0 -inf)"), "'-inf' was found; expected a number"),
    "hexadecimal": (asserted("(<= X_0 0x10)"), "'0x10' was found"),
    "a fraction": (asserted("(<= X_0 1/2)"), "'1/2' was found"),
    "a number with a gap": (asserted("(<= X_0 1_0)"), "'1_0' was found"),
    "digits of another script": (asserted("(<= X_0 \u0661)"), r"'\\u0661' was found"),
    "a dot": (asserted("(<= X_0 .)"), r"'\.' was found"),
    "an exponent of nothing": (asserted("(<= X_0 1e)"), "'1e' was found"),
    "blanks left out": (asserted("(<=X_0 0.5)"), r"line 3, column 10: '\(<=X_0' was found; expected"),
    "a number that leads on": (asserted("(<= X_0 0.5Y_0)"), "line 3, column 17: '0.5Y_0' was found"),
    "not declared": (asserted("(<= Y_0 Y_1)"), "line 3, column 17: 'Y_1' was found; expected a number or a variable"),
    "not declared, at once": (asserted("(<= X_1 0)"), "line 3, column 13: 'X_1' was found; expected a number or"),
    "declared too late": ("(assert (<= X_0 1))" + XY, "line 1, column 13: 'X_0' was found"),
    "declared twice": (XY + "(declare-const X_0 Real)", "line 2, column 2: 'X_0' is declared twice"),
    "another name": ("(declare-const Z_0 Real)", "'Z_0' was found; expected X_0"),
    "a name with zeros": ("(declare-const X_00 Real)", "'X_00' was found"),
    "another type": ("(declare-const X_0 Int)", r"expected: \(declare-const X_0 Real\)"),
    "no type": ("(declare-const X_0)", r"expected: \(declare-const X_0 Real\)"),
    "no name": ("(declare-const)", r"expected: \(declare-const X_0 Real\)"),
    "a function of something": ("(declare-fun X_0 (Real) Real)", r"'\(Real' was found"),
    "a gap": (XY + "(declare-const X_2 Real)", "X_1 is not declared; they are counted from 0"),
    "a huge index": (XY + "(declare-const Y_999999999 Real)", "Y_1 is not declared"),
    "an index beyond measure": (XY + f"(declare-const Y_{'9' * 5000} Real)", r"'Y_9+'\.\.\. was found"),
    "no output": ("(declare-const X_0 Real)(assert (<= 0 X_0 1))", "Y_0 is not declared"),
    "nothing asserted": (GOOD + "(assert)", r"\(assert of 0 formulas; expected 1"),
    "two formulas": (GOOD + "(assert true true)", r"\(assert of 2 formulas"),
    "a term for a formula": (GOOD + "(assert (+ Y_0 1))", r"'\(\+' was found; expected \(and, \(or, \(not, \(<="),
    "a variable for a formula": (GOOD + "(assert Y_0)", "'Y_0' was found; expected a formula"),
    "a formula for a term": (asserted("(<= (<= Y_0 1) 1)"), r"'\(<=' was found; expected \(\+"),
    "a list for an operator": (asserted("((<=) Y_0 1)"), r"line 3, column 9: '\(' was found"),
    "a command within": (GOOD + "(assert (and (assert (<= X_0 1))))", r"'\(assert' was found; expected \(and"),
    "a comparison with nothing": (asserted("(<= Y_0)"), r"line 3, column 10: \(<= of 1 terms; expected 2"),
    "three that differ": (asserted("(distinct Y_0 1 2)"), r"\(distinct of 3 terms; expected 2"),
    "an empty choice": (asserted("(or)"), r"\(or of 0 formulas"),
    "two negations in one": (asserted("(not true true)"), r"\(not of 2 formulas"),
    "an empty sum": (asserted("(<= (+) 1)"), r"\(\+ of 0 terms"),
    "a quotient of one": (asserted("(<= (/ 2) 1)"), r"\(/ of 1 terms; expected 2"),
    "a division by zero": (asserted("(<= (/ 2 0) 1)"), r"line 3, column 14: a division by 0"),
    "a division by nothing left": (asserted("(<= (/ 2 (- Y_0 Y_0)) 1)"), "a division by 0"),
    "a version too late": (GOOD + "(vnnlib-version <1.0>)", r"\(vnnlib-version was found; expected once, before all"),
    "two versions": ("(vnnlib-version <2.0>)(vnnlib-version <2.0>)", "expected once"),
    "no version": ("(vnnlib-version)", r"expected \(vnnlib-version <2.0>\)"),
    "a version of its own": ("(vnnlib-version 2.0)", r"expected \(vnnlib-version <2.0>\)"),
    "a network of version 1": ("(declare-network N)", r"expected \(vnnlib-version <2.0>\) before"),
    "variables of version 2": ("(vnnlib-version <2.0>)\n" + XY, "line 2, column 2: .declare-const is of version 1.0"),
    "a network without a name": (network(X, Y, name=""), "line 2, column 2: .declare-network .* a name"),
    "a network with two names": (network("M", X, Y), "a name, then inputs and outputs"),
    "no inputs": (network(Y), "without inputs or without outputs"),
    "no outputs": (network(X), "without inputs or without outputs"),
    "a tensor twice": (network(X, X, Y), "'X' is declared twice"),
    "a tensor without a shape": (network("(declare-input X real)", Y), r"such as X float32 \[1,5\]"),
    "a tensor without a type": (network("(declare-input X [2])", Y), r"such as X float32 \[1,5\]"),
    "a tensor with more": (network("(declare-input X real [2] y)", Y), r"such as X float32 \[1,5\]"),
    "a tensor of no name": (network("(declare-input 9 real [2])", Y), "'9' was found; expected a name"),
    "a negative size": (network("(declare-input X real [-2])", Y), "'-2' in brackets; expected integers"),
    "a size of letters": (network("(declare-input X real [n])", Y), "'n' in brackets"),
    "sizes without a comma": (network("(declare-input X real [1 4])", Y), "'1 4' in brackets"),
    "a size left out": (network("(declare-input X real [1,,4])", Y), "'1,,4' in brackets"),
    "a shape not closed": (network("(declare-input X real [1,4)", Y), r"'\[' was found"),
    "too few indices": (TWO + "(assert (<= X 1))", r"line 3, column 13: 'X' was found; X has shape \[2\]"),
    "too many indices": (TWO + "(assert (<= X[0,0] 1))", r"'X\[0,0\]' was found; X has shape \[2\]"),
    "an index beyond": (TWO + "(assert (<= X[2] 1))", r"'X\[2\]' was found; X has shape \[2\]"),
    "indices of a scalar": (TWO + "(assert (<= Y[0] 1))", r"Y has shape \[\]"),
    "indices of nothing": (TWO + "(assert (<= Z[0] 1))", r"no tensor 'Z' is declared"),
    "indices of a number": (TWO + "(assert (<= 1[0] 1))", r"no tensor '1' is declared"),
    "names of version 1": (TWO + "(assert (<= X_0 1))", "'X_0' was found"),
}


@pytest.mark.parametrize(("text", "what"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused(text, what):
    with bounded(), pytest.raises(gs.FormatError, match=what) as caught:
        read_vnnlib_text(text, "my.vnnlib")
    assert re.match(r"my\.vnnlib, line \d+, column \d+: ", str(caught.value))
    assert len(str(caught.value)) < 400


LARGE = {
    "deeply nested": (GOOD + "(assert " + "(not " * 100_000 + "true" + ")" * 100_001, "nested more than 1000 deep"),
    "deeply nested terms": (GOOD + "(assert (<= " + "(- " * 100_000, "nested more than 1000 deep"),
    "a huge exponent": (asserted("(<= Y_0 1e999999999)"), "line 3, column 17: the number '1e999999999'"),
    "a huge negative exponent": (asserted("(<= X_0 1e-999999999)"), "the number '1e-999999999'"),
    "an exponent beyond floats": (asserted("(<= X_0 1e-401)"), "the number '1e-401'"),
    "an exponent of many digits": (asserted(f"(<= X_0 1e{'0' * 100_000})"), "the number '1e0+'"),
    "a million digits": (asserted(f"(<= X_0 {'9' * 1_000_000})"), "the number '9+'"),
    "a number beyond floats": (asserted("(<= X_0 1e400)"), "numbers below 2.1022"),
    "a sum beyond floats": (asserted(f"(<= (* {'1e300 ' * 4} Y_0) 1)"), "numbers below 2.1022"),
    "an end beyond floats": (asserted("(<= (* 1e-300 X_0) 1e300)"), "numbers below 2.1022"),
    "fractions that grow": (
        asserted(f"(<= (+ Y_0 {' '.join(f'(/ 1 {10**50 + 2 * n + 1})' for n in range(500))}) 1)"),
        "bits divided by",
    ),
    "products that grow": (asserted(f"(<= (* {'1e-300 ' * 40} Y_0) 1)"), "bits divided by"),
    "many conjunctions": (
        GOOD + "".join(f"(assert (or (<= Y_0 {n}) (>= Y_0 {n}.5)))" for n in range(30)),
        r"1073741824 conjunctions, more than 262144; split",
    ),
    "many conjunctions in one": (
        asserted(f"(and {' '.join(f'(or (<= Y_0 {n}) (>= Y_0 {n}.5))' for n in range(30))})"),
        r"1073741824 conjunctions, more than 262144; split",
    ),
    "many conjunctions by negation": (
        asserted(f"(not (or {' '.join(f'(and (<= Y_0 {n}) (>= Y_0 {n}.5))' for n in range(30))}))"),
        r"1073741824 conjunctions, more than 262144; split",
    ),
    "many long conjunctions": (
        GOOD + "".join(f"(assert (or (<= Y_0 {n}) (and {'(<= Y_0 1)' * 40})))" for n in range(16)),
        "millions of inequalities",
    ),
    "a huge tensor": (network("(declare-input X real [99999999])", Y), "X has 99999999 numbers; from 1 to 2097152"),
    "a huge product": (network(f"(declare-input X real [{','.join(['999999'] * 60)}])", Y), "X has 9+"),
    "an empty tensor": (network("(declare-input X real [0])", Y), "X has 0 numbers"),
    "many axes": (network(f"(declare-input X real [{','.join('1' * 100)}])", Y), "at most 64"),
    "many tensors": (
        network(*(f"(declare-input X{n} real [1000000])" for n in range(4)), Y),
        "tensors of 4000001 numbers",
    ),
    "many boxes": (
        network("(declare-input X real [1000000])", Y)
        + f"(assert (or {' '.join(f'(<= X[{n}] 1)' for n in range(40))}))",
        "boxes of 40 × 1000000",
    ),
    "large matrices": (
        network("(declare-input X real [])", "(declare-output Y real [1000000])")
        + "(assert (<= 0 X 1))"
        + "".join(f"(assert (<= Y[{n}] 1))" for n in range(40)),
        "a matrix of 40 × 1000000",
    ),
}


@pytest.mark.parametrize(("text", "what"), LARGE.values(), ids=LARGE)
def test_what_is_too_large_is_refused(text, what):
    with bounded(seconds=20, memory=128 * MEGABYTE), pytest.raises(REFUSALS, match=what) as caught:
        read_vnnlib_text(text, "my.vnnlib")
    assert re.match(r"my\.vnnlib, line \d+, column \d+: ", str(caught.value))


UNSUPPORTED = {
    "no lower bound": (XY + "(assert (<= X_0 1))", "X_0 has no lower bound; state one for every input"),
    "no upper bound in one case": (
        XY + "(assert (>= X_0 0)) (assert (or (<= X_0 1) (<= Y_0 1)))",
        "X_0 has no upper bound; state one for every input, in every case",
    ),
    "no bound on an element": (network(X, Y) + "(assert (<= 0 X[0] 1))", r"X\[1\] has no lower bound"),
    "no bound on a scalar": (network(X, "(declare-input s real [])", Y) + "(assert (<= 0 X[0] X[1] 1))", "has no"),
    "a product": (asserted("(<= (* Y_0 Y_0) 1)"), "line 3, column 14: a product of variables"),
    "a quotient": (asserted("(<= (/ 1 Y_0) 1)"), "a division by variables"),
    "an implication": (asserted("(=> (<= Y_0 1) (<= Y_0 2))"), "write it with and, or and not"),
    "a definition": (asserted("(let ((a 1)) (<= Y_0 a))"), "write out what it defines"),
    "hidden nodes": (network(X, '(declare-hidden H real [2] "h")', Y), "hidden nodes are not supported"),
    "two networks": (TWO + network(X, Y).partition("\n")[2], "several networks"),
    "equal networks": (network("(equal-to M)", X, Y), "several networks"),
    "isomorphic networks": (network("(isomorphic-to M)", X, Y), "several networks"),
    "an initializer": (network("(declare-input X real [2] initialized)", Y, version="2.1"), "of an initializer"),
    "another version": ("(vnnlib-version <3.0>)", "version <3.0> of VNN-LIB; 1.0 and 2.x are read"),
    "complex numbers": (network("(declare-input X complex64 [2])", Y), "elements of type 'complex64'"),
}


@pytest.mark.parametrize(("text", "what"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_is_not_supported_is_refused_and_the_way_out_named(text, what):
    with bounded(), pytest.raises(gs.UnsupportedError, match=what):
        read_vnnlib_text(text)


# --- limits that would take long to reach -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ((vnnlib, "MOST_WORDS"), asserted(f"(<= (+ {'Y_0 ' * 40}) 1)")),
        ((formulas, "MOST_BITS"), asserted("(<= (* 0.123457 0.456789 Y_0) 1)")),
        ((formulas, "MOST_CONJUNCTIONS"), asserted(f"(or {' '.join(f'(<= Y_0 {n})' for n in range(40))})")),
    ],
)
def test_limits_are_kept(limit, text, monkeypatch):
    assert read_vnnlib_text(text).cases
    monkeypatch.setattr(*limit, 20)
    with pytest.raises(gs.UnsupportedError):
        read_vnnlib_text(text)


def test_words_are_counted_in_each_list_by_itself(monkeypatch):
    monkeypatch.setattr(vnnlib, "MOST_WORDS", 20)
    assert read_vnnlib_text(GOOD + "(assert (<= (+ Y_0 Y_0 Y_0 Y_0) 1))" * 10).cases


@pytest.mark.parametrize(
    "formula",
    [
        "(<= " + "(* 2 " * 60 + "(+ X_0 Y_0 1)" + ")" * 60 + " 1)",
        "(<= (+ " + "Y_0 " * 2000 + ") 1)",
        "(and " * 50 + "(or " + "(<= Y_0 1)" * 50 + ")" + " true)" * 50,
        "(or " * 50 + "(or " + "(<= Y_0 1)" * 50 + ")" + " false)" * 50,
        "(and " + "(<= Y_0 1)" * 200 + ")",
    ],
)
def test_work_is_charged(formula, monkeypatch):
    monkeypatch.setattr(formulas.Algebra.__init__, "__defaults__", (100,))
    with pytest.raises(gs.UnsupportedError, match="millions of inequalities"):
        read_vnnlib_text(asserted(formula))


def test_assertions_that_are_kept_are_charged(monkeypatch):
    monkeypatch.setattr(formulas.Algebra.__init__, "__defaults__", (100,))
    assert read_vnnlib_text(GOOD + "(assert (<= Y_0 1))" * 5)
    assert read_vnnlib_text(GOOD + "(assert (<= X_0 1))" * 500)
    choice = "(assert (or (<= Y_0 1) (>= Y_0 2)))"
    assert read_vnnlib_text(GOOD + choice * 2)
    for kept in ("(assert (<= Y_0 1))" * 50, choice * 4):
        with pytest.raises(gs.UnsupportedError, match="millions of inequalities"):
            read_vnnlib_text(GOOD + kept)


# --- files ------------------------------------------------------------------------------------------------------------

FILES = {
    "not UTF-8": (b"; \xc3\xa9\n(assert \xff)", r"line 2, column 9: this byte is not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "line 1, column 1: this byte is not UTF-8"),
    "packed and cut": (gzip.compress(os.urandom(1000))[:-9], "packed by gzip, and damaged"),
    "packed and changed": (gzip.compress(GOOD.encode())[:-5] + b"12345", "packed by gzip, and damaged"),
    "packed badly": (b"\x1f\x8b" + b"a" * 100, "packed by gzip, and damaged"),
    "packed beyond measure": (gzip.compress(bytes(1 << 22)), "unpacks to more than 1048576"),
    "too large": (b" " * (MEGABYTE + 1), "has more than 1048576 bytes"),
}


@pytest.mark.parametrize(("content", "what"), FILES.values(), ids=FILES)
def test_a_damaged_file_is_refused(content, what, tmp_path):
    (tmp_path / "hostile").write_bytes(content)
    with bounded(), pytest.raises(gs.FormatError, match=what):
        read_vnnlib(tmp_path / "hostile", most_bytes=MEGABYTE)


def test_a_packed_file_is_unpacked_in_proportion_to_its_size(tmp_path):
    """Every part of it is harmless, and would be read."""
    packed = gzip.compress(GOOD.encode()) + gzip.compress(b" " * MEGABYTE) * 32
    (tmp_path / "bomb").write_bytes(packed)
    most = (1 << 22) + 64 * len(packed)
    with bounded(math.inf, 3 * most), pytest.raises(gs.FormatError) as caught:
        read_vnnlib(tmp_path / "bomb")
    message = f"{tmp_path}/bomb has {len(packed)} bytes and unpacks to more than {most}; unpack it with gunzip"
    assert str(caught.value) == message
    (tmp_path / "unpacked").write_bytes(gzip.decompress(packed))
    assert read_vnnlib(tmp_path / "unpacked").cases


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(gs.FormatError, match="not a regular file"):
        read_vnnlib(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_vnnlib(tmp_path / "nothing")


# --- at random --------------------------------------------------------------------------------------------------------


def message_of(reading, what):
    """What the error says that refuses it; empty if it is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.FormatWarning)
        try:
            assert isinstance(reading(what), Property)
        except REFUSALS as error:
            return str(error)
    return ""


def assert_read_or_refused(text):
    message = message_of(read_vnnlib_text, text)
    assert not message or re.match(r"VNN-LIB, line \d+, column \d+: ", message)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.vnnlib"
    path.write_bytes(content)
    assert message_of(read_vnnlib, path).startswith(str(path))


PIECES = re.findall(r"\s+|[()]|[^\s()]+", " ".join((BOXED, NETWORK, *TEXTS.values())))
WORDS = sorted({*PIECES, "1e999", "nan", "[0]", '"', ";", "\0", "-", "X_1[0]", "<3.0>", "(let", "declare-hidden"})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*TEXTS.values()]), st.data())
def test_damaged_texts_are_read_or_refused(text, data):
    pieces = re.findall(r"\s+|[()]|[^\s()]+", text)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        to = data.draw(st.integers(at, min(at + 8, len(pieces))))
        pieces[at:to] = data.draw(st.lists(st.sampled_from(WORDS), max_size=3))
        pieces = pieces or [" "]
    assert_read_or_refused("".join(pieces))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_words_at_random_are_read_or_refused(words):
    assert_read_or_refused(GOOD + "(assert " + " ".join(words))

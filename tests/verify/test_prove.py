"""Proofs are of true statements, counterexamples are ones, and every way to split finds what is there."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import gradspec as gs
from gradspec.verify import Property, check, prove, robust
from gradspec.verify.attack import Attack
from gradspec.verify.bounding import Bounder
from gradspec.verify.branching import InputPart, InputSplitting, LargeInputSplitting, SignPart, SignSplitting, split_box
from gradspec.verify.certificate import Tree
from gradspec.verify.prove import _is_exactly_unsafe, _is_surely_unsafe, flatten_graph, make_goal
from patience import PATIENCE

RANDOM = np.random.default_rng(0)


def matrix(*shape):
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def dense(inputs, hidden):
    w1, w2, w3 = matrix(hidden, inputs), matrix(hidden, hidden), matrix(2, hidden)
    return gs.trace(lambda x: gs.linear(gs.relu(gs.linear(gs.relu(gs.linear(x, w1)), w2)), w3), gs.f32[inputs])


def convolutional():
    w1, w2 = matrix(4, 1, 3, 3), matrix(3, 36)

    def function(x):
        x = gs.max_pool2d(gs.relu(gs.conv2d(x, w1, padding=1)), 3, stride=2, padding=1)
        return gs.linear(gs.flatten(x, 1), w2)

    return gs.trace(function, gs.f32[1, 1, 6, 6])


FEW, MANY, CONVOLUTIONAL = dense(3, 12), dense(16, 20), convolutional()


def reached(graph, low, high, row, count=2000):
    """The least that ``row`` was seen to be over the box."""
    n = graph.inputs[0].shape
    points = np.random.default_rng(1).uniform(low, high, (count, *n)).astype(np.float32)
    outputs = graph.batch(count)(points).reshape(count, -1)
    return float((outputs @ row).min())


@pytest.mark.parametrize("graph", [FEW, MANY, CONVOLUTIONAL], ids=["few inputs", "many inputs", "convolution"])
@pytest.mark.parametrize("slack", [0.05, 0.5])
def test_bounds_below_what_is_reached_are_proved_and_bounds_above_refuted(graph, slack):
    shape, size = graph.inputs[0].shape, graph.outputs[0].type.size
    low, high = np.full(shape, -0.25, np.float32), np.full(shape, 0.25, np.float32)
    row = np.eye(size)[0]
    least = reached(graph, low, high, row)
    refuted = prove(graph, Property.always(low, high, [-row], [-(least + slack)]), timeout=PATIENCE)
    assert refuted.status == "refuted"
    (x,) = refuted.witness
    exact = gs.evaluate(graph, x, domain=gs.exact).cells[0]
    assert Fraction(int(exact.p), int(exact.q)) < Fraction(least + slack)
    far = prove(graph, Property.always(low, high, [-row], [-(least - 10)]), timeout=PATIENCE)
    assert far.status == "proved"
    assert far.margin > 0


def hat():
    """1 at 0, falling to 0 at ±1: three relus whose lines cancel only where their signs are known."""
    w1, b1, w2 = np.float32([[1], [1], [1]]), np.float32([1, 0, -1]), np.float32([[1, -2, 1]])
    return gs.trace(lambda x: gs.linear(gs.relu(gs.linear(x, w1, b1)), w2), gs.f32[1])


@pytest.mark.parametrize("few", [12, 0], ids=["boxes of inputs", "signs"])
def test_what_lines_alone_cannot_prove_is_split(monkeypatch, few):
    monkeypatch.setitem(prove.__globals__, "FEW_INPUTS", few)
    result = prove(hat(), Property.always([-2], [2], [[1]], ["1.1"]))
    assert result.status == "proved"
    assert result.parts > 1
    assert result.margin > 0


def test_inequalities_are_refuted_together():
    """The sum of the cells is not at most 1 and at least 2; no sign of a cell shows that of one inequality alone."""
    g = gs.trace(lambda x: gs.sum(gs.relu(x * 1.0)) * np.float32([1, -10]), gs.f32[14])
    box = -np.ones(14), np.ones(14)
    never = Property.never(*box, C=np.eye(2), b=[1, -20])
    result = prove(g, never, timeout=PATIENCE)
    assert (result.status, result.parts) == ("proved", 2)
    assert check(result.certificate, g, never)
    assert prove(g, Property.never(*box, C=np.eye(2), b=[2, -10]), timeout=PATIENCE).status == "refuted"


def test_where_there_is_nothing_to_split_nothing_is_known():
    """A bound that is above what is reached by less than rounding."""
    g = gs.trace(lambda x: gs.linear(x, np.full((1, 14), 0.1, np.float32)), gs.f32[14])
    above = 14 * Fraction(float(np.float32(0.1))) * (1 + Fraction(1, 10**7))
    assert prove(g, Property.always(-np.ones(14), np.ones(14), C=[[1]], b=[str(above)])).status == "unknown"


def test_the_cell_that_is_split_is_that_whose_halves_are_bounded_best():
    random = np.random.default_rng(0)
    w1, w2 = random.normal(size=(12, 14)).astype(np.float32), random.normal(size=(1, 12)).astype(np.float32)
    g = flatten_graph(gs.trace(lambda x: gs.linear(gs.relu(gs.linear(x, w1)), w2), gs.f32[14]), False)
    box = [-np.ones(14, np.float32), np.ones(14, np.float32)]
    bounder = Bounder(g, 1, "any")
    known = bounder.tighten(box, bounder.unknown())
    (case,) = Property.always(*box, C=[[1]], b=[5]).cases
    splitting = SignSplitting(bounder, make_goal(bounder, box, case.unsafe, g), box, known)
    found = splitting.bound_parts([SignPart(0)], 30)
    (side,), start = found.sides, found.free.at(0)

    def gain(cell):
        halves = [SignPart(0, (replace(side, cell=cell, above=above),), start=start) for above in (False, True)]
        gains = np.minimum(splitting.bound_parts(halves, 0).margins, 0) - found.margins[0]
        return gains.min() + 0.1 * gains.max()

    assert found.margins[0] < 0
    gains = [gain(cell) for cell in range(12)]
    assert gains[side.cell] > 0.95 * max(gains) > 1.5 * sorted(gains)[6] > 0


def test_a_limit_of_no_time_is_kept():
    result = prove(MANY, Property.always([-1] * 16, [1] * 16, [[1, 0]], [0]), timeout=0)
    assert result.status == "unknown"


def test_time_is_looked_at_in_every_pass_of_bounds():
    """Those of a large layer take minutes; what was left early is as it was before."""
    found, left = Bounder(MANY, 1, "any"), iter(range(2))
    ends = [np.full(16, end, np.float32) for end in (-1, 1)]

    def tighten_often():
        for _ in range(3):
            found.tighten(ends, found.unknown())

    with pytest.raises(StopIteration), found.checking(lambda: next(left)):
        tighten_often()
    found.tighten(ends, found.unknown())


def test_properties_of_other_networks_are_refused():
    with pytest.raises(gs.ShapeError, match="4 inputs and the graph 3"):
        prove(FEW, Property.always([0] * 4, [1] * 4, [[1, 0]], [0]))


def test_robustness_of_a_classifier():
    graph = gs.trace(lambda x: gs.linear(x, np.float32([[1, 0], [0, 1]])), gs.f32[2])
    assert robust(graph, [0.25, 0.75], "0.2", 1).status == "proved"
    assert robust(graph, [0.25, 0.75], "0.25", 1).status == "refuted"  # a tie


def test_a_point_between_floats_is_decided_exactly():
    """1/10 is no float32: the box of floats around it is wider, and its counterexample is 1/10 itself."""
    graph = gs.trace(lambda x: x * 1.0, gs.f32[1])
    assert prove(graph, Property.always(["1/10"], ["1/10"], [[1]], ["0.11"])).status == "proved"
    assert prove(graph, Property.always(["1/10"], ["1/10"], [[1]], ["0.09"])).status == "refuted"


def test_a_misspelt_statement_is_refused():
    """Anything but "any" must not quietly mean the weaker "real"."""
    with pytest.raises(ValueError, match="kernels='every' is not known"):
        prove(FEW, Property.always([0] * 3, [1] * 3, np.zeros((0, 2)), []), kernels="every")


@pytest.mark.parametrize("graph", [FEW, MANY], ids=["few inputs", "many inputs"])
def test_nothing_unsafe_is_proved_and_everything_unsafe_refuted(graph):
    n = graph.inputs[0].type.size
    assert prove(graph, Property.always([0] * n, [1] * n, np.zeros((0, 2)), [])).status == "proved"
    assert prove(graph, Property.never([0] * n, [1] * n, np.zeros((0, 2)), [])).status == "refuted"


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f64], ids=str)
def test_networks_of_every_format(dtype):
    w = np.ones((1, 2), dtype.numpy)
    graph = gs.trace(lambda x: gs.relu(gs.linear(x, w)), dtype[2])
    assert prove(graph, Property.always([0, 0], ["1/10", 1], [[1]], ["1.2"])).status == "proved"
    assert prove(graph, Property.always([0, 0], ["1/10", 1], [[1]], ["0.9"])).status == "refuted"


def test_every_case_is_attacked(monkeypatch):
    """The first case is proved; the second has a counterexample at its end, and the third bounds another sum."""
    safe, unsafe = (Property.always([0], [high], [[1]], ["0.99"]) for high in ("1/2", 1))
    graph = gs.trace(lambda x: gs.relu(x) - gs.relu(x - 2.0), gs.f32[1])
    monkeypatch.setitem(prove.__globals__, "MOST_PARTS", 0)  # what the attack does not find, splitting may not
    other = Property.always([0], [2], [[-1]], ["0.5"])
    for cases in ((*safe.cases, *unsafe.cases, *other.cases), (*other.cases, *unsafe.cases)):
        assert prove(graph, replace(safe, cases=cases)).status == "refuted"


@pytest.mark.parametrize("kind", [Property.always, Property.never], ids=["always", "never"])
def test_cases_that_are_alike_are_decided_as_each_alone(kind):
    """Pieces of a box, each with a bound of its own that its samples keep, or fail, by a little."""
    cuts, row = np.linspace(-1, 1, 8), np.float32([1.0, -0.5])
    boxes = [(np.float32([low, -0.5, -0.25]), np.float32([high, 0.5, 0.25])) for low, high in pairwise(cuts)]
    sign = 1.0 if kind == Property.always else -1.0
    least = [-reached(FEW, *box, -sign * row) for box in boxes]
    pieces = [kind(*box, [row], [sign * (top + 0.4)]) for box, top in zip(boxes, least, strict=True)]
    whole = replace(pieces[0], cases=tuple(piece.cases[0] for piece in pieces))
    result = prove(FEW, whole, timeout=PATIENCE)
    assert result.status == "proved"
    assert len(result.certificate.cases) == len(pieces)
    assert gs.verify.check(result.certificate, FEW, whole)
    alone = tuple(prove(FEW, piece, timeout=PATIENCE).certificate.cases[0] for piece in pieces)
    assert gs.verify.check(replace(result.certificate, cases=alone), FEW, whole)
    leaf = replace(alone[0], axis=np.int32([-1]), cut=np.zeros(1))  # as good for all that are proved undivided alone
    for number, tree in enumerate(alone):
        merged = replace(result.certificate, cases=(*alone[:number], leaf, *alone[number + 1 :]))
        assert bool(gs.verify.check(merged, FEW, whole)) == (len(tree.axis) == 1)
    for number in (0, 3, len(pieces) - 1):
        broken = kind(*boxes[number], [row], [sign * (least[number] - 0.05)]).cases[0]
        changed = replace(whole, cases=(*whole.cases[:number], broken, *whole.cases[number + 1 :]))
        refuted = prove(FEW, changed, timeout=PATIENCE)
        assert refuted.status == "refuted"
        assert broken.box.contains(broken.box.nearest(refuted.witness[0]))


@pytest.mark.parametrize("graph", [FEW, CONVOLUTIONAL], ids=["few inputs", "convolution"])
def test_an_attack_stays_in_the_box_that_it_names_and_measures_its_point(graph):
    flat, n = flatten_graph(graph, False), graph.inputs[0].type.size
    random, size = np.random.default_rng(2), graph.outputs[0].type.size
    lower = random.uniform(-1, 1, (5, n)).astype(np.float32)
    upper = (lower + random.uniform(0, 0.5, (5, n))).astype(np.float32)
    ends = [[end.reshape(5, *graph.inputs[0].shape)] for end in (lower, upper)]
    matrices = [random.standard_normal((rows, size)) for rows in (1, 3)]
    bounds = [random.uniform(-2, -1, (5, rows)) for rows in (1, 3)]
    for _ in range(8):
        box, (point,), distance = Attack(flat).nearest(*ends, matrices, bounds, random)
        assert np.all((ends[0][0][box] <= point) & (point <= ends[1][0][box]))
        outputs = np.ravel(graph(point))
        far = [float(np.max(C @ outputs - b[box])) for C, b in zip(matrices, bounds, strict=True)]
        assert distance == pytest.approx(min(far, key=lambda f: abs(f - distance)), abs=1e-5)


def test_parts_are_bounded_together_as_each_alone():
    """Groups of rows of many boxes share a run; each must keep to its own box."""
    case, random = Property.always([-1] * 3, [1] * 3, [[1, 0], [0.5, -1]], [1, 1]), np.random.default_rng(3)
    (bounded,) = case.cases
    found = Bounder(flatten_graph(FEW, False), 1, "any")
    ends = [np.full(3, end, np.float32) for end in (-1, 1)]
    goal = make_goal(found, ends, bounded.unsafe, found.graph)
    splitting = InputSplitting(found, goal, np.stack([goal.least, goal.least + 1]))
    lows = random.uniform(-1, 1, (90, 3)).astype(np.float32)
    sizes = random.choice(np.float32([0.01, 0.1, 1]), (90, 1))
    parts = [InputPart(i % 2, low, low + size) for i, (low, size) in enumerate(zip(lows, sizes, strict=True))]
    _, margins, axes = splitting.bound_parts(parts)
    each = [splitting.bound_parts([part]) for part in parts]
    assert np.allclose(margins, np.concatenate([margin for _, margin, _ in each]), rtol=1e-5, atol=1e-5)
    assert np.array_equal(axes, np.concatenate([axis for _, _, axis in each]))
    large = LargeInputSplitting(found, goal, np.stack([goal.least, goal.least + 1]))
    alone = [large.bound_parts([part]) for part in parts]
    assert np.allclose(margins, np.concatenate([margin for _, margin, _ in alone]), rtol=1e-5, atol=1e-5)
    for part, margin in zip(parts, margins, strict=True):
        points = random.uniform(part.lower, part.upper, (200, 3)).astype(np.float32)
        above = FEW.batch(200)(points) @ goal.rows.T - goal.least - part.case
        assert margin <= min(np.min(np.max(above[:, rows], axis=1)) for rows in goal.conjunctions)


def test_halves_of_a_box_keep_what_is_known_of_it(monkeypatch):
    """What a box says of inner cells holds in its halves, so these take fewer rows, and no worse bounds."""
    (bounded,) = Property.always([-1] * 3, [1] * 3, [[1, 0], [0.5, -1]], [1, 1]).cases
    found, rows = Bounder(flatten_graph(FEW, False), 1, "any"), []
    monkeypatch.setattr(Bounder, "lower", lambda *given, of=Bounder.lower: rows.extend(given[5:]) or of(*given))
    ends = [np.full(3, end, np.float32) for end in (0.2, 0.8)]
    goal = make_goal(found, ends, bounded.unsafe, found.graph)
    large, whole = LargeInputSplitting(found, goal, goal.least[None]), InputPart(0, *ends)
    (part,), (margin,), (axis,) = large.bound_parts([whole])
    for half in split_box(part, int(axis), Tree()):
        rows.clear()
        _, (inherited,), _ = large.bound_parts([half])
        few = sum(map(len, rows))
        rows.clear()
        _, (anew,), _ = large.bound_parts([replace(half, known=None)])
        assert inherited >= max(margin, anew) - 1e-5
        assert few < sum(map(len, rows))


def test_bounds_at_a_point_never_take_it_for_a_counterexample_where_it_is_none(monkeypatch):
    """They decide what is clear without rational numbers, and leave to these what is within their own rounding."""
    random = np.random.default_rng(4)
    found, row = Bounder(flatten_graph(FEW, False), 1, "any"), [Fraction(1), Fraction(-1, 3)]
    for _ in range(10):
        x = tuple(Fraction(int(n), 1000) for n in random.integers(-999, 999, 3))
        y = gs.evaluate(FEW, np.array(x, object), domain=gs.exact).cells
        value = sum(c * Fraction(int(cell.p), int(cell.q)) for c, cell in zip(row, y, strict=True))
        for off in (-1, Fraction(-1, 10**6), -Fraction(1, 2**200), 0, Fraction(1, 10**6), 1):
            (case,) = Property.never(x, x, [row], [value + off]).cases
            surely = _is_surely_unsafe(found, case, x)
            assert not surely or off >= 0
            assert surely or off < Fraction(1, 10**6)
    monkeypatch.setitem(prove.__globals__, "evaluate", None)
    assert prove(FEW, Property.always([-1] * 3, [1] * 3, [[1, 0]], [-1]), timeout=PATIENCE).status == "refuted"


def binarized():
    """Signs of sums, as ONNX has them, which have no slopes, and a softmax at the end that has next to none."""
    w1, w2, w3 = (RANDOM.choice(np.float32([-1, 1]), shape) for shape in ((40, 60), (40, 40), (3, 40)))

    def sign(x):
        ones = [gs.convert(gs.greater(*pair), gs.f32) for pair in ((x, 0.0), (0.0, x))]
        return gs.where(gs.equal(x, x), ones[0] - ones[1], gs.detach(x))

    return gs.trace(lambda x: gs.softmax(gs.linear(sign(gs.linear(sign(gs.linear(x, w1)), w2)), w3)), gs.f32[60])


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_attacked_by_slopes_that_stand_for_theirs(seed):
    """Every other label of a network of signs is found near enough, where random points of the box find few or none."""
    graph, x = binarized(), np.random.default_rng(seed).integers(0, 256, 60)
    label = int(np.argmax(graph(x.astype(np.float32))))
    for other in {0, 1, 2} - {label}:
        row = np.eye(3)[label] - np.eye(3)[other]
        result = prove(graph, Property.never(x - 90, x + 90, [row], [0]), timeout=PATIENCE)
        assert result.status == "refuted"
        outputs = graph(result.witness[0])
        assert outputs[other] >= outputs[label]


def test_counts_are_bounded_and_attacked():
    graph = gs.trace(lambda x: gs.sum(gs.convert(gs.greater(x, 0.0), gs.i64), keepdims=True), gs.f32[20])
    ends = [-1] * 20, [1] * 20
    assert prove(graph, Property.always(*ends, [[1]], [20.5]), timeout=PATIENCE).status == "proved"
    assert prove(graph, Property.always(*ends, [[1]], [12]), timeout=PATIENCE).status == "refuted"


def test_a_counterexample_that_no_arithmetic_decides_is_none(monkeypatch):
    """A comparison of what is computed to the last bit, by balls: no answer is given, and no error."""
    graph = gs.trace(lambda x: gs.where(gs.greater(gs.exp(gs.log(x)), x), 1.0 + x * 0.0, 0.0 + x * 0.0), gs.f32[1])
    (case,) = Property.never([1], [4], [[1]], [0.5]).cases
    assert not _is_exactly_unsafe(graph, case, [Fraction(3)])
    assert _is_exactly_unsafe(gs.trace(gs.log, gs.f32[1]), case, [Fraction(3, 2)])
    monkeypatch.setitem(prove.__globals__, "MOST_EXACT", 0)
    assert not _is_exactly_unsafe(gs.trace(gs.log, gs.f32[1]), case, [Fraction(3, 2)])


def test_boxes_of_inputs_are_split_only_where_all_rows_fit():
    """Few pixels of a large plane: bounds of all its cells for each of many parts would take gigabytes."""
    w = matrix(8, 1, 3, 3)
    large = gs.trace(
        lambda x: gs.sum(gs.relu(gs.conv2d(gs.relu(gs.conv2d(x, w)), matrix(8, 8, 3, 3)))), gs.f32[1, 40, 40]
    )
    assert not InputSplitting.fits(Bounder(large, 1, "any"))
    assert InputSplitting.fits(Bounder(FEW, 1, "any"))

"""Proving a property of a graph, or refuting it: lines, attack, then branch and bound, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gradspec.domains import ball, exact
from gradspec.graph.family import require_graph
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import f64
from gradspec.ops.box import BoundArithmetic
from gradspec.ops.convert import convert
from gradspec.ops.layout import concat
from gradspec.ops.shape import reshape
from gradspec.runtime.compiled import compile
from gradspec.runtime.evaluate import evaluate
from gradspec.spec import scalar
from gradspec.spec.errors import AmbiguityError, ShapeError, UnsupportedError
from gradspec.transforms.boxes import boxes, most_roundings, own_dtype
from gradspec.transforms.copy import inline
from gradspec.transforms.trace import trace
from gradspec.verify.attack import Attack
from gradspec.verify.bounding import Bounder, unflatten
from gradspec.verify.bounds import bounder, require_kernels
from gradspec.verify.branching import (
    MOST_PARTS,
    InputPart,
    InputSplitting,
    LargeInputSplitting,
    ProofGoal,
    Queue,
    SignPart,
    SignSplitting,
    split_box,
)
from gradspec.verify.certificate import (
    Certificate,
    InputTree,
    RefinedRow,
    SignTree,
    Tree,
    input_tree,
    network_digest,
    property_digest,
    sign_tree,
)
from gradspec.verify.property import Conjunction, Inequality, InputBox, Property, PropertyCase, fractions, size_of
from gradspec.verify.slopes import Refining

FEW_INPUTS, FEW_OF_LARGE = 12, 16
"""Up to so many inputs that vary, boxes of inputs are split; with more, signs of inner variables."""

FIRST_STEPS, STEPS = 30, 6
"""How often free slopes are improved for the whole, and for a part of it."""

REFINING_SHARE = 0.1
"""The share of the time that is left for slopes of inner layers, where lines alone prove nothing."""

MOST_EXACT = 2**22
"""Products and sums of a network that is run in exact numbers, which takes some seconds."""

ATTACKS, ATTACK_SHARE = 4, 0.1
"""Rounds of attack where lines alone prove nothing, and the share of the time that further ones may take."""


@dataclass(frozen=True)
class ProofProgress:
    """The state of a search: parts proved and parts waiting, and the worst margin."""

    proved: int
    waiting: int
    margin: float


Report = Callable[[ProofProgress], None]
BounderOf = Callable[[Graph, int], Bounder]
Settled = tuple[str, float, tuple[Array, ...] | None]
"""A status, the least margin, and a witness of what is refuted."""


@dataclass(frozen=True)
class Result:
    """``status`` is "proved", "refuted" (with a witness: the inputs of a counterexample) or "unknown"."""

    status: str
    witness: tuple[Array, ...] | None = None
    margin: float = -np.inf
    """How far the least proved part is above its goal; not positive, unless everything is proved."""
    kernels: str = "any"
    parts: int = 1
    seconds: float = 0.0
    certificate: Certificate | None = field(default=None, repr=False)
    """What ``gs.verify.check`` checks, if it is proved; None also of a proof that would take too much memory."""

    def __str__(self) -> str:
        of = "any kernel" if self.kernels == "any" else "the real network"
        said = {
            "proved": f"proved of {of}",
            "refuted": "refuted by a counterexample",
            "unknown": "neither proved nor refuted",
        }
        return f"{said[self.status]}, in {self.parts} part{'s' * (self.parts != 1)} and {self.seconds:.1f} s"


class OutOfTimeError(Exception):
    """The time limit was reached."""


def prove(
    graph: Graph,
    property: Property,
    *,
    timeout: float = 60.0,
    kernels: str = "any",
    seed: int = 0,
    report: Report | None = None,
    device: str = "cpu",
) -> Result:
    """Prove that no input of the property's boxes is unsafe, or find one that is.

    With ``kernels="any"`` a proof holds for whatever conforming kernels compute on inputs of the graph's dtype. A
    counterexample is checked as the compiled kernels run it and, by bounds or in rational numbers, of the reals.
    ``device="cuda"`` computes the bounds by PyTorch on a GPU.

    >>> import gradspec as gs
    >>> import numpy as np
    >>> g = gs.trace(lambda x: gs.relu(x) - 2.0 * gs.relu(x - 1.0), gs.f32[1])
    >>> prove(g, Property.always([0], [2], C=[[1]], b=["1.1"])).status
    'proved'
    >>> prove(g, Property.always([0], [2], C=[[1]], b=["0.9"])).status
    'refuted'
    """
    begun = time.monotonic()
    require_graph("prove", graph)
    require_kernels(kernels)
    _fits(graph, property)
    make_bounder = partial(bounder, kernels=kernels, device=device)
    search = _Search(graph, property, make_bounder, begun + timeout, seed, report)
    margin, status, witness = np.inf, "proved", None
    for numbers in _group_cases(property.cases):
        status, found, witness = search.decide(numbers)
        margin = min(margin, found)
        if status != "proved":
            break
    trees = [search.trees[number] for number in range(len(property.cases))] if status == "proved" else [None]
    certificate = _certificate(graph, property, kernels, trees)
    return Result(status, witness, margin, kernels, search.parts, time.monotonic() - begun, certificate)


def _certificate(
    graph: Graph, property: Property, kernels: str, trees: Sequence[InputTree | SignTree | None]
) -> Certificate | None:
    found = tuple(tree for tree in trees if tree is not None)
    if len(found) < len(trees):
        return None
    return Certificate(kernels, network_digest(graph), property_digest(property), found)


def _group_cases(cases: Sequence[PropertyCase]) -> list[list[int]]:
    """The numbers of cases, together where their unsafe sets differ in nothing but the bounds of inequalities."""
    groups: dict[Any, list[int]] = {}
    for number, case in enumerate(cases):
        rows = tuple(tuple((row.outputs, row.inputs) for row in of.inequalities) for of in case.unsafe)
        groups.setdefault(rows, []).append(number)
    return list(groups.values())


def robust(
    graph: Graph, x: Any, eps: Any, label: int, *, timeout: float = 60.0, kernels: str = "any", device: str = "cpu",
    **pixels: Any,
) -> Result:  # fmt: skip
    """Whether a classifier gives ``label`` for every image whose pixels differ from those of ``x`` by at most ``eps``.

    ``pixels`` are ``mean``, ``std``, ``clip`` and ``axis``, as ``Property.robust`` takes them.

    >>> import gradspec as gs
    >>> import numpy as np
    >>> g = gs.trace(lambda x: gs.linear(x, np.float32([[1, 0], [0, 1]])), gs.f32[2])
    >>> robust(g, [0.25, 0.75], "0.2", 1).status, robust(g, [0.25, 0.75], "0.3", 1).status
    ('proved', 'refuted')
    """
    require_graph("robust", graph)
    classes = graph.outputs[0].type.size
    property = Property.robust(x, eps, label, classes, **pixels)
    return prove(graph, property, timeout=timeout, kernels=kernels, device=device)


def _fits(graph: Graph, property: Property) -> None:
    for role, variables, ports in (
        ("input", graph.inputs, property.inputs),
        ("output", graph.outputs, property.outputs),
    ):
        count = sum(v.type.size for v in variables)
        if count != size_of(ports):
            raise ShapeError(
                f"the property has {size_of(ports)} {role}s and the graph {count} ({', '.join(map(repr, variables))}); "
                "give a property of this graph"
            )
    for var in graph.inputs:
        if not var.type.is_float:
            raise ShapeError(f"{var!r} is not a float, so a property cannot bound it; make it a constant first")


class _Search:
    def __init__(
        self, graph: Graph, property: Property, bounder: BounderOf, deadline: float, seed: int, report: Report | None
    ) -> None:
        self._graph, self._property, self._bounder = graph, property, bounder
        self._deadline, self._report = deadline, report
        self._random, self._begun, self._attacked = np.random.default_rng(seed), time.monotonic(), 0.0
        self.parts = 0
        self.trees: dict[int, InputTree | SignTree | None] = {}
        """For each case that is proved, by number, how."""

    def decide(self, numbers: Sequence[int]) -> Settled:
        """The status of cases that are alike, their least margin, and a witness if one is refuted."""
        cases = [self._property.cases[number] for number in numbers]
        if not cases[0].unsafe:
            self.trees |= {number: sign_tree([], []) for number in numbers}
            return "proved", np.inf, None
        try:
            self._check_time()
            if not all(conjunction.inequalities for conjunction in cases[0].unsafe):  # every point of the box is unsafe
                point = tuple(low for low, _ in self._inner(cases[0]))
                is_witness = self._is_witness(point, cases[0], None)
                return ("refuted", -np.inf, point) if is_witness else ("unknown", -np.inf, None)
            return self._prove_cases(numbers, cases)
        except OutOfTimeError:
            return "unknown", -np.inf, None

    # --- attack -------------------------------------------------------------------------------------------------------

    def _attack(self, aim: _Aim, rounds: int, parts: Sequence[InputPart] = ()) -> tuple[Array, ...] | None:
        """A witness, if some rounds of attack find one: in the whole boxes, or in parts of them."""
        begun = time.monotonic()
        of = [part.case for part in parts] or list(range(len(aim.cases)))
        lower, upper, bounds = ([array[of] for array in arrays] for arrays in (aim.lower, aim.upper, aim.bounds))
        for flat, name in ((lower, "lower"), (upper, "upper")) if parts else ():
            cut = unflatten(np.stack([getattr(part, name) for part in parts]), self._graph.inputs)
            flat[:] = [np.clip(a.astype(low.dtype), low, high) for a, low, high in zip(cut, lower, upper, strict=True)]
        for _ in range(rounds):
            self._check_time()
            box, point, distance = aim.attack.nearest(lower, upper, aim.matrices, bounds, self._random)
            if distance <= 0 and self._is_witness(point, aim.cases[of[box]], aim.bounder):
                return tuple(point)
        self._attacked += time.monotonic() - begun
        return None

    def _attack_again(self, aim: _Aim, parts: Sequence[InputPart] = ()) -> tuple[Array, ...] | None:
        """A witness, if another round of attack finds one; there is one as soon as its share of the time allows it."""
        is_due = self._attacked < ATTACK_SHARE * (time.monotonic() - self._begun)
        return self._attack(aim, 1, parts) if is_due else None

    def _is_witness(self, point: Sequence[Array], case: PropertyCase, bounder: Bounder | None) -> bool:
        """Whether the compiled kernels and, at the nearest point of an exact box, the specification both say so.

        What the specification gives lies between bounds at the point, which take less work than rational numbers.
        """
        computed, alone = self._graph(*point), replace(self._property, cases=(case,))
        outputs = computed if isinstance(computed, tuple) else (computed,)
        flat, values = (np.concatenate([a.reshape(-1) for a in arrays]) for arrays in (point, outputs))
        if not np.isfinite(values.astype(np.float64)).all():  # it overflowed, which refutes nothing about real numbers
            return False
        x = case.box.nearest(flat)
        if not alone.is_counterexample(x, values):
            return False
        surely = bounder is not None and _is_surely_unsafe(bounder, case, x)
        return surely or _is_exactly_unsafe(self._graph, case, x)

    # --- proof --------------------------------------------------------------------------------------------------------

    def _prove_cases(self, numbers: Sequence[int], cases: Sequence[PropertyCase]) -> Settled:
        graph = flatten_graph(self._graph, any(conjunction.names_inputs for conjunction in cases[0].unsafe))
        found = self._bounder(graph, len(graph.inputs))
        with found.checking(self._check_time):
            own = found.arithmetic.dtype.numpy  # no narrower than the inputs are
            boxes = [[end.astype(own) for ends in self._shape_box(case.box.outer) for end in ends] for case in cases]
            moving = max(sum(int(np.sum(b > a)) for a, b in zip(of[::2], of[1::2], strict=True)) for of in boxes)
            splits = InputSplitting if InputSplitting.fits(found) else LargeInputSplitting
            if moving <= (FEW_INPUTS if splits is InputSplitting else FEW_OF_LARGE):
                return self._branch_on_inputs(splits, found, numbers, cases, boxes)
            least = np.inf
            for number, case, inputs in zip(numbers, cases, boxes, strict=True):
                status, margin, witness = self._branch_on_activations(found, number, case, inputs)
                least = min(least, margin)
                if status != "proved":
                    return status, margin, witness
            return "proved", least, None

    def _aim(self, bounder: Bounder, cases: Sequence[PropertyCase]) -> _Aim:
        graph = bounder.graph
        attack = _attacks.get_or_make(id(graph), lambda: Attack(graph))
        boxes, every = [self._inner(case) for case in cases], range(len(self._graph.inputs))
        lower, upper = ([np.stack([box[i][end] for box in boxes]) for i in every] for end in (0, 1))
        matrices = [_matrix(conjunction, graph) for conjunction in cases[0].unsafe]
        bounds = [np.stack([case.unsafe[i].b for case in cases]) for i in range(len(matrices))]
        return _Aim(attack, bounder, cases, lower, upper, matrices, bounds)

    def _branch_on_inputs(
        self,
        splits: type[InputSplitting | LargeInputSplitting],
        bounder: Bounder,
        numbers: Sequence[int],
        cases: Sequence[PropertyCase],
        boxes: Sequence[Sequence[Array]],
    ) -> Settled:
        aim = self._aim(bounder, cases)
        if (witness := self._attack(aim, ATTACKS)) is not None:
            return "refuted", -np.inf, witness
        goals = [make_goal(bounder, of, case.unsafe, bounder.graph) for of, case in zip(boxes, cases, strict=True)]
        splitting = splits(bounder, goals[0], np.stack([goal.least for goal in goals]))
        queue, proved, least, trees = Queue(), 0, np.inf, [Tree() for _ in cases]
        flat = [[np.concatenate([a.reshape(-1) for a in of[end::2]]) for end in (0, 1)] for of in boxes]
        roots = [InputPart(case, low, high) for case, (low, high) in enumerate(flat)]
        while roots or len(queue):
            self._check_time()
            if not roots:
                taken = queue.pop(max(1, splitting.most // 2))
                roots = [half for part, axis in taken for half in split_box(part, axis, trees[part.case])]
            parts, margins, axes = splitting.bound_parts(roots[: splitting.most])
            roots = roots[splitting.most :]
            self.parts += len(parts)
            for part, margin, axis in zip(parts, margins, axes, strict=True):
                if margin > 0:
                    proved, least = proved + 1, min(least, float(margin))
                else:
                    known = part.known if len(queue) < splitting.most_known else None
                    queue.push(margin, (replace(part, known=known), int(axis)))
            self._report_progress(proved, queue)
            waiting = [parts[i] for i in np.argsort(margins, kind="stable") if not margins[i] > 0]
            witness = self._attack_again(aim, waiting) if waiting else None
            if witness is not None:
                return "refuted", -np.inf, witness
            if len(queue) > MOST_PARTS:
                return "unknown", queue.margin, None
        self.trees |= {number: input_tree(tree) for number, tree in zip(numbers, trees, strict=True)}
        return "proved", float(least), None

    def _branch_on_activations(
        self, bounder: Bounder, number: int, case: PropertyCase, inputs: Sequence[Array]
    ) -> Settled:
        goal, aim = make_goal(bounder, inputs, case.unsafe, bounder.graph), self._aim(bounder, [case])
        self._check_time()
        witness = self._attack(aim, 1)
        if witness is not None:
            return "refuted", -np.inf, witness
        known = bounder.tighten(inputs, bounder.unknown())
        lower = bounder.lower(inputs, known, bounder.graph.outputs[0], goal.rows)
        self.parts += 1
        first, margin = goal.proved_rows(lower), float(goal.margins(lower))
        if margin > 0:
            self.trees[number] = sign_tree(first, [])
            return "proved", margin, None
        witness = self._attack(aim, ATTACKS - 1)
        if witness is not None:
            return "refuted", -np.inf, witness
        self._check_time()
        until = time.monotonic() + REFINING_SHARE * (self._deadline - time.monotonic())
        refining = Refining(bounder, inputs, lambda: time.monotonic() > until)
        refined = refining.bounds()
        if refining.rows:
            known, lower = refined, bounder.lower(inputs, refined, bounder.graph.outputs[0], goal.rows)
            first, margin = goal.proved_rows(lower), float(goal.margins(lower))
        splitting = SignSplitting(bounder, goal, inputs, known)
        return self._branch_on_signs(splitting, first, refining.rows, number, partial(self._attack_again, aim))

    def _branch_on_signs(
        self,
        splitting: SignSplitting,
        first: Sequence[int],
        refined: Sequence[RefinedRow],
        number: int,
        attack: Callable[[], tuple[Array, ...] | None],
    ) -> Settled:
        trees = {conjunction: Tree() for conjunction, row in enumerate(first) if row < 0}
        queue, roots, proved, least = Queue(), [SignPart(conjunction) for conjunction in trees], 0, np.inf
        while roots or len(queue):
            self._check_time()
            parts, roots, steps = roots[: splitting.together], roots[splitting.together :], FIRST_STEPS
            if not parts:
                taken, steps = queue.pop(splitting.together // 2), STEPS
                parts = [half for part, side in taken for half in splitting.halves(part, side, trees)]
            found = splitting.bound_parts(parts, steps)
            self.parts += len(parts)
            for i, (part, margin, side) in enumerate(zip(parts, found.margins, found.sides, strict=True)):
                if margin > 0:
                    proved, least = proved + 1, min(least, float(margin))
                    trees[part.conjunction].end(part.number, found.leaf(i))
                elif side is None:
                    return "unknown", float(margin), None
                else:
                    start = found.free.at(i).halved() if len(queue) < splitting.most_starts else None
                    queue.push(margin, (replace(part, start=start), side))
            self._report_progress(proved, queue)
            witness = attack() if len(queue) else None
            if witness is not None:
                return "refuted", -np.inf, witness
            if len(queue) > MOST_PARTS:
                return "unknown", queue.margin, None
        self.trees[number] = sign_tree(first, list(trees.values()), *splitting.numbers(), refined)
        return "proved", least, None

    def _report_progress(self, proved: int, queue: Queue) -> None:
        if self._report is not None:
            self._report(ProofProgress(proved, len(queue), queue.margin))

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError

    # --- boxes --------------------------------------------------------------------------------------------------------

    def _inner(self, case: PropertyCase) -> list[tuple[Array, Array]]:
        """Boxes that the exact ones contain; where these hold no number of an input's dtype, one next to them."""
        return [(np.minimum(low, high), high) for low, high in self._shape_box(case.box.inner)]

    def _shape_box(self, ends: Callable[[Any], tuple[Array, Array]]) -> list[tuple[Array, Array]]:
        inputs = self._graph.inputs
        boxes = ((unflatten(end, inputs) for end in ends(v.dtype.numpy)) for v in inputs)
        return [(low[i], high[i]) for i, (low, high) in enumerate(boxes)]


class _Flat:
    """A graph whose outputs, and behind them the inputs if asked, are one vector; it keeps the graph it came from."""

    def __init__(self, source: Graph, with_inputs: bool) -> None:
        def flat(*inputs: Var) -> Any:
            results = [*inline(source, inputs), *(inputs if with_inputs else ())]
            numbers = [v if v.type.is_float else convert(v, own_dtype(source)) for v in results]
            return concat([reshape(v, (prod(v.shape),)) for v in numbers])

        self.source, self.graph = source, trace(flat, *(v.type for v in source.inputs))


MOST_GRAPHS = 32
_flat, _attacks = LRUCache[_Flat](MOST_GRAPHS), LRUCache[Attack](MOST_GRAPHS)


def flatten_graph(graph: Graph, with_inputs: bool) -> Graph:
    return _flat.get_or_make((id(graph), with_inputs), lambda: _Flat(graph, with_inputs)).graph


@dataclass(frozen=True)
class _Aim:
    """What attacks on cases that are alike go for: of each input, a stack of boxes; of each conjunction, bounds."""

    attack: Attack
    bounder: Bounder
    cases: Sequence[PropertyCase]
    lower: list[Array]
    upper: list[Array]
    matrices: list[Array]
    bounds: list[Array]


def _matrix(conjunction: Conjunction, graph: Graph) -> Array:
    (output,) = graph.outputs
    both = np.concatenate([conjunction.C, conjunction.D], axis=1)
    return both[:, : output.type.size]


def make_goal(bounder: Bounder, inputs: Sequence[Array], unsafe: Sequence[Conjunction], graph: Graph) -> ProofGoal:
    """The rows of all conjunctions; what their coefficients lose as floats is added to what must be exceeded."""
    dtype = bounder.arithmetic.dtype.numpy
    rows, least, conjunctions, count = [], [], [], 0
    for conjunction in unsafe:
        exact = _matrix(conjunction, graph)
        error = np.concatenate([conjunction.C_error, conjunction.D_error], axis=1)[:, : exact.shape[1]]
        lost = np.abs(exact - exact.astype(dtype)) + error
        extra = _bound_lost_coefficients(bounder, inputs, lost) if lost.any() else np.zeros(len(lost))
        rows.append(exact.astype(dtype))
        least.append(np.where(extra > 0, np.nextafter(conjunction.b + extra, np.inf), conjunction.b))
        conjunctions.append(np.arange(count, count + len(exact)))
        count += len(exact)
    return ProofGoal(np.concatenate(rows), np.concatenate(least), tuple(conjunctions))


def _bound_lost_coefficients(bounder: Bounder, inputs: Sequence[Array], lost: Array) -> Array:
    """``lost @ |outputs|``, from above."""
    _, ((low, high),) = bounder.boxes(inputs, bounder.unknown())
    size = np.nan_to_num(np.maximum(np.abs(low), np.abs(high)).astype(np.float64), nan=np.inf)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(lost > 0, lost * size, 0.0).sum(axis=1) * (1 + 1e-12))


def _is_surely_unsafe(bounder: Bounder, case: PropertyCase, x: tuple[Fraction, ...]) -> bool:
    """Whether all outputs that bounds in float64 allow at a point satisfy some conjunction."""
    graph = bounder.graph
    if "point" not in bounder.runs:
        bounder.runs["point"] = compile(
            boxes(graph, BoundArithmetic(f64, any=False, exact=True), bounder.bounded).simplify()
        )
    pairs = zip(*(unflatten(end, graph.inputs) for end in InputBox(x, x).outer()), strict=True)
    ends = bounder.runs["point"](*(end for pair in pairs for end in pair))
    return bool(np.isfinite(ends).all()) and _surely_holds(case, x, [list(map(Fraction, end.tolist())) for end in ends])


def _surely_holds(case: PropertyCase, x: Sequence[Fraction], ends: Sequence[Sequence[Fraction]]) -> bool:
    """Whether all outputs between two ends satisfy some conjunction: those, too, that make left sides largest."""

    def holds(row: Inequality) -> bool:
        return row.holds(x, {j: ends[c > 0][j] for j, c in row.outputs})

    return any(all(map(holds, conjunction.inequalities)) for conjunction in case.unsafe)


def _is_exactly_unsafe(graph: Graph, case: PropertyCase, x: Sequence[Fraction]) -> bool:
    """What the specification says: in rationals, or in balls where the graph leaves them; no, if it would take long."""
    if sum(v.type.size * max(1, most_roundings(node)) for node in graph.nodes for v in node.outputs) > MOST_EXACT:
        return False
    arrays = unflatten(np.array(x, object), graph.inputs)
    try:
        try:
            values = evaluate(graph, *arrays, domain=exact)
        except UnsupportedError:
            values = evaluate(graph, *arrays, domain=ball(128))
        cells = [cell for t in (values if isinstance(values, tuple) else (values,)) for cell in t.cells]
        ends = [fractions(found, "y", len(cells)) for found in zip(*map(scalar.ends, cells), strict=True)]
    except (AmbiguityError, ArithmeticError, ValueError):  # balls that do not decide a comparison; no number
        return False
    return _surely_holds(case, x, ends)

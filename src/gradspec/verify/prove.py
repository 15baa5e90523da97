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
from gradspec.ops.layout import concat
from gradspec.ops.shape import reshape
from gradspec.runtime.evaluate import evaluate
from gradspec.spec.errors import ShapeError, UnsupportedError
from gradspec.transforms.copy import inline
from gradspec.transforms.trace import trace
from gradspec.verify.attack import Attack
from gradspec.verify.bounding import Bounder, unflatten
from gradspec.verify.bounds import bounder, require_kernels
from gradspec.verify.branching import (
    MOST_PARTS,
    InputPart,
    InputSplitting,
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
from gradspec.verify.property import Conjunction, Property, PropertyCase, size_of
from gradspec.verify.refining import Refining

FEW_INPUTS = 12
"""Up to so many inputs that vary, boxes of inputs are split; with more, signs of inner variables."""

FIRST_STEPS, STEPS = 30, 6
"""How often free slopes are improved for the whole, and for a part of it."""

REFINING_SHARE = 0.1
"""The share of the time that is left for slopes of inner layers, where lines alone prove nothing."""

ATTACKS, ATTACK_SHARE = 4, 0.1
"""Rounds of attack where lines alone prove nothing, and the share of the time that further ones may take."""


@dataclass(frozen=True)
class ProofProgress:
    """The state of a search: parts proved and parts waiting, and the worst margin."""

    proved: int
    waiting: int
    margin: float


Report = Callable[[ProofProgress], None]


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
) -> Result:
    """Prove that no input of the property's boxes is unsafe, or find one that is.

    With ``kernels="any"`` a proof holds for whatever conforming kernels compute on inputs of the graph's dtype. A
    counterexample is checked exactly, in rational numbers, and as the compiled kernels run it.

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
    search = _Search(graph, kernels, begun + timeout, seed, report)
    margin, status, witness = np.inf, "proved", None
    for case in property.cases:
        status, found, witness = search.decide(case, property)
        margin = min(margin, found)
        if status != "proved":
            break
    certificate = _certificate(graph, property, kernels, search.trees) if status == "proved" else None
    return Result(status, witness, margin, kernels, search.parts, time.monotonic() - begun, certificate)


def _certificate(
    graph: Graph, property: Property, kernels: str, trees: Sequence[InputTree | SignTree | None]
) -> Certificate | None:
    found = tuple(tree for tree in trees if tree is not None)
    if len(found) < len(trees):
        return None
    return Certificate(kernels, network_digest(graph), property_digest(property), found)


def robust(
    graph: Graph, x: Any, eps: Any, label: int, *, timeout: float = 60.0, kernels: str = "any", **pixels: Any
) -> Result:
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
    return prove(graph, Property.robust(x, eps, label, classes, **pixels), timeout=timeout, kernels=kernels)


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
    def __init__(self, graph: Graph, kernels: str, deadline: float, seed: int, report: Report | None) -> None:
        self._graph, self._kernels, self._deadline, self._report = graph, kernels, deadline, report
        self._random, self._begun, self._attacked = np.random.default_rng(seed), time.monotonic(), 0.0
        self.parts = 0
        self.trees: list[InputTree | SignTree | None] = []
        """For each case that is proved, how."""

    def decide(self, case: PropertyCase, property: Property) -> tuple[str, float, tuple[Array, ...] | None]:
        """The status of one case, its margin, and a witness if it is refuted."""
        if not case.unsafe:
            self.trees.append(sign_tree([], []))
            return "proved", np.inf, None
        alone = replace(property, cases=(case,))
        try:
            self._check_time()
            if not all(conjunction.inequalities for conjunction in case.unsafe):  # every point of the box is unsafe
                point = tuple(low for low, _ in self._inner(case))
                return ("refuted", -np.inf, point) if self._is_witness(point, alone) else ("unknown", -np.inf, None)
            return self._prove_case(case, alone)
        except OutOfTimeError:
            return "unknown", -np.inf, None

    # --- attack -------------------------------------------------------------------------------------------------------

    def _attack(self, graph: Graph, case: PropertyCase, property: Property, rounds: int) -> tuple[Array, ...] | None:
        """A witness, if some rounds of attack find one."""
        begun = time.monotonic()
        attack = _attacks.get_or_make(id(graph), lambda: Attack(graph))
        lower, upper = zip(*self._inner(case), strict=True)
        unsafe = [(_matrix(conjunction, graph), conjunction.b) for conjunction in case.unsafe]
        for _ in range(rounds):
            self._check_time()
            point, distance = attack.nearest(lower, upper, unsafe, self._random)
            if distance <= 0 and self._is_witness(point, property):
                return tuple(point)
        self._attacked += time.monotonic() - begun
        return None

    def _attack_again(self, graph: Graph, case: PropertyCase, property: Property) -> tuple[Array, ...] | None:
        """A witness, if another round of attack finds one; there is one as soon as its share of the time allows it."""
        is_due = self._attacked < ATTACK_SHARE * (time.monotonic() - self._begun)
        return self._attack(graph, case, property, 1) if is_due else None

    def _is_witness(self, point: Sequence[Array], property: Property) -> bool:
        """Whether the compiled kernels and, at the nearest point of an exact box, the specification both say so."""
        computed = self._graph(*point)
        outputs = computed if isinstance(computed, tuple) else (computed,)
        flat, values = (np.concatenate([a.reshape(-1) for a in arrays]) for arrays in (point, outputs))
        if not np.isfinite(values.astype(np.float64)).all():  # it overflowed, which refutes nothing about real numbers
            return False
        (case,) = property.cases
        x = case.box.nearest(flat)
        return property.is_counterexample(x, values) and property.is_counterexample(x, _exact_outputs(self._graph, x))

    # --- proof --------------------------------------------------------------------------------------------------------

    def _prove_case(self, case: PropertyCase, property: Property) -> tuple[str, float, tuple[Array, ...] | None]:
        graph = flatten_graph(self._graph, any(conjunction.names_inputs for conjunction in case.unsafe))
        found = bounder(graph, len(graph.inputs), self._kernels)
        own = found.arithmetic.dtype.numpy  # no narrower than the inputs are
        inputs = [end.astype(own) for ends in self._shape_box(case.box.outer) for end in ends]
        moving = sum(int(np.sum(high > low)) for low, high in zip(inputs[::2], inputs[1::2], strict=True))
        goal = make_goal(found, inputs, case.unsafe, graph)
        self._check_time()
        search = (
            self._branch_on_inputs
            if moving <= FEW_INPUTS and InputSplitting.fits(found)
            else self._branch_on_activations
        )
        return search(found, goal, inputs, case, property)  # type: ignore[no-any-return]

    def _branch_on_inputs(
        self, bounder: Bounder, goal: ProofGoal, inputs: Sequence[Array], case: PropertyCase, property: Property
    ) -> Any:
        splitting = InputSplitting(bounder, goal)
        queue, proved, least, tree = Queue(), 0, np.inf, Tree()
        lower, upper = (np.concatenate([a.reshape(-1) for a in inputs[end::2]]) for end in (0, 1))
        parts = [InputPart(lower, upper)]
        while parts:
            self._check_time()
            margins, axes = splitting.bound_parts(parts)
            self.parts += len(parts)
            for part, margin, axis in zip(parts, margins, axes, strict=True):
                if margin > 0:
                    proved, least = proved + 1, min(least, margin)
                else:
                    queue.push(margin, (part, int(axis)))
            self._report_progress(proved, queue)
            if len(queue) and parts[0].number == 0:
                witness = self._attack(bounder.graph, case, property, ATTACKS)
            else:
                witness = self._attack_again(bounder.graph, case, property) if len(queue) else None
            witness = witness or self._try_centres(parts, property)
            if witness is not None:
                return "refuted", -np.inf, witness
            if len(queue) > MOST_PARTS:
                return "unknown", queue.margin, None
            parts = [half for part, axis in queue.pop(splitting.together // 2) for half in split_box(part, axis, tree)]
        self.trees.append(input_tree(tree))
        return "proved", float(least), None

    def _try_centres(self, parts: Sequence[InputPart], property: Property) -> tuple[Array, ...] | None:
        """A witness among the middles of parts."""
        inputs = self._graph.inputs
        for part in parts:
            arrays = unflatten(part.lower / 2 + part.upper / 2, inputs)
            point = tuple(array.astype(v.dtype.numpy) for array, v in zip(arrays, inputs, strict=True))
            if self._is_witness(point, property):
                return point
        return None

    def _branch_on_activations(
        self, bounder: Bounder, goal: ProofGoal, inputs: Sequence[Array], case: PropertyCase, property: Property
    ) -> Any:
        witness = self._attack(bounder.graph, case, property, 1)
        if witness is not None:
            return "refuted", -np.inf, witness
        known = bounder.tighten(inputs, bounder.unknown())
        lower = bounder.lower(inputs, known, bounder.graph.outputs[0], goal.rows)
        self.parts += 1
        first, margin = goal.proved_rows(lower), float(goal.margins(lower))
        if margin > 0:
            self.trees.append(sign_tree(first, []))
            return "proved", margin, None
        witness = self._attack(bounder.graph, case, property, ATTACKS - 1)
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
        attack = partial(self._attack_again, bounder.graph, case, property)
        return self._branch_on_signs(splitting, first, refining.rows, attack)

    def _branch_on_signs(
        self,
        splitting: SignSplitting,
        first: Sequence[int],
        refined: Sequence[RefinedRow],
        attack: Callable[[], tuple[Array, ...] | None],
    ) -> tuple[str, float, tuple[Array, ...] | None]:
        trees = {number: Tree() for number, row in enumerate(first) if row < 0}
        queue, roots, proved, least = Queue(), [SignPart(number) for number in trees], 0, np.inf
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
        self.trees.append(sign_tree(first, list(trees.values()), *splitting.numbers(), refined))
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
            return concat([reshape(v, (prod(v.shape),)) for v in results])

        self.source, self.graph = source, trace(flat, *(v.type for v in source.inputs))


MOST_GRAPHS = 32
_flat, _attacks = LRUCache[_Flat](MOST_GRAPHS), LRUCache[Attack](MOST_GRAPHS)


def flatten_graph(graph: Graph, with_inputs: bool) -> Graph:
    return _flat.get_or_make((id(graph), with_inputs), lambda: _Flat(graph, with_inputs)).graph


def _matrix(conjunction: Conjunction, graph: Graph) -> Array:
    (output,) = graph.outputs
    both = np.concatenate([conjunction.C, conjunction.D], axis=1)
    return both[:, : output.type.size]


def make_goal(bounder: Bounder, inputs: Sequence[Array], unsafe: Sequence[Conjunction], graph: Graph) -> ProofGoal:
    """The rows of all conjunctions; what their coefficients lose as floats is added to what must be exceeded."""
    dtype = bounder.arithmetic.dtype.numpy
    _, ((low, high),) = bounder.boxes(inputs, bounder.unknown())
    size = np.nan_to_num(np.maximum(np.abs(low), np.abs(high)).astype(np.float64), nan=np.inf)
    rows, least, conjunctions, count = [], [], [], 0
    for conjunction in unsafe:
        exact = _matrix(conjunction, graph)
        error = np.concatenate([conjunction.C_error, conjunction.D_error], axis=1)[:, : exact.shape[1]]
        lost = np.abs(exact - exact.astype(dtype)) + error
        with np.errstate(invalid="ignore"):
            extra = np.where(lost > 0, lost * size, 0.0).sum(axis=1) * (1 + 1e-12)
        rows.append(exact.astype(dtype))
        least.append(np.where(extra > 0, np.nextafter(conjunction.b + extra, np.inf), conjunction.b))
        conjunctions.append(np.arange(count, count + len(exact)))
        count += len(exact)
    return ProofGoal(np.concatenate(rows), np.concatenate(least), tuple(conjunctions))


def _exact_outputs(graph: Graph, x: Sequence[Fraction]) -> list[Any]:
    """What the specification gives: in rationals, or in balls where the graph leaves them."""
    arrays = unflatten(np.array(x, object), graph.inputs)
    try:
        values = evaluate(graph, *arrays, domain=exact)
    except UnsupportedError:
        values = evaluate(graph, *arrays, domain=ball(128))
    return [cell for t in (values if isinstance(values, tuple) else (values,)) for cell in t.cells]

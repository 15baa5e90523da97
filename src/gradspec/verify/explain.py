"""What a bound costs, and where: widths of inner variables by boxes and by lines, and what each input adds to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.verify.bounding import Bounder, Ends, IntermediateBounds, unflatten
from gradspec.verify.bounds import bounder, prepare_inputs, prepare_rows
from gradspec.verify.property import Inequality, Property, PropertyCase
from gradspec.verify.prove import flatten_graph, make_goal
from gradspec.verify.solving import names

MOST_VIEWS = 8
"""Cases of a property that are looked at."""


@dataclass(frozen=True)
class LayerWidths:
    """An inner variable, an operand of something that is not affine: how wide its cells are in the mean."""

    name: str
    operators: tuple[str, ...]
    """Those that it is an operand of."""
    shape: tuple[int, ...]
    by_boxes: float
    by_lines: float
    undecided: float
    """The share of cells with a kink inside of their bounds."""


@dataclass(frozen=True)
class BoundExplanation:
    """Where a lower bound comes from: ``bound`` is ``Σ A·c + …`` less ``Σ |A|·r``, the sum of ``inputs``, and more.

    ``inputs`` has an array for each input with a box: its slope in the bound, absolute, times its radius.
    """

    bound: float
    layers: tuple[LayerWidths, ...]
    inputs: tuple[Array, ...]

    def __str__(self) -> str:
        widest = max(self.layers, key=lambda layer: layer.by_lines, default=None)
        said = (
            "" if widest is None else f"; of {len(self.layers)} layers, {widest.name} is widest: {widest.by_lines:.3g}"
        )
        return f"at least {self.bound:.6g}; the inputs cost {sum(float(a.sum()) for a in self.inputs):.3g}{said}"


def explain(
    graph: Graph, lower: object, upper: object, row: Array, *others: object, kernels: str = "any"
) -> BoundExplanation:
    """What makes the lower bound of ``⟨row, output⟩`` what it is, over a box of the first inputs.

    >>> import gradspec as gs
    >>> g = gs.trace(lambda x: gs.linear(gs.relu(gs.linear(x, np.float32([[1, 1]]))), np.float32([[2]])), gs.f32[2])
    >>> found = explain(g, np.float32([-1, 0]), np.float32([2, 1]), np.float32([1]))
    >>> [(layer.operators, layer.undecided) for layer in found.layers]
    [(('relu',), 1.0)]
    >>> found.inputs[0].round(3).tolist(), round(found.bound, 3)
    ([3.0, 1.0], -2.0)
    """
    lows, highs = (v if isinstance(v, tuple) else (v,) for v in (lower, upper))
    found = bounder(graph, len(lows), kernels)
    inputs = prepare_inputs(graph, found, lows, highs, others)
    (one,) = prepare_rows(graph, found, row[None])
    return _explain_bound(found, inputs, found.tighten(inputs, found.unknown()), one)


def _explain_bound(found: Bounder, inputs: list[Array], known: IntermediateBounds, row: Array) -> BoundExplanation:
    """By the bounds that are known of inner variables."""
    first, _ = found.boxes(inputs, found.unknown())
    better, _ = found.boxes(inputs, known)
    layers = tuple(_layer(found, var, first[var], better[var]) for var in found.pre_activations)
    bound, *slopes = found.steep(inputs, known, row)
    moving = range(sum(found.bounded))
    radii = [inputs[2 * i + 1] / 2 - inputs[2 * i] / 2 for i in moving]
    return BoundExplanation(float(bound), layers, tuple(np.abs(s) * r for s, r in zip(slopes, radii, strict=True)))


def _layer(found: Bounder, var: Var, boxes: Ends, better: Ends) -> LayerWidths:
    users = tuple(dict.fromkeys(node.op.name for node in found.relaxed if var in node.inputs))
    by_boxes, by_lines = (float(np.mean(high - low)) for low, high in (boxes, better))
    undecided = float(np.mean(found.undecided(var, *better)))
    return LayerWidths(var.name, users, var.shape, by_boxes, by_lines, undecided)


# --- properties -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RootView:
    """One case of a property before anything is split: how far each conjunction is refuted, and the worst row."""

    case: int
    cases: int
    margins: tuple[tuple[str, float], ...]
    """Each unsafe conjunction in words, with how far lines refute it: it is refuted above 0."""
    worst: str
    explanation: BoundExplanation
    input_names: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        inputs = [{"shape": a.shape, "cost": a.reshape(-1).tolist()} for a in self.explanation.inputs]
        return asdict(self) | {"explanation": asdict(self.explanation) | {"inputs": inputs}}


def views(graph: Graph, property: Property, kernels: str) -> Iterator[RootView]:
    """The first cases of a property, each as a whole."""
    for number, case in enumerate(property.cases[:MOST_VIEWS]):
        yield _view(graph, property, case, kernels, number)


def _view(graph: Graph, property: Property, case: PropertyCase, kernels: str, number: int) -> RootView:
    flat = flatten_graph(graph, any(conjunction.names_inputs for conjunction in case.unsafe))
    found = bounder(flat, len(flat.inputs), kernels)
    ends = (unflatten(end, graph.inputs) for end in case.box.outer(graph.inputs[0].dtype.numpy))
    inputs = [end for pair in zip(*ends, strict=True) for end in pair]
    goal = make_goal(found, inputs, case.unsafe, flat)
    known = found.tighten(inputs, found.unknown())
    lower = found.lower(inputs, known, flat.outputs[0], goal.rows)
    above, best = np.nan_to_num(lower.astype(np.float64) - goal.least, nan=-np.inf), goal.best_rows(lower, goal.least)
    worst = min(range(len(best)), key=lambda i: above[best[i]])
    words = [" and ".join(describe_inequality(row, property) for row in c.inequalities) for c in case.unsafe]
    return RootView(
        number,
        len(property.cases),
        tuple((text, float(above[row])) for text, row in zip(words, best, strict=True)),
        words[worst],
        _explain_bound(found, inputs, known, goal.rows[best[worst]]),
        tuple(v.name for v in graph.inputs),
    )


def describe_inequality(row: Inequality, property: Property) -> str:
    """``Y_0 - 2 Y_1 <= 0.5``."""
    inputs, outputs = names(property.inputs), names(property.outputs)
    terms = [(c, outputs[j]) for j, c in row.outputs] + [(d, inputs[i]) for i, d in row.inputs]
    text = ""
    for coefficient, name in terms:
        sign = "-" if coefficient < 0 else "+"
        size = "" if abs(coefficient) == 1 else f"{float(abs(coefficient)):.6g} "
        text += f" {sign} {size}{name}" if text else f"{'-' * (coefficient < 0)}{size}{name}"
    return f"{text or 0} {'<' if row.strict else '<='} {float(row.bound):.6g}"

"""A proof, or the lack of one, as an HTML page: what was stated, margins, and pictures of what costs the most width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from gradspec.conformance.report.templates import render_page
from gradspec.graph.ir import Array
from gradspec.verify.solving import Answer, Question

KINDS = {"unsat": "pass", "sat": "defect", "unknown": "undecided"}
"""The colours of the answers are those of the judge's kinds."""

STATED = {
    "unsat": "Proved: no input of the boxes is sent into the unsafe set, {of}.",
    "sat": "Refuted: the witness below is an input whose outputs are unsafe, exactly and as the compiled kernels run.",
    "unknown": "Neither proved nor refuted in the time that was given.",
}
OF = {
    "any": "whatever conforming kernels compute it, in the precision of the model",
    "real": "as a function of real numbers; what floats round is left out",
}

MOST_PLANES, MOST_CELLS, MOST_MARGINS = 6, 64, 200
"""Planes of inputs that are drawn, cells along their axes, and conjunctions that are listed."""
LONGEST_BAR = 420

STYLE = """
.heat rect { fill: var(--link); }
.heat .frame { fill: none; stroke: var(--line); stroke-width: 1; }
.widths .boxes { fill: var(--not-offered-bar); }
.widths .lines { fill: var(--link); }
.widths text, .heat text { fill: var(--ink); font: 12px var(--mono); }
.widths .soft { fill: var(--soft); }
.key.boxes { background: var(--not-offered-bar); } .key.lines { background: var(--link); }
figure { margin: 0.6rem 0; overflow-x: auto; }
"""

View = Mapping[str, Any]
"""A ``RootView`` as JSON."""


def page(asked: Question, answer: Answer, views: Sequence[View] | None, why: str = "") -> str:
    """The page; ``why`` says why there are no views.

    >>> text = page(Question("net.onnx", "p.vnnlib"), Answer("unsat", 1.5, 3, 0.25), None, "time was up")
    >>> "Proved" in text, "time was up" in text, "https://" in text
    (True, True, False)
    """
    return render_page(
        "verify/page/report.html",
        f"gradspec verify {Path(asked.network).name} {Path(asked.property).name}",
        style=STYLE,
        property=Path(asked.property).name,
        answer=answer,
        kind=KINDS[answer.answer],
        statement=STATED[answer.answer].format(of=OF[answer.kernels]),
        facts=_facts(asked, answer),
        views=None if views is None else [_describe_view(view) for view in views],
        why=why,
        short=_short,
    )


def _facts(asked: Question, answer: Answer) -> dict[str, str]:
    return {
        "network": asked.network,
        "property": asked.property,
        "kernels": answer.kernels,
        "time": f"{answer.seconds:,.1f} s of {asked.seconds:g} s",
        "parts": f"{answer.parts:,}",
        "margin": "" if answer.margin is None else f"{answer.margin:.6g}",
    }


def _describe_view(view: View) -> dict[str, object]:
    """What the page says of a view."""
    number, explanation = view["case"] + 1, view["explanation"]
    margins = sorted(view["margins"], key=lambda pair: pair[1])
    costs = [np.reshape(np.array(i["cost"], np.float64), i["shape"]) for i in explanation["inputs"]]
    return {
        "number": number,
        "of": f" of case {number} of {view['cases']}" if view["cases"] > 1 else "",
        "margins": margins[:MOST_MARGINS],
        "more_margins": len(margins[MOST_MARGINS:]),
        "bars": _bars(explanation["layers"]),
        "cost": sum(float(cost.sum()) for cost in costs),
        "worst": view["worst"],
        "maps": [_heat_map(name, cost) for name, cost in zip(view["input_names"], costs, strict=False)],
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def _bars(layers: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """The lengths of two bars for each layer, on a scale of powers of ten."""
    widths = [w for layer in layers for w in (layer["by_boxes"], layer["by_lines"]) if isfinite(w) and w > 0]
    least, most = (log10(f(widths)) for f in (min, max)) if widths else (0.0, 1.0)
    low, span = least - 0.5, max(most - least + 0.5, 0.5)

    def length(width: float) -> float:
        if not width > 0:
            return 0.0
        return LONGEST_BAR * max(0.01, (log10(width) - low) / span) if isfinite(width) else LONGEST_BAR

    return [
        {
            **layer,
            "name": layer["name"] if len(layer["name"]) <= 24 else f"{layer['name'][:23]}…",
            "shape": list(layer["shape"]),
            "boxes": length(layer["by_boxes"]),
            "lines": length(layer["by_lines"]),
        }
        for layer in layers
    ]


def _heat_map(name: str, cost: Array) -> dict[str, object]:
    """The planes of an input that cost the most; a vector is folded into rows."""
    finite = np.nan_to_num(cost, posinf=0.0)
    planes = finite.reshape(-1, *finite.shape[-2:]) if finite.ndim > 1 else _fold(finite)[None]
    order = np.argsort([-plane.sum() for plane in planes], kind="stable")[:MOST_PLANES]
    coarse = {int(i): _coarsen(planes[i]) for i in sorted(order)}
    most = max((float(plane.max(initial=0.0)) for plane in coarse.values()), default=0.0) or 1.0
    drawn = [_plane(f"{name}[{i}]" if len(planes) > 1 else name, plane, most) for i, plane in coarse.items()]
    return {"planes": drawn, "most": most, "left_out": len(planes) - len(coarse)}


def _plane(title: str, plane: Array, most: float) -> dict[str, object]:
    rows, columns = plane.shape
    side = max(4, min(24, 320 // max(rows, columns)))
    return {
        "title": title,
        "rows": rows,
        "columns": columns,
        "side": side,
        "width": max(side * columns, 8 * len(title)) + 1,
        "height": side * rows + 21,
        "cells": [(r, c, plane[r, c] / most) for r, c in np.argwhere(plane > 0.005 * most)],
    }


def _fold(vector: Array) -> Array:
    columns = min(len(vector), MOST_CELLS) or 1
    rows = -(-len(vector) // columns)
    return np.pad(vector, (0, rows * columns - len(vector))).reshape(rows, columns)


def _coarsen(plane: Array) -> Array:
    """Blocks of cells, each as large as its largest cell, so that no axis has too many."""
    for axis in (0, 1):
        block = -(-plane.shape[axis] // MOST_CELLS)
        if block > 1:
            plane = np.maximum.reduceat(plane, np.arange(0, plane.shape[axis], block), axis=axis)
    return plane


def _short(number: float) -> str:
    return f"{number:.4g}" if isfinite(number) else "unbounded"

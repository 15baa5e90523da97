"""``gs.bounds``: what the outputs of a graph can be, over a box of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec.graph.arrays import as_array
from gradspec.graph.family import require_graph
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.verify.bounding import Bounder, Ends, IntermediateBounds
from gradspec.verify.slopes import FreeLines

METHODS = ("boxes", "crown", "alpha")
KERNELS = ("any", "real")

ALPHA_STEPS, ROWS = 40, 32
"""How often free slopes are improved, and of how many rows together."""


@dataclass(frozen=True)
class Bounds:
    """``lower ≤ y ≤ upper`` for every output ``y`` over the box: an array each, or a tuple for several outputs.

    ``kernels`` says of which ``y``: ``"real"``, the mathematical network, or ``"any"``, also whatever a conforming
    kernel gives. ``method`` says how they were found.
    """

    lower: Any
    upper: Any
    method: str
    kernels: str

    def __str__(self) -> str:
        of = "any kernel" if self.kernels == "any" else "the real network"
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (self.lower, self.upper)), strict=True)
        widths = [float(np.max(high - low.astype(float), initial=0.0)) for low, high in pairs]
        return f"bounds of {of}, by {self.method}; at most {max(widths):.4g} wide"

    __repr__ = __str__


MOST_BOUNDERS = 32
_bounders = LRUCache[Bounder](MOST_BOUNDERS)


def bounder(graph: Graph, count: int, kernels: str, device: str = "cpu") -> Bounder:
    """What bounds a graph over boxes of its first ``count`` inputs; it is kept, and keeps the graph."""
    require_kernels(kernels)
    key = (id(graph), count, kernels, device)
    return _bounders.get_or_make(key, lambda: Bounder(graph, count, kernels, device))


def bounds(
    graph: Graph,
    lower: object,
    upper: object,
    *others: object,
    method: str = "crown",
    kernels: str = "any",
    C: object = None,  # noqa: N803  (as in papers)
    progress: bool = False,
    device: str = "cpu",
) -> Bounds:
    """Lower and upper bounds of the outputs, or of linear functions ``C`` of the one output, over a box of inputs.

    ``lower`` and ``upper`` are the ends of the box of the first input, or tuples of those of the first inputs;
    ``others`` are the arrays for the remaining inputs. ``method`` is ``"boxes"`` (an interval for each cell, at the
    cost of three runs), ``"crown"`` (linear bounds, which know that cells move together) or ``"alpha"`` (lines whose
    free slopes are optimised). With ``kernels="any"`` the bounds hold for whatever any conforming kernel computes, with
    ``"real"`` for the real numbers only; in both, the rounding of the bounds' own computation is accounted for.
    ``progress`` shows a bar while slopes are optimised. ``device="cuda"`` computes them by PyTorch on a GPU.

    >>> import gradspec as gs
    >>> import numpy as np
    >>> g = gs.trace(lambda x: gs.relu(x) - gs.relu(x), gs.f32[1])
    >>> b = gs.bounds(g, np.float32([1]), np.float32([2]), method="boxes")
    >>> b.lower.round(4).tolist(), b.upper.round(4).tolist()
    ([-1.0], [1.0])
    >>> b = gs.bounds(g, np.float32([1]), np.float32([2]))
    >>> b.lower.round(4).tolist(), b.upper.round(4).tolist()
    ([-0.0], [0.0])
    """
    require_graph("bounds", graph)
    _require("method", method, METHODS)
    lows, highs = (v if isinstance(v, tuple) else (v,) for v in (lower, upper))
    found = bounder(graph, len(lows), kernels, device)
    inputs = prepare_inputs(graph, found, lows, highs, others)
    rows = None if C is None else prepare_rows(graph, found, np.asarray(C))
    with _bar(progress and method == "alpha") as advance:
        ends = _METHODS[method](found, inputs, rows, advance)
    lower_ends, upper_ends = zip(*(_open_nans(low, high) for low, high in ends), strict=True)
    one = len(ends) == 1
    return Bounds(lower_ends[0] if one else lower_ends, upper_ends[0] if one else upper_ends, method, kernels)


Advance = Callable[[float], None]
"""Told what part of the work was done."""


@contextmanager
def _bar(shown: bool) -> Iterator[Advance]:
    if not shown:
        yield lambda part: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("slopes", total=1.0)
        yield lambda part: bar.advance(task, part)


def _by_boxes(found: Bounder, inputs: Sequence[Array], rows: Array | None, advance: Advance) -> list[Ends]:
    if rows is None:
        return found.boxes(inputs, found.unknown())[1]
    return _of_rows(found, inputs, found.unknown(), rows)


def _by_lines(found: Bounder, inputs: Sequence[Array], rows: Array | None, advance: Advance) -> list[Ends]:
    known = found.tighten(inputs, found.unknown())
    if rows is not None:
        return _of_rows(found, inputs, known, rows)
    _, boxes = found.boxes(inputs, known)
    pairs = zip(found.graph.outputs, boxes, strict=True)
    return [found.tighten_cells(inputs, known, v, ends) if v.type.is_float else ends for v, ends in pairs]


def _of_rows(found: Bounder, inputs: Sequence[Array], known: Any, rows: Array) -> list[Ends]:
    (output,) = found.graph.outputs
    return [(found.lower(inputs, known, output, rows), -found.lower(inputs, known, output, -rows))]


def _by_free_lines(found: Bounder, inputs: Sequence[Array], rows: Array | None, advance: Advance) -> list[Ends]:
    known = found.tighten(inputs, found.unknown())
    boxes, ends = found.boxes(inputs, known)
    if rows is not None:
        return [_improve_rows(found, inputs, boxes, found.graph.outputs[0], rows, advance)]
    results = []
    for var, (low, high) in zip(found.graph.outputs, ends, strict=True):
        unit = np.eye(var.type.size, dtype=low.dtype).reshape(-1, *var.shape)
        below, above = _improve_rows(found, inputs, boxes, var, unit, lambda part: advance(part / len(ends)))
        results.append((np.fmax(low, below.reshape(var.shape)), np.fmin(high, above.reshape(var.shape))))
    return results


def _improve_rows(
    found: Bounder, inputs: Sequence[Array], boxes: IntermediateBounds, target: Var, rows: Array, advance: Advance
) -> Ends:
    """Both bounds of each row, by slopes of its own that are improved for it."""
    domain = [a[None] for a in (*inputs, *boxes.flat())]
    ends = []
    parts = np.array_split(np.concatenate([rows, -rows]), max(1, -(-2 * len(rows) // ROWS)))

    def goes_on(best: Array) -> bool:
        advance(1 / (ALPHA_STEPS * len(parts)))
        return False

    for part in parts:
        free = FreeLines(found, target, len(part))
        bound, _ = free.improve([*domain, part[None]], free.initial(boxes), ALPHA_STEPS, goes_on)
        ends.append(bound[0])
    both = np.concatenate(ends)
    return both[: len(rows)], -both[len(rows) :]


_METHODS: dict[str, Callable[..., list[Ends]]] = {"boxes": _by_boxes, "crown": _by_lines, "alpha": _by_free_lines}


def _open_nans(low: Array, high: Array) -> Ends:
    """Where nothing is known, the ends are infinite."""
    if low.dtype.kind in "iub":
        return low, high
    infinite = low.dtype.type(np.inf)
    return np.where(np.isnan(low), -infinite, low), np.where(np.isnan(high), infinite, high)


# --- what users give --------------------------------------------------------------------------------------------------


def require_kernels(kernels: object) -> None:
    _require("kernels", kernels, KERNELS)


def _require(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is not known; give one of {', '.join(map(repr, known))}")


def prepare_inputs(graph: Graph, found: Bounder, lows: Any, highs: Any, others: Sequence[Any]) -> list[Array]:
    """Both ends of the first inputs, and the others, checked."""
    if len(lows) != len(highs):
        raise TypeError(f"lower has {len(lows)} boxes and upper {len(highs)}; give one of each for the same inputs")
    if len(lows) + len(others) != len(graph.inputs):
        raise TypeError(
            f"the graph takes {len(graph.inputs)} inputs ({', '.join(map(repr, graph.inputs))}); boxes for {len(lows)} "
            f"and {len(others)} others were given"
        )
    ready = []
    for var, low, high in zip(graph.inputs, lows, highs, strict=False):
        ready += _box(found, var, low, high)
    rest = graph.inputs[len(lows) :]
    return [*ready, *(_array(found, var, value) for var, value in zip(rest, others, strict=True))]


def _box(found: Bounder, var: Var, low: object, high: object) -> list[Array]:
    if not var.type.is_float:
        raise DTypeError(f"{var!r} is not a float, so it has no box; give it as a number behind the boxes")
    ends = [_array(found, var, end) for end in (low, high)]
    if any(np.isnan(end).any() for end in ends):
        raise ValueError(f"the box of {var!r} has a NaN for an end; ends are numbers")
    wrong = np.argwhere(ends[0] > ends[1])
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        raise ValueError(
            f"the box of {var!r} is empty: at {at} its lower end is {ends[0][at]} and its upper end {ends[1][at]}"
            f" ({len(wrong)} such cell{'s' * (len(wrong) > 1)}); swap them"
        )
    return ends


def _array(found: Bounder, var: Var, value: object) -> Array:
    array = as_array(value)
    if array.shape != var.shape:
        raise ShapeError(f"{var!r} was given an array of shape {array.shape}; give one of shape {var.shape}")
    if not var.type.is_float:
        return array
    own = found.arithmetic.dtype.numpy
    exact = array.astype(own)
    if array.dtype.itemsize > own.itemsize and not np.array_equal(exact.astype(array.dtype), array, equal_nan=True):
        raise DTypeError(
            f"{var!r} was given numbers of {array.dtype} that {own} does not hold; round the lower end down and the "
            "upper end up, as np.nextafter does"
        )
    return exact


def prepare_rows(graph: Graph, found: Bounder, rows: Array) -> Array:
    if len(graph.outputs) != 1:
        raise ValueError(f"C is for a graph of one output, and this one has {len(graph.outputs)}")
    (output,) = graph.outputs
    if rows.shape[1:] != output.shape:
        raise ShapeError(
            f"C has shape {rows.shape}; give one row of shape {output.shape} for each function of {output!r}"
        )
    return rows.astype(found.arithmetic.dtype.numpy)

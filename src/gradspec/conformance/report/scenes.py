"""What to draw of a finding: the arrays that meet in the wrong place of its result, and which of their cells do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import AVERAGES, COLUMNS, CONVOLUTIONS, SELECTIONS, SLIDING_POOLS, Array, Call
from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.planes import MarkedPlane
from gradspec.spec.conv import Form
from gradspec.spec.scalar import choose
from gradspec.spec.tensor import Index, flat
from gradspec.spec.window import Regular, Window

Marks: TypeAlias = dict[Index, frozenset[str]]

OF_OUTPUT = ("y", "indices", "dy", "second_g")
"""Results that have the operator's output shape; the others have the shape of the input they name."""
MOST_CHANNELS = 2


@dataclass(frozen=True)
class Scene:
    """What is drawn, and what its marks mean."""

    planes: list[MarkedPlane]
    words: dict[str, str] = field(default_factory=dict)
    note: str = ""


def scene(call: Call, finding: Finding) -> Scene:
    """The wrong place of a result with all that takes part in it; the inputs, where no place is known."""
    if call.problem.op not in SCENES:
        return _of_reference(call, finding)
    somewhere = finding.place is not None and finding.result in call.problem.results(call.mode)
    return SCENES[call.problem.op](call, finding) if somewhere else _inputs(call)


def _of_reference(call: Call, finding: Finding) -> Scene:
    """The arrays of the call, by their last two axes, and the wrong cell of the result."""
    named = ((name, array) for name, array in call.arrays().items() if array.ndim)
    planes = [_plane(name, array, (0,) * (array.ndim - 2), {}) for name, array in named]
    place = finding.place
    if place:
        lead, inner = place[:-2], place[-2:]
        planes.append(_result(finding, lead, inner, tuple(i + 1 for i in inner)))
    return Scene(planes, note="Of arrays of more than two axes the first plane is drawn.")


def _inputs(call: Call) -> Scene:
    named = {**call.named(), **({} if call.cotangent is None else {"g": call.cotangent})}
    window = None if call.problem.op in ("conv_transpose", "fold") else geometry_of(call.problem).window
    planes = [
        _plane(name, array, (0,) * max(array.ndim - call.problem.rank, 0), {}, window if name == "x" else None)
        for name, array in named.items()
    ]
    return Scene(planes, note="The inputs of the call; no single place of a result is wrong.")


def _plane(
    name: str, array: Array, lead: Index, marks: Marks, window: Window | None = None, filling: str = ""
) -> MarkedPlane:
    """One plane of an array, with the padding that a window reads around it."""
    axes = () if window is None else window.axes
    margins = tuple((axis.lo, axis.hi) if isinstance(axis, Regular) else (0, 0) for axis in axes)
    return MarkedPlane(f"{name}{_at(lead)}", array[lead], marks, margins, filling)


def _at(lead: Iterable[int]) -> str:
    listed = ", ".join(map(str, lead))
    return f"[{listed}]" if listed else ""


def _mark(**places: Iterable[Index]) -> Marks:
    """Marks by cell, from cells by mark."""
    marks = defaultdict(set)
    for name, marked in places.items():
        for place in marked:
            marks[place].add(name)
    return {place: frozenset(names) for place, names in marks.items()}


def _result(finding: Finding, lead: Index, place: Index, sizes: Index) -> MarkedPlane:
    """The plane of the result, of which the wrong cell is known."""
    values = np.full(sizes or (1,), None, dtype=object)
    where = place or (0,)
    values[where] = finding.got
    outer, inner = where[:-2], where[-2:]
    title = f"{finding.result}{_at((*lead, *outer))}, as given"
    return MarkedPlane(title, values[outer], _mark(wrong=[inner]), most=(4, 5))


WRONG = {"wrong": "where the result is wrong"}
WRONG_GRADIENT = {"wrong": "where the gradient is wrong"}


# --- windows ---------------------------------------------------------------------------------------------------------


def _cells(window: Window, output: Index) -> list[Index]:
    """The coordinates that a window reads in row-major order, padding included."""
    return list(product(*(axis.positions(o) for axis, o in zip(window.axes, output, strict=True))))


def _real(cells: Iterable[Index], sizes: Index) -> list[Index]:
    return [cell for cell in cells if all(0 <= p < n for p, n in zip(cell, sizes, strict=True))]


def _readers(window: Window, cell: Index) -> list[Index]:
    """The outputs whose windows read a cell."""
    axes = zip(window.axes, cell, strict=True)
    return list(product(*([o for o in range(axis.outputs) if p in axis.positions(o)] for axis, p in axes)))


def _tap(window: Window, output: Index, cell: Index) -> Index:
    """Which tap of an output's window reads a cell."""
    return tuple(a.positions(o).index(p) for a, o, p in zip(window.axes, output, cell, strict=True))


def _unraveled(place: float, sizes: Index) -> Index:
    return tuple(int(i) for i in np.unravel_index(int(place), sizes))


def _along(call: Call) -> list[tuple[str, Array]]:
    """The directions with their names."""
    letter = "d" if call.mode == "jvp" else "v_"
    names = (f"{letter}{name}" for name in call.problem.differentiable)
    return list(zip(names, call.directions, strict=True))


def _forward_x(call: Call) -> tuple[str, Array]:
    """What a linear map is of: ``x``, or its direction."""
    return _along(call)[0] if call.directions else ("x", call.named()["x"])


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pool(call: Call, finding: Finding) -> Scene:
    window, place = geometry_of(call.problem).window, finding.place or ()
    assert window is not None
    if finding.result not in OF_OUTPUT:
        return _pooled_cell(call, finding, window, place[: -window.rank], place[-window.rank :])
    if not call.problem.attributes.get("keepdims", True):
        place = (*place, *(0,) * window.rank)
    return _pooled_window(call, finding, window, place[: -window.rank], place[-window.rank :])


def _pooled_window(call: Call, finding: Finding, window: Window, lead: Index, output: Index) -> Scene:
    """A wrong output: the window it reads, its winner, and the cell that the target seems to have taken."""
    x, taps = call.named()["x"], _cells(window, output)
    name, held = _forward_x(call)
    winner = _winner(call, x[lead], _real(taps, window.sizes))
    marks = _mark(tap=taps, winner=winner, theirs=_theirs(finding, held[lead], taps, window))
    filling = "0" if call.problem.op in ("avg_pool", "smooth_max_pool") else ""
    shown = {"x": x, name: held}
    planes = [_plane(name, array, lead, marks, window, filling) for name, array in shown.items()]
    words = {
        "tap": f"read by the window of output {list(output)}",
        "winner": "the winner",
        "theirs": "holds what the target gave" if finding.result != "indices" else "the index that the target gave",
    }
    return Scene([*planes, _result(finding, lead, output, window.outputs)], words | WRONG)


def _winner(call: Call, x: Array, cells: list[Index]) -> list[Index]:
    if call.problem.op not in SELECTIONS or not cells:
        return []
    return [cells[choose([x[cell].item() for cell in cells]).winner]]


def _theirs(finding: Finding, held: Array, taps: list[Index], window: Window) -> list[Index]:
    """For selections, the cells that explain what the target gave, as far as that can be told."""
    try:
        given = float(finding.got)
    except ValueError:
        return []
    if finding.op not in SELECTIONS:
        return []
    if finding.result == "indices":
        return [_unraveled(given, window.sizes)] if 0 <= given < prod(window.sizes) else []
    real = _real(taps, window.sizes)
    return [cell for cell in real if held[cell] == given or (given != given and held[cell] != held[cell])]


def _pooled_cell(call: Call, finding: Finding, window: Window, lead: Index, cell: Index) -> Scene:
    """A wrong gradient: the windows that read the cell, those that chose it, and their cotangents."""
    x, readers = call.named()["x"], _readers(window, cell)
    taps = {output: _cells(window, output) for output in readers}
    winners = {output: _winner(call, x[lead], _real(cells, window.sizes)) for output, cells in taps.items()}
    around = _mark(
        tap=(place for cells in taps.values() for place in cells),
        winner=(place for chosen in winners.values() for place in chosen),
        wrong=[cell],
    )
    sent = _mark(tap=readers, winner=(output for output, chosen in winners.items() if cell in chosen))
    planes = [_plane("x", x, lead, around, window)]
    if call.cotangent is not None:
        planes.append(MarkedPlane(f"g{_at(lead)}", call.cotangent[lead].reshape(window.outputs), sent))
    words = {
        "tap": f"in x, read by a window that reads cell {list(cell)}; in g, the cotangent of such a window",
        "winner": "in x, the winner of such a window; in g, a cotangent that belongs to the cell",
    }
    return Scene([*planes, _result(finding, lead, cell, window.sizes)], words | WRONG_GRADIENT)


# --- convolution -----------------------------------------------------------------------------------------------------

Pairs: TypeAlias = list[tuple[str, Array, str, Array]]
"""A tensor and the weight that it meets, each with its name."""


def _conv(call: Call, finding: Finding) -> Scene:
    form = geometry_of(call.problem).form
    assert form is not None
    if finding.result.endswith("bias"):
        return _channel_of_cotangent(call, finding, form)
    if finding.result.endswith("weight"):
        return _weight_place(call, finding, form)
    reads = (finding.result in OF_OUTPUT) == (call.problem.op == "conv")
    return _met_place(finding, form, _met_pairs(call, finding), reads)


def _met_pairs(call: Call, finding: Finding) -> Pairs:
    x, weight = (("x", call.named()["x"]), ("weight", call.named()["weight"]))
    if finding.result not in OF_OUTPUT:
        return [("g", call.arrays()["g"], *(weight if call.mode == "vjp" else _along(call)[1]))]
    if not call.directions:
        return [(*x, *weight)]
    dx, dw, *_ = _along(call)
    return [(*dx, *weight), (*x, *dw)]


def _met_place(finding: Finding, form: Form, pairs: Pairs, reads: bool) -> Scene:
    """A place that gathers a window, or one that is added to: the cells that take part, and the weights they meet."""
    window, channels, place = form.window, form.window.rank + 1, finding.place or ()
    lead, own, here = place[:-channels], place[-channels], place[1 - channels :]
    cells = _cells(window, here) if reads else _readers(window, here)
    used = {} if reads else _mark(tap=(_tap(window, output, here) for output in cells))
    group = form.x_channels_of(own) if reads else form.g_channels_of(own)
    planes = []
    for name, array, weight_name, weight in pairs:
        for other in group[:MOST_CHANNELS]:
            m, c = (own, other) if reads else (other, own)
            around = (window, "0") if reads else ()
            planes.append(_plane(name, array, (*lead, other), _mark(tap=cells), *around))
            planes.append(_plane(weight_name, weight, (m, c - form.x_channels_of(m).start), used))
    met = "read by the window of place {}" if reads else "reaches place {}, through the weights marked alike"
    result = _result(finding, (*lead, own), here, window.outputs if reads else window.sizes)
    note = f"{MOST_CHANNELS} of {len(group)} channels are drawn." if len(group) > MOST_CHANNELS else ""
    return Scene([*planes, result], {"tap": met.format(list(here))} | WRONG, note)


def _weight_place(call: Call, finding: Finding, form: Form) -> Scene:
    """A wrong weight gradient: the cells that its tap reads, against the cells of the outputs that read them."""
    m, own, *tap = finding.place or ()
    tensors = [("x", call.named()["x"]) if call.mode == "vjp" else _along(call)[0], ("g", call.arrays()["g"])]
    (wide_name, wide), narrow = tensors if call.problem.op == "conv" else tensors[::-1]
    sample = (0,) * (wide.ndim - form.window.rank - 1)
    outputs = list(product(*map(range, form.window.outputs)))
    axes = [list(zip(form.window.axes, output, tap, strict=True)) for output in outputs]
    read = (tuple(axis.positions(o)[t] for axis, o, t in each) for each in axes)
    planes = [
        _plane(wide_name, wide, (*sample, form.x_channels_of(m)[own]), _mark(tap=read), form.window, "0"),
        _plane(*narrow, (*sample, m), _mark(tap=outputs)),
        _result(finding, (m, own), tuple(tap), form.kernel),
    ]
    samples = prod(wide.shape[: len(sample)])
    note = f"The first of {samples} samples is drawn." if samples > 1 else ""
    return Scene(planes, {"tap": "multiplied in pairs and added up"} | WRONG_GRADIENT, note)


def _channel_of_cotangent(call: Call, finding: Finding, form: Form) -> Scene:
    """A wrong bias gradient: everything in its channel is added up."""
    (channel,), g, rank = finding.place or (0,), call.arrays()["g"], form.window.rank
    place = (*(0,) * (g.ndim - rank - 1), channel)
    added = _plane("g", g, place, _mark(tap=product(*map(range, g[place].shape))))
    result = _result(finding, (), (channel,), (g.shape[-1 - rank],))
    return Scene([added, result], {"tap": "added up, over all samples"} | WRONG_GRADIENT)


# --- columns and indices ---------------------------------------------------------------------------------------------


def _columns(call: Call, finding: Finding) -> Scene:
    """Unfold and fold: a column entry and the cell that it copies, or a cell and the entries that are added to it."""
    window, of_output = geometry_of(call.problem).window, finding.result in OF_OUTPUT
    assert window is not None
    source = _forward_x(call) if of_output else ("g", call.arrays()["g"])
    copies = of_output == (call.problem.op == "unfold")
    return (_copied_entry if copies else _entries_of_cell)(finding, window, *source)


def _copied_entry(finding: Finding, window: Window, name: str, planes: Array) -> Scene:
    *lead, row, column = finding.place or ()
    output = _unraveled(column, window.outputs)
    cells = _cells(window, output)
    channel, tap = divmod(row, len(cells))
    rows = planes.shape[-window.rank - 1] * len(cells)
    result = _result(finding, tuple(lead), (row, column), (rows, prod(window.outputs)))
    source = _plane(name, planes, (*lead, channel), _mark(tap=cells, winner=[cells[tap]]), window, "0")
    copied = f"tap {tap}, which row {row} copies"
    words = {"tap": f"read by window {list(output)}, column {column}", "winner": copied}
    return Scene([source, result], words | WRONG)


def _entries_of_cell(finding: Finding, window: Window, name: str, columns: Array) -> Scene:
    place = finding.place or ()
    lead, channel, cell = place[: -window.rank - 1], place[-window.rank - 1], place[-window.rank :]
    kernel = tuple(max(len(axis.positions(o)) for o in range(axis.outputs)) for axis in window.axes)
    entries = (
        (channel * prod(kernel) + flat(_tap(window, output, cell), kernel), flat(output, window.outputs))
        for output in _readers(window, cell)
    )
    words = {"tap": f"entries (row: tap, column: window) added up in cell {list(cell)}"}
    result = _result(finding, (*lead, channel), cell, window.sizes)
    return Scene([_plane(name, columns, lead, _mark(tap=entries)), result], words | WRONG)


def _unpool(call: Call, finding: Finding) -> Scene:
    """A cell of the output with what its index sends it; or a gradient with the cell it is taken from."""
    rank, place, indices = call.problem.rank, finding.place or (), call.named()["indices"]
    lead, here, sizes = place[:-rank], place[-rank:], tuple(call.problem.attributes["output_size"])
    if finding.result in OF_OUTPUT:
        sent = _mark(tap=(tuple(map(int, i)) for i in np.argwhere(indices[lead] == flat(here, sizes))))
        planes = [_plane(name, array, lead, sent) for name, array in (_forward_x(call), ("indices", indices))]
        words = {"tap": f"added at place {list(here)}"}
        return Scene([*planes, _result(finding, lead, here, sizes)], words | WRONG)
    index = int(indices[lead][here])
    planes = [
        _plane("indices", indices, lead, _mark(tap=[here])),
        _plane("g", call.arrays()["g"], lead, _mark(winner=[_unraveled(index, sizes)] if index >= 0 else [])),
        _result(finding, lead, here, indices[lead].shape),
    ]
    return Scene(planes, {"tap": "the index of the place", "winner": "the cell that it names"} | WRONG_GRADIENT)


SCENES: dict[str, Callable[[Call, Finding], Scene]] = {
    **dict.fromkeys((*SLIDING_POOLS, *SELECTIONS, *AVERAGES), _pool),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    **dict.fromkeys(COLUMNS, _columns),
    "max_unpool": _unpool,
}

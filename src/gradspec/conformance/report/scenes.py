"""What to draw of a finding: the arrays that meet in the wrong place of its result, and which of their cells do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.problem import SELECTIONS, Array, Call
from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.planes import Margins, Plane
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

    planes: list[Plane]
    words: dict[str, str] = field(default_factory=dict)
    note: str = ""


def scene(call: Call, finding: Finding) -> Scene:
    """The wrong place of a result with all that takes part in it; the inputs, where no place is known."""
    somewhere = finding.place is not None and finding.result in call.problem.results(call.mode)
    return SCENES[call.problem.op](call, finding) if somewhere else _inputs(call)


def _inputs(call: Call) -> Scene:
    named = {**call.named(), **({} if call.cotangent is None else {"g": call.cotangent})}
    window = None if call.problem.op in ("conv_transpose", "fold") else anatomy(call.problem).window
    planes = []
    for name, array in named.items():
        first = (0,) * max(array.ndim - call.problem.rank, 0)
        margins = _margins(window) if window is not None and name == "x" else ()
        planes.append(Plane(f"{name}{_at(first)}", array[first], margins=margins))
    return Scene(planes, note="The inputs of the call; no single place of a result is wrong.")


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


def _result(finding: Finding, lead: Index, place: Index, sizes: Index) -> Plane:
    """The plane of the result, of which the wrong cell is known."""
    values = np.full(sizes or (1,), None, dtype=object)
    where = place or (0,)
    values[where] = finding.got
    outer, inner = where[:-2], where[-2:]
    title = f"{finding.result}{_at((*lead, *outer))}, as given"
    return Plane(title, values[outer], _mark(wrong=[inner]), most=(4, 5))


# --- windows ---------------------------------------------------------------------------------------------------------


def _window(call: Call) -> Window:
    window = anatomy(call.problem).window
    assert window is not None
    return window


def _margins(window: Window) -> Margins:
    return tuple((axis.lo, axis.hi) if isinstance(axis, Regular) else (0, 0) for axis in window.axes)


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
    axes = zip(window.axes, output, cell, strict=True)
    return tuple(axis.positions(o).index(p) for axis, o, p in axes)


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pool(call: Call, finding: Finding) -> Scene:
    window, place = _window(call), finding.place or ()
    if finding.result not in OF_OUTPUT:
        return _pooled_cell(call, finding, window, place[: -window.rank], place[-window.rank :])
    if not call.problem.attributes.get("keepdims", True):
        place = (*place, *(0,) * window.rank)
    return _pooled_window(call, finding, window, place[: -window.rank], place[-window.rank :])


def _pooled_window(call: Call, finding: Finding, window: Window, lead: Index, output: Index) -> Scene:
    """A wrong output: the window it reads, its winner, and the cell that the target seems to have taken."""
    x, taps = call.named()["x"][lead], _cells(window, output)
    source = _along(call)[0] if call.directions else None
    held = x if source is None else source[1][lead]
    marks = _mark(
        tap=taps, winner=_winner(call, x, _real(taps, window.sizes)), theirs=_theirs(finding, held, taps, window)
    )
    filling = "0" if call.problem.op in ("avg_pool", "smooth_max_pool") else ""
    planes = [Plane(f"x{_at(lead)}", x, marks, _margins(window), filling)]
    if source is not None:
        planes.append(Plane(f"{source[0]}{_at(lead)}", held, marks, _margins(window), filling))
    words = {
        "tap": f"read by the window of output {list(output)}",
        "winner": "the winner",
        "theirs": "holds what the target gave" if finding.result != "indices" else "the index that the target gave",
        "wrong": "where the result is wrong",
    }
    return Scene([*planes, _result(finding, lead, output, window.outputs)], words)


def _winner(call: Call, x: Array, cells: list[Index]) -> list[Index]:
    if call.problem.op not in SELECTIONS or not cells:
        return []
    return [cells[choose([x[cell].item() for cell in cells]).winner]]


def _theirs(finding: Finding, held: Array, taps: list[Index], window: Window) -> list[Index]:
    """For selections, the cells that explain what the target gave, as far as that can be told."""
    if finding.op not in SELECTIONS:
        return []
    try:
        given = float(finding.got)
    except ValueError:
        return []
    if finding.result == "indices":
        inside = 0 <= given < np.prod(window.sizes)
        return [tuple(int(i) for i in np.unravel_index(int(given), window.sizes))] if inside else []
    return [
        cell
        for cell in _real(taps, window.sizes)
        if held[cell] == given or (given != given and held[cell] != held[cell])
    ]


def _pooled_cell(call: Call, finding: Finding, window: Window, lead: Index, cell: Index) -> Scene:
    """A wrong gradient: the windows that read the cell, those that chose it, and their cotangents."""
    x, readers = call.named()["x"][lead], _readers(window, cell)
    taps = {output: _cells(window, output) for output in readers}
    winners = {output: _winner(call, x, _real(cells, window.sizes)) for output, cells in taps.items()}
    around = _mark(
        tap=(place for cells in taps.values() for place in cells),
        winner=(place for chosen in winners.values() for place in chosen),
        wrong=[cell],
    )
    sent = _mark(tap=readers, winner=(output for output, chosen in winners.items() if cell in chosen))
    planes = [Plane(f"x{_at(lead)}", x, around, _margins(window))]
    if call.cotangent is not None:
        planes.append(Plane(f"g{_at(lead)}", call.cotangent[lead].reshape(window.outputs), sent))
    words = {
        "tap": f"in x, read by a window that reads cell {list(cell)}; in g, the cotangent of such a window",
        "winner": "in x, the winner of such a window; in g, a cotangent that belongs to the cell",
        "wrong": "where the gradient is wrong",
    }
    return Scene([*planes, _result(finding, lead, cell, window.sizes)], words)


# --- convolution -----------------------------------------------------------------------------------------------------

Pairs: TypeAlias = list[tuple[str, Array, str, Array]]
"""A tensor and the weight that it meets, each with its name."""


def _along(call: Call) -> list[tuple[str, Array]]:
    """The directions with their names."""
    letter = "d" if call.mode == "jvp" else "v_"
    return [
        (f"{letter}{name}", array) for name, array in zip(call.problem.differentiable, call.directions, strict=True)
    ]


def _conv(call: Call, finding: Finding) -> Scene:
    form = anatomy(call.problem).form
    assert form is not None
    if finding.result.endswith("bias"):
        return _channel_of_cotangent(call, finding, form)
    if finding.result.endswith("weight"):
        return _weight_place(call, finding, form)
    pairs = _forward(call) if finding.result in OF_OUTPUT else _backward(call)
    reads = (finding.result in OF_OUTPUT) == (call.problem.op == "conv")
    return (_read_place if reads else _write_place)(finding, form, pairs)


def _forward(call: Call) -> Pairs:
    named = call.named()
    if not call.directions:
        return [("x", named["x"], "weight", named["weight"])]
    (dx_name, dx), (dw_name, dw), *_ = _along(call)
    return [(dx_name, dx, "weight", named["weight"]), ("x", named["x"], dw_name, dw)]


def _backward(call: Call) -> Pairs:
    assert call.cotangent is not None
    name, weight = ("weight", call.named()["weight"]) if call.mode == "vjp" else _along(call)[1]
    return [("g", call.cotangent, name, weight)]


def _read_place(finding: Finding, form: Form, pairs: Pairs) -> Scene:
    """A place that gathers: the window's cells in every channel of the group, and the weights they meet."""
    window, channels, place = form.window, form.window.rank + 1, finding.place or ()
    lead, m, output = place[:-channels], place[-channels], place[1 - channels :]
    taps, group = _cells(window, output), form.x_channels_of(m)
    planes = []
    for name, array, weight_name, weight in pairs:
        for c in group[:MOST_CHANNELS]:
            tensor = Plane(f"{name}{_at((*lead, c))}", array[(*lead, c)], _mark(tap=taps), _margins(window), "0")
            planes += [tensor, Plane(f"{weight_name}[{m}, {c - group.start}]", weight[m, c - group.start])]
    words = {"tap": f"read by the window of place {list(output)}", "wrong": "where the result is wrong"}
    return Scene([*planes, _result(finding, (*lead, m), output, window.outputs)], words, _channels(len(group)))


def _write_place(finding: Finding, form: Form, pairs: Pairs) -> Scene:
    """A place that is added to: the cells whose windows cover it, and the weight at which each does."""
    window, channels, place = form.window, form.window.rank + 1, finding.place or ()
    lead, c, cell = place[:-channels], place[-channels], place[1 - channels :]
    readers, group = _readers(window, cell), form.g_channels_of(c)
    used = _mark(tap=(_tap(window, output, cell) for output in readers))
    planes = []
    for name, array, weight_name, weight in pairs:
        for m in group[:MOST_CHANNELS]:
            own = c - form.x_channels_of(m).start
            planes += [
                Plane(f"{name}{_at((*lead, m))}", array[(*lead, m)], _mark(tap=readers)),
                Plane(f"{weight_name}[{m}, {own}]", weight[m, own], used),
            ]
    words = {
        "tap": f"reaches place {list(cell)}, through the weights marked alike",
        "wrong": "where the result is wrong",
    }
    return Scene([*planes, _result(finding, (*lead, c), cell, window.sizes)], words, _channels(len(group)))


def _channels(number: int) -> str:
    return f"{MOST_CHANNELS} of {number} channels are drawn." if number > MOST_CHANNELS else ""


def _weight_place(call: Call, finding: Finding, form: Form) -> Scene:
    """A wrong weight gradient: the cells that its tap reads, against the cells of the outputs that read them."""
    assert call.cotangent is not None
    m, own, *tap = finding.place or ()
    x_name, x = ("x", call.named()["x"]) if call.mode == "vjp" else _along(call)[0]
    tensors = [(x_name, x), ("g", call.cotangent)]
    (wide_name, wide), (narrow_name, narrow) = tensors if call.problem.op == "conv" else tensors[::-1]
    c = form.x_channels_of(m)[own]
    sample = (0,) * (wide.ndim - form.window.rank - 1)
    outputs = list(product(*map(range, form.window.outputs)))
    read = [_cells_at(form.window, output, tap) for output in outputs]
    planes = [
        Plane(f"{wide_name}{_at((*sample, c))}", wide[(*sample, c)], _mark(tap=read), _margins(form.window), "0"),
        Plane(f"{narrow_name}{_at((*sample, m))}", narrow[(*sample, m)], _mark(tap=outputs)),
        _result(finding, (m, own), tuple(tap), form.kernel),
    ]
    samples = int(np.prod(wide.shape[: len(sample)]))
    words = {"tap": "multiplied in pairs and added up", "wrong": "where the gradient is wrong"}
    return Scene(planes, words, f"The first of {samples} samples is drawn." if samples > 1 else "")


def _cells_at(window: Window, output: Index, tap: Iterable[int]) -> Index:
    return tuple(axis.positions(o)[t] for axis, o, t in zip(window.axes, output, tap, strict=True))


def _channel_of_cotangent(call: Call, finding: Finding, form: Form) -> Scene:
    """A wrong bias gradient: everything in its channel is added up."""
    assert call.cotangent is not None
    (channel,), g, rank = finding.place or (0,), call.cotangent, form.window.rank
    sample = (0,) * (g.ndim - rank - 1)
    plane = g[(*sample, channel)]
    marks = _mark(tap=product(*map(range, plane.shape)))
    words = {"tap": "added up, over all samples", "wrong": "where the gradient is wrong"}
    result = _result(finding, (), (channel,), (g.shape[-1 - rank],))
    return Scene([Plane(f"g{_at((*sample, channel))}", plane, marks), result], words)


# --- columns and indices ---------------------------------------------------------------------------------------------


def _columns(call: Call, finding: Finding) -> Scene:
    """Unfold and fold: a column entry and the cell that it copies, or a cell and the entries that are added to it."""
    window, of_output = _window(call), finding.result in OF_OUTPUT
    forward = _along(call)[0] if call.directions else ("x", call.named()["x"])
    source = forward if of_output else ("g", call.cotangent)
    if of_output == (call.problem.op == "unfold"):
        return _copied_entry(finding, window, *source)
    return _entries_of_cell(finding, window, *source)


def _copied_entry(finding: Finding, window: Window, name: str, planes: Any) -> Scene:
    *lead, row, column = finding.place or ()
    output = tuple(int(i) for i in np.unravel_index(column, window.outputs))
    cells = _cells(window, output)
    channel, tap = divmod(row, len(cells))
    index = (*lead, channel)
    marks = _mark(tap=cells, winner=[cells[tap]])
    words = {
        "tap": f"read by window {list(output)}, column {column}",
        "winner": f"tap {tap}, which row {row} copies",
        "wrong": "where the result is wrong",
    }
    rows = planes.shape[-window.rank - 1] * len(cells)
    result = _result(finding, tuple(lead), (row, column), (rows, int(np.prod(window.outputs))))
    return Scene([Plane(f"{name}{_at(index)}", planes[index], marks, _margins(window), "0"), result], words)


def _entries_of_cell(finding: Finding, window: Window, name: str, columns: Any) -> Scene:
    place = finding.place or ()
    lead, channel, cell = place[: -window.rank - 1], place[-window.rank - 1], place[-window.rank :]
    kernel = tuple(max(len(axis.positions(o)) for o in range(axis.outputs)) for axis in window.axes)
    taps = int(np.prod(kernel))
    entries = [
        (channel * taps + flat(_tap(window, output, cell), kernel), flat(output, window.outputs))
        for output in _readers(window, cell)
    ]
    words = {
        "tap": f"entries (row: tap, column: window) added up in cell {list(cell)}",
        "wrong": "where the result is wrong",
    }
    planes = [Plane(f"{name}{_at(lead)}", columns[lead], _mark(tap=entries))]
    return Scene([*planes, _result(finding, (*lead, channel), cell, window.sizes)], words)


def _unpool(call: Call, finding: Finding) -> Scene:
    """A cell of the output with what its index sends it; or a gradient with the cell it is taken from."""
    rank, place, named = call.problem.rank, finding.place or (), call.named()
    lead, here = place[:-rank], place[-rank:]
    chosen, sizes = named["indices"][lead], tuple(call.problem.attributes["output_size"])
    if finding.result in OF_OUTPUT:
        name, array = _along(call)[0] if call.directions else ("x", named["x"])
        marks = _mark(tap=(tuple(map(int, i)) for i in np.argwhere(chosen == flat(here, sizes))))
        sent = Plane(f"{name}{_at(lead)}", array[lead], marks)
        words = {"tap": f"added at place {list(here)}", "wrong": "where the result is wrong"}
        return Scene([sent, Plane(f"indices{_at(lead)}", chosen, marks), _result(finding, lead, here, sizes)], words)
    assert call.cotangent is not None
    index = int(chosen[here])
    source = [tuple(int(i) for i in np.unravel_index(index, sizes))] if index >= 0 else []
    planes = [
        Plane(f"indices{_at(lead)}", chosen, _mark(tap=[here])),
        Plane(f"g{_at(lead)}", call.cotangent[lead], _mark(winner=source)),
        _result(finding, lead, here, chosen.shape),
    ]
    words = {
        "tap": "the index of the place",
        "winner": "the cell that it names",
        "wrong": "where the gradient is wrong",
    }
    return Scene(planes, words)


SCENES: dict[str, Callable[[Call, Finding], Scene]] = {
    "max_pool": _pool,
    "avg_pool": _pool,
    "smooth_max_pool": _pool,
    "adaptive_max_pool": _pool,
    "adaptive_avg_pool": _pool,
    "global_max_pool": _pool,
    "global_avg_pool": _pool,
    "conv": _conv,
    "conv_transpose": _conv,
    "unfold": _columns,
    "fold": _columns,
    "max_unpool": _unpool,
}

"""The demo, section by section. Later sections use the names that earlier ones entered."""

import math
from string import ascii_uppercase
from typing import Any

from rich.text import Text

from gradspec import __version__
from gradspec.demo.page import TITLE, WINNER, Page, Picture, faint, grid, number, table


def opening(page: Page) -> None:
    page.console.print()
    page.say(f"gradspec {__version__}: what convolution and pooling mean", TITLE)
    page.say(
        "An executable specification: every operator has a value, a forward derivative (JVP) and a reverse derivative "
        "(VJP), written once and run on any kind of number. All that follows is computed now, by the lines after >>>; "
        "they form one Python session that you can type yourself."
    )
    page.enter("import gradspec as gs")


def windows(page: Page) -> None:
    page.section(
        "What a window reads",
        "A 3x3 window moves over a 5x5 image in steps of 2, with one ring of padding: on each axis it reads real "
        "positions (o) and padding (.), and every geometry in the library, in any number of dimensions, is a product "
        "of such pictures.",
    )
    at = page.enter("""
        image = [[-2, -1,  0,  3,  1],
                 [-1, -4,  3,  6,  2],
                 [ 2,  2, -5,  6, -3],
                 [ 0,  1,  4, -2, -1],
                 [-3,  4,  4, -1, -5]]
        window = dict(kernel_size=(3, 3), stride=2, padding=1)
        geometry = gs.spec.regular((5, 5), **window)
        rows, columns = geometry.axes
        reads = [list(rows.positions(o)) for o in range(3)]
    """)
    places = range(-at.rows.lo, at.rows.size + at.rows.hi)
    ringed = [[_pixel(at.image, i, j) for j in places] for i in places]
    page.draw(grid(ringed, "image"), _axis_picture(places, at.rows.size, at.reads))


def _pixel(image: list[list[int]], i: int, j: int) -> Text:
    real = 0 <= i < len(image) and 0 <= j < len(image[0])
    return number(image[i][j]) if real else faint(".")


def _axis_picture(places: range, size: int, reads: list[list[int]]) -> Picture:
    marks = [["" if p not in taps else "o" if 0 <= p < size else "." for p in places] for taps in reads]
    rows = [("window", places), *enumerate(marks)]
    lines = [Text(f"{name:<6}" + "".join(f"{mark:>3}" for mark in row)) for name, row in rows]
    return [Text("positions read on each axis", TITLE), *lines]


def winners(page: Page) -> None:
    page.section(
        "Max pooling, and who wins",
        "The winner of a window, in brackets, is its first largest real cell, and derivatives follow the winners: "
        "which windows each cell serves is all there is to know about them.",
    )
    at = page.enter("""
        y, where = gs.spec.max_pool(image, **window,
                                    return_indices=True)
        ring = [[0] * 7, *([0, *r, 0] for r in image), [0] * 7]
        y0 = gs.spec.max_pool(ring, (3, 3), stride=2)
    """)
    cells = [cell for row in at.image for cell in row]
    named = zip(ascii_uppercase, at.geometry.table(), at.where.cells, strict=False)
    pictures = [_window_picture(cells, *one) for one in named]
    for start in range(0, len(pictures), 3):
        page.draw(*pictures[start : start + 3])
    page.draw(
        grid(_numbers(at.y.tolist()), "value"),
        grid(_numbers(at.y0.tolist()), "with zeros"),
        grid(_served(at.where.cells), "windows each cell serves"),
    )
    pairs = zip(ascii_uppercase, at.y.cells, at.y0.cells, strict=False)
    fooled = [name for name, value, with_zeros in pairs if value != with_zeros]
    page.say(
        f"Padding never competes. If it did, as zeros, windows {' and '.join(fooled)} would report a maximum that none "
        "of their cells holds."
    )


def _window_picture(cells: list[int], name: str, taps: list[int | None], winner: int) -> Picture:
    drawn = [faint(".") if tap is None else number(cells[tap], wins=tap == winner) for tap in taps]
    lines = grid((drawn[i : i + 3] for i in (0, 3, 6)), width=4)
    return [Text.assemble((name if i == 0 else " ", TITLE), line) for i, line in enumerate(lines)]


def _numbers(rows: list[list[Any]]) -> list[list[Text]]:
    return [[number(value) for value in row] for row in rows]


def _served(winning: list[int]) -> list[list[Text]]:
    names = ["".join(w for w, cell in zip(ascii_uppercase, winning, strict=False) if cell == c) for c in range(25)]
    cells = [Text(name, WINNER) if name else Text("-") for name in names]
    return [cells[i : i + 5] for i in range(0, 25, 5)]


def floats_and_rationals(page: Page) -> None:
    page.section(
        "Floats and exact rationals, by the same code",
        "A VJP is the transpose of the JVP, so the two inner products below are one number: they are equal in "
        "rationals, and differ by rounding in floats, which alone could not tell that from a bug.",
    )
    at = page.enter("""
        def dot(a, b):
            total = 0
            for p, q in zip(a.cells, b.cells):
                total = total + p * q
            return total

        def average(x, v, g):
            value = gs.spec.avg_pool(x, (3,), stride=1)
            jvp = gs.spec.avg_pool_jvp(x, v, (3,), stride=1)
            vjp = gs.spec.avg_pool_vjp(x, g, (3,), stride=1)
            return value, jvp, vjp, dot(g, jvp), dot(vjp, v)

        x = gs.exact.tensor(["1/10", "1/5", "3/10", "7/10"])
        v = gs.exact.tensor(["1/3", "1/7", "-1/5", "1/10"])
        g = gs.exact.tensor(["1/7", "3/10"])
        rational = average(x, v, g)
        rounded = average(*(t.map(float) for t in (x, v, g)))
    """)
    names = ("value", "", "J v", "", "J^T g", "", "", "", "<g, J v>", "<J^T g, v>", "difference")
    rows = zip(names, _flat(*at.rounded), _flat(*at.rational), strict=True)
    page.draw(table(("", "floats", "rationals"), rows))


def _flat(value: Any, jvp: Any, vjp: Any, left: Any, right: Any) -> list[Any]:
    return [*value.cells, *jvp.cells, *vjp.cells, left, right, left - right]


def ties(page: Page) -> None:
    page.section(
        "Ties, by three stated rules",
        "Where cells tie, the maximum has no derivative in the usual sense, so a library must choose one and say so; "
        "under each rule the JVP and the VJP are still exact transposes.",
    )
    at = page.enter("""
        tied = gs.exact.tensor([[3, 3], [1, 3]])
        v = gs.exact.tensor([[10, 20], [40, 60]])
        g = gs.exact.tensor([[1]])
        def rule(t):
            jvp = gs.spec.max_pool_jvp(tied, v, (2, 2), ties=t)
            vjp = gs.spec.max_pool_vjp(tied, g, (2, 2), ties=t)
            return t, vjp, dot(g, jvp), dot(vjp, v)

        rules = [rule(t) for t in ("first", "all", "split")]
    """)
    rows = [(name, vjp.tolist(), *sides) for name, vjp, *sides in at.rules]
    page.draw(table(("ties", "J^T g", "<g, J v>", "<J^T g, v>"), rows))


def intervals(page: Page) -> None:
    page.section(
        "The same pooling on intervals",
        "Let every pixel be uncertain by 0.25: the bounds hold for every image in that box, and where several cells "
        "may win, the derivative encloses every case, so what is read off here is proved for all of them.",
    )
    at = page.enter("""
        box = gs.interval.tensor(
            [[p - 0.25 for p in row] for row in image],
            [[p + 0.25 for p in row] for row in image])
        bounds = gs.spec.max_pool(box, **window)
        ones = gs.interval.tensor([[1] * 3] * 3)
        serves = gs.spec.max_pool_vjp(box, ones, **window)
    """)
    page.draw(grid(([Text(str(i)) for i in row] for row in at.bounds.tolist()), "bounds of the value"))
    counts = ([_count(i) for i in row] for row in at.serves.tolist())
    page.draw(grid(counts, "how many windows each cell serves, at least..at most", width=6))


def _count(interval: Any) -> Text:
    if interval.lo == interval.hi:
        return Text(f"{interval.lo:g}" if interval.hi else "-")
    return Text(f"{interval.lo:g}..{interval.hi:g}", WINNER)


def smooth_maximum(page: Page) -> None:
    page.section(
        "Smooth max beside hard max",
        "Smooth max pooling has a true derivative everywhere and exceeds the maximum of four cells by at most "
        "log(4)/beta; in balls, one evaluation proves as many digits as you ask for.",
    )
    at = page.enter("""
        patch, one = [[1.0, 2.0], [4.0, 3.0]], [[1.0]]
        hard = gs.spec.max_pool(patch, (2, 2))
        hard_vjp = gs.spec.max_pool_vjp(patch, one, (2, 2))
        soft = gs.spec.smooth_max_pool
        soft_vjp = gs.spec.smooth_max_pool_vjp
        curve = {b: (soft(patch, (2, 2), beta=b),
                     soft_vjp(patch, one, (2, 2), beta=b))
                 for b in (1, 2, 4, 8, 16)}
        balls = gs.ball(128).tensor(patch)
        proved = soft(balls, (2, 2), beta=1)
    """)
    peak = at.hard[0, 0]
    rows = [
        (beta, f"{y[0, 0]:.9f}", f"{y[0, 0] - peak:.3g}", f"{math.log(4) / beta:.3g}", f"{vjp[1, 0]:.9f}")
        for beta, (y, vjp) in at.curve.items()
    ]
    rows.append(("hard", f"{peak:.9f}", "", "", f"{at.hard_vjp[1, 0]:.9f}"))
    page.draw(table(("beta", "maximum", "excess", "log(4)/beta", "weight of 4"), rows))
    page.draw([Text("beta = 1, in balls of 128 bits", TITLE), Text(str(at.proved[0, 0]))])


def low_precision(page: Page) -> None:
    page.section(
        "Low precision, bit for bit",
        "Averaging 4096 tenths, a float16 sum stalls once a tenth is less than half of its last place, and a float32 "
        "sum does not; every rounding is part of the meaning, so the bits can be compared with a NumPy loop's.",
    )
    at = page.enter("""
        import numpy as np
        tenths = [0.1] * 4096
        def ours(storage, sums):
            x = gs.ieee(storage, accumulate=sums).tensor(tenths)
            return gs.spec.avg_pool(x, (4096,))[0]

        kind = {"f16": np.float16, "f32": np.float32}
        def numpys(storage, sums):
            x = np.array(tenths, kind[storage])
            total = np.cumsum(x, dtype=kind[sums])[-1]
            return kind[storage](total / kind[sums](4096))

        modes = [("f16", "f16"), ("f16", "f32"), ("f32", "f32")]
        both = [(ours(*mode), numpys(*mode)) for mode in modes]
    """)
    rows = [
        (*mode, ours, _bits(at.kind[mode[0]](float(ours))), _bits(numpys))
        for mode, (ours, numpys) in zip(at.modes, at.both, strict=True)
    ]
    page.draw(table(("stored", "sums", "average", "bits", "NumPy's"), rows))


def _bits(x: Any) -> str:
    """The bits of a NumPy number in hexadecimal."""
    return f"{int(x.view(f'u{x.itemsize}')):0{2 * x.itemsize}x}"


def original_rule(page: Page) -> None:
    page.section(
        "Where the original's code and its documentation differ",
        "TorchLean, the system gradspec grew from, documents the first maximum as the winner, but the derivative of "
        "its unpadded 2-d pooling compares each cell with the best of earlier rows only. Both rules are judged here by "
        "the slope of the maximum itself.",
    )
    at = page.enter("""
        def original(window):
            best = (0, 0)
            for i, row in enumerate(window):
                a, b = best
                for j, cell in enumerate(row):
                    if cell > window[a][b]:
                        best = (i, j)
            return best

        def documented(window):
            _, where = gs.spec.max_pool(window, (2, 2),
                                        return_indices=True)
            return divmod(where[0, 0], 2)

        def slope(i, j, rise=0.125):
            raised = [row[:] for row in patch]
            raised[i][j] += rise
            top = gs.spec.max_pool(raised, (2, 2))
            return (top[0, 0] - hard[0, 0]) / rise

        from itertools import permutations
        every = [[p[:2], p[2:]] for p in permutations(range(4))]
        bad = [w for w in every if original(w) != documented(w)]
    """)
    places = [[(i, j) for j in (0, 1)] for i in (0, 1)]
    chosen = at.original(at.patch), at.documented(at.patch)
    page.draw(
        grid(_numbers(at.patch), "window"),
        grid(_numbers([[int(place == chosen[0]) for place in row] for row in places]), "original"),
        grid(_numbers(at.hard_vjp.tolist()), "gradspec"),
        grid(_numbers([[at.slope(*place) for place in row] for row in places]), "slope"),
    )
    theirs, ours = (f"{at.patch[i][j]:g}" for i, j in chosen)
    page.say(
        f"The original sends the gradient to the {theirs}, gradspec to the {ours}. Of the {len(at.every)} ways to "
        f"order four numbers in a 2x2 window, the original goes wrong in {len(at.bad)}."
    )


def graphs(page: Page) -> None:
    page.section(
        "A network is a graph, and so are its derivatives",
        "Traced, a function becomes a list of operators. Differentiated, it is a list of operators again. Forward over "
        "reverse and reverse over forward are two graphs for one Hessian, and in rationals their results are equal.",
    )
    at = page.enter("""
        def network(signal, w):
            y = gs.relu(gs.conv1d(signal, w))
            top = gs.max_pool1d(y, 2)
            return gs.sum(top * top * top)

        net = gs.trace(network, gs.f32[1, 5], gs.f32[1, 1, 2])
        signal = gs.exact.tensor([[1, "1/2", 2, -1, "1/10"]])
        w = gs.exact.tensor([[["3/10", "7/10"]]])
        along = gs.exact.tensor([[[1, 0]]])
        def exactly(graph, *more):
            return gs.evaluate(graph, signal, w, *more,
                               domain=gs.exact)

        slope = exactly(net.vjp("w"), 1)
        twice = (net.vjp("w").jvp("w"), net.jvp("w").vjp("w"))
        bend = (exactly(twice[0], 1, along)[-1],
                exactly(twice[1], along, 0, 1)[-1])
    """)
    page.draw(table(("variable", "is", "type"), map(_assignment, at.net.nodes)))
    value, gradient = at.slope
    names = ("value", "gradient", "forward over reverse", "reverse over forward")
    programs = (at.net, at.net.vjp("w"), *at.twice)
    results = (value, gradient, *at.bend)
    rows = [(name, len(g.nodes), r.tolist()) for name, g, r in zip(names, programs, results, strict=True)]
    page.draw(table(("", "nodes", "exactly"), rows))


def _assignment(node: Any) -> tuple[str, str, str]:
    (output,) = node.outputs
    return output.name, f"{node.op}({', '.join(v.name for v in node.inputs)})", str(output.type)


def proofs(page: Page) -> None:
    page.section(
        "A proved statement",
        "What can a network output over a whole box of inputs? Lines follow its cells back to the inputs; every "
        "rounding is accounted for, that of the bounds and that of any kernel that will ever run the network. So the "
        "statement below is about all of them.",
    )
    at = page.enter("""
        import numpy as np
        mask = np.float32([[[[1, 0, -1]] * 3]])
        def edges(x):
            y = gs.relu(gs.conv2d(x, mask, padding=1))
            return gs.max_pool2d(y, 3, stride=2)

        seen = np.float32([image]) / 8
        eps = np.float32(0.01)
        network = gs.trace(edges, gs.f32[1, 5, 5])
        reach = gs.bounds(network, seen - eps, seen + eps)
    """)
    rows = zip(at.network(at.seen).flat, at.reach.lower.flat, at.reach.upper.flat, strict=True)
    page.draw(
        table(
            ("output", "value", "at least", "at most"),
            ((str(i), f"{y:.4f}", _outward(low, -1), _outward(high, 1)) for i, (y, low, high) in enumerate(rows)),
        )
    )


def _outward(end: Any, side: int) -> str:
    """Four digits of an end that lie on its far side."""
    return f"{side * math.ceil(side * float(end) * 10**4) / 10**4:.4f}"


def closing(page: Page) -> None:
    page.say("Read on: python -m pydoc gradspec.spec.pool shows the specification that these lines ran.")


SECTIONS = (
    opening,
    windows,
    winners,
    floats_and_rationals,
    ties,
    intervals,
    smooth_maximum,
    low_precision,
    original_rule,
    graphs,
    proofs,
    closing,
)

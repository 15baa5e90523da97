"""The demo, one idea a screen. Later sections use the names that earlier ones entered."""

import math
from importlib.util import find_spec

from rich.text import Text

from gradspec import __version__
from gradspec.demo.page import Page, Picture, grid, number, table
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node


def opening(page: Page) -> None:
    page.title(f"gradspec {__version__}: what convolution and pooling mean")
    page.say(
        "A specification that runs, the judge of kernels, and proofs about networks, in five screens. All that "
        "follows is computed now, by the lines after >>>; they form one Python session that you can type yourself."
    )
    page.enter("import gradspec as gs")


def specification(page: Page) -> None:
    page.section(
        "A specification, read and run",
        "Max pooling as it is defined: the first largest real cell of a window wins, and padding never competes. The "
        "same lines of Python run on integers, on exact rationals, where tied cells may share the gradient, and on "
        "intervals, where they hold for every image in a box.",
    )
    at = page.enter("""
        image = [[-2, -1,  0,  3,  1],
                 [-1, -4,  3,  6,  2],
                 [ 2,  2, -5,  6, -3],
                 [ 0,  1,  4, -2, -1],
                 [-3,  4,  4, -1, -5]]
        window = dict(kernel_size=(3, 3), stride=2, padding=1)
        y, where = gs.spec.max_pool(image, **window,
                                    return_indices=True)
        ones = gs.exact.tensor([[1] * 3] * 3)
        shared = gs.spec.max_pool_vjp(image, ones, **window,
                                      ties="split")
        box = gs.interval.tensor(
            [[p - 0.5 for p in row] for row in image],
            [[p + 0.5 for p in row] for row in image])
        bounds = gs.spec.max_pool(box, **window)
    """)
    gradient = [[Text(str(q) if q else "-") for q in row] for row in at.shared.tolist()]
    cells = [[number(c, 5 * i + j in at.where.cells) for j, c in enumerate(row)] for i, row in enumerate(at.image)]
    page.draw(grid(cells, "image, winners"), grid(gradient, "gradient, ties shared"))
    page.draw(
        grid([[number(value) for value in row] for row in at.y.tolist()], "value"),
        grid(([Text(str(i)) for i in row] for row in at.bounds.tolist()), "value, if pixels are off by 1/2"),
    )


def judged(page: Page) -> None:
    page.section(
        "A kernel, judged",
        "This kernel pads with zeros, and the test that one writes first passes: its numbers are positive. The judge "
        "tries what tests leave out, compares with exact arithmetic, and shrinks what is wrong to its smallest case.",
    )
    at = page.enter("""
        import numpy as np
        from numpy.lib.stride_tricks import sliding_window_view
        def max_pool1d(x, kernel_size, stride, padding):
            sides = [(0, 0)] * (x.ndim - 1) + list(padding)
            cells = sliding_window_view(np.pad(x, sides),
                                        kernel_size[0], axis=-1)
            return cells[..., ::stride[0], :].max(axis=-1)

        drawn = np.random.default_rng(0).random((8, 99))
        mine = max_pool1d(drawn, (2,), (2,), [(1, 1)])
        ours = gs.max_pool1d(drawn, 2, padding=1)
        passes = np.allclose(mine, ours)
        run = gs.conformance.check(max_pool1d, cases=20, seed=2,
                                   dtypes=["f32"], ranks=[1])
        found = run.by_kind("defect")[0]
    """)
    (case,) = at.found.case["inputs"]
    shown = {
        "np.allclose": at.passes,
        "cases judged": f"{at.run.cases}, of which {at.found.count} show this",
        "defect": at.found.title,
        "smallest input": case["cells"],
        "smallest window": ", ".join(f"{k} {v}" for k, v in at.found.case["problem"]["attributes"].items()),
        "got": at.found.got,
        "expected": at.found.expected,
    }
    page.draw(table(("kernel", at.max_pool1d.__name__), shown.items()))


def proved(page: Page) -> None:
    page.section(
        "A network, bounded and proved",
        "Bounds hold for every image in a box, and for whatever kernel will ever run the network, with its rounding. "
        "That each of these images shows a vertical edge is proved, and the proof is checked by code that shares "
        "nothing with the search. In a larger box there is a counterexample, which is one exactly.",
    )
    at = page.enter("""
        bars = np.float32([[1, 0, -1]] * 3)
        masks = np.stack([bars, bars.T])[:, None]
        def edges(x):
            y = gs.relu(gs.conv2d(x, masks))
            return gs.sum(y, axis=(1, 2))

        seen = np.float32([[[1, 1, 0, 0, 0]] * 5])
        network = gs.trace(edges, gs.f32[1, 5, 5])
        reach = gs.bounds(network, seen - np.float32(0.05),
                          seen + np.float32(0.05))
        claim = gs.verify.Property.robust(seen, "1/20", 0, 2)
        proof = gs.verify.prove(network, claim)
        checked = gs.verify.check(proof.certificate,
                                  network, claim)
        wider = gs.verify.robust(network, seen, "1/2", 0)
        outputs = network(*wider.witness)
    """)
    rows = zip(("vertical", "horizontal"), at.network(at.seen), at.reach.lower, at.reach.upper, strict=True)
    ends = [(name, f"{y:.3f}", _outward(low, -1), _outward(high, 1)) for name, y, low, high in rows]
    page.draw(table(("edge", "value", "at least", "at most"), ends))
    verdicts = [
        ("1/20", at.proof.status, f"certificate {'accepted' if at.checked else 'refused'}"),
        ("1/2", at.wider.status, "vertical {:.3f}, horizontal {:.3f}".format(*at.outputs)),
    ]
    page.draw(table(("off by", "answer", "because"), verdicts))


def _outward(end: float, side: int) -> str:
    """Three digits of an end that lie on its far side."""
    return f"{side * math.ceil(side * float(end) * 10**3) / 10**3:.3f}"


def differentiated(page: Page) -> None:
    page.section(
        "A derivative, exact",
        "Traced, a function becomes a list of operators. Differentiated, it is a list of operators again. Forward over "
        "reverse and reverse over forward are two graphs for one Hessian, and in rationals their results are equal.",
    )
    at = page.enter("""
        def cubed(signal, w):
            y = gs.relu(gs.conv1d(signal, w))
            top = gs.max_pool1d(y, 2)
            return gs.sum(top * top * top)

        net = gs.trace(cubed, gs.f32[1, 5], gs.f32[1, 1, 2])
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
    page.draw(_nodes(at.net))
    value, gradient = at.slope
    names = ("value", "gradient", "forward over reverse", "reverse over forward")
    programs = (at.net, at.net.vjp("w"), *at.twice)
    results = (value, gradient, *at.bend)
    rows = [(name, len(g.nodes), r.tolist()) for name, g, r in zip(names, programs, results, strict=True)]
    page.draw(table(("", "nodes", "exactly"), rows))


def _nodes(graph: Graph) -> Picture:
    return table(("variable", "is", "type"), map(_assignment, graph.nodes))


def _assignment(node: Node) -> tuple[str, str, str]:
    (output,) = node.outputs
    return output.name, f"{node.op}({', '.join(v.name for v in node.inputs)})", str(output.type)


def imported(page: Page) -> None:
    page.section(
        "A model, imported",
        "Models come from PyTorch, JAX and ONNX, and go back. In between they are graphs like the ones above: they "
        "run on compiled kernels, have derivatives of every order, and can be bounded, proved and judged by.",
    )
    if find_spec("onnx") is None:
        page.say('This screen needs a library that has models: pip install "gradspec[onnx]" brings one.')
        return
    at = page.enter("""
        import onnx.parser
        model = onnx.parser.parse_model('''
          <ir_version: 8, opset_import: ["" : 18]>
          tiny (float[1,1,4,4] x) => (float[1,4] y) {
            w = Constant<value = float[1,1,1,1] {-2.0}>()
            c = Conv(x, w)
            r = Relu(c)
            p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
            y = Flatten<axis=1>(p)
          }''')
        graph = gs.from_onnx(model)
        x = np.float32([[[[3, -1, 2, -2], [1, -4, 0, 5],
                          [-1, 2, -3, 0], [2, 2, 1, 1]]]])
        ones = np.ones((1, 4), np.float32)
        result, pulled = graph.vjp()(x, ones)
    """)
    page.draw(_nodes(at.graph))
    pulled = [[number(int(cell), wins=bool(cell)) for cell in row] for row in at.pulled[0, 0]]
    cells = [[number(int(cell)) for cell in row] for row in at.x[0, 0]]
    outputs = [[number(int(cell)) for cell in row] for row in at.result.reshape(2, 2)]
    page.draw(grid(cells, "x"), grid(outputs, "y"), grid(pulled, "gradient of y's sum"))


def closing(page: Page) -> None:
    page.say(
        "Read on: python -m pydoc gradspec.spec.pool shows the specification that these lines ran, and gradspec check "
        "--help how to judge a kernel of your own."
    )


SECTIONS = (opening, specification, judged, proved, differentiated, imported, closing)

"""What the compiled runtime costs beyond the kernels' own time, each figure measured where it arises.

    python benchmarks/runtime_costs.py [--only NAME] [--json FILE]

windows          a 31-wide window at stride 1 against a 13-wide one
linearity        nanoseconds per element from 10⁴ to 10⁸ elements
threads          from one thread to all: the speed-up, and the processor time that a call takes
geometries       1,000 different pooling geometries in a fresh process: kernels compiled and time to plan, cold and warm
conv-geometries  the same for 1,000 convolutions, transposed convolutions and derivatives
start            the first call of a new process that finds its kernels on disk
compiling        the first call of an operator on a machine that has never compiled it
resnet           time to compile ResNet-18 at 224×224, cold and from the disk
workspace        bytes per thread, from the plans, beside (k₀ + 2) slabs of value and winner
conv-workspace   workspace per thread and arena of convolutions, on the grid and on growing inputs

Compiled kernels go to folders of their own (GRADSPEC_CACHE_DIR), so that cold is cold. Times are medians unless said
otherwise. The environment variable GEOMETRIES asks for fewer geometries than 1,000.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, thread_time
from typing import NamedTuple

OPS, MODES = ("max", "avg", "smooth"), ("forward", "jvp", "vjp")
CONVOLUTIONS = ("conv", "transposed", "weight gradient", "jvp", "vjp")
GEOMETRIES = int(os.environ.get("GEOMETRIES", "1000"))


def graph(op, mode, shape, kernel, stride, padding):
    """One pooling and, with a mode, its derivative, as a graph."""
    import gradspec as gs

    more = {"beta": 1.0} if op == "smooth" else {} if op in OPS else {"ties": op}
    pool = {"avg": gs.avg_pool, "smooth": gs.smooth_max_pool}.get(op, gs.max_pool)
    value = gs.trace(lambda x: pool(x, kernel, stride, padding, **more), gs.f32[shape])
    return {"forward": lambda: value, "jvp": value.jvp, "vjp": value.vjp}[mode]()


def conv_graph(kind, shape, channels, kernel, stride, padding, dilation, groups):
    """A convolution to so many channels and, for some kinds, a derivative, as a graph of input and weight."""
    import gradspec as gs

    is_transposed = kind == "transposed"
    ends = (shape[1], channels // groups) if is_transposed else (channels, shape[1] // groups)
    operator = gs.conv_transpose if is_transposed else gs.conv
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    value = gs.trace(lambda x, w: operator(x, w, **geometry), gs.f32[shape], gs.f32[(*ends, *kernel)])
    derived = {"jvp": value.jvp, "vjp": value.vjp, "weight gradient": lambda: value.vjp(wrt=(1,))}
    return derived.get(kind, lambda: value)()


def arrays(graph):
    import numpy as np

    numbers = np.random.default_rng(0)
    return [numbers.standard_normal(v.shape, np.float32) for v in graph.inputs]


def timed(function, *arguments):
    start = perf_counter()
    function(*arguments)
    return perf_counter() - start


def in_turns(calls, rounds):
    """Median seconds of each call, all of them called once per round."""
    for call in calls:
        call()
    return [median(times) for times in zip(*([timed(call) for call in calls] for _ in range(rounds)), strict=True)]


def prepared(*geometry):
    import gradspec as gs

    wanted = graph(*geometry)
    run, given = gs.compile(wanted), arrays(wanted)
    return lambda: run(*given)


# --- in this process --------------------------------------------------------------------------------------------------


def windows():
    def at(op, mode, width):
        return prepared(op, mode, (4, 32, 128, 128), (width, width), 1, width // 2)

    for op in (*OPS, "all", "split"):
        for mode in MODES if op in OPS else ("vjp",):
            narrow, wide = in_turns([at(op, mode, 13), at(op, mode, 31)], 9)
            yield {
                "operator": op,
                "mode": mode,
                "13 wide, ms": 1e3 * narrow,
                "31 wide, ms": 1e3 * wide,
                "ratio": wide / narrow,
            }


def linearity():
    for power in range(4, 9):
        call = prepared("max", "forward", (10**power // 10_000, 100, 100), (3, 3), 2, 1)
        calls = max(1, 10 ** (7 - power))
        seconds = min(timed(lambda call=call, calls=calls: [call() for _ in range(calls)]) / calls for _ in range(5))
        yield {"elements": 10**power, "best of 5, ms": 1e3 * seconds, "ns per element": 1e9 * seconds / 10**power}


def threads():
    """Processor time beyond that of one thread went into waiting, or into memory that threads share."""
    import gradspec as gs

    problems = {
        "max 8×64×112×112 k3 s2 p1": graph("max", "forward", (8, 64, 112, 112), (3, 3), 2, 1),
        "average 8×64×56×56 k3 s1 p1": graph("avg", "forward", (8, 64, 56, 56), (3, 3), 1, 1),
        "conv 8×64×56×56 to 64, k3 s1 p1": conv_graph("conv", (8, 64, 56, 56), 64, (3, 3), 1, 1, 1, 1),
    }
    most = gs.get_num_threads()
    counts = sorted({*(2**i for i in range(most.bit_length())), most})
    for name, wanted in problems.items():
        alone = None
        for count in counts:
            seconds, processor = with_threads(wanted, count)
            alone = alone or (seconds, processor)
            yield {
                "problem": name,
                "threads": count,
                "ms": 1e3 * seconds,
                "speed-up": alone[0] / seconds,
                "processor time": processor / alone[1],
            }


def with_threads(wanted, count, calls=200):
    """Median seconds of a call, and those of processor time."""
    import gradspec as gs

    run, given = gs.compile(wanted, threads=count), arrays(wanted)
    for _ in range(10):
        run(*given)
    began = process_time()
    seconds = median(timed(run, *given) for _ in range(calls))
    return seconds, (process_time() - began) / calls


def workspace():
    import gradspec as gs
    from gradspec.bench.grid import GRID

    for cell in GRID["pool"][:8]:
        kernel, stride, padding = cell.windows
        for op in OPS:
            used = [gs.compile(graph(op, mode, cell.shape, kernel, stride, padding)).plan.workspace for mode in MODES]
            winner = 1 if prod(kernel) <= 255 else 2 if prod(kernel) <= 65535 else 4
            slab = prod(cell.output()[3:])
            allowed = (kernel[0] + 2) * slab * (4 + winner)
            yield {"cell": cell.name, "operator": op, **dict(zip(MODES, used, strict=True)), "allowed": allowed}


def conv_workspace():
    import gradspec as gs
    from gradspec.bench.contenders.ours import function
    from gradspec.bench.grid import GRID, BenchProblem

    grid = {cell.name: cell for cell in GRID["conv"]}
    grown = [
        replace(grid[name], shape=(*grid[name].shape[:2], *(factor * n for n in grid[name].shape[2:])))
        for name, factors in {"C1": (4, 16), "C2": (4, 16), "C6": (4, 16), "C8": (16, 256), "C9": (2, 4)}.items()
        for factor in factors
    ]
    for cell in (*grid.values(), *grown):
        types = (gs.f32[shape] for shape in cell.inputs().values())
        value = gs.trace(function(BenchProblem(cell, "conv", "forward")), *types)
        for mode, derived in {"forward": lambda value=value: value, "jvp": value.jvp, "vjp": value.vjp}.items():
            plan = gs.compile(derived()).plan
            yield {
                "cell": cell.name,
                "input": "×".join(map(str, cell.shape)),
                "mode": mode,
                "weights, bytes": 4 * prod(cell.weight),
                "workspace per thread, bytes": plan.workspace,
                "arena, bytes": plan.arena_bytes,
                "kernels": ", ".join(kernels(plan)),
            }


def kernels(plan):
    """The kernels of a plan, each once; NumPy for steps that have none."""
    names = [step.task.kernel if step.task else "view" if step.view else "NumPy" for step in plan.steps]
    return list(dict.fromkeys(names))


# --- in new processes -------------------------------------------------------------------------------------------------


def child(name, cache, *arguments):
    """What the function ``name`` below prints in a new process with this folder for kernels."""
    command = [sys.executable, __file__, "--child", name, *arguments]
    environment = os.environ | {"GRADSPEC_CACHE_DIR": cache}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def random_geometries(count):
    choose, found = random.Random(0), {}
    while len(found) < count:
        rank = choose.randint(1, 4)
        kernel, stride = (tuple(choose.randint(1, 4) for _ in range(rank)) for _ in range(2))
        padding = tuple(choose.randint(0, k // 2) for k in kernel)
        shape = (*(choose.randint(1, 3) for _ in range(2)), *(choose.randint(4, 9) for _ in range(rank)))
        found[choose.choice(OPS), choose.choice(MODES), shape, kernel, stride, padding] = None
    return list(found)


def random_convolutions(count):
    """Ranks 1 to 3; kernel, stride and dilation differ by axis, padding by side; groups, also of one channel."""
    choose, found = random.Random(0), {}
    while len(found) < count:
        rank, groups = choose.randint(1, 3), choose.choice((1, 1, 1, 2, 3, 8))
        kernel, stride = (tuple(choose.randint(1, most) for _ in range(rank)) for most in (5, 3))
        dilation = tuple(choose.choice((1, 1, 2, 3)) for _ in range(rank))
        padding = tuple((choose.randint(0, k // 2), choose.randint(0, k // 2)) for k in kernel)
        narrow, wide = (groups * choose.choice((1, 2, 3, 5, 8, 16, 33)) for _ in range(2))
        spatial = (d * (k - 1) + choose.randint(1, 12) for k, d in zip(kernel, dilation, strict=True))
        shape = (choose.randint(1, 3), narrow, *spatial)
        found[choose.choice(CONVOLUTIONS), shape, wide, kernel, stride, padding, dilation, groups] = None
    return list(found)


def planned(draw, geometries):
    """How long it takes to plan each geometry's graph, and how many kernels come with it; all graphs are called."""
    import gradspec as gs
    from gradspec.codegen import cache

    for geometry in geometries:
        wanted, before = draw(*geometry), len(cache._LOADED)
        start, working = perf_counter(), thread_time()
        run = gs.compile(wanted)
        seconds, worked = perf_counter() - start, thread_time() - working
        run(*arrays(wanted))
        yield Planned(geometry[0], 1e3 * seconds, 1e3 * worked, len(cache._LOADED) - before)


class Planned(NamedTuple):
    kind: str
    milliseconds: float
    processor: float  # milliseconds of its time: what other processes do to the clock is not in it
    kernels: int


def summary(plans):
    """Of times and kernels; planning is timed where no kernel had to be compiled or loaded."""
    timed = [plan for plan in plans if not plan.kernels]
    times, processor = (sorted(values) for values in zip(*((p.milliseconds, p.processor) for p in timed), strict=True))
    most = len(timed) * 99 // 100
    return {
        "planned": len(plans),
        "kernels": sum(plan.kernels for plan in plans),
        "planning, ms": median(times),
        "99 % below, ms": times[most],
        "slowest, ms": times[-1],
        "99 % below, ms of processor time": processor[most],
    }


def child_geometries():
    plans = [*planned(graph, random_geometries(GEOMETRIES))]
    return [{"operators": "all", **summary(plans), **compiled()}]


def child_convolutions():
    plans = [*planned(conv_graph, random_convolutions(GEOMETRIES))]
    parts = {kind: [plan for plan in plans if plan.kind == kind] for kind in CONVOLUTIONS}
    return [{"operators": name, **summary(part), **compiled()} for name, part in {"all": plans, **parts}.items()]


def compiled():
    from gradspec.codegen.cache import compilations

    return {"compilations": compilations(), **imported_sources()}


def imported_sources():
    return {"kernel sources imported": "gradspec.codegen.translation" in sys.modules}


def cold_and_warm(name, *arguments):
    """What two processes print, of which the first finds no kernels on disk and leaves those of the second."""
    with TemporaryDirectory() as cache:
        for state in ("cold", "warm"):
            yield from ({"disk cache": state, **row} for row in child(name, cache, *arguments))


def geometries():
    yield from cold_and_warm("geometries")


def conv_geometries():
    yield from cold_and_warm("convolutions")


def child_resnet(what):
    """The seconds of each stage; statistics are constants everywhere, parameters where no gradient is asked for."""
    import numpy as np

    import gradspec as gs
    from gradspec.codegen.cache import compilations

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import resnet18

    params, statistics = resnet18.initial(np.random.default_rng(0))
    names, image, labels = list(params), gs.f32[1, 3, 224, 224], np.array([7])

    def loss(x, *weights):
        return resnet18.loss(dict(zip(names, weights, strict=True)), statistics, x, labels)

    started = perf_counter()
    if what == "value + gradient":
        graph = gs.trace(loss, image, *(gs.f32[array.shape] for array in params.values()))
        graph = graph.vjp(wrt=tuple(range(1, 1 + len(names))))
    else:
        graph = gs.trace(lambda x: resnet18.logits(x, params, statistics), image)
        graph = gs.fold_batch_norm(graph) if what == "value, folded" else graph
    traced = perf_counter()
    run = gs.compile(graph)
    compiled, kernels_compiled = perf_counter(), compilations()
    given = arrays(graph)
    calls = [timed(run, *given) for _ in range(3)]
    steps = run.plan.steps
    return [
        {
            "ResNet-18": what,
            "trace, s": traced - started,
            "compile, s": compiled - traced,
            "first call, s": calls[0],
            "third call, s": calls[2],
            "compilations": kernels_compiled,
            "steps": len(steps),
            "of them NumPy": sum(step.task is None and step.view is None for step in steps),
            "arena, MiB": run.plan.arena_bytes / 2**20,
        }
    ]


def resnet():
    for what in ("value", "value, folded", "value + gradient"):
        yield from cold_and_warm("resnet", what)


def child_first(op, mode):
    import numpy as np  # noqa: F401

    start = perf_counter()
    import gradspec as gs

    gs.f32  # noqa: B018  (loads everything but number systems)
    imported = perf_counter()
    wanted = graph(op, mode, (1, 16, 14, 14), (2, 2), 2, 0)
    given = arrays(wanted)
    traced = perf_counter()
    gs.compile(wanted)(*given)
    called = perf_counter()
    return {
        "import, ms": 1e3 * (imported - start),
        "trace, ms": 1e3 * (traced - imported),
        "compile and call, ms": 1e3 * (called - traced),
        **imported_sources(),
    }


def start():
    """The kernels are written by a first process; medians of seven more."""
    with TemporaryDirectory() as cache:
        for op in OPS:
            for mode in MODES:
                child("first", cache, op, mode)
                runs = [child("first", cache, op, mode) for _ in range(7)]
                yield {"operator": op, "mode": mode, **{key: median(run[key] for run in runs) for key in runs[0]}}


def compiling():
    for op in OPS:
        for mode in MODES:
            with TemporaryDirectory() as cache:
                yield {
                    "operator": op,
                    "mode": mode,
                    "first call, s": child("first", cache, op, mode)["compile and call, ms"] / 1e3,
                }


MEASURES = (
    windows,
    linearity,
    threads,
    geometries,
    conv_geometries,
    start,
    compiling,
    resnet,
    workspace,
    conv_workspace,
)
SECTIONS = {measure.__name__.replace("_", "-"): measure for measure in MEASURES}
CHILDREN = {
    "geometries": child_geometries,
    "convolutions": child_convolutions,
    "resnet": child_resnet,
    "first": child_first,
}


def table(title, rows):
    from rich.table import Table

    def text(value):
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in rows[0]:
        made.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        made.add_row(*map(text, row.values()))
    return made


def main():
    import click
    from rich.console import Console

    @click.command(help=__doc__.partition("\n")[0])
    @click.option(
        "--only", type=click.Choice(list(SECTIONS)), multiple=True, help="Measure only this; may be repeated."
    )
    @click.option("--json", "file", type=click.Path(dir_okay=False), help="Write all rows to this file.")
    def measure(only, file):
        console, found = Console(width=None if sys.stdout.isatty() else 200), {}
        for name in only or SECTIONS:
            with console.status(name):
                found[name] = list(SECTIONS[name]())
            console.print(table(name, found[name]), "", sep="\n")
        if file:
            with open(file, "w", encoding="utf-8") as out:
                json.dump(found, out, indent=1)

    measure()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(CHILDREN[sys.argv[2]](*sys.argv[3:])))
    else:
        main()

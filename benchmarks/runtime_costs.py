"""What the compiled runtime costs beyond the kernels' own time, each figure measured where it arises.

    python benchmarks/runtime_costs.py [--only NAME] [--json FILE]

windows     a 31-wide window at stride 1 against a 13-wide one
linearity   nanoseconds per element from 10⁴ to 10⁸ elements
geometries  1,000 different geometries in a fresh process: kernels compiled and time to plan, cold and warm
start       the first call of a new process that finds its kernels on disk
compiling   the first call of an operator on a machine that has never compiled it
workspace   bytes per thread, from the plans, beside (k₀ + 2) slabs of value and winner

Compiled kernels go to folders of their own (GRADSPEC_CACHE_DIR), so that cold is cold. Times are medians unless said
otherwise.
"""

import json
import os
import random
import subprocess
import sys
from math import prod
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

OPS, MODES = ("max", "avg", "smooth"), ("forward", "jvp", "vjp")
GEOMETRIES = 1000


def graph(op, mode, shape, kernel, stride, padding):
    """One pooling and, with a mode, its derivative, as a graph."""
    import gradspec as gs

    more = {"beta": 1.0} if op == "smooth" else {}
    pool = {"max": gs.max_pool, "avg": gs.avg_pool, "smooth": gs.smooth_max_pool}[op]
    value = gs.trace(lambda x: pool(x, kernel, stride, padding, **more), gs.f32[shape])
    return {"forward": lambda: value, "jvp": value.jvp, "vjp": value.vjp}[mode]()


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

    for op in OPS:
        for mode in MODES:
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


# --- in new processes -------------------------------------------------------------------------------------------------


def child(name, cache, *arguments):
    """What the function ``name`` below prints in a new process with this folder for kernels."""
    command = [sys.executable, __file__, "--child", name, *arguments]
    environment = os.environ | {"GRADSPEC_CACHE_DIR": cache}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def random_geometries(count):
    choose, found = random.Random(0), {}
    while len(found) < count:
        rank = choose.randint(1, 4)
        kernel, stride = (tuple(choose.randint(1, 4) for _ in range(rank)) for _ in range(2))
        padding = tuple(choose.randint(0, k // 2) for k in kernel)
        shape = (*(choose.randint(1, 3) for _ in range(2)), *(choose.randint(4, 9) for _ in range(rank)))
        found[choose.choice(OPS), choose.choice(MODES), shape, kernel, stride, padding] = None
    return list(found)


def child_geometries():
    import gradspec as gs
    from gradspec.runtime.cache import compilations

    plans = []
    for geometry in random_geometries(GEOMETRIES):
        wanted, before = graph(*geometry), compilations()
        start = perf_counter()
        run = gs.compile(wanted)
        seconds = perf_counter() - start
        run(*arrays(wanted))
        if compilations() == before:
            plans.append(1e3 * seconds)
    plans.sort()
    return {
        "compilations": compilations(),
        "planning, ms": median(plans),
        "99 % below, ms": plans[len(plans) * 99 // 100],
        "slowest, ms": plans[-1],
        "kernel sources imported": "gradspec.backends.cpu.kernels.compiler" in sys.modules,
    }


def geometries():
    with TemporaryDirectory() as cache:
        yield {"disk cache": "cold", **child("geometries", cache)}
        yield {"disk cache": "warm", **child("geometries", cache)}


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
        "kernel sources imported": "gradspec.backends.cpu.kernels.compiler" in sys.modules,
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


SECTIONS = {f.__name__: f for f in (windows, linearity, geometries, start, compiling, workspace)}
CHILDREN = {"geometries": child_geometries, "first": child_first}


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
        console, found = Console(), {}
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

"""What reverse mode costs: time and memory of value and gradient against the value alone, as a network grows.

    python benchmarks/reverse_mode.py

Times are medians of five runs; only their ratios mean anything. Memory is the peak of Python's allocations.
"""

import statistics
import time
import tracemalloc

import numpy as np

import gradspec as gs

WIDTH = 20_000


def chain(depth):
    def function(x):
        for _ in range(depth):
            x = gs.relu(x) * 0.5 + x
        return gs.sum(x)

    return gs.trace(function, gs.f32[WIDTH])


def many_inputs(count):
    def function(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return gs.sum(total * total)

    return gs.trace(function, *[gs.f32[WIDTH]] * count)


def median_seconds(run, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_megabytes(run):
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def report(label, graph):
    reverse = graph.vjp()
    arrays = [np.full(v.shape, 0.5, np.float32) for v in graph.inputs]
    seed = np.ones((), np.float32)
    forward_seconds = median_seconds(lambda: graph(*arrays))
    reverse_seconds = median_seconds(lambda: reverse(*arrays, seed))
    megabytes = peak_megabytes(lambda: reverse(*arrays, seed))
    print(
        f"{label:>14}  {len(graph.nodes):6d} nodes  {len(reverse.nodes):6d} in the VJP  "
        f"{1e3 * forward_seconds:8.1f} ms  {reverse_seconds / forward_seconds:5.2f}x  {megabytes:8.1f} MB"
    )


def main():
    print("               graph        VJP                  forward    VJP / forward   VJP memory")
    for depth in (250, 500, 1000, 2000):
        report(f"{depth} layers", chain(depth))
    for count in (1, 10, 100):
        report(f"{count} inputs", many_inputs(count))


if __name__ == "__main__":
    main()

"""How fast the oracle judges: 10⁵ outputs of 600 terms, where the filter decides and where it never does.

    python benchmarks/oracle.py

One core; seconds for one judgement, the median of three.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time

import numpy as np

from gradspec.conformance import meaning


def seconds(run):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(channels, outputs, size):
    random = np.random.default_rng(0)
    x = random.standard_normal((channels, size + 4, size + 4)).astype(np.float32)
    w = random.standard_normal((outputs, channels, 5, 5)).astype(np.float32)
    exact = meaning("conv", x, w)
    right = exact.rounded("f32").astype(np.float32)
    # A kernel that accumulates in float64 may err no more than the filter itself does, so the filter never tells.
    wide = exact.rounded("f64")
    easy, hard = exact.judge(right), exact.judge(wide)
    print(f"{right.size} outputs of {channels * 25} terms, {outputs} channels:")
    print(f"  the filter decides: {seconds(lambda: exact.judge(right)):6.2f} s  ({easy.exact} decided exactly)")
    print(f"  it never does:      {seconds(lambda: exact.judge(wide)):6.2f} s  ({hard.exact} decided exactly)")
    print(f"  rounding them all:  {seconds(lambda: exact.rounded('f32')):6.2f} s")
    assert easy.passed
    assert hard.passed


if __name__ == "__main__":
    report(channels=24, outputs=64, size=40)
    report(channels=24, outputs=8, size=112)

"""How fast the oracle judges: 10⁵ outputs of 600 terms, where the filter decides and where it never does.

    python benchmarks/oracle.py

One core; the numbers are seconds for one judgement, the median of five.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time

import numpy as np

from gradspec.conformance import meaning


def seconds(run, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    random = np.random.default_rng(0)
    for channels, outputs, size in ((24, 64, 40), (24, 1, 317)):
        x = random.standard_normal((channels, size + 4, size + 4)).astype(np.float32)
        w = random.standard_normal((outputs, channels, 5, 5)).astype(np.float32)
        exact = meaning("conv", x, w)
        right = exact.rounded("f32").astype(np.float32)
        easy = exact.judge(right)
        # A kernel that accumulates in float64 is allowed no more than the filter's own error, so the filter never tells.
        wide = exact.rounded("f64")
        hard = exact.judge(wide)
        print(f"{right.size} outputs of {channels * 25} terms, {outputs} channels:", flush=True)
        print(
            f"  filter decides: {seconds(lambda: exact.judge(right)):6.2f} s  ({easy.exact} exact, passed {easy.passed})"
        )
        print(
            f"  never decides:  {seconds(lambda: exact.judge(wide), 1):6.2f} s  ({hard.exact} exact, passed {hard.passed})"
        )
        print(f"  rounding all:   {seconds(lambda: exact.rounded('f32')):6.2f} s")


if __name__ == "__main__":
    main()

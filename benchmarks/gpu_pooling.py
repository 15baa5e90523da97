"""Pooling on a GPU, checked against PyTorch's gathers in float64; `gradspec bench --device cuda` times it.

    python benchmarks/gpu_pooling.py [host | interpret] [--seconds 600] [--json gpu.json]

``host`` measures what a call costs before anything is launched, without a GPU. ``interpret`` is a check of a few
geometries by Triton's interpreter.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import Any

WITHOUT_GPU = "host" in sys.argv or "interpret" in sys.argv
if WITHOUT_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as theirs  # noqa: E402
from torch import Tensor  # noqa: E402

import gradspec.torch as ours  # noqa: E402
from gradspec.backends.tables import table as tap_table  # noqa: E402
from gradspec.backends.triton import plans, pool  # noqa: E402
from gradspec.interop.torch import device  # noqa: E402
from gradspec.ops import lp_pool, smooth_pool  # noqa: E402
from gradspec.ops import pool as ops  # noqa: E402

START = time.monotonic()
DEVICE = "cpu" if WITHOUT_GPU else "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
FOUND: dict[str, Any] = {}

# --- what is pooled ---------------------------------------------------------------------------------------------------

GEOMETRIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((3, 37), {"kernel_size": (2,)}),
    ((3, 41), {"kernel_size": (4,), "stride": 3, "padding": 2, "dilation": 2}),
    ((2, 9), {"kernel_size": (2,), "stride": 7, "padding": ((0, 9),)}),
    ((2, 3, 33, 35), {"kernel_size": (3, 3), "stride": 2, "padding": 1}),
    ((2, 3, 32, 32), {"kernel_size": (2, 2)}),
    ((2, 3, 21, 23), {"kernel_size": (3, 2), "stride": 2, "padding": ((2, 1), (0, 3)), "ceil_mode": True}),
    ((2, 3, 4), {"kernel_size": (2, 2), "stride": 1, "padding": ((3, 3), (2, 4))}),
    ((2, 3, 30, 31), {"kernel_size": (5, 5), "stride": 1, "padding": 2}),
    ((2, 3, 30, 31), {"kernel_size": (13, 13), "stride": 1, "padding": 6}),
    ((2, 3, 17, 19), {"kernel_size": (5, 3), "stride": (1, 2), "padding": (2, 5), "dilation": (2, 3)}),
    ((2, 2, 9, 10, 11), {"kernel_size": (3, 3, 3), "stride": 2, "padding": 1}),
    ((2, 3, 6, 5, 6, 7), {"kernel_size": (2, 2, 2, 2), "stride": 1, "padding": 1}),
    ((2, 100), {"kernel_size": (53,), "stride": 2, "padding": ((40, 25),)}),
    ((2, 3, 40, 3), {"kernel_size": (28, 2), "stride": 2, "padding": ((27, 4), (0, 1))}),
    ((2, 3, 14, 14), {"output_size": (7, 5)}),
    ((2, 3, 3, 4), {"output_size": (5, 9)}),
    ((2, 3, 28, 28), {"output_size": (1, 1)}),
    ((0, 3, 8, 8), {"kernel_size": (2, 2)}),
    ((2, 3, 34, 40), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),
    ((2, 3, 33, 36), {"kernel_size": (5, 4), "stride": (1, 2), "padding": ((2, 1), (3, 1))}),
    ((2, 3, 31, 32), {"kernel_size": (13, 13), "stride": 1, "padding": 6}),
    ((2, 3, 28, 64), {"kernel_size": (5, 8), "stride": (5, 8), "padding": ((2, 1), (4, 0))}),
    ((2, 3, 4096), {"kernel_size": (4,)}),
]


def windows(shape: tuple[int, ...], window: dict[str, Any]) -> dict[str, Any]:
    if "output_size" in window:
        return ops.adaptive_windows("pool", np.broadcast_to(np.float32(0), shape), window["output_size"])
    settled = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **window}
    return ops.sliding_windows("pool", np.broadcast_to(np.float32(0), shape), **settled)


# --- check: windows gathered by a table of taps, in float64 -----------------------------------------------------------


class Reference:
    def __init__(self, window: Any, shape: tuple[int, ...]) -> None:
        self.window, self.shape = window, shape
        self.lead = shape[: len(shape) - window.rank]
        taps = torch.as_tensor(np.ascontiguousarray(tap_table(window)), device=DEVICE)
        self.real, self.exists, self.taps = taps >= 0, taps >= -1, taps.clamp(min=0)
        self.cells = prod(window.sizes)

    def gather(self, x: Tensor) -> Tensor:
        return torch.where(self.real, x.double().reshape(-1, self.cells)[:, self.taps], 0.0)

    def scatter(self, share: Tensor) -> Tensor:
        share = torch.where(self.real, share, 0.0)
        found = torch.zeros(len(share), self.cells, dtype=torch.float64, device=DEVICE)
        return found.index_add_(1, self.taps.flatten(), share.flatten(1)).reshape(self.shape)

    def back(self, y: Tensor) -> Tensor:
        return y.reshape(*self.lead, *self.window.outputs)

    def chosen(self, x: Tensor, ties: str) -> Tensor:
        v = torch.where(self.real, x.double().reshape(-1, self.cells)[:, self.taps], -inf)
        nan = (v.isnan() & self.real).any(-1, keepdim=True)
        top = torch.where(v.isnan(), -inf, v).amax(-1, keepdim=True)
        tied = torch.where(nan, v.isnan(), v == top) & self.real
        tied = (tied & (tied.cumsum(-1) == 1) if ties == "first" else tied).double()
        return tied / tied.sum(-1, keepdim=True).clamp(min=1) if ties == "split" else tied

    def push(self, weights: Tensor, dx: Tensor) -> Tensor:
        return self.back(torch.where(weights > 0, weights * self.gather(dx), 0.0).sum(-1))

    def pull(self, weights: Tensor, g: Tensor) -> Tensor:
        return self.scatter(weights * g.double().reshape(len(weights), weights.shape[1], 1))

    def divisors(self, include: bool) -> Tensor:
        return (self.exists if include else self.real).sum(-1).clamp(min=1).double()

    def softmax(self, x: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        z = torch.where(self.exists, beta * self.gather(x), -inf)
        total = z.logsumexp(-1, keepdim=True)
        return self.back(total[..., 0] / beta), torch.where(self.exists, (z - total).exp(), 0.0)

    def norm(self, x: Tensor, p: float) -> Tensor:
        v = self.gather(x).abs()
        return self.back(v.amax(-1) if p == inf else v.pow(p).sum(-1).pow(1 / p))


def is_close(found: Tensor, wanted: Tensor, scale: Tensor, dtype: torch.dtype, roundings: float) -> bool:
    """Within ``roundings`` of ``scale`` in the format that is added up in, and what storing costs."""
    unit = torch.finfo(pool.computed(dtype)).eps / 2
    room = roundings * unit * scale + torch.finfo(dtype).eps * wanted.abs() + torch.finfo(dtype).tiny
    same = (found.double() == wanted) | (found.isnan() & wanted.isnan())
    return bool((same | ((found.double() - wanted).abs() <= room)).all())


def laid(t: Tensor, layout: str) -> Tensor:
    if layout == "last" and t.ndim in (4, 5):
        return t.contiguous(memory_format=torch.channels_last if t.ndim == 4 else torch.channels_last_3d)
    if layout == "sliced":
        return torch.stack([t, t], -1).flatten(-2)[..., ::2]
    return t


def check_one(job: tuple[int, torch.dtype]) -> tuple[Any, list[str]]:
    number, dtype = job
    (shape, window), bad = GEOMETRIES[number], []
    random = torch.Generator().manual_seed(number)
    attrs = ops.MaxPool(**windows(shape, window))
    ref = Reference(attrs.window(torch.empty(shape, device="meta")), shape)
    outputs, n = (*ref.lead, *ref.window.outputs), ref.taps.shape[1]

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).to(DEVICE)

    for layout in ("plain", "last", "sliced"):
        tied = torch.randint(-1, 3, shape, generator=random).double()
        tied = torch.where(torch.rand(shape, generator=random) < 0.3, -inf, tied)
        tied = torch.where(torch.rand(shape, generator=random) < 0.03, torch.nan, tied).to(dtype).to(DEVICE)
        x, dx, g = normal(shape) * 3, normal(shape), normal(outputs)

        def note(
            name: str, attrs: Any, operands: list[Tensor], wanted: Tensor, scale: Tensor, roundings: float,
            layout: str = layout,
        ) -> None:  # fmt: skip
            found = [pool.kernel(name, attrs)(*(laid(t, layout) for t in operands)) for _ in range(2)]
            if not is_close(found[0][0], wanted, scale, dtype, roundings):
                bad.append(f"{layout}: {name} {attrs}")
            if not torch.equal(*(results[0].reshape(-1).view(torch.uint8) for results in found)):
                bad.append(f"{layout}: {name}: bits differ between runs")

        first = ref.chosen(tied, "first")
        wanted = ref.back(torch.where(first > 0, ref.gather(tied), 0.0).sum(-1))
        note("max_pool", attrs, [tied], wanted, wanted * 0, 0)
        for ties in ("first", "all", "split"):
            by, weights = ops.MaxPool(**windows(shape, window), ties=ties), ref.chosen(tied, ties)
            note("max_pool_gather", by, [tied, dx], ref.push(weights, dx), ref.push(weights, dx.abs()), 2 * n)
            note("max_pool_scatter", by, [tied, g], ref.pull(weights, g), ref.pull(weights, g.abs()), 2 * n)
        for include in (False, True):
            average = ops.AvgPool(**windows(shape, window), count_include_pad=include)
            shares = ref.real.double() / ref.divisors(include)[:, None]
            spread = ops.AvgTranspose(**vars(average), sizes=ref.window.sizes)
            note("avg_pool", average, [x], ref.push(shares[None], x), ref.push(shares[None], x.abs()), n + 2)
            wanted, scale = (ref.pull(shares[None].expand(prod(ref.lead), -1, -1), v) for v in (g, g.abs()))
            note("avg_pool_transpose", spread, [g], wanted, scale, n + 2)
        if "output_size" not in window:
            soft = smooth_pool.SmoothPool(**windows(shape, window), beta=1.5)
            value, weights = ref.softmax(x, 1.5)
            note("smooth_max_pool", soft, [x], value, value.abs() + 4, 8 + 4 * n)
            note(
                "smooth_max_mean",
                soft,
                [x, dx],
                ref.push(weights, dx),
                ref.push(weights, dx.abs()) + 1e-3,
                40 * (8 + 4 * n),
            )
            wanted, scale = ref.pull(weights, g), ref.pull(weights, g.abs()) + 1e-3
            note("smooth_max_spread", soft, [x, g], wanted, scale, 40 * (8 + 4 * n))
            for p in (1.0, 2.0, 3.0, 0.5, inf):
                wanted = ref.norm(x, p)
                by = lp_pool.LpPool(**windows(shape, window), p=p)
                note("lp_pool", by, [x], wanted, wanted, (n + 60) * max(1, 1 / p))
    return job, bad


def in_time(seconds: float, job: tuple[int, torch.dtype]) -> tuple[Any, list[str]]:
    if time.monotonic() - START > seconds:
        return job, ["not reached in time"]
    try:
        return check_one(job)
    except Exception as error:
        return job, [f"{type(error).__name__}: {error}"[:1000]]


def check(seconds: float) -> None:
    """In processes of their own, which compile side by side."""
    jobs = [(k, dtype) for dtype in DTYPES for k in range(len(GEOMETRIES))]
    workers = max(1, min(len(os.sched_getaffinity(0)) - 2, 14))
    failures = {}
    with multiprocessing.get_context("spawn").Pool(workers) as processes:
        for job, bad in processes.imap_unordered(partial(in_time, seconds), jobs):
            if bad:
                failures[str(job)] = bad
                print("WRONG", job, bad[:4], flush=True)
    failures |= far()
    FOUND["check"] = {"groups": len(jobs), "failures": failures}
    print(f"{len(jobs) - len(failures)} of {len(jobs)} groups of a geometry and a format are right")


def far() -> dict[str, list[str]]:
    """More than 2³¹ numbers."""
    x = torch.randint(-100, 100, (2**19 + 2**8, 4096), dtype=torch.int8, device="cuda").half()
    attrs = ops.MaxPool(**windows(tuple(x.shape), {"kernel_size": (2,)}))
    y, *tape = pool.taped(attrs)(x)
    (dx,) = pool.sent(attrs, tuple(x.shape))(y, *tape)
    first = x[:, ::2] >= x[:, 1::2]
    is_right = torch.equal(y, torch.maximum(x[:, ::2], x[:, 1::2]))
    is_right = is_right and torch.equal(dx[:, ::2], torch.where(first, y, 0))
    is_right = is_right and torch.equal(dx[:, 1::2], torch.where(first, 0, y))
    return {} if is_right else {"more than 2^31 numbers": ["wrong"]}


# --- host -------------------------------------------------------------------------------------------------------------


def microseconds(function: Callable[[], Any], calls: int = 1000, turns: int = 9) -> float:
    """Processor time of a call: the least of several turns."""
    function()
    times = []
    for _ in range(turns):
        begin = time.process_time()
        for _ in range(calls):
            function()
        times.append((time.process_time() - begin) / calls * 1e6)
    return min(times)


def host() -> None:
    """What a call on a tiny tensor costs before anything is launched, beside torch's own on the CPU, all of it."""
    device.DEVICES.add("cpu")
    plans.Launch.__call__ = lambda self, tensors: _ignored(*[tensors[i] for i in self.slots], *self.arguments)  # type: ignore[method-assign]
    torch.set_num_threads(1)
    x, g = torch.randn(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    leaf = x.clone().requires_grad_()
    for who, library in (("gradspec.torch", ours), ("torch, on the CPU", theirs)):
        for op in ("max_pool2d", "avg_pool2d"):
            run = partial(getattr(library, op), kernel_size=2)
            value = microseconds(lambda run=run: run(x))
            both = microseconds(lambda run=run: torch.autograd.grad(run(leaf), leaf, g))
            FOUND[f"host {who} {op}"] = {"value": value, "with gradient": both}
            print(f"{who}: {op} {value:.1f} µs a call, with its gradient {both:.1f} µs")


def _ignored(*arguments: Any) -> None:
    pass


def main() -> None:
    given = sys.argv[1:]
    seconds = float(given[given.index("--seconds") + 1]) if "--seconds" in given else 600.0
    if "host" in given:
        host()
    elif "interpret" in given:
        pool.LANES = 8192  # the interpreter's time goes with the number of programs
        for number in (2, 6, 15):
            print(*check_one((number, DTYPES[number % 4])), flush=True)
    elif not torch.cuda.is_available():
        raise SystemExit("there is no GPU: torch.cuda.is_available() is false; `host` runs without one")
    else:
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
        check(seconds)
    if "--json" in given:
        with open(given[given.index("--json") + 1], "w") as file:
            json.dump(FOUND, file, indent=1)


if __name__ == "__main__":
    main()

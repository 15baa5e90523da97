"""Planted bugs: our own kernels, each broken in one place, which ``gradspec check native`` must find.

    python tests/conformance/mutants.py              all of them, and the unbroken package
    python tests/conformance/mutants.py last_tie …   some of them

Every mutant is a copy of the package in which one stretch of source is replaced. The default run is made on it, with
its default time of 60 seconds, and ends at the first defect. Each run has two processor cores of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
SECONDS = 60


@dataclass(frozen=True)
class Mutant:
    """``before`` occurs in the file, below ``src/gradspec``; its first occurrence becomes ``after``."""

    name: str
    file: str
    before: str
    after: str

    def plant(self, package: Path) -> None:
        file = package / self.file
        text = file.read_text()
        if self.before not in text:
            raise LookupError(f"{self.name}: {self.file} no longer contains {self.before!r}")
        file.write_text(text.replace(self.before, self.after, 1))


KERNELS, CPU = "backends/cpu/kernels/", "backends/cpu/"
WINNERS, VALUES, WINDOWS, TIES, SOFT = (
    KERNELS + name for name in ("winners.py", "values.py", "windows.py", "ties.py", "soft.py")
)
GEOMETRY, POOL, CONV, COMPARE = (CPU + name for name in ("geometry.py", "pool.py", "conv.py", "compare.py"))
EXCEEDS = "return (not (b <= a)) & (a == a)"

MUTANTS = (
    # the maximum
    Mutant("last_tie", WINNERS, EXCEEDS, "return (not (b < a)) & (a == a)"),
    Mutant("nan_passed_over", WINNERS, EXCEEDS, "return b > a"),
    Mutant("number_after_nan_wins", WINNERS, EXCEEDS, "return not (b <= a)"),
    Mutant("nan_lost_in_values", VALUES, "return maximum(a, b)", "return choose(b > a, b, a)"),
    Mutant("padding_competes_as_zero", WINNERS, "form.computed(-math.inf if", "form.computed(0.0 if"),
    Mutant("integers_start_at_zero", VALUES, "lowest = number(-(2 ** (number.bits - 1)))", "lowest = number(0)"),
    Mutant(
        "third_tap_misnumbered", WINNERS, "w[to] = choose(last, zero + 2, who)", "w[to] = choose(last, zero + 1, who)"
    ),
    Mutant(
        "wide_window_misnumbered",
        WINNERS,
        "w[to + i] = choose(later, w[at + distance + i] + shift",
        "w[to + i] = choose(later, w[at + distance + i]",
    ),
    Mutant("index_off_by_one", WINNERS, "place = start + (table[winner]", "place = start + 1 + (table[winner]"),
    Mutant("index_of_nothing_is_zero", WINNERS, "                place = -1\n", "                place = 0\n"),
    Mutant(
        "padding_only_stays_lowest",
        WINNERS,
        "                        v[here] = zero\n",
        "                        v[here] = v[here]\n",
    ),
    Mutant(
        "last_hit_overwrites",
        WINNERS,
        "sums[there] = sums[there] + widen(u[to + o * step])",
        "sums[there] = widen(u[to + o * step])",
    ),
    Mutant("tape_takes_nobody_for_a_winner", WINNERS, "nobody = (1 << (8 * size)) - 1", "nobody = (1 << (8 * size))"),
    Mutant(
        "cells_of_rank_4_not_cleared",
        WINNERS,
        "for axis in range(rank - 2, 0, -1):",
        "for axis in range(rank - 2, 1, -1):",
    ),
    Mutant("all_ties_for_split", POOL, 'f.SPLIT if ties == "split" else f.ALL', "f.ALL"),
    Mutant("tied_nan_is_no_tie", TIES, "return (x == top) | (x != x)", "return x == top"),
    Mutant(
        "pull_forgets_the_tie_rule",
        "ops/pool.py",
        "apply(MAX_POOL_PULL, attrs, operands[0]",
        'apply(MAX_POOL_PULL, replace(attrs, ties="first"), operands[0]',
    ),
    # averages
    Mutant(
        "ceil_mode_divisor",
        GEOMETRY,
        "np.minimum(window.kernel, -((start - window.size - window.hi) // window.dilation))",
        "np.minimum(window.kernel, start + window.kernel - start)",
    ),
    Mutant(
        "excluded_padding_counts", POOL, "counted_taps if attrs.count_include_pad else _at_least_one", "counted_taps"
    ),
    Mutant(
        "divisor_forgotten_in_ceil_mode",
        POOL,
        "if attrs.divisor_override is not None:",
        "if attrs.divisor_override is not None and not attrs.ceil_mode:",
    ),
    Mutant(
        "float32_reciprocal_for_float64",
        POOL,
        "float(number(1) / number(divisor))",
        "float(np.float32(1) / np.float32(divisor))",
    ),
    Mutant(
        "first_inside_window_too_early",
        GEOMETRY,
        "first = min(-(-self.low // self.stride), self.outputs)",
        "first = min(self.low // self.stride, self.outputs)",
    ),
    Mutant(
        "uneven_bins_lose_a_cell",
        GEOMETRY,
        "np.asarray(-(-(o + 1) * window.size // window.outputs) -",
        "np.asarray(np.maximum((o + 1) * window.size // window.outputs, o * window.size // window.outputs + 1) -",
    ),
    Mutant(
        "real_cells_without_dilation",
        GEOMETRY,
        "first = np.maximum(0, -(start // window.dilation))",
        "first = np.maximum(0, -start)",
    ),
    Mutant(
        "dilation_missing_in_average_vjp", GEOMETRY, "low=axis.reach - axis.low)", "low=axis.kernel - 1 - axis.low)"
    ),
    Mutant(
        "padding_off_by_one_in_strided_average_vjp",
        GEOMETRY,
        "replace(axis, kind=f.EXPANDING, size=size, outputs=outputs)",
        "replace(axis, kind=f.EXPANDING, size=size, outputs=outputs, low=axis.low + 1)",
    ),
    Mutant(
        "axes_merged_across_gaps",
        GEOMETRY,
        "if whole and all(before_steps[i] == axis.size * steps[i] for i in cells):",
        "if whole:",
    ),
    Mutant(
        "second_derivative_counts_padding",
        "ops/pool.py",
        "apply(AVG_POOL, attrs.forward, cotangents[0])",
        "apply(AVG_POOL, replace(attrs.forward, count_include_pad=True), cotangents[0])",
    ),
    # smooth maxima
    Mutant(
        "ignored_padding_takes_part",
        CPU + "smooth_pool.py",
        'attrs.padding_mode == "zeros" and _has_padding(window)',
        "_has_padding(window)",
    ),
    Mutant(
        "float32_beta_for_float64",
        CPU + "smooth_pool.py",
        "np.float32(attrs.beta) if computed == 4 else np.float64(attrs.beta)",
        "np.float32(attrs.beta)",
    ),
    Mutant(
        "softness_without_pivot",
        SOFT,
        "return exp(choose(x == m, number(0), b * (x - m)))",
        "return exp(choose(x == m, number(0), b * x - b * m))",
    ),
    # convolutions
    Mutant("kernel_axes_swapped", CONV, "case.taps_of(spatial) for case", "case.taps_of(spatial[::-1]) for case"),
    Mutant(
        "groups_share_weights",
        CONV,
        "words[f.PACK_GROUP] = weight.shape[0] // form.groups * m",
        "words[f.PACK_GROUP] = m",
    ),
    Mutant(
        "bias_added_with_every_chunk",
        KERNELS + "conv.py",
        "if first + channels >= args[f.CHANNELS] and args[product + f.BIAS] != 0:",
        "if args[product + f.BIAS] != 0:",
    ),
    Mutant("chunks_overwrite_each_other", KERNELS + "conv.py", "ADDS if first > 0 else 0", "0"),
    Mutant(
        "infinite_weights_meet_padding", KERNELS + "conv.py", "found = found & (flags[i] == 0)", "found = found & True"
    ),
    Mutant(
        "padding_off_by_one",
        CPU + "patches.py",
        "line.first - before, line.size",
        "line.first - before + (line.first < 0), line.size",
    ),
    Mutant(
        "bias_gradient_dropped",
        "ops/conv.py",
        "return sum_over(cotangent, [a for",
        "return sum_over(cotangent - cotangent, [a for",
    ),
    Mutant(
        "bias_tangent_dropped",
        "ops/linear.py",
        "tangent = apply(op(), attrs, *products[-1], *moving)",
        "tangent = apply(op(), attrs, *products[-1])",
    ),
    Mutant("weight_tangent_dropped", "ops/linear.py", "for factors in products[:-1]:", "for factors in products[:0]:"),
    Mutant(
        "strides_swapped_in_weight_gradient",
        COMPARE,
        "np.arange(count) * (self.lines[axis].stride * self.pitches[axis])",
        "np.arange(count) * (self.lines[max(axis, -(axis + self.rank >= len(self.lines)) % len(self.lines))].stride"
        " * self.pitches[axis])",
    ),
    Mutant(
        "dilation_missing_in_weight_gradient",
        COMPARE,
        "step = self.pitches[axis] * (1 if axis < self.run else line.step)",
        "step = self.pitches[axis]",
    ),
    Mutant(
        "groups_share_channels_in_weight_gradient",
        COMPARE,
        "x_channel, x_channel * self.channels",
        "x_channel, x_channel",
    ),
    Mutant(
        "pieces_of_weight_gradient_lost", KERNELS + "compare.py", "x[i] if piece == 0 else", "x[i] if piece <= 1 else"
    ),
    Mutant(
        "sum_in_random_order",
        COMPARE,
        "        key = (x.strides, g.strides)\n",
        "        import random\n\n        turned = x.ndim > self.rank + 1 and random.random() < 0.5\n"
        "        x, g = (x[::-1], g[::-1]) if turned else (x, g)\n        key = (x.strides, g.strides)\n",
    ),
    Mutant("empty_batch_forgotten", COMPARE, "if x.type.size == 0 or g.type.size == 0:", "if x.shape[-1] == 0:"),
    # places, columns, formats
    Mutant(
        "unpooled_cells_overwritten",
        KERNELS + "unpool.py",
        "t[chosen - first] = t[chosen - first] + widen(x[x_at + i * step])",
        "t[chosen - first] = widen(x[x_at + i * step])",
    ),
    Mutant(
        "float16_accumulation",
        KERNELS + "unpool.py",
        "t[chosen - first] = t[chosen - first] + widen(x[x_at + i * step])",
        "t[chosen - first] = widen(narrow(t[chosen - first] + widen(x[x_at + i * step])))",
    ),
    Mutant("absent_place_read", KERNELS + "unpool.py", "if chosen >= 0 and chosen < cells:", "if chosen < cells:"),
    Mutant(
        "unfolded_taps_flipped",
        KERNELS + "unfold.py",
        "y += k * args[axis + f.TAP]",
        "y += (args[axis + f.KERNEL] - 1 - k) * args[axis + f.TAP]",
    ),
    Mutant(
        "folded_windows_lost",
        CPU + "taps.py",
        "first, axis.outputs)",
        "first, max(axis.outputs - (axis.outputs > 2), 0))",
    ),
    Mutant(
        "bfloat16_truncated",
        KERNELS + "memory.py",
        "rounded = bits + 0x7FFF + ((bits >> 16) & 1)",
        "rounded = bits + 0",
    ),
    Mutant(
        "bfloat16_rounds_half_away",
        KERNELS + "memory.py",
        "rounded = bits + 0x7FFF + ((bits >> 16) & 1)",
        "rounded = bits + 0x8000",
    ),
)


@dataclass(frozen=True)
class Trial:
    """What the default run said of a mutant: its first defect, if it found one, and after how long."""

    name: str
    seconds: float
    finding: dict[str, Any] | None
    code: int
    output: str

    def __str__(self) -> str:
        if self.finding is None:
            return f"{self.name:45} nothing found in {self.seconds:.0f} s (exit code {self.code})"
        f = self.finding
        return f"{self.name:45} {self.seconds:5.1f} s  {f['op']} {f['mode']} {f['dtype']}: {f['rule']}"


def tried(mutant: Mutant | None, cores: Collection[int] = (), jobs: int | None = None) -> Trial:
    """The default run on a mutant, or for None on a copy of the package as it is."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "gradspec"
        shutil.copytree(SOURCE / "gradspec", package, ignore=shutil.ignore_patterns("__pycache__"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        if mutant is not None:
            mutant.plant(package)
            if mutant.file.startswith(KERNELS):  # nobody else has a use for its machine code
                environment["GRADSPEC_CACHE_DIR"] = str(Path(folder) / "cache")
        result = Path(folder) / "run.json"
        options = ["--seed", "0", "--json", str(result), *(["--jobs", str(jobs)] if jobs else [])]
        options += ["--fail-fast"] if mutant is not None else []
        start = perf_counter()
        run = subprocess.Popen(
            [sys.executable, "-c", "from gradspec.cli import main; main()", "check", "native", *options],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if cores:
            os.sched_setaffinity(run.pid, cores)
        output, _ = run.communicate()
        seconds = perf_counter() - start
        findings = json.loads(result.read_text())["findings"] if result.exists() else []
        defects = [finding for finding in findings if finding["kind"] == "defect"]
        name = "(as it is)" if mutant is None else mutant.name
        return Trial(name, seconds, defects[0] if defects else None, run.returncode, output)


def main(names: list[str]) -> int:
    """Try the named mutants, or all and the package as it is; how many are not as they should be."""
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        raise SystemExit(f"there is no mutant {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    available, pairs = sorted(os.sched_getaffinity(0)), SimpleQueue[tuple[int, ...]]()
    for i in range(0, max(len(available) - 1, 1), 2):
        pairs.put(tuple(available[i : i + 2]))

    def on_two_cores(mutant: Mutant | None) -> bool:
        cores = pairs.get()
        trial = tried(mutant, cores)
        pairs.put(cores)
        is_right = (trial.finding is None) == (mutant is None) and trial.code == int(mutant is not None)
        print(trial if is_right else f"{trial}\n{trial.output}", flush=True)
        return is_right

    with ThreadPoolExecutor(pairs.qsize()) as pool:
        wrong = list(pool.map(on_two_cores, [*chosen, *([] if names else [None])])).count(False)
    print(f"{len(chosen)} planted, {wrong} not as they should be")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

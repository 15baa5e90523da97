"""Planted bugs: our own kernels, each broken in one place, which ``gradspec check`` must find.

    python tests/conformance/mutants.py              all of them, and the unbroken package
    python tests/conformance/mutants.py last_tie …   some of them

Every mutant is a copy of the package in which one stretch of source is replaced. The default run is made on it, with
its default time of 60 seconds, and ends at the first defect. Each run has two processor cores of its own, and the
user's stored kernels, of which the mutant compiles those anew that it changes. Triton's
interpreter is slow, so a mutant of the Triton kernels is judged by a few cases that it can change. The same cases must
find nothing in the kernels as they are.
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
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from gradspec.codegen.cache import cache_directory

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
SECONDS = 60


@dataclass(frozen=True)
class Mutant:
    """``before`` occurs in the file, below ``src/gradspec``; its first occurrence becomes ``after``."""

    name: str
    file: str
    before: str
    after: str
    options: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return "conformance.triton_kernels:Pooling" if self.file.startswith(TRITON) else "native"

    @property
    def is_broken(self) -> bool:
        return self.before != self.after

    def plant(self, package: Path) -> None:
        file = package / self.file
        text = file.read_text()
        if self.before not in text:
            raise LookupError(f"{self.name}: {self.file} no longer contains {self.before!r}")
        file.write_text(text.replace(self.before, self.after, 1))


TRITON = "backends/triton/"
TRITON_PLAN, TRITON_GEOMETRY, TRITON_KERNELS = (f"{TRITON}{name}.py" for name in ("pool", "geometry", "pool_kernels"))


def ten_cases(op: str, mode: str, domain: str, planes: str = "channels=2..3 batch=1") -> tuple[str, ...]:
    """Options of a run on a few cases of float32, all with a geometry that the mutant breaks."""
    count = ("--cases", "10", "--seconds", "600")
    return ("--ops", op, "--modes", mode, "--dtypes", "f32", *count, "--domain", f"{domain} {planes}")


POOL, CONV, TABLES, FORMATS = "backends/cpu/pool/", "backends/cpu/conv/", "backends/tables.py", "codegen/formats.py"
STATES, REDUCE_ROW, WINNERS, ACCUMULATORS, TIES, SMOOTH, UNPOOL = (
    f"{POOL}kernels/{name}.py"
    for name in ("states", "reduce_row", "winners", "vjp_accumulators", "ties", "smooth", "unpool")
)
LAYOUT = POOL + "layout.py"
EXCEEDS = "return (not (b <= a)) & (a == a)"
ADDED = "sums[at] = sums[at] + value"

MUTANTS = (
    # the maximum
    Mutant("last_tie", STATES, EXCEEDS, "return (not (b < a)) & (a == a)"),
    Mutant("nan_passed_over", STATES, EXCEEDS, "return b > a"),
    Mutant("number_after_nan_wins", STATES, EXCEEDS, "return not (b <= a)"),
    Mutant(
        "nan_lost_in_values", STATES, "            return maximum(a, b)\n", "            return choose(b > a, b, a)\n"
    ),
    Mutant("padding_competes_as_zero", STATES, "Best(lowest(self.form)", "Best(self.form.computed(0)"),
    Mutant("integers_start_at_zero", STATES, "-(2 ** (form.computed.bits - 1)) if", "0 if"),
    Mutant(
        "third_tap_misnumbered",
        REDUCE_ROW,
        "state.tap(p[at + (k + 2) * dilation], k + 2, first_tap)",
        "state.tap(p[at + (k + 2) * dilation], k + 1, first_tap)",
    ),
    Mutant(
        "wide_window_misnumbered",
        REDUCE_ROW,
        "later = state.shift_taps(state.get(cells, at + distance + i), width)",
        "later = state.get(cells, at + distance + i)",
    ),
    Mutant("index_off_by_one", WINNERS, "place = start + (table[winner]", "place = start + 1 + (table[winner]"),
    Mutant("index_of_nothing_is_zero", WINNERS, "+ i]), -1\n", "+ i]), 0\n"),
    Mutant(
        "padding_only_stays_lowest",
        WINNERS,
        "cells.value[here] = form.computed(0)",
        "cells.value[here] = cells.value[here]",
    ),
    Mutant(
        "last_hit_overwrites",
        WINNERS,
        "sums.p[there] = sums.p[there] + form.widen(u[to + o * step])",
        "sums.p[there] = form.widen(u[to + o * step])",
    ),
    Mutant(
        "tape_takes_nobody_for_a_winner", WINNERS, "no_winner = (1 << (8 * size)) - 1", "no_winner = (1 << (8 * size))"
    ),
    Mutant(
        "cells_of_rank_4_not_cleared",
        ACCUMULATORS,
        "for i in range(len(args.axes) - 2, 0, -1):",
        "for i in range(len(args.axes) - 2, 1, -1):",
    ),
    Mutant("all_ties_for_split", POOL + "plan.py", 'splits=ties == "split"', "splits=False"),
    Mutant("tied_nan_is_no_tie", TIES, "return (x == top) | (x != x)", "return x == top"),
    Mutant(
        "pull_forgets_the_tie_rule",
        "ops/pool.py",
        "apply(MAX_POOL_SCATTER, attrs, operands[0]",
        'apply(MAX_POOL_SCATTER, replace(attrs, ties="first"), operands[0]',
    ),
    # averages
    Mutant(
        "ceil_mode_divisor",
        TABLES,
        "np.minimum(axis.kernel, -((start - axis.size - axis.hi) // axis.dilation))",
        "np.minimum(axis.kernel, start + axis.kernel - start)",
    ),
    Mutant(
        "excluded_padding_counts",
        POOL + "plan.py",
        "counted_taps if attrs.count_include_pad else _at_least_one",
        "counted_taps",
    ),
    Mutant(
        "divisor_forgotten_in_ceil_mode",
        POOL + "plan.py",
        "if attrs.divisor_override is not None:",
        "if attrs.divisor_override is not None and not attrs.ceil_mode:",
    ),
    Mutant(
        "float32_reciprocal_for_float64",
        POOL + "layout.py",
        "(np.float64, 53) if computed == 8 else (np.float32, 24)",
        "(np.float32, 24)",
    ),
    Mutant(
        "first_inside_window_too_early",
        POOL + "axes.py",
        "first = min(-(-self.low // self.stride), self.outputs)",
        "first = min(self.low // self.stride, self.outputs)",
    ),
    Mutant(
        "uneven_bins_lose_a_cell",
        TABLES,
        "-(-(o + 1) * axis.size // axis.outputs) -",
        "np.maximum((o + 1) * axis.size // axis.outputs, o * axis.size // axis.outputs + 1) -",
    ),
    Mutant(
        "real_cells_without_dilation",
        TABLES,
        "first = np.maximum(0, -(start // axis.dilation))",
        "first = np.maximum(0, -start)",
    ),
    Mutant(
        "dilation_missing_in_average_vjp",
        POOL + "axes.py",
        "low=axis.reach - axis.low)",
        "low=axis.kernel - 1 - axis.low)",
    ),
    Mutant(
        "padding_off_by_one_in_strided_average_vjp",
        POOL + "axes.py",
        "kind=AxisKind.EXPANDING, size=size, outputs=outputs)",
        "kind=AxisKind.EXPANDING, size=size, outputs=outputs, low=axis.low + 1)",
    ),
    Mutant(
        "axes_merged_across_gaps",
        POOL + "layout.py",
        "merge_axes(before, axis, is_transpose) if follow else None",
        "merge_axes(before, axis, is_transpose)",
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
        POOL + "plan.py",
        'attrs.padding_mode == "zeros" and _has_padding(window)',
        "_has_padding(window)",
    ),
    Mutant(
        "float32_beta_for_float64",
        POOL + "plan.py",
        "np.float32(attrs.beta) if computed == 4 else np.float64(attrs.beta)",
        "np.float32(attrs.beta)",
    ),
    Mutant(
        "softness_without_pivot",
        SMOOTH,
        "number_of(x)(0), b * (x - m)",
        "number_of(x)(0), b * x - b * m",
    ),
    # convolutions
    Mutant(
        "kernel_axes_swapped", CONV + "plan.py", "case.taps_of(tuple(spatial))", "case.taps_of(tuple(spatial[::-1]))"
    ),
    Mutant(
        "groups_share_weights",
        CONV + "plan.py",
        "group_step=self.rows // form.groups * m",
        "group_step=m",
    ),
    Mutant(
        "bias_added_with_every_chunk",
        CONV + "kernels/conv.py",
        "if first + channels >= args.channels and product.bias != 0:",
        "if product.bias != 0:",
    ),
    Mutant(
        "chunks_overwrite_each_other",
        CONV + "kernels/conv.py",
        "Also.OLD_SUMS if first > 0 else Also.NOTHING",
        "Also.NOTHING",
    ),
    Mutant(
        "infinite_weights_meet_padding",
        CONV + "kernels/conv.py",
        "found = found & (flags[i] == 0)",
        "found = found & True",
    ),
    Mutant(
        "padding_off_by_one",
        CONV + "blocking.py",
        "first=line.first - before,",
        "first=line.first - before + (line.first < 0),",
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
        CONV + "gradient.py",
        "along = zip(counts, self.lines[self.run :], self.pitches[self.run :], strict=True)",
        "n = len(self.lines)\n        along = "
        "zip(counts, [self.lines[max(axis, -(axis + self.rank >= n) % n)] for axis in range(self.run, n)], "
        "self.pitches[self.run :], strict=True)",
    ),
    Mutant(
        "dilation_missing_in_weight_gradient",
        CONV + "gradient.py",
        "steps = [1 if axis < self.run else line.step for axis, line in enumerate(self.lines)]",
        "steps = [1 for _ in self.lines]",
    ),
    Mutant(
        "groups_share_channels_in_weight_gradient",
        CONV + "gradient.py",
        "x_group=x_channel * self.channels",
        "x_group=x_channel",
    ),
    Mutant(
        "pieces_of_weight_gradient_lost",
        CONV + "kernels/gradient.py",
        "x[i] if piece == 0 else",
        "x[i] if piece <= 1 else",
    ),
    Mutant(
        "sum_in_random_order",
        CONV + "gradient.py",
        'return task_of(f"weight gradient {x.dtype}", function, (x, g), (w,), form, cost, 1000, '
        "(form.units, form.workspace))",
        "task = task_of('gradient', function, (x, g), (w,), form, cost, 1000)\n"
        "    return __import__('dataclasses').replace(task, bind=lambda x, g, w: task.bind("
        "*((x[::-1], g[::-1]) if x.ndim > form.rank + 1 and __import__('random').random() < 0.5 else (x, g)), w))",
    ),
    Mutant(
        "empty_batch_forgotten",
        CONV + "gradient.py",
        "if x.type.size == 0 or g.type.size == 0 or",
        "if x.shape[-1] == 0 or",
    ),
    # fast paths that take one geometry too many
    Mutant(
        "square_windows_with_a_stride",
        CONV + "blocking.py",
        "and above[0].stride == last[0].stride == 1",
        "and above[1].planes == 1",
    ),
    Mutant(
        "staged_rows_joined_with_a_stride",
        CONV + "kernels/staging.py",
        "(span.step == 1) & (stride == 1) &",
        "(span.step == 1) &",
    ),
    Mutant("planes_with_dilated_rows", LAYOUT, "or last.dilation != 1 or is_bins", "or is_bins"),
    Mutant("planes_of_dilated_rows", LAYOUT, "or before.scans or before.dilation != 1:", "or before.scans:"),
    Mutant(
        "planes_as_wide_as_they_are_not",
        LAYOUT,
        "last.outputs == last.size > 2 and is_dense",
        "last.outputs == last.size > 2",
    ),
    Mutant("squares_of_dilated_runs", LAYOUT, "before.dilation == last.dilation == 1\n", "before.dilation == 1\n"),
    Mutant(
        "spread_rows_with_dilation",
        LAYOUT,
        "axis.dilation == 1 and axis.kernel <= 2 * axis.stride",
        "axis.kernel <= 2 * axis.stride",
    ),
    Mutant(
        "slabs_joined_with_dilation",
        LAYOUT,
        "axis.dilation == 1 < axis.kernel <= axis.stride",
        "1 < axis.kernel <= axis.stride",
    ),
    Mutant("pairs_of_slabs_that_leave_cells", LAYOUT, "all(axis.ends_with_windows for axis in later[1:])", "True"),
    Mutant(
        "planes_joined_that_leave_cells",
        LAYOUT,
        "pooling.joins_planes and axis.ends_with_windows)",
        "pooling.joins_planes)",
    ),
    Mutant(
        "cells_written_of_longer_rows", LAYOUT, "last.kernel == 2 and last.size == 2 * last.outputs", "last.kernel == 2"
    ),
    Mutant(
        "gathered_cotangents_with_dilation",
        LAYOUT,
        "axis.dilation == 1 and min(axis.outputs, axis.size) > 0",
        "min(axis.outputs, axis.size) > 0",
    ),
    Mutant(
        "fours_with_dilation",
        REDUCE_ROW,
        "axis.stride == 4 and axis.dilation == 1 and are_read_once",
        "axis.stride == 4 and are_read_once",
    ),
    Mutant(
        "pairs_with_dilation",
        REDUCE_ROW,
        "elif stride == 2 and dilation == 1 and kernel > 1:",
        "elif stride == 2 and kernel > 1:",
    ),
    Mutant(
        "sent_backwards_with_dilation",
        POOL + "kernels/avg_transpose.py",
        "axis.dilation == 1 and axis.stride == 2 and",
        "axis.stride == 2 and",
    ),
    Mutant(
        "smooth_pairs_with_dilation",
        SMOOTH,
        "kernel == 2 and stride == 2 and axis.dilation == 1",
        "kernel == 2 and stride == 2",
    ),
    Mutant(
        "pooled_after_convolution_with_overlap",
        CONV + "plan.py",
        "or axis.kernel > axis.stride:",
        "or axis.kernel > axis.stride + 1:",
    ),
    # places, columns, formats
    Mutant("unpooled_cells_overwritten", UNPOOL, ADDED, "sums[at] = value"),
    Mutant("float16_accumulation", UNPOOL, ADDED, "sums[at] = form.widen(form.narrow(sums[at] + value))"),
    Mutant("absent_place_read", UNPOOL, "if 0 <= chosen < cells:", "if chosen < cells:"),
    Mutant(
        "unfolded_taps_flipped",
        "backends/cpu/layout/kernels/unfold.py",
        "y += taps[a] * axis.tap_stride",
        "y += (axis.kernel - 1 - taps[a]) * axis.tap_stride",
    ),
    Mutant(
        "folded_windows_lost",
        TABLES,
        "axis.stride), first, axis.outputs)",
        "axis.stride), first, max(axis.outputs - (axis.outputs > 2), 0))",
    ),
    Mutant(
        "bfloat16_truncated",
        FORMATS,
        "rounded = bits + 0x7FFF + ((bits >> 16) & 1)",
        "rounded = bits + 0",
    ),
    Mutant(
        "bfloat16_rounds_half_away",
        FORMATS,
        "rounded = bits + 0x7FFF + ((bits >> 16) & 1)",
        "rounded = bits + 0x8000",
    ),
    # fast paths of the Triton kernels that take one geometry too many
    Mutant(
        "triton_vectors_of_dilated_windows",
        TRITON_PLAN,
        "axis.bins or axis.dilation > 1 or axis.also for",
        "axis.bins or axis.also for",
        ten_cases("max_pool", "value", "kernel_size=2x2 stride=1 padding=1 dilation=2 height=4..8 width=8"),
    ),
    Mutant(
        "triton_vectors_of_uneven_bins",
        TRITON_PLAN,
        "axis.bins or axis.dilation > 1 or axis.also for",
        "axis.dilation > 1 or axis.also for",
        ten_cases("adaptive_max_pool", "value", "output_size=3x8 height=6 width=12"),
    ),
    Mutant(
        "triton_vectors_of_outputs_that_are_not_whole",
        TRITON_PLAN,
        "_are_vectors(col, col.size, x.strides) and _are_vectors(col, col.outputs, y)",
        "_are_vectors(col, col.size, x.strides)",
        ten_cases("max_pool", "value", "kernel_size=2x4 stride=1 padding=0 dilation=1 height=3..6 width=8"),
    ),
    Mutant(
        "triton_vectors_of_cells_that_are_not_whole",
        TRITON_PLAN,
        "_are_vectors(col, col.size, x.strides) and _are_vectors(col, col.outputs, y)",
        "_are_vectors(col, col.outputs, y)",
        ten_cases("max_pool", "value", "kernel_size=2x2 stride=1 padding=0 dilation=1 height=3..6 width=9"),
    ),
    Mutant(
        "triton_windows_shared_with_a_stride",
        TRITON_KERNELS,
        "n: tl.constexpr = 1 if S > 1 else min(most, N)",
        "n: tl.constexpr = min(most, N)",
        ten_cases("max_pool", "value", "kernel_size=4x4 stride=2 padding=1 dilation=1 height=8 width=16"),
    ),
    Mutant(
        "triton_strips_of_dilated_rows",
        TRITON_PLAN,
        "row.dilation > 1 or row.bins or row.stride",
        "row.bins or row.stride",
        ten_cases("max_pool", "value", "kernel_size=3x3 stride=1 padding=0 dilation=2 height=8..12 width=7"),
    ),
    Mutant(
        "triton_strips_of_uneven_bins",
        TRITON_PLAN,
        "row.dilation > 1 or row.bins or row.stride",
        "row.dilation > 1 or row.stride",
        ten_cases("adaptive_max_pool", "value", "output_size=4x3 height=7 width=7"),
    ),
    Mutant(
        "triton_rows_folded_across_gaps",
        TRITON_PLAN,
        "row.is_whole and _are_vectors(row, row.size, _outside(row, x)) else 0",
        "row.is_whole else 0",
        ten_cases("max_pool", "value", "kernel_size=5x7 stride=1 padding=0 dilation=1 height=5 width=7"),
    ),
    Mutant(
        "triton_tangents_of_folded_winners",
        TRITON_PLAN,
        "(len(steps) > 1 or steps[0].taps > FEW_TAPS)",
        "len(steps) > 1",
        ten_cases("max_pool", "jvp", "kernel_size=5x7 stride=1 padding=0 dilation=1 height=5 width=7"),
    ),
    Mutant(
        "triton_tiles_of_dilated_windows",
        TRITON_PLAN,
        "axis.dilation > 1 or axis.stride > wide for",
        "axis.stride > wide for",
        ten_cases("max_pool", "vjp", "kernel_size=3x3 stride=1 padding=0 dilation=2 height=8 width=8"),
    ),
    Mutant(
        "triton_tiles_of_vectors_with_a_stride",
        TRITON_PLAN,
        "are_vectors and col.stride == 1 and _are_vectors(col, col.outputs, g.strides)",
        "are_vectors and _are_vectors(col, col.outputs, g.strides)",
        ten_cases("max_pool", "vjp", "kernel_size=2x2 stride=2 padding=0 dilation=1 height=4 width=16"),
    ),
    Mutant(
        "triton_tiles_of_vectors_that_are_not_whole",
        TRITON_PLAN,
        "are_vectors and col.stride == 1 and _are_vectors(col, col.outputs, g.strides)",
        "are_vectors and col.stride == 1",
        ten_cases("max_pool", "vjp", "kernel_size=2x4 stride=1 padding=0 dilation=1 height=3..6 width=8"),
    ),
    Mutant(
        "triton_tiles_joined_across_gaps",
        TRITON_PLAN,
        "if not _is_fastest(col, dx) or not (col.bins",
        "if not (col.bins",
        ten_cases("adaptive_max_pool", "vjp", "output_size=4x4 height=6 width=6 layouts=channels_last"),
    ),
    Mutant(
        "triton_cells_alike_with_padding",
        TRITON_GEOMETRY,
        "return is_disjoint and self.stride % cells == 0 and self.lo % cells == 0",
        "return is_disjoint and self.stride % cells == 0",
        ten_cases("max_pool", "vjp", "kernel_size=2x8 stride=2x8 padding=0+0x2+6 dilation=1 height=4 width=24"),
    ),
    Mutant(
        "triton_cells_written_beyond_their_row",
        TRITON_PLAN,
        "_are_multiples(n, fastest[-1], _outside(col, dx))",
        "_are_multiples(n, n, _outside(col, dx))",
        ten_cases(
            "max_pool", "vjp", "kernel_size=8 stride=8 padding=0 dilation=1 width=9..15", "channels=none batch=none"
        ),
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


def tried(mutant: Mutant | None, cores: Collection[int] = (), *options: str) -> Trial:
    """The default run on a mutant, or for None on a copy of the package as it is; or one with other options."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "gradspec"
        shutil.copytree(SOURCE / "gradspec", package, ignore=shutil.ignore_patterns("__pycache__"))
        paths = [folder, str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "1"}
        target = "native" if mutant is None else mutant.target
        if mutant is not None:
            mutant.plant(package)
            options = ("--fail-fast", *mutant.options, *options)
            if "kernels" in mutant.file or mutant.file == FORMATS:  # nobody else has a use for its machine code
                environment["GRADSPEC_CACHE_DIR"] = str(Path(folder) / "cache")
                if (kernels := cache_directory()) is not None and kernels.is_dir():
                    shutil.copytree(kernels, Path(folder) / "cache", ignore=shutil.ignore_patterns("*.tmp"))
        result = Path(folder) / "run.json"
        options = ("--seed", "0", "--json", str(result), *options)
        start = perf_counter()
        run = subprocess.Popen(
            [sys.executable, "-c", "from gradspec.cli import main; main()", "check", target, *options],
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
    unbroken = [replace(m, name=f"({m.name} as it is)", after=m.before) for m in chosen if m.file.startswith(TRITON)]
    available, pairs = sorted(os.sched_getaffinity(0)), SimpleQueue[tuple[int, ...]]()
    for i in range(0, max(len(available) - 1, 1), 2):
        pairs.put(tuple(available[i : i + 2]))

    def on_two_cores(mutant: Mutant | None) -> bool:
        cores = pairs.get()
        trial = tried(mutant, cores)
        pairs.put(cores)
        is_broken = mutant is not None and mutant.is_broken
        is_right = (trial.finding is not None) == is_broken and trial.code == int(is_broken)
        print(trial if is_right else f"{trial}\n{trial.output}", flush=True)
        return is_right

    with ThreadPoolExecutor(pairs.qsize()) as pool:
        wrong = list(pool.map(on_two_cores, [*chosen, *unbroken, *([] if names else [None])])).count(False)
    print(f"{len(chosen)} planted, {wrong} not as they should be")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

"""Windows of any rank, one axis after another: the walk that all pooling kernels share.

A window is a product of axis windows, so it is reduced axis by axis, the last one first: each row is reduced along the
last axis, rows along the axis before, and so on. Row-major order is kept, so the first winner stays the first. One
recursion does this for every rank with a ring of slabs per axis (a slab: the outputs of the later axes), never a whole
intermediate tensor.

Along one axis, windows are either combined directly from the rows in the ring, or, where windows are long, from
blocks of ``kernel`` rows: a window that starts inside one block and ends in the next is a suffix of the first and a
prefix of the second, so that a row is touched three times however long the windows are (van Herk, Gil and Werman).
Suffixes replace rows in the ring, whose slots come free in exactly the order in which the next block's rows arrive.

Dilation splits an axis into residue classes: the cells ``r, r + d, r + 2d, …`` are an axis of their own, on which the
windows that start in the class have no dilation.

What is computed is defined by a *reduction*, an object that is known when a kernel is built. It has a ``state`` (see
``states``) and the methods

    outputs(work, first, end)                            reduce outputs of the first axis: ``walk``, or what is faster
    load(work, axis, source, at, n)                      copy the neighbours of one cell to the workspace
    row(work, axis, source, target, first, end)          reduce outputs of the last axis
    combine_rows(work, ring, at, shift, rows, volume, target)   reduce a window from its rows in the ring
    emit_row(work, first, end, target)                   post-process and write combined outputs of a row
    prepare(work), finish(work)                          called before and after each unit of work

and, where ``has_whole_planes``, ``has_runs``, ``has_planes``, ``has_winner_rows`` or ``has_complete`` is true,

    reduce_whole_planes(args, lo, hi)                    planes that are one run of cells and have one output
    reduce_run_window(work, axis, residue, rows, source, target)   a window along the last axis, read in place
    scale_of(args, is_wanted), scale(value, scale)       the factor of outputs, and its product with one
    reduce_plane_rows, reduce_plane_row, reduce_run_row, reduce_winner_rows, join_slabs, reduce_pairs_of_planes
                                                         the loops of the schedules (see ``reduce_fused_axes``)
    complete(work, target, n)                            post-process outputs that all need the same
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.conv.kernels.packing import Strided, turn
from gradspec.backends.cpu.pool.arguments import UNIT_BYTES, AxisKind, Finish, PoolUnit, Role, Schedule
from gradspec.backends.cpu.pool.kernels.rows import (
    ceil_div,
    cell_row,
    cell_rows,
    dense_stride,
    is_dense,
    last_axis,
    read_neighbours,
    real_taps,
)
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import at_build, inlined, lanes, lanes_once, outlined, pointer

unit_at = pointer(PoolUnit)


class PoolWork(NamedTuple):
    """The arguments, the current unit of work, and the components in the workspace."""

    args: Any
    unit: Any
    cells: Any


class Source(NamedTuple):
    """Where a part of the input begins in X, or among transposed cells, and in U; the taps that earlier axes count."""

    x: Any
    u: Any
    count: Any


class Destination(NamedTuple):
    """Where results go. The first component may lie in the output array, the others are always in the workspace."""

    cells: Any
    at: Any


class Part(NamedTuple):
    """A reduced part of windows in the workspace, which begins ``shift`` taps later than they do."""

    at: Any
    shift: Any


class Ring(NamedTuple):
    """A ring buffer of slabs; ``end`` is where the last one ends."""

    first: Any
    slab: Any
    end: Any


class Rows(NamedTuple):
    """The rows ``begin … end−1`` of a window along an axis; those from ``first`` on are real."""

    begin: Any
    first: Any
    end: Any


class Residue(NamedTuple):
    """A residue class: where its rows and outputs lie on the axis, and where its windows begin among its rows."""

    exists: Any
    first_row: Any
    row_step: Any
    rows: Any
    first_output: Any
    output_step: Any
    begin: Any
    stride: Any


class RingState(NamedTuple):
    """The rows ``origin … produced−1`` are in the ring, and the next goes to ``slot``. Rows of the block that begins at
    ``suffixed`` have been replaced by suffixes."""

    produced: Any
    origin: Any
    suffixed: Any
    slot: Any


# --- geometry ---------------------------------------------------------------------------------------------------------


@outlined
def residue_class(axis, r):
    if axis.dilation == 1:
        return Residue(True, 0, 1, axis.size, 0, 1, -axis.low, axis.stride)
    dilation, stride, low, is_transposed = axis.dilation, axis.stride, axis.low, axis.kind == AxisKind.EXPANDING
    cells, windows = axis.outputs if is_transposed else axis.size, axis.size if is_transposed else axis.outputs
    common, rest = stride, dilation
    while rest:
        common, rest = rest, common % rest
    step = dilation // common
    for o in range(min(step, windows)):
        if (o * stride - low - r) % dilation == 0:  # with r ≥ cells, the class has windows but no cell for them
            begin = (o * stride - low - r) // dilation
            if is_transposed:
                return Residue(True, o, step, ceil_div(windows - o, step), r, dilation, begin, stride // common)
            return Residue(True, r, dilation, ceil_div(cells - r, dilation), o, step, begin, stride // common)
    # No window starts in this class; read backwards, its cells belong to no window.
    return Residue(is_transposed and r < cells, 0, 1, 0, r, dilation, 0, 1)


def rows_of_window(axis, residue, q):
    """The rows of the ``q``-th output of a residue class."""
    begin, end = residue.begin + q * residue.stride, residue.begin + q * residue.stride + axis.kernel
    if axis.kind == AxisKind.BINS:
        begin, end = axis.spans[2 * q], axis.spans[2 * q] + axis.spans[2 * q + 1]
    elif axis.kind == AxisKind.EXPANDING:
        # Window j covers the cells begin + j·stride … + kernel − 1, and these are the j that cover q.
        begin = ceil_div(q - residue.begin - axis.kernel + 1, residue.stride)
        end = (q - residue.begin) // residue.stride + 1
    return Rows(begin, max(begin, 0), min(end, residue.rows))


@inlined
def next_slab(ring, at):
    """The slab after one in the ring."""
    return at + ring.slab if at + ring.slab < ring.end else ring.first


@at_build
def replace_value(cells, value):
    """The components with another place for the first."""
    return type(cells)(value, *cells[1:])


@inlined
def output_destination(reduction, work, target, o):
    """Where output ``o`` of the first axis goes: to the output array, if slabs are dense there."""
    form, args = reduction.form, work.args
    value = target.cells.value
    if args.is_direct:
        place = work.unit.bases[Role.Y] + o * args.axes[0].strides[Role.Y]
        value = form.computed_at(args.arrays[Role.Y] + (place - target.at) * form.computed.bytes)
    return Destination(replace_value(target.cells, value), target.at)


# --- states, slab by slab ---------------------------------------------------------------------------------------------


@outlined
def put_identity(reduction, target, n):
    """The result of a window without cells."""
    state = reduction.state
    for i in lanes(state.number, n):
        state.put(target.cells, target.at + i, state.identity)


@outlined
def copy(reduction, target, cells, a, n):
    state = reduction.state
    for i in lanes(state.number, n):
        state.put(target.cells, target.at + i, state.shift_taps(state.get(cells, a.at + i), a.shift))


@outlined
def join(reduction, args, target, cells, a, b, n):
    """Join ``a`` and then ``b``; the target may be either."""
    state = reduction.state.bound(args)
    for i in lanes_once(state.number, n):
        first, second = state.get(cells, a.at + i), state.get(cells, b.at + i)
        joined = state.join(state.shift_taps(first, a.shift), state.shift_taps(second, b.shift))
        state.put(target.cells, target.at + i, joined)


@outlined
def join3(reduction, args, target, cells, a, b, c, n):
    state = reduction.state.bound(args)
    for i in lanes(state.number, n):
        first, second, third = state.get(cells, a.at + i), state.get(cells, b.at + i), state.get(cells, c.at + i)
        joined = state.join3(
            state.shift_taps(first, a.shift), state.shift_taps(second, b.shift), state.shift_taps(third, c.shift)
        )
        state.put(target.cells, target.at + i, joined)


@outlined
def fold(reduction, target, cells, a, n):
    """Join the target and then ``a``."""
    state = reduction.state
    for i in lanes_once(state.number, n):
        here, first = state.get(target.cells, target.at + i), state.get(cells, a.at + i)
        state.put(target.cells, target.at + i, state.join(here, state.shift_taps(first, a.shift)))


@outlined
def fold2(reduction, target, cells, a, b, n):
    """Join the target, then ``a``, then ``b``."""
    state = reduction.state
    for i in lanes_once(state.number, n):
        here, first = state.get(target.cells, target.at + i), state.get(cells, a.at + i)
        second = state.get(cells, b.at + i)
        joined = state.join3(here, state.shift_taps(first, a.shift), state.shift_taps(second, b.shift))
        state.put(target.cells, target.at + i, joined)


def combine_rows(reduction, work, ring, at, shift, rows, volume, target):
    """Reduce a window of ``rows`` rows of the ring; the first lies at ``at`` and begins at tap ``shift``."""
    args, cells = work.args, work.cells
    if rows == 1:
        copy(reduction, target, cells, Part(at, shift), ring.slab)
        return
    second = next_slab(ring, at)
    if rows == 2:
        join(reduction, args, target, cells, Part(at, shift), Part(second, shift + volume), ring.slab)
        return
    third = next_slab(ring, second)
    a, b, c = Part(at, shift), Part(second, shift + volume), Part(third, shift + 2 * volume)
    join3(reduction, args, target, cells, a, b, c, ring.slab)
    i = 3
    while i < rows:
        at = next_slab(ring, third)
        third = next_slab(ring, at)
        here = Part(at, shift + i * volume)
        if i + 1 < rows:
            fold2(reduction, target, cells, here, Part(third, shift + (i + 1) * volume), ring.slab)
        else:
            fold(reduction, target, cells, here, ring.slab)
        i += 2


# --- one axis ---------------------------------------------------------------------------------------------------------


def reduce_axis(reduction, work, number, source, target, first_output, end_output):
    """Reduce axis ``number`` and, recursively, all later ones."""
    axis = work.args.axes[number]
    if number == len(work.args.axes) - 1 and (work.args.inner_total == 1 or work.args.is_transposed):
        reduction.row(work, axis, source, target, first_output, end_output)
        return
    if reduction.has_transpose and axis.schedule == Schedule.TRANSPOSE_ROWS:
        out = output_destination(reduction, work, target, first_output) if number == 0 else target
        reduction.transpose_rows(work, axis, source, out, first_output, end_output)
        finish_outputs(reduction, work, number, first_output, out, axis.slab, end_output - first_output)
        return
    if reduction.has_planes and work.args.is_staged and number == len(work.args.axes) - 2:
        x = reduction.stage_plane(work, axis, source, first_output, end_output)
        source = Source(x, source.u, source.count)
    for r in range(axis.dilation):
        residue = residue_class(axis, r)
        if residue.exists:
            reduce_class(reduction, work, number, axis, residue, source, target, first_output, end_output)


@inlined
def reduce_class(reduction, work, number, axis, residue, source, target, first_output, end_output):
    """Reduce the outputs of one residue class."""
    slab, first = axis.slab * work.unit.neighbours, axis.ring * work.args.inner
    ring = Ring(first, slab, first + axis.slots * slab)
    q = max(0, ceil_div(first_output - residue.first_output, residue.output_step))
    q_end = ceil_div(end_output - residue.first_output, residue.output_step)
    progress = RingState(-1, 0, -axis.kernel, ring.first)
    while q < q_end:
        rows, o, made = rows_of_window(axis, residue, q), residue.first_output + q * residue.output_step, 0
        out = Destination(target.cells, target.at + (o - first_output) * slab)
        if number == 0:
            out = output_destination(reduction, work, target, o)
        if rows.first >= rows.end:
            put_identity(reduction, out, slab)
        elif axis.schedule != Schedule.GENERIC:
            most = min(q_end - q, (residue.rows - axis.kernel - rows.begin) // residue.stride + 1)
            made = reduce_fused_axes(reduction, work, number, axis, rows, source, o, most, target, out, slab)
        if made == 0 and rows.first < rows.end:
            if reduction.has_runs and work.args.reads_runs and number == len(work.args.axes) - 1:
                reduction.reduce_run_window(work, axis, residue, rows, source, out)
            else:
                progress = reduce_via_ring(reduction, work, number, axis, residue, rows, ring, progress, source, out)
        if made == 0:
            finish_outputs(reduction, work, number, o, out, slab, 1)
        q += max(made, 1)


@inlined
def reduce_fused_axes(reduction, work, number, axis, rows, source, o, most, target, out, slab):
    """Reduce up to ``most`` outputs of several axes at once by the axis's schedule: how many; 0 if it is generic."""
    is_full = rows.end - rows.first == axis.kernel
    is_divided = work.args.finish == Finish.AT_ONCE and work.args.inverse != 0.0
    if reduction.has_run_rows and axis.schedule == Schedule.RUNS:
        reduction.reduce_run_row(work, number, axis, source.x, o, out)
        if reduction.has_planes and not is_divided:
            finish_outputs(reduction, work, number, o, out, slab, 1)
        return 1
    if reduction.has_planes and axis.schedule == Schedule.ROWS and is_full:
        reduction.reduce_plane_rows(work, number, axis, source.x, rows.first, o, most, out)
        if not (is_divided or (reduction.form.converts and not work.args.is_staged)):
            finish_outputs(reduction, work, number, o, out, slab, most)
        return most
    if reduction.has_winner_rows and axis.schedule == Schedule.WINNER_ROWS and is_full and not work.unit.has_nan:
        x_at = source.x + rows.first * axis.strides[Role.X]
        reduction.reduce_winner_rows(work, number, axis, x_at, o, most, Destination(target.cells, out.at))
        return most
    if reduction.has_planes and (axis.schedule == Schedule.SLABS or axis.schedule == Schedule.PAIRS):
        if axis.schedule == Schedule.PAIRS and is_full:
            reduction.reduce_pairs_of_planes(work, number, axis, source.x, rows, out)
        else:
            here = Source(reduction.join_slabs(work, number, axis, source.x, rows), source.u, source.count)
            reduce_axis(reduction, work, number + 1, here, out, 0, work.args.axes[number + 1].outputs)
        finish_outputs(reduction, work, number, o, out, slab, 1)
        return 1
    if reduction.has_planes and axis.schedule != Schedule.GENERIC:
        x = source.x
        if reduction.form.converts and not work.args.is_staged:
            x = reduction.stage_plane(work, axis, source, o, o + 1)
        reduction.reduce_plane_row(work, axis, x, rows.first, rows.end, out)
        finish_outputs(reduction, work, number, o, out, slab, 1)
        return 1
    return 0


@inlined
def reduce_via_ring(reduction, work, number, axis, residue, rows, ring, progress, source, out):
    """Produce the missing rows, then reduce the window from the ring buffer."""
    if progress.produced < 0:
        slot = ring.first + rows.first % axis.slots * ring.slab
        progress = RingState(rows.first, rows.first, progress.suffixed, slot)
    if not axis.scans:
        produced = max(progress.produced, rows.first)
        progress = RingState(produced, progress.origin, progress.suffixed, progress.slot)
    progress = produce_rows(reduction, work, number, axis, residue, rows.end, ring, progress, source)
    if not axis.scans:
        count = rows.end - rows.first
        start = progress.slot - count * ring.slab  # the last of its rows lies before the next slot
        start = start if start >= ring.first else start + ring.end - ring.first
        shift = (rows.first - rows.begin) * axis.volume
        reduction.combine_rows(work, ring, start, shift, count, axis.volume, out)
        return progress
    suffixed = combine_blocks(reduction, work, axis, rows, ring, progress, out)
    return RingState(progress.produced, progress.origin, suffixed, progress.slot)


@inlined
def produce_rows(reduction, work, number, axis, residue, end, ring, progress, source):
    """Produce rows up to ``end``. The prefix of a block lies behind the ring."""
    produced, suffixed, slot = progress.produced, progress.suffixed, progress.slot
    kernel, scans = axis.kernel, axis.scans
    while produced < end:
        if scans and produced % kernel == 0 and produced > progress.origin and suffixed != produced - kernel:
            suffixed = produced - kernel
            replace_by_suffixes(
                reduction, work, ring, axis.slots, max(progress.origin, suffixed), produced - 1, axis.volume
            )
        produce_row(reduction, work, number, axis, residue.first_row + produced * residue.row_step, source, slot)
        if scans:
            extend_prefix(reduction, work, axis, produced, progress.origin, ring, slot)
        produced += 1
        slot = next_slab(ring, slot)
    return RingState(produced, progress.origin, suffixed, slot)


def produce_row(reduction, work, number, axis, row, source, slot):
    """Reduce a row of an axis along all later ones."""
    args = work.args
    count = source.count
    if args.scales_input and address_of(axis.counted) != 0:
        count *= axis.counted[row]
    step = dense_stride(args, number) * work.unit.neighbours if args.is_transposed else axis.strides[Role.X]
    here = Source(source.x + row * step, source.u + row * axis.strides[Role.U], count)
    if number == len(args.axes) - 1:
        reduction.load(work, axis, here, slot, work.unit.neighbours)
        return
    following, target = args.axes[number + 1], Destination(work.cells, slot)
    if number == len(args.axes) - 2 and args.inner_total == 1:
        reduction.row(work, following, here, target, 0, following.outputs)
    else:
        reduce_axis(reduction, work, number + 1, here, target, 0, following.outputs)


# --- blocks of rows ---------------------------------------------------------------------------------------------------


@outlined
def replace_by_suffixes(reduction, work, ring, slots, first, last, volume):
    """Replace rows first … last by the suffixes that begin with them."""
    for i in range(last - 1, first - 1, -1):
        at, following = ring.first + (i % slots) * ring.slab, ring.first + ((i + 1) % slots) * ring.slab
        target = Destination(work.cells, at)
        join(reduction, work.args, target, work.cells, Part(at, 0), Part(following, volume), ring.slab)


@inlined
def extend_prefix(reduction, work, axis, row, origin, ring, slot):
    """Extend the block's prefix by the new row."""
    prefix = Destination(work.cells, ring.end)
    if row % axis.kernel == 0 or row == origin:
        copy(reduction, prefix, work.cells, Part(slot, 0), ring.slab)
    else:
        later = Part(slot, (row % axis.kernel) * axis.volume)
        join(reduction, work.args, prefix, work.cells, Part(ring.end, 0), later, ring.slab)


@inlined
def combine_blocks(reduction, work, axis, rows, ring, progress, out):
    """Reduce a window from a suffix and a prefix; where the block begins whose rows have been replaced by suffixes.

    A window in one block is a prefix if it begins with the block; otherwise the axis ends with the window.
    """
    kernel, volume, suffixed = axis.kernel, axis.volume, progress.suffixed
    start = rows.first // kernel * kernel
    suffix = Part(ring.first + (rows.first - start) * ring.slab, (rows.first - rows.begin) * volume)
    if rows.end > start + kernel:
        prefix = Part(ring.first + kernel * ring.slab, (start + kernel - rows.begin) * volume)
        join(reduction, work.args, out, work.cells, suffix, prefix, ring.slab)
    elif rows.first == start:
        copy(reduction, out, work.cells, Part(ring.first + kernel * ring.slab, suffix.shift), ring.slab)
    else:
        if suffixed != start:
            replace_by_suffixes(reduction, work, ring, kernel, max(progress.origin, start), rows.end - 1, volume)
        copy(reduction, out, work.cells, suffix, ring.slab)
        suffixed = start
    return suffixed


# --- finished outputs -------------------------------------------------------------------------------------------------


@inlined
def finish_outputs(reduction, work, number, o, target, slab, n):
    """Finish ``n`` combined outputs from ``o`` on, if they are outputs of the first axis."""
    if number > 0:
        return
    if reduction.has_complete and work.args.finish == Finish.AT_ONCE and not work.args.scales_input:
        reduction.complete(work, target, n * slab)
    if work.args.finish == Finish.BY_SLAB:
        for i in range(n):
            work.unit.place[0] = o + i
            emit(reduction, work, o + i, o + i + 1, Destination(target.cells, target.at + i * slab))


def emit(reduction, work, first, end, target):
    """Emit outputs first … end−1 of the first axis, row by row."""
    args, unit, rank = work.args, work.unit, len(work.args.axes)
    if rank == 1:
        reduction.emit_row(work, first, end, target)
        return
    outputs = last_axis(args).outputs
    for r in range(args.rows):
        rest = r
        for i in range(rank - 2, 0, -1):
            size = args.axes[i].outputs
            unit.place[i], rest = rest % size, rest // size
        reduction.emit_row(work, 0, outputs, Destination(target.cells, target.at + r * outputs * unit.neighbours))


# --- units of work ----------------------------------------------------------------------------------------------------


@inlined
def divide_unless_one(number, count):
    """``number // count`` without a division, which is slow, where ``count`` is 1."""
    found = number
    if count > 1:
        found = number // count
    return found


def locate(args, unit, number):
    """Find the plane, inner block and band of a unit."""
    bands, outputs, cells = args.bands, args.axes[0].outputs, args.axes[0].size
    block = divide_unless_one(number, bands)
    band, rest = number - block * bands, divide_unless_one(block, args.blocks)
    neighbours = (block - rest * args.blocks) * args.inner
    unit.neighbours = min(args.inner, args.inner_total - neighbours)
    for role in range(len(Role)):
        unit.bases[role] = neighbours * args.inner_strides[role]
    for i in range(len(args.leads) - 1, -1, -1):
        lead = args.leads[i]
        at, rest = rest % lead.size, rest // lead.size
        for role in range(len(Role)):
            unit.bases[role] += at * lead.strides[role]
    unit.first_output = divide_unless_one(band * outputs, bands)
    unit.end_output = divide_unless_one((band + 1) * outputs, bands)
    unit.first_cell = divide_unless_one(band * cells, bands)
    unit.end_cell = divide_unless_one((band + 1) * cells, bands)


def output_range_with_halo(args, unit):
    """The outputs of the first axis that a unit computes: its own, and those of others that cover its cells."""
    first, end, axis = unit.first_output, unit.end_output, args.axes[0]
    if not args.is_vjp or args.bands == 1:
        return first, end
    while first > 0:
        taps = real_taps(axis, first - 1)
        if taps.start + (taps.end - 1) * axis.dilation < unit.first_cell:
            break
        first -= 1
    while end < axis.outputs and real_taps(axis, end).start < unit.end_cell:
        end += 1
    return first, end


def kernel(reduction, args, lo, hi, workspace):
    """Run units of work ``lo … hi−1`` of a reduction."""
    if reduction.has_whole_planes and args.is_whole:
        reduction.reduce_whole_planes(args, lo, hi)
        return
    base = address_of(workspace)
    unit = unit_at(base)
    unit.is_tabled, unit.has_nan, unit.workspace = False, False, base
    work = PoolWork(args, unit, reduction.state.cells(base + UNIT_BYTES, args.component))
    for number in range(lo, hi):
        locate(args, unit, number)
        unit.seen_row, unit.nan_row = 0, -1
        reduction.prepare(work)
        first, end = output_range_with_halo(args, unit)
        reduction.outputs(work, first, end)
        reduction.finish(work)


@inlined
def walk(reduction, work, first, end):
    """Reduce outputs first … end−1 of the first axis of a unit, axis by axis."""
    x = 0 if work.args.is_transposed else work.unit.bases[Role.X]
    source = Source(x, work.unit.bases[Role.U], 1)
    reduce_axis(reduction, work, 0, source, Destination(work.cells, 0), first, end)


# --- small planes of short bins ---------------------------------------------------------------------------------------
#
# Bins begin at uneven distances and have different lengths, which vectors along a row cannot follow. So as many planes
# as vectors are long, or more, are transposed: the cells of all planes at one place are then a run.


@outlined
def transpose_planes(reduction, work):
    """Transpose the planes of a unit, and divide them if the input is to be divided."""
    args, unit, form, n, last = work.args, work.unit, reduction.form, work.unit.neighbours, last_axis(work.args)
    slabs, rows, length = args.axes[0].size, cell_rows(args), last.size
    if is_dense(args, Role.X):
        slabs, rows, length = 1, 1, args.axes[0].size * dense_stride(args, 0)
    to = address_of(work.cells.value) + args.staged_at * form.computed.bytes
    for slab in range(slabs):
        for r in range(rows):
            here = args.arrays[Role.X] + cell_row(args, unit, Role.X, slab, r) * form.stored.bytes
            turn(form, Strided(here, args.inner_strides[Role.X], last.strides[Role.X]), n, length, to, n)
            to += length * n * form.computed.bytes
    if reduction.has_transpose and args.scales_input:
        reduction.scale_transposed(
            work, Destination(work.cells, args.staged_at), args.axes[0].size * dense_stride(args, 0), n
        )


@inlined
def walk_planes(reduction, work, first, end):
    if work.args.is_transposed:
        transpose_planes(reduction, work)
    walk(reduction, work, first, end)


# --- reductions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """What reductions have in common, unless they say otherwise."""

    form: NumberFormat
    has_planes = has_run_rows = has_whole_planes = has_complete = has_transpose = False
    outputs, combine_rows = walk, combine_rows

    @property
    def has_winner_rows(self) -> bool:
        return False

    has_runs = has_winner_rows

    @outlined
    def load(self, work, axis, source, at, n):
        read_neighbours(self.form, work.args, Role.X, source.x, source.count, work.cells.value, at, n)

    @inlined
    def prepare(self, work):
        return

    @inlined
    def finish(self, work):
        return

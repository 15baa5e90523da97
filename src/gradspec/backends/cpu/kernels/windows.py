"""Windows of any rank, one axis after another: the walk that all pooling kernels share.

A window is a product of axis windows, so it is reduced axis by axis, the last one first: each row is reduced along the
last axis, rows along the axis before, and so on. Row-major order is kept, so the first winner stays the first. One
recursion does this for every rank with a ring of slabs per axis (a slab: the outputs of the later axes), never a whole
intermediate tensor.

Along one axis, windows are either put together directly from the rows in the ring, or, where windows are long, from
blocks of ``kernel`` rows: a window that starts inside one block and ends in the next is a suffix of the first and a
prefix of the second, so that a row is touched three times however long the windows are. Suffixes replace rows in the
ring, whose slots come free in exactly the order in which the next block's rows arrive.

Dilation splits an axis into residue classes: the cells ``r, r + d, r + 2d, …`` are an axis of their own, on which the
windows that start in the class have no dilation.
"""

from dataclasses import dataclass
from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import Type, i64, inlined, outlined
from gradspec.backends.cpu.kernels.memory import address_of, pointer_to

pointer_i64 = pointer_to(i64)

# --- what changes from unit to unit, kept at the start of the workspace ----------------------------------------------

BASES = 0  # per array, where the plane begins
NEIGHBOURS = f.ARRAYS  # elements of this block of the inner run
FIRST_OUTPUT, END_OUTPUT = NEIGHBOURS + 1, NEIGHBOURS + 2  # on the first axis: the outputs that this unit writes
FIRST_CELL, END_CELL = NEIGHBOURS + 3, NEIGHBOURS + 4  # on the first axis: the cells that this unit may pull to
TABLED = NEIGHBOURS + 5  # whether the tables of places are made
WORKSPACE = NEIGHBOURS + 6  # the address of all this
PLACE = f.PLACE  # the index of the output row at hand


@dataclass(frozen=True)
class Reduction:
    """What is reduced: functions over runs of ``n`` neighbours, results being one to three numbers ``v, w, z`` each.

    A destination has a pointer ``dv`` of its own for the first number, because it may lie in the output array. Numbers
    that are winners are window offsets: ``shift`` is added where a part begins later than the window.
    """

    load: Any  # (args, frame, axis record, i, x offset, u offset, count, v, w, z, offset, n): cells as they are
    row: Any  # (args, frame, axis record, x offset, u offset, count, v, dv, w, z, offset, first, end): the last axis
    blank: Any  # (dv, w, z, offset, n): the result of no cell
    copy: Any  # (dv, to, v, w, z, a, shift, n)
    fold: Any  # (dv, to, v, w, z, a, a's shift, n): what is there, then a
    fold2: Any  # (dv, to, v, w, z, a, a's shift, b, b's shift, n): what is there, then a, then b
    join: Any  # (dv, to, v, w, z, a, a's shift, b, b's shift, n): a then b
    join3: Any  # (dv, to, v, w, z, a, a's shift, b, b's shift, c, c's shift, n)
    emit: Any  # (args, frame, first output, end, v, w, z, offset): finished outputs of the first axis
    prepare: Any  # (args, frame): before a unit
    finish: Any  # (args, frame): after a unit
    plane_row: Any = None  # one row of the last two axes at once, where that is possible: see ``values``
    plane_rows: Any = None  # many of them
    kept_rows: Any = None  # many of them where winners are found: see ``winners``
    whole: Any = None  # (args, lo, hi): planes that are one run of cells and have one output
    scale: Any = None  # (args, v, offset, n): what finished outputs still need where all need the same
    put_together: Any = None  # a window from rows, where joins are no use: see ``walk``; ``join`` then takes args first


@inlined
def floor_div(a, b):
    return a // b


@inlined
def ceil_div(a, b):
    return -((-a) // b)


@outlined
def real_taps(args, a, o):
    """Where window ``o`` begins, and its first and end tap among real cells."""
    size, kernel = args[a + f.SIZE], args[a + f.KERNEL]
    if args[a + f.KIND] == f.BINS:
        spans = pointer_i64(args[a + f.SPANS])
        return spans[2 * o], 0, spans[2 * o + 1]
    start, dilation = o * args[a + f.STRIDE] - args[a + f.LOW], args[a + f.DILATION]
    if dilation == 1:
        first = max(0, -start)
        return start, first, max(min(kernel, size - start), first)
    first = 0 if start >= 0 else ceil_div(-start, dilation)
    end = min(kernel, ceil_div(size - start, dilation))
    return start, first, max(end, first)


def window(args, a, q, begin, stride):
    """The input rows ``b … e−1`` of the ``q``-th output of a residue class, not yet clipped to the axis."""
    kind, kernel = args[a + f.KIND], args[a + f.KERNEL]
    if kind == f.SLIDING:
        b = begin + q * stride
        return b, b + kernel
    if kind == f.BINS:
        spans = pointer_i64(args[a + f.SPANS])
        return spans[2 * q], spans[2 * q] + spans[2 * q + 1]
    # Read backwards: window j covers the cells begin + j·stride … + kernel − 1, and these are the j that cover q.
    return ceil_div(q - begin - kernel + 1, stride), floor_div(q - begin, stride) + 1


@outlined
def residue_class(args, a, r):
    """``(exists, first row, row step, rows, first output, output step, begin, stride)`` of one residue class."""
    size, outputs, dilation = args[a + f.SIZE], args[a + f.OUTPUTS], args[a + f.DILATION]
    stride, low = args[a + f.STRIDE], args[a + f.LOW]
    if dilation == 1:
        return True, 0, 1, size, 0, 1, -low, stride
    backwards = args[a + f.KIND] == f.EXPANDING
    cells, windows = outputs if backwards else size, size if backwards else outputs
    g, rest = stride, dilation
    while rest:
        g, rest = rest, g % rest
    step = dilation // g
    for o in range(min(step, windows)):
        if (o * stride - low - r) % dilation == 0:  # with r ≥ cells, the class has windows but no cell for them
            begin = (o * stride - low - r) // dilation
            if backwards:
                return True, o, step, ceil_div(windows - o, step), r, dilation, begin, stride // g
            return True, r, dilation, ceil_div(cells - r, dilation), o, step, begin, stride // g
    # No window starts in this class; read backwards, its cells belong to no window.
    return backwards and r < cells, 0, 1, 0, r, dilation, 0, 1


def output_pointer(number: Type) -> Any:
    """``output(args, frame, dv, o, to)``: the pointer whose element ``to`` is output ``o`` of the first axis.

    Finished slabs go to the output array where it is as dense as they are, and otherwise to ``dv``. Other parts of a
    result are always at ``to`` in the workspace.
    """
    pointer_v, size = pointer_to(number), number.bytes

    def output(args, frame, dv, o, to):
        if args[f.DIRECT] == 0:
            return dv
        place = frame[BASES + f.Y] + o * args[args[f.AXES] + f.STRIDES + f.Y]
        return pointer_v(args[f.Y] + (place - to) * size)

    return output


def with_args(join: Any) -> Any:
    @inlined
    def joined(args, dv, to, v, w, z, a, shift_a, b, shift_b, n):
        join(dv, to, v, w, z, a, shift_a, b, shift_b, n)

    return joined


def walk(do: Reduction, number: Type) -> Any:
    """The recursive function that reduces one axis and, through itself, all later ones."""
    output = output_pointer(number)
    load, row, blank, copy, emit = do.load, do.row, do.blank, do.copy, do.emit
    fold, fold2, join, join3 = do.fold, do.fold2, do.join, do.join3
    plane_row, plane_rows, kept_rows, scale = do.plane_row, do.plane_rows, do.kept_rows, do.scale
    joined = with_args(join) if do.put_together is None else join

    @outlined
    def suffixes(args, slots, ring, slab, first, last, volume, v, w, z):
        for i in range(last - 1, first - 1, -1):
            at, after = ring + (i % slots) * slab, ring + ((i + 1) % slots) * slab
            joined(args, v, at, v, w, z, at, 0, after, volume, slab)

    def put_together(args, ring, ring_end, slab, at, shift, rows, volume, dv, to, v, w, z):
        """A window of some rows, of which the first lies at ``at`` in the ring and begins at ``shift``."""
        if rows == 1:
            copy(dv, to, v, w, z, at, shift, slab)
            return
        second = at + slab if at + slab < ring_end else ring
        if rows == 2:
            join(dv, to, v, w, z, at, shift, second, shift + volume, slab)
            return
        third = second + slab if second + slab < ring_end else ring
        join3(dv, to, v, w, z, at, shift, second, shift + volume, third, shift + 2 * volume, slab)
        i = 3
        while i < rows:
            at = third + slab if third + slab < ring_end else ring
            third = at + slab if at + slab < ring_end else ring
            if i + 1 < rows:
                fold2(dv, to, v, w, z, at, shift + i * volume, third, shift + (i + 1) * volume, slab)
            else:
                fold(dv, to, v, w, z, at, shift + i * volume, slab)
            i += 2

    if do.put_together is not None:
        put_together = do.put_together

    @inlined
    def finished(args, frame, axis, o, out, w, z, at, slab, n):
        """``n`` outputs from ``o`` on are put together; those of the first axis can be finished."""
        if axis > 0:
            return
        if scale is not None and args[f.QUIET] == 1 and args[f.SCALED] == 0:
            scale(args, out, at, n * slab)
        if args[f.QUIET] == 0:
            for i in range(n):
                frame[PLACE] = o + i
                emit(args, frame, o + i, o + i + 1, out, w, z, at + i * slab)

    @inlined
    def straight_from_memory(args, frame, axis, a, x_at, o, first, end, most, slab, dv, out, v, w, z, at):
        """Outputs of the last two axes at once: up to ``most`` of them; none where these axes take turns."""
        planar, is_full = args[a + f.PLANAR], end - first == args[a + f.KERNEL]
        if plane_rows is not None and planar == 2 and is_full:
            plane_rows(args, axis, a, x_at, first, most, out, at)
            if args[f.QUIET] != 1 or args[f.INVERSE] == 0:  # otherwise they were divided as they were made
                finished(args, frame, axis, o, out, w, z, at, slab, most)
            return most
        if kept_rows is not None and planar == 3 and is_full:
            kept_rows(args, frame, axis, a, x_at + first * args[a + f.STRIDES + f.X], o, most, v, dv, w, z, at)
            return most
        if plane_row is not None and planar != 0:
            plane_row(args, frame, a, x_at, first, end, v, out, w, z, at, join, join3, fold, fold2)
            finished(args, frame, axis, o, out, w, z, at, slab, 1)
            return 1
        return 0

    def produce(args, frame, axis, a, i, x_at, u_at, count, v, w, z, slot):
        """Row ``i`` of an axis, reduced along all later ones."""
        x_row, u_row = x_at + i * args[a + f.STRIDES + f.X], u_at + i * args[a + f.STRIDES + f.U]
        if args[f.SCALED] != 0 and args[a + f.COUNTED] != 0:
            count *= pointer_i64(args[a + f.COUNTED])[i]
        following, outputs = a + f.AXIS, args[a + f.AXIS + f.OUTPUTS]
        if axis == args[f.RANK] - 1:
            load(args, frame, a, x_row, u_row, count, v, w, z, slot, frame[NEIGHBOURS])
        elif axis == args[f.RANK] - 2 and args[f.INNER_TOTAL] == 1:
            row(args, frame, following, x_row, u_row, count, v, v, w, z, slot, 0, outputs)
        else:
            reduce_axis(args, frame, axis + 1, x_row, u_row, count, v, v, w, z, slot, 0, outputs)

    @inlined
    def extend_prefix(args, j, origin, kernel, volume, prefix, slot, slab, v, w, z):
        """Row ``j`` has come: the prefix of its block ends with it."""
        if j % kernel == 0 or j == origin:
            copy(v, prefix, v, w, z, slot, 0, slab)
        else:
            joined(args, v, prefix, v, w, z, prefix, 0, slot, (j % kernel) * volume, slab)

    @inlined
    def from_blocks(args, a, ring, slab, b, first, end, origin, suffixed, out, at, v, w, z):
        """A window from its blocks' suffix and prefix; where the block begins whose rows are suffixes now.

        A window in one block is a prefix of it if it begins with it; otherwise the axis ends with the window.
        """
        kernel, volume = args[a + f.KERNEL], args[a + f.VOLUME]
        start = first // kernel * kernel
        suffix, prefix, shift = ring + (first - start) * slab, ring + kernel * slab, (first - b) * volume
        if end > start + kernel:
            joined(args, out, at, v, w, z, suffix, shift, prefix, (start + kernel - b) * volume, slab)
        elif first == start:
            copy(out, at, v, w, z, prefix, shift, slab)
        else:
            if suffixed != start:
                suffixes(args, kernel, ring, slab, max(origin, start), end - 1, volume, v, w, z)
            copy(out, at, v, w, z, suffix, shift, slab)
            suffixed = start
        return suffixed

    @inlined
    def produce_until(
        args,
        frame,
        axis,
        a,
        end,
        produced,
        origin,
        suffixed,
        row_first,
        row_step,
        ring,
        slab,
        slot,
        x_at,
        u_at,
        count,
        v,
        w,
        z,
    ):
        """Rows up to ``end``: how many there are now, where the block of suffixes begins, and the next slot."""
        kernel, slots, volume = args[a + f.KERNEL], args[a + f.SLOTS], args[a + f.VOLUME]
        prefix, scans = ring + slots * slab, args[a + f.SCANS]  # the prefix lies behind the ring
        while produced < end:
            if scans != 0 and produced % kernel == 0 and produced > origin and suffixed != produced - kernel:
                suffixed = produced - kernel
                suffixes(args, slots, ring, slab, max(origin, suffixed), produced - 1, volume, v, w, z)
            produce(args, frame, axis, a, row_first + produced * row_step, x_at, u_at, count, v, w, z, slot)
            if scans != 0:
                extend_prefix(args, produced, origin, kernel, volume, prefix, slot, slab, v, w, z)
            produced += 1
            slot = slot + slab if slot + slab < prefix else ring
        return produced, suffixed, slot

    @inlined
    def from_rows(args, a, ring, slab, b, first, end, slot, out, at, v, w, z):
        """A window from its rows, the last of which lies before ``slot``."""
        ring_end = ring + args[a + f.SLOTS] * slab
        start, volume = slot - (end - first) * slab, args[a + f.VOLUME]
        start = start if start >= ring else start + ring_end - ring
        put_together(args, ring, ring_end, slab, start, (first - b) * volume, end - first, volume, out, at, v, w, z)

    def reduce_axis(args, frame, axis, x_at, u_at, count, dv, v, w, z, to, first_output, end_output):
        a = args[f.AXES] + axis * f.AXIS
        if axis == args[f.RANK] - 1 and args[f.INNER_TOTAL] == 1:
            row(args, frame, a, x_at, u_at, count, v, dv, w, z, to, first_output, end_output)
            return
        slab, scans, kernel = args[a + f.SLAB] * frame[NEIGHBOURS], args[a + f.SCANS], args[a + f.KERNEL]
        ring = args[a + f.RING] * args[f.INNER]
        for r in range(args[a + f.DILATION]):
            exists, row_first, row_step, rows, out_first, out_step, begin, stride = residue_class(args, a, r)
            if not exists:
                continue
            q, q_end = max(0, ceil_div(first_output - out_first, out_step)), ceil_div(end_output - out_first, out_step)
            produced, origin, suffixed, slot = -1, 0, -kernel, ring
            while q < q_end:
                b, e = window(args, a, q, begin, stride)
                first, end, o = max(b, 0), min(e, rows), out_first + q * out_step
                out, at = dv, to + (o - first_output) * slab
                if axis == 0:
                    out, at = output(args, frame, dv, o, to), to
                made = 0
                if first >= end:
                    blank(out, w, z, at, slab)
                elif args[a + f.PLANAR] != 0:
                    most = min(q_end - q, (rows - kernel - b) // stride + 1)
                    made = straight_from_memory(
                        args, frame, axis, a, x_at, o, first, end, most, slab, dv, out, v, w, z, at
                    )
                if made == 0 and first < end:
                    if produced < 0:
                        produced, origin, slot = first, first, ring + first % args[a + f.SLOTS] * slab
                    if scans == 0:
                        produced = max(produced, first)
                    produced, suffixed, slot = produce_until(
                        args, frame, axis, a, end, produced, origin, suffixed, row_first, row_step,
                        ring, slab, slot, x_at, u_at, count, v, w, z,
                    )  # fmt: skip
                    if scans == 0:
                        from_rows(args, a, ring, slab, b, first, end, slot, out, at, v, w, z)
                    else:
                        suffixed = from_blocks(args, a, ring, slab, b, first, end, origin, suffixed, out, at, v, w, z)
                if made == 0:
                    finished(args, frame, axis, o, out, w, z, at, slab, 1)
                q += max(made, 1)

    return reduce_axis


def kernel_of(do: Reduction, number: Type, second: Type, third: Type) -> Any:
    """The function that carries out work units, ``(args, lo, hi, workspace)``, from a reduction."""
    reduce_axis = walk(do, number)

    def body(args, frame, v, w, z, first, end):
        x_at, u_at = frame[BASES + f.X], frame[BASES + f.U]
        reduce_axis(args, frame, 0, x_at, u_at, 1, v, v, w, z, 0, first, end)

    return units_of(body, do.prepare, do.finish, number, second, third, do.whole)


def units_of(body: Any, prepare: Any, finish: Any, number: Type, second: Type, third: Type, whole: Any = None) -> Any:
    """The same from ``body(args, frame, v, w, z, first, end)``, which makes some outputs of the first axis."""
    pointer_v, pointer_w, pointer_z = pointer_to(number), pointer_to(second), pointer_to(third)
    v_bytes, w_bytes = number.bytes, second.bytes

    def place(args, frame, unit):
        """The plane, inner block and band of a unit."""
        bands, blocks = args[f.BANDS], args[f.BLOCKS]
        band, rest = unit % bands, unit // bands
        inner_block, rest = rest % blocks, rest // blocks
        neighbours = inner_block * args[f.INNER]
        frame[NEIGHBOURS] = min(args[f.INNER], args[f.INNER_TOTAL] - neighbours)
        for array in range(f.ARRAYS):
            frame[BASES + array] = neighbours * args[f.INNER_STRIDE + array]
        for lead in range(args[f.LEADS] - 1, -1, -1):
            at = f.HEADER + lead * f.LEAD
            i, rest = rest % args[at], rest // args[at]
            for array in range(f.ARRAYS):
                frame[BASES + array] += i * args[at + 1 + array]
        a = args[f.AXES]
        outputs, cells = args[a + f.OUTPUTS], args[a + f.SIZE]
        frame[FIRST_OUTPUT], frame[END_OUTPUT] = band * outputs // bands, (band + 1) * outputs // bands
        frame[FIRST_CELL], frame[END_CELL] = band * cells // bands, (band + 1) * cells // bands

    def needed(args, frame):
        """The outputs of the first axis that a unit computes: its own, and those that pull to its cells."""
        first, end = frame[FIRST_OUTPUT], frame[END_OUTPUT]
        if args[f.PULLS] == 0 or args[f.BANDS] == 1:
            return first, end
        a = args[f.AXES]
        while first > 0:
            start, _, taps = real_taps(args, a, first - 1)
            if start + (taps - 1) * args[a + f.DILATION] < frame[FIRST_CELL]:
                break
            first -= 1
        while end < args[a + f.OUTPUTS] and real_taps(args, a, end)[0] < frame[END_CELL]:
            end += 1
        return first, end

    def units(args, lo, hi, workspace):
        if whole is not None and args[f.WHOLE] != 0:
            whole(args, lo, hi)
            return
        base = address_of(workspace)
        frame = pointer_i64(base)
        frame[TABLED], frame[WORKSPACE] = 0, base
        buffers = base + f.FRAME * 8
        v = pointer_v(buffers)
        w = pointer_w(buffers + args[f.COMPONENT] * v_bytes)
        z = pointer_z(buffers + args[f.COMPONENT] * (v_bytes + w_bytes))
        for unit in range(lo, hi):
            place(args, frame, unit)
            prepare(args, frame)
            first, end = needed(args, frame)
            body(args, frame, v, w, z, first, end)
            finish(args, frame)

    return units

"""Sums and means over axes, and what is shared out along axes."""

from __future__ import annotations

from gradspec.backends.cpu.reduce.arguments import ShareArguments, SumArguments, TermScratch
from gradspec.backends.cpu.reduce.kernels.sums import (
    Terms,
    block_of,
    piece,
    put,
    sum_of_pieces,
    sum_of_terms,
    sums_of_pieces,
    sums_of_terms,
)
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import lanes, lanes_once, outlined, pointer
from gradspec.codegen.translation import kernel_code

scratch_at = pointer(TermScratch)


def build(name: str) -> str:
    """The code of the kernel called ``"sum:f32"`` or ``"share:f32"``, and the same for other floats."""
    operation, form = name.split(":")
    function, arguments = {"sum": (sum_kernel, SumArguments), "share": (share_kernel, ShareArguments)}[operation]
    return kernel_code(function, arguments, FORMATS[form])


# --- sums -------------------------------------------------------------------------------------------------------------


def sum_kernel(form, args, lo, hi, workspace):
    if form.converts and not args.is_wide:
        units(form, form, args, lo, hi, address_of(workspace))
    else:
        units(form, form.as_computed, args, lo, hi, address_of(workspace))


@outlined
def units(form, source, args, lo, hi, workspace):
    """One is a block of columns of outputs; or, of these, the sums of one piece. ``source``: how X is stored."""
    number, sums, blocks = form.computed, form.computed_at(workspace + args.sums_at), args.blocks
    divisor, parts, y_stride = number(args.divisor), args.pieces.count if args.is_parted else 1, args.columns.y_stride
    for unit in range(lo, hi):
        rest = unit // blocks
        x_at, y_at, width = block_of(args, rest // parts, unit % blocks)
        terms = Terms(source, args, scratch_at(workspace), source.stored_at(args.x), x_at)
        if args.is_parted:
            part = rest % parts
            add_up(terms, width, part, 1, workspace)
            put(form.as_computed, form.computed_at(args.y), y_at + part * args.part_stride, y_stride, sums, 0, width)
        else:
            add_up(terms, width, 0, args.pieces.count, workspace)
            if divisor != number(1):
                for i in lanes_once(number, width):
                    sums[i] = sums[i] / divisor
            put(form, form.stored_at(args.y), y_at, y_stride, sums, 0, width)


def add_up(terms, width, first, count, workspace):
    """The sums of ``count`` pieces of each column, from ``first`` on."""
    if terms.args.is_side_by_side:
        side_by_side(terms, width, first, count, workspace)
    else:
        one_by_one(terms, width, first, count, workspace)


def one_by_one(terms, width, first, count, workspace):
    form, args = terms.form, terms.args
    sums, cells = form.computed_at(workspace + args.sums_at), form.computed_at(workspace + args.cells_at)
    pieces = form.computed_at(workspace + args.lanes_at)
    start, n = piece(args.pieces, first)
    for c in range(width):
        column = Terms(form, args, terms.scratch, terms.x, terms.at + c * args.columns.x_stride)
        if count == 1:
            sums[c] = sum_of_terms(column, start, n, cells)
        else:
            for j in range(count):
                start, n = piece(args.pieces, j)
                pieces[j] = sum_of_terms(column, start, n, cells)
            sums[c] = sum_of_pieces(form.computed, pieces, count)


def side_by_side(terms, width, first, count, workspace):
    form, args = terms.form, terms.args
    pieces, target = form.computed_at(workspace + args.sums_at), form.computed_at(workspace + args.lanes_at)
    for j in range(count):
        start, n = piece(args.pieces, first + j)
        sums_of_terms(terms, args.columns.x_stride, width, start, n, target)
        for i in lanes(form.computed, width):
            pieces[j * width + i] = target[i] + form.computed(0)
    sums_of_pieces(form, pieces, count, width, target)


# --- shares -----------------------------------------------------------------------------------------------------------


def share_kernel(form, args, lo, hi, workspace):
    """One unit is a stretch of a row of the result, in the order in which it lies in memory."""
    x, y, divisor = form.stored_at(args.x), form.stored_at(args.y), form.computed(args.divisor)
    x_step, y_step, blocks = args.columns.x_stride, args.columns.y_stride, args.blocks
    for unit in range(lo, hi):
        x_at, y_at, width = block_of(args, unit // blocks, unit % blocks)
        if x_step == 0 and y_step == 1:
            part = form.narrow(form.widen(x[x_at]) / divisor)
            for i in lanes(form.computed, width):
                y[y_at + i] = part
        elif x_step == 1 and y_step == 1:
            for i in lanes(form.computed, width):
                y[y_at + i] = form.narrow(form.widen(x[x_at + i]) / divisor)
        else:
            for i in range(width):
                y[y_at + i * y_step] = form.narrow(form.widen(x[x_at + i * x_step]) / divisor)

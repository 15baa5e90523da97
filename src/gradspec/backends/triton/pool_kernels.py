"""Kernels for all pooling: windows reduced, folded, read backwards, and winners' tangents taken.

A kernel sees tensors as five axes, ``(outer, outer, row, column, inner)``, each with a stride of its own; windows go
along rows and columns, and those of ``reduce`` also along the second. A lane has one place, or a strip of places above
each other, in the order of memory. What is reduced is a state of three numbers ``(v, w, u)``:

    MAX     v the largest
    WINNER  v the largest, w which tap or place it is (negative: none)
    TIED    v the largest, w how many cells tie, u the sum of their tangents
    SUM     v the sum
    SOFT    v the largest m, w = Σ exp(β(xᵢ − m)), u the mean of dxᵢ by these weights: a sum might overflow
    NORM    v the largest m of all |xᵢ|, w = Σ (|xᵢ|/m)^p

They are semigroups, so a window may be reduced along one axis and then along the next. Sums have a fixed order, and no
two lanes write to one cell: the same bits come out of every run.
"""

import triton
import triton.language as tl

MAX = tl.constexpr(0)
WINNER = tl.constexpr(1)
TIED = tl.constexpr(2)
SUM = tl.constexpr(3)
SOFT = tl.constexpr(4)
NORM = tl.constexpr(5)

LOG2_E = tl.constexpr(1.44269502162933349609375)  # in float32
LOG2_E_REST = tl.constexpr(1.92596299112661746887e-8)
LN_2 = tl.constexpr(0.6931471805599453)
TINY = tl.constexpr(2.0**-100)

# --- lanes ------------------------------------------------------------------------------------------------------------


@triton.jit
def divide_index(i, cut, BLOCK):
    """``i div n`` and ``i mod n``, by a product: ``cut`` is n, ⌈2^shift / n⌉ and shift, right for i < 2³¹."""
    if BLOCK.wide:
        q = i // cut[0]
    else:
        q = ((i.to(tl.uint64) * tl.cast(cut[1], tl.uint64)) >> tl.cast(cut[2], tl.uint64)).to(tl.int32)
    return q, i - q * cut[0]


@triton.jit
def locate(i, cuts, BLOCK):
    """The five indices of lanes; ``BLOCK.axes`` has a bit for every axis but the first that has more than one index.
    With ``BLOCK.side``, of the inner axis a lane has so many, which make a second axis of tensors.
    """
    none = tl.zeros_like(i)
    inner, col, row, outer = none, none, none, none
    if BLOCK.axes & 8:
        i, inner = divide_index(i, cuts[3], BLOCK)
    if BLOCK.axes & 4:
        i, col = divide_index(i, cuts[2], BLOCK)
    if BLOCK.axes & 2:
        i, row = divide_index(i, cuts[1], BLOCK)
    if BLOCK.axes & 1:
        i, outer = divide_index(i, cuts[0], BLOCK)
    if BLOCK.side > 1:
        inner = inner * BLOCK.side + tl.arange(0, BLOCK.side)[None, :]
    return i, outer, row, col, inner


@triton.jit
def in_vectors(at):
    """Pointers; of numbers beside each other, the first is at a multiple of as many."""
    if len(at.shape) == 2:
        return tl.multiple_of(at, [1, at.shape[1] * at.dtype.element_ty.itemsize])
    else:
        return at


@triton.jit
def offset_of(place, strides):
    """Where the number at a place is."""
    outer0, outer1, row, col, inner = place
    return outer0 * strides[0] + outer1 * strides[1] + row * strides[2] + col * strides[3] + inner * strides[4]


@triton.jit
def plane_offset(outer0, outer1, inner, strides):
    """Where the plane of rows and columns begins that a place is in."""
    return outer0 * strides[0] + outer1 * strides[1] + inner * strides[4]


@triton.jit
def lane_indices(BLOCK):
    block = tl.program_id(0)
    if BLOCK.wide:
        block = block.to(tl.int64)
    i = block * BLOCK.size + tl.arange(0, BLOCK.size)
    if BLOCK.side > 1:
        return i[:, None]
    else:
        return i


@triton.jit
def scale_index(a, b, c, BINS: tl.constexpr):
    """``⌊a·b / c⌋``. ``BINS`` is 2 where products are below 2²⁰: a half more than they are is then no whole number of
    times c in float32 either, whichever way it is rounded."""
    if BINS == 2:
        return (((a * b).to(tl.float32) + 0.5) * (1.0 / c)).to(a.dtype)
    else:
        return (a.to(tl.int64) * b // c).to(a.dtype)


@triton.jit
def start_of(o, axis, WINDOWS):
    """Where the window of an output begins; ``axis`` is size, outputs and padding before."""
    if WINDOWS.bins:
        return scale_index(o, axis.size, axis.outputs, WINDOWS.bins)
    else:
        return o * WINDOWS.stride - axis.lo


@triton.jit
def taps_of(o, axis, WINDOWS):
    """How many taps the window of an output has."""
    if WINDOWS.bins:  # ⌈(o+1)·n/m⌉ = n − ⌊(m−o−1)·n/m⌋
        after = scale_index(axis.outputs - 1 - o, axis.size, axis.outputs, WINDOWS.bins)
        return axis.size - after - scale_index(o, axis.size, axis.outputs, WINDOWS.bins)
    else:
        return tl.full(o.shape, WINDOWS.taps, o.dtype)


@triton.jit
def widen(v):
    """A number as it is computed with."""
    if v.dtype == tl.float16 or v.dtype == tl.bfloat16:
        return v.to(tl.float32)
    else:
        return v


@triton.jit
def narrow(v, pointer):
    """A number as it is stored, rounded to nearest."""
    return v.to(pointer.dtype.element_ty)


# --- functions of numbers ---------------------------------------------------------------------------------------------


@triton.jit
def larger(a, b):
    """The larger number, or NaN if one is."""
    if a.dtype.is_floating():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.maximum(a, b)


@triton.jit
def exceeds(b, a):
    """A NaN exceeds every number and no NaN exceeds another."""
    if a.dtype.is_floating():
        return (b > a) | ((b != b) & (a == a))
    else:
        return b > a


@triton.jit
def exponential(z, FINE: tl.constexpr):
    """``exp z`` for z ≤ 0. In float32 the product with log₂ e is taken to twice the precision: the hardware has 2^t.

    It gives 0 for results that are subnormal, which are therefore, with ``FINE``, found 2^64 times as large.
    """
    if z.dtype == tl.float64:
        return tl.exp(z)
    else:
        z = tl.maximum(z, -200.0, propagate_nan=tl.PropagateNan.ALL)
        t = z * LOG2_E
        is_small = t < -100.0
        power = tl.exp2(tl.where(is_small, t + 64.0, t) if FINE else t)
        power += power * ((tl.fma(z, tl.full(z.shape, LOG2_E, z.dtype), -t) + z * LOG2_E_REST) * LN_2)
        return power * tl.where(is_small, 2.0**-64, 1.0) if FINE else power


@triton.jit
def divide(a, b):
    """Rounded correctly, which Triton's ``/`` on float32 is not."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.math.div_rn(a, b)


@triton.jit
def divide_by_constant(a, N: tl.constexpr):
    """``a / N`` rounded correctly; of two subnormal numbers that are as near, to either.

    The product with the reciprocal leaves a rest that is exact, and a step by it rounds correctly if N is a whole
    number below 2²². Of an infinity and of −0 nothing is left.
    """
    n = tl.full(a.shape, N, a.dtype)
    if N % 1 == 0 and N * N < 2.0**44:
        inverse = tl.full(a.shape, 1.0 / N, a.dtype)
        q = a * inverse
        rest = tl.fma(-q, n, a)
        return tl.where(tl.abs(rest) > 0.0, tl.fma(rest, inverse, q), q)
    else:
        return divide(a, n)


@triton.jit
def reciprocal(w):
    """``1/w``, and 1 where there is nothing to divide."""
    return divide(tl.full(w.shape, 1.0, w.dtype), tl.where(w == 0.0, 1.0, w))


@triton.jit
def weight(v, m, OP, FINE: tl.constexpr):
    """What a cell of size ``v`` weighs where the largest is ``m``: 1 if it is that one, also if it is infinite. Beside
    that 1, subnormal weights count only as factors of derivatives: ``FINE``."""
    if OP.kind == SOFT:
        if OP.p < TINY:  # what overflows may still count
            z = (2.0 * OP.p) * (v * 0.5 - m * 0.5)
        else:
            z = OP.p * (v - m)
        return tl.where(v == m, 1.0, exponential(z, FINE))
    else:
        ratio = tl.where(v == m, 1.0, divide(v, tl.where(m == 0.0, 1.0, m)))
        return power_of(ratio, OP.p)


@triton.jit
def power_of(ratio, P: tl.constexpr):
    """``ratio^p`` for 0 ≤ ratio ≤ 1."""
    if P == 1.0:
        return ratio
    elif P == 2.0:
        return ratio * ratio
    else:
        safe = tl.where(ratio == 0.0, 1.0, ratio)
        return tl.where(ratio == 0.0, 0.0, exponential(P * tl.log(safe), False))


# --- states -----------------------------------------------------------------------------------------------------------


@triton.jit
def join(a, b, KIND: tl.constexpr):
    """Two states as one; the winners of ``a`` come before those of ``b``."""
    if KIND == MAX:
        return larger(a[0], b[0]), a[1], a[2]
    elif KIND == SUM:
        return a[0] + b[0], a[1], a[2]
    elif KIND == WINNER:
        takes = (b[1] >= 0) & (exceeds(b[0], a[0]) | (a[1] < 0))
        return tl.where(takes, b[0], a[0]), tl.where(takes, b[1], a[1]), a[2]
    else:
        later, earlier = exceeds(b[0], a[0]), exceeds(a[0], b[0])
        v, w = tl.where(later, b[0], a[0]), tl.where(later, 0, a[1]) + tl.where(earlier, 0, b[1])
        return v, w, tl.where(later, 0.0, a[2]) + tl.where(earlier, 0.0, b[2])


@triton.jit
def join_states(states, N: tl.constexpr, OP):
    """``N`` states as one, in order; with WINNER, of cells that all exist.

    A zero that comes with its place is the winner's, which the larger of two zeros need not be.
    """
    a = states[0]
    if N == 1:
        return a
    elif OP.kind == SOFT or OP.kind == NORM:
        m = a[0]
        for k in tl.static_range(1, N):
            m = larger(m, states[k][0])
        shares = ()
        w = tl.zeros_like(m)
        for k in tl.static_range(N):
            shares = shares + (states[k][1] * weight(states[k][0], m, OP, OP.moves),)
            w += shares[k]
        part, u = reciprocal(w), tl.zeros_like(m)
        for k in tl.static_range(N):
            u += states[k][2] * (shares[k] * part)
        return m, w, u
    elif OP.kind == WINNER:
        m = a[0]
        for k in tl.static_range(1, N):
            m = larger(m, states[k][0])
        v, w = states[N - 1][0], states[N - 1][1]
        for k in tl.static_range(1, N):
            b = states[N - 1 - k]
            holds = (b[0] == m) | (b[0] != b[0])
            v, w = tl.where(holds, b[0], v), tl.where(holds, b[1], w)
        return v if OP.places else m, w, a[2]
    else:
        for k in tl.static_range(1, N):
            a = join(a, states[k], OP.kind)
        return a


@triton.jit
def load_cells(at, real, LOWEST: tl.constexpr):
    """Cells, and the lowest number where there is none.

    Triton fills vectors of 8 or 16 bits with another if it is a negative integer: its sign covers those beside it.
    """
    if at.dtype.element_ty.is_floating():
        return widen(tl.load(at, mask=real, other=LOWEST))
    else:
        return tl.where(real, tl.load(at, mask=real, other=0), LOWEST)


@triton.jit
def scale(v, FACTOR: tl.constexpr):
    """Cells times a factor; their absolute values if it is 0."""
    if FACTOR == 0:
        return tl.abs(v)
    else:
        return v * tl.full(v.shape, FACTOR, v.dtype)


@triton.jit
def load_state(x, xw, xu, at, real, code, OP):
    """The state of one cell: ``code`` is its tap or place. Without ``real`` there is such a cell everywhere."""
    if real is None:
        v = widen(tl.load(x + at))
        real = tl.full(v.shape, 1, tl.int1)
    else:
        v = load_cells(x + at, real, OP.lowest)
    if OP.factor != 1 and not OP.states:
        v = tl.where(real, scale(v, OP.factor), OP.lowest)
    if OP.kind == WINNER:
        w = tl.where(real, code, -1)
        if OP.states:
            before = tl.load(xw + at, mask=real, other=-1)
            w = tl.where(before < 0, -1, w + before)
    elif OP.states:
        w = tl.load(xw + at, mask=real, other=0)
    elif OP.kind == NORM:
        w = tl.where(real & (v != 0.0), 1.0, 0.0).to(v.dtype)
    elif OP.kind == TIED:
        w = real.to(tl.int32)
    else:
        w = real.to(v.dtype)
    u = tl.zeros_like(v)
    if OP.moves and OP.kind != WINNER:
        u = widen(tl.load(xu + at, mask=real, other=0.0))
    return v, w, u


@triton.jit
def write(y, yw, yu, table, at, table_at, mask, state, OP):
    """Store what is asked for. Bits of ``OP.gives``: a number, the state's w, its tangent; and that the number is the
    state's v, and not the value that it stands for."""
    v, w, u = state[0], state[1], state[2]
    if OP.kind == SUM and OP.last:
        v = divide_by_number(v, table, table_at, mask, OP)
    if OP.kind == SOFT and OP.last:
        padding = load_number(table, table_at, mask, OP, v.dtype)
        m = tl.where(padding > 0.0, larger(v, tl.zeros_like(v)), v)
        fine: tl.constexpr = OP.gives & 4 != 0
        cells = w * weight(v, m, OP, fine)
        w = tl.where(padding > 0.0, cells + padding * weight(tl.zeros_like(m), m, OP, fine), cells)
        u = tl.where(padding > 0.0, u * (cells * reciprocal(w)), u)
        v = m
    if OP.gives & 1:
        if OP.kind == SOFT and OP.last and not OP.gives & 8:
            value = v + divide(tl.log(w), tl.full(w.shape, OP.p, w.dtype))
            value = tl.where(w == 0.0, 0.0, OP.factor * value)
        elif OP.kind == NORM and OP.last:
            value = tl.where(v == 0.0, 0.0, v * root(w, OP.p))
        elif OP.kind == WINNER:
            value = tl.where(w < 0, 0, v)
        elif OP.kind == TIED and OP.last:
            value = tl.where(w == 0, 0.0, v)
        else:
            value = v
        tl.store(in_vectors(y + at), narrow(value, y), mask=mask)
    if OP.gives & 2:
        if OP.kind == WINNER:
            w = tl.where(w < 0, OP.none, w)
        tl.store(in_vectors(yw + at), narrow(w, yw), mask=mask)
    if OP.gives & 4:
        if OP.last and OP.split:
            u = divide(u, tl.where(w == 0, 1, w).to(u.dtype))
        tl.store(in_vectors(yu + at), narrow(u, yu), mask=mask)


@triton.jit
def divide_by_number(v, table, at, mask, OP):
    """Divided by an output's number, or with ``OP.inverse`` multiplied by it."""
    number = load_number(table, at, mask, OP, v.dtype)
    if OP.inverse:
        return v * number
    elif OP.only is None:
        return divide(v, number)
    else:
        return divide_by_constant(v, OP.only)


@triton.jit
def load_number(table, at, mask, OP, dtype: tl.constexpr):
    """The number of an output, or the only one of all."""
    if OP.only is None:
        return tl.load(table + at, mask=mask, other=1.0)
    else:
        return tl.full(mask.shape, OP.only, dtype)


@triton.jit
def root(w, P: tl.constexpr):
    if P == 1.0:
        return w
    elif P == 2.0:
        return tl.sqrt(w) if w.dtype == tl.float64 else tl.math.sqrt_rn(w)
    else:
        rising = tl.log(tl.where(w > 0.0, w, 1.0)) / P  # at most log n / p
        return tl.where(w > 0.0, tl.exp(rising), w)


# --- windows reduced --------------------------------------------------------------------------------------------------


@triton.jit
def tap_at(start, t, axis, taps, WINDOWS):
    """The cell that a tap reads; one beyond the border is replaced by the nearest that its window has.

    A maximum does not change when cells count twice, and of equal ones the first wins.
    """
    if WINDOWS.bins:
        return start + tl.minimum(t, taps - 1)
    elif WINDOWS.dilation == 1:
        return tl.maximum(tl.minimum(start + t, axis.size - 1), 0)
    else:
        last = (axis.size - 1 - start) // WINDOWS.dilation
        within = tl.minimum(tl.maximum(t, first_tap(start, WINDOWS.dilation)), last)
        return tl.maximum(tl.minimum(start + within * WINDOWS.dilation, axis.size - 1), 0)


@triton.jit
def first_tap(start, D: tl.constexpr):
    """The first tap of a window that is not before the border."""
    return (tl.maximum(-start, 0) + (D - 1)) // D


@triton.jit
def is_real(start, t, axis, taps, WINDOWS):
    """Whether a tap reads a cell."""
    if WINDOWS.bins:
        return t < taps
    else:
        return (start + t * WINDOWS.dilation >= 0) & (start + t * WINDOWS.dilation < axis.size)


@triton.jit
def mask_state(state, real, OP):
    """A state where it counts; else that of no cell."""
    v, w, u = state[0], state[1], state[2]
    v = tl.where(real, v, OP.lowest)
    if OP.kind != SUM:
        w, u = tl.where(real, w, 0), tl.where(real, u, 0.0)
    return v, w, u


@triton.jit
def reduce_row(x, xw, xu, h, left, taps, real, cols, across, step, OP, COL):
    """The state of what a window reads of row ``h``, whose first cell is at ``x``."""
    cells = ()
    for t in tl.static_range(COL.taps):
        c = tap_at(left, t, cols, taps, COL) if COL.edges else left + t * COL.dilation
        if COL.edges and OP.kind != MAX and OP.kind != WINNER:
            real = is_real(left, t, cols, taps, COL)
        code = tl.full(h.shape, t, tl.int32)
        if OP.places:
            code = (h.to(tl.int64) * cols.size + c) * step
        at = (c * across).to(tl.int64)
        v, w, u = in_vectors(x + at), in_vectors(xw + at), in_vectors(xu + at)
        cells = cells + (load_state(v, w, u, 0, real, code, OP),)
    v, w, u = join_states(cells, COL.taps, OP)
    if OP.kind == WINNER and not OP.places and COL.edges and not COL.bins:
        w = tl.maximum(w, first_tap(left, COL.dilation))
    return v, w, u


@triton.jit
def join_rows(states_of_rows, k, top, OP, ROW, COL):
    """The state of the k-th window of a strip, of those of the strip's rows; winners are told by their taps."""
    states = ()
    for t in tl.static_range(ROW.taps):
        v, w, u = states_of_rows[k * ROW.stride + t]
        if OP.kind == WINNER and not OP.places:
            first = tl.maximum(t, first_tap(top + k * ROW.stride, ROW.dilation)) if ROW.edges and not ROW.bins else t
            w = w + first * COL.taps
        states = states + ((v, w, u),)
    return join_states(states, ROW.taps, OP)


@triton.jit
def reduce_rows(
    x, xw, xu, base, top, left, row_taps, col_taps, real, in_layer, lanes, rows, cols, step, OP, ROW, COL,
    STRIP: tl.constexpr,
):  # fmt: skip
    """The states of a strip's rows, in the layer that begins at ``base``. ``in_layer``: where it counts; None if it
    does everywhere."""
    found = ()
    for r in tl.static_range((STRIP - 1) * ROW.stride + ROW.taps):
        h = tap_at(top, r, rows, row_taps, ROW) if ROW.edges else top + r * ROW.dilation
        at = base + h * lanes.x[2]
        state = reduce_row(x + at, xw + at, xu + at, h, left, col_taps, real, cols, lanes.x[3], step, OP, COL)
        if ROW.edges and OP.kind != MAX and OP.kind != WINNER:
            state = mask_state(state, is_real(top, r, rows, row_taps, ROW), OP)
        if in_layer is not None:
            state = mask_state(state, in_layer, OP)
        found = found + (state,)
    return found


@triton.jit
def reduce(
    x, xw, xu, y, yw, yu, table, lanes, rows, cols, step, depths,
    OP: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr, DEEP: tl.constexpr, STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Windows of few taps, a strip of ``STRIP`` of them to a lane, which share the rows that they have in common.

    Along ``DEEP``, the second axis, its taps are read; if nothing is pooled along it, one, where the output is.
    """
    i = lane_indices(BLOCK)
    inside = i < lanes.total
    outer0, outer1, strip, col, inner = locate(tl.minimum(i, lanes.total - 1), lanes.cuts, BLOCK)
    first = strip * STRIP
    top, left = start_of(first, rows, ROW), start_of(col, cols, COL)
    row_taps, col_taps = taps_of(first, rows, ROW), taps_of(col, cols, COL)
    front = outer1 * DEEP.stride - depths.lo
    base = plane_offset(outer0, outer1, inner, lanes.x)
    selects: tl.constexpr = OP.kind == MAX or OP.kind == WINNER
    real = None
    if OP.hollow and selects:  # there may be no cell at all
        real = inside & (i * 0 < rows.size) & (i * 0 < cols.size) & (i * 0 < depths.size)
    layers = ()
    for d in tl.static_range(DEEP.taps):
        if DEEP.taps > 1:
            z = tap_at(front, d, depths, DEEP.taps, DEEP) if DEEP.edges else front + d * DEEP.dilation
            base = plane_offset(outer0, z, inner, lanes.x)
        in_layer = is_real(front, d, depths, DEEP.taps, DEEP) if DEEP.edges and not selects else None
        found = reduce_rows(
            x, xw, xu, base, top, left, row_taps, col_taps, real, in_layer, lanes, rows, cols, step, OP, ROW, COL, STRIP
        )
        layers = layers + (found,)
    out = offset_of((outer0, outer1, first, col, inner), lanes.y)
    table_at = offset_of((outer0, outer1, first, col, inner), lanes.t)
    for k in tl.static_range(STRIP):
        windows = ()
        for d in tl.static_range(DEEP.taps):
            windows = windows + (join_rows(layers[d], k, top, OP, ROW, COL),)
        v, w, u = join_states(windows, DEEP.taps, OP)
        if OP.hollow and selects:
            has_cells = reaches(first + k, rows, ROW.taps, ROW) & reaches(col, cols, COL.taps, COL)
            if DEEP.taps > 1:
                has_cells = has_cells & reaches(outer1, depths, DEEP.taps, DEEP)
            v = tl.where(has_cells, v, 0)
            if OP.kind == WINNER:
                w = tl.where(has_cells, w, -1)
        mask = inside & (first + k < rows.outputs)
        if OP.kind == WINNER and OP.moves:  # the winner's
            h, c = top + k * ROW.stride + w // COL.taps * ROW.dilation, left + w % COL.taps * COL.dilation
            u = tl.load(xu + base + h * lanes.x[2] + c * lanes.x[3], mask=mask & (w >= 0), other=0.0)
        write(y, yw, yu, table, out + k * lanes.y[2], table_at + k * lanes.t[2], mask, (v, w, u), OP)


@triton.jit
def reaches(o, axis, taps, WINDOWS):
    """Whether a window has real cells."""
    if WINDOWS.bins:
        return o == o
    else:
        start = o * WINDOWS.stride - axis.lo
        skipped = first_tap(start, WINDOWS.dilation)
        return (skipped < taps) & (start + skipped * WINDOWS.dilation < axis.size)


# --- windows side by side ---------------------------------------------------------------------------------------------

SIDE = tl.constexpr(4)
"""Cells that are read, and outputs that are written, at once."""


@triton.jit
def split_vector(cells):
    """Numbers side by side as tensors of their own."""
    even, odd = tl.split(tl.reshape(cells, (cells.shape[0], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def join_vector(numbers, N: tl.constexpr):
    """``N`` tensors, a power of two, as numbers side by side: halves are joined until one is left."""
    for halvings in tl.static_range(6):
        if N >> halvings > 1:
            joint = ()
            for k in tl.static_range(N >> (halvings + 1)):
                joint = joint + (tl.join(numbers[k], numbers[k + (N >> (halvings + 1))]),)
            numbers = joint
    return tl.reshape(numbers[0], (numbers[0].shape[0], N))


@triton.jit
def store_vectors(at, numbers, mask, N: tl.constexpr):
    """Store ``N`` tensors side by side."""
    wide: tl.constexpr = triton.next_power_of_2(N)
    for _ in tl.static_range(N, wide):
        numbers = numbers + (numbers[0],)
    across = tl.arange(0, wide)[None, :]
    mask = mask[:, None] if wide == N else mask[:, None] & (across < N)
    tl.store(at[:, None] + across, narrow(join_vector(numbers, wide), at), mask=mask)


@triton.jit
def join_neighbours(a, b, KIND: tl.constexpr):
    """The state of cells, and of others after them, as one."""
    v, w = a[0] + b[0] if KIND == SUM else larger(a[0], b[0]), a[1]
    if KIND == WINNER:
        w = tl.where((a[0] == a[0]) & ~(a[0] >= b[0]), b[1], a[1])
    return v, w


@triton.jit
def join_windows(states, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr):
    """The states of ``N`` windows, ``S`` apart, of ``K`` states each.

    ``n`` neighbours share what they have in common; to it belongs, for each, an end of what comes before and a
    beginning of what comes after.
    """
    most: tl.constexpr = 8 if K > 8 else 4 if K > 4 else 2 if K > 2 else 1
    n: tl.constexpr = 1 if S > 1 else min(most, N)
    found = ()
    for g in tl.static_range(N // n):
        common = states[g * n * S + n - 1]
        for t in tl.static_range(n, K):
            common = join_neighbours(common, states[g * n * S + t], KIND)
        heads = (common,)
        for k in tl.static_range(1, n):
            heads = heads + (join_neighbours(states[g * n + n - 1 - k], heads[k - 1], KIND),)
        found = found + (heads[n - 1],)
        tail = states[g * n * S + K - 1]
        for k in tl.static_range(1, n):
            after = states[g * n + K - 1 + k]
            tail = after if k == 1 else join_neighbours(tail, after, KIND)
            found = found + (join_neighbours(heads[n - 1 - k], tail, KIND),)
    return found


@triton.jit
def reduce_row_vectors(start, r, col, in_row, cols, OP, COL):
    """The states of what four windows read of row ``r`` of their strip. Without padding they would begin at ``start``;
    vectors are read from one before that on, as far as the last of their cells is."""
    before: tl.constexpr = (COL.padding + SIDE - 1) // SIDE
    read: tl.constexpr = before + ((SIDE - 1) * COL.stride + COL.taps - 1 - COL.padding) // SIDE + 1
    cells = ()
    for b in tl.static_range(read):
        c = (col * COL.stride + (b - before)) * SIDE
        real = in_row & (c >= 0) & (c < cols.size) if COL.edges else in_row
        vector = start[:, None] + ((b - before) * SIDE + tl.arange(0, SIDE)[None, :])
        several = load_cells(vector, real[:, None], OP.lowest)
        several = split_vector(several if OP.factor == 1 else scale(several, OP.factor))
        for k in tl.static_range(SIDE):
            if b * SIDE + k >= before * SIDE - COL.padding:
                code = tl.full(c.shape, r * COL.taps + (b * SIDE + k + COL.padding - before * SIDE), tl.int32)
                cells = cells + ((several[k], code),)
    return join_windows(cells, SIDE, COL.taps, COL.stride, OP.kind)


@triton.jit
def reduce_vectors(
    x, xu, y, yw, yu, table, lanes, rows, cols,
    OP: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest cell, the winner or the sum: strips of windows, four side by side, along an axis whose cells lie so,
    in rows of multiples of four. ``COL.padding`` is the padding before.

    Cells are known by ``row · taps + column``, from which a window's own, subtracted, leaves the tap. Padding has the
    lowest value, and where that is the largest, the first cell of all wins.
    """
    i = lane_indices(BLOCK)
    inside = i < lanes.total
    outer0, outer1, strip, col, inner = locate(tl.minimum(i, lanes.total - 1), lanes.cuts, BLOCK)
    first, top = strip * STRIP, strip * (STRIP * ROW.stride) - rows.lo
    base, side = plane_offset(outer0, outer1, inner, lanes.x), tl.arange(0, SIDE)[None, :]
    found = ()
    for r in tl.static_range((STRIP - 1) * ROW.stride + ROW.taps):
        h = top + r
        in_row = inside & (h >= 0) & (h < rows.size) if ROW.edges else inside
        start = x + (base + h * lanes.x[2] + col * (COL.stride * SIDE))
        start = tl.multiple_of(start, SIDE * x.dtype.element_ty.itemsize)
        found = found + (reduce_row_vectors(start, r, col, in_row, cols, OP, COL),)
    columns = ()
    for c in tl.static_range(SIDE):
        states = ()
        for r in tl.static_range((STRIP - 1) * ROW.stride + ROW.taps):
            states = states + (found[r][c],)
        columns = columns + (join_windows(states, STRIP, ROW.taps, ROW.stride, OP.kind),)
    o_col = col[:, None] * SIDE + side
    left = o_col * COL.stride - COL.padding
    out, table_at = plane_offset(outer0, outer1, inner, lanes.y), plane_offset(outer0, outer1, inner, lanes.t)
    for k in tl.static_range(STRIP):
        a, b, c, d = columns[0][k], columns[1][k], columns[2][k], columns[3][k]
        o_row = first + k
        at = tl.multiple_of(out + o_row * lanes.y[2] + col * SIDE, SIDE)[:, None] + side
        v, w, u = join_vector((a[0], b[0], c[0], d[0]), SIDE), at, at
        start, mask = (top + k * ROW.stride)[:, None], (inside & (o_row < rows.outputs))[:, None] & (side >= 0)
        if OP.kind == WINNER:
            w = join_vector((a[1], b[1], c[1], d[1]), SIDE) - (k * ROW.stride * COL.taps + side * COL.stride)
            w = tl.where(v == OP.lowest, first_tap(start, 1) * COL.taps + first_tap(left, 1), w)
        if OP.hollow and OP.kind != SUM:
            has_cells = reaches(o_row, rows, ROW.taps, ROW)[:, None] & reaches(o_col, cols, COL.taps, COL)
            v, w = tl.where(has_cells, v, 0), tl.where(has_cells, w, -1)
        if OP.moves:
            winner = xu + base[:, None] + (start + w // COL.taps) * lanes.x[2] + left + w % COL.taps
            u = tl.load(winner, mask=mask & (w >= 0), other=0.0)
        write(y, yw, yu, table, at, (table_at + o_row * lanes.t[2])[:, None] + o_col * lanes.t[3], mask, (v, w, u), OP)


# --- long windows folded ----------------------------------------------------------------------------------------------


@triton.jit
def join_tied(v1, w1, u1, v2, w2, u2):
    return join((v1, w1, u1), (v2, w2, u2), TIED)


@triton.jit
def reduce_block(v, w, u, OP):
    """The states of each row of a block as one. The first that holds the largest wins, as in ``join_states``."""
    if OP.kind == MAX:
        v = tl.reduce(v, 1, larger)
        return v, v, v
    elif OP.kind == SUM:
        v = tl.sum(v, 1)
        return v, v, v
    elif OP.kind == WINNER:
        m = tl.reduce(v, 1, larger)
        none: tl.constexpr = 2**62 if w.dtype == tl.int64 else 2**31 - 1
        first = tl.min(tl.where((w >= 0) & ((v == m[:, None]) | (v != v)), w, none), 1)
        if OP.places:
            m = tl.reduce(tl.where(w == first[:, None], v, OP.lowest), 1, larger)
        return m, tl.where(first < none, first, -1), first
    elif OP.kind == TIED:
        return tl.reduce((v, w, u), 1, join_tied)
    else:
        m = tl.reduce(v, 1, larger)
        shares = w * weight(v, tl.broadcast_to(m[:, None], v.shape), OP, OP.moves)
        w = tl.sum(shares, 1)
        return m, w, tl.sum(u * (shares * reciprocal(w)[:, None]), 1)


@triton.jit
def fold_block(x, xw, xu, top, t, row_taps, inside, across, rows, step, OP, ROW, WHOLE: tl.constexpr):
    """The states of taps ``t``. ``x``: where the first cell of each window's row is."""
    h = top + t * ROW.dilation
    if WHOLE:
        real, at = inside & (t < WHOLE), t
    else:
        real, at = inside & (t < row_taps) & (h >= 0) & (h < rows.size), (h * across).to(tl.int64)
    code = tl.zeros_like(h) + t
    if OP.places:
        code = h.to(tl.int64) * step
    return load_state(x, xw, xu, at, real, code, OP)


@triton.jit
def fold(
    x, xw, xu, y, yw, yu, table, lanes, rows, step, taps,
    OP: tl.constexpr, ROW: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Windows of many taps along rows: ``T`` lanes for each of ``BLOCK.size`` outputs walk over them together.

    ``WHOLE``: windows are rows of so many cells, which lie side by side and begin at multiples of four; or 0.
    """
    i = lane_indices(BLOCK)
    inside = i < lanes.total
    outer0, outer1, row, col, inner = locate(i, lanes.cuts, BLOCK)
    base = outer0 * lanes.x[0] + outer1 * lanes.x[1] + col * lanes.x[3] + inner * lanes.x[4]
    start = tl.multiple_of(x + base, SIDE * x.dtype.element_ty.itemsize) if WHOLE else x + base
    x, xw, xu = start[:, None], (xw + base)[:, None], (xu + base)[:, None]
    top = start_of(row, rows, ROW)[:, None]
    row_taps = tl.zeros_like(row) + taps
    if ROW.bins:
        row_taps = taps_of(row, rows, ROW)
    t = tl.arange(0, T)[None, :]
    v, w, u = fold_block(x, xw, xu, top, t, row_taps[:, None], inside[:, None], lanes.x[2], rows, step, OP, ROW, WHOLE)
    for begin in range(T, WHOLE if WHOLE else taps, T):
        block = fold_block(
            x, xw, xu, top, t + begin, row_taps[:, None], inside[:, None], lanes.x[2], rows, step, OP, ROW, WHOLE
        )
        if OP.kind == WINNER:
            v, w, u = join((v, w, u), block, OP.kind)
        else:
            v, w, u = join_states(((v, w, u), block), 2, OP)
    state = reduce_block(v, w, u, OP)
    if OP.kind == MAX and OP.hollow:
        has_cells = reaches(row, rows, taps, ROW)
        state = (tl.where(has_cells, state[0], 0), state[1], state[2])
    out = offset_of((outer0, outer1, row, col, inner), lanes.y)
    table_at = offset_of((outer0, outer1, row, col, inner), lanes.t)
    write(y, yw, yu, table, out, table_at, inside, state, OP)


# --- windows read backwards -------------------------------------------------------------------------------------------


@triton.jit
def reader(i, j, axis, WINDOWS):
    """The j-th of the outputs that may read cell ``i``, the tap that would, and whether it does."""
    if WINDOWS.bins:  # the last is ⌈(i+1)·m/n⌉ − 1
        o = scale_index(i, axis.outputs, axis.size, WINDOWS.bins) + j
        after = scale_index(axis.size - 1 - i, axis.outputs, axis.size, WINDOWS.bins)
        return o, i - start_of(o, axis, WINDOWS), o < axis.outputs - after
    elif WINDOWS.dilation == 1:
        o = (i + axis.lo) // WINDOWS.stride - j
        tap = i + axis.lo - o * WINDOWS.stride
        return o, tap, (o >= 0) & (o < axis.outputs) & (tap < WINDOWS.taps)
    else:
        start = i + axis.lo - j * WINDOWS.dilation
        o = tl.maximum(start, 0) // WINDOWS.stride
        return o, tl.zeros_like(i) + j, (start >= 0) & (o * WINDOWS.stride == start) & (o < axis.outputs)


@triton.jit
def contribution(source, tap, here, v, w, OP):
    """What a cell of state (v, w) receives from an output that reads it by this tap.

    An output that no later pass reads sends 0, and its weights may be NaN.
    """
    ct, top, found = source[0], source[1], source[2]
    if OP.kind == WINNER:
        ct = tl.where(found == tap, ct, 0.0)
    elif OP.kind == TIED:
        ct = tl.where(here & ((v == top) | ((v != v) & (top != top))), ct, 0.0)
    elif OP.kind == SOFT:
        arrives = here if OP.last else here & (ct != 0.0)
        ct = tl.where(arrives, ct * (w * weight(v, top, OP, True)), 0.0)
    return ct


@triton.jit
def load_source(g, gv, gw, table, at, table_at, here, OP):
    """An output's cotangent, divided by what its cells share, its largest cell, and its winner."""
    ct = widen(tl.load(g + at, mask=here, other=0.0))
    top, found = ct, ct
    if OP.kind == SUM and OP.last:
        ct = divide_by_number(ct, table, table_at, here, OP)
    if OP.kind == TIED or OP.kind == SOFT:
        top = widen(tl.load(gv + at, mask=here, other=0.0))
    if OP.kind == WINNER:
        found = tl.load(gw + at, mask=here, other=0).to(tl.int32)
    elif OP.split or OP.kind == SOFT:
        shared = divide(ct, tl.load(gw + at, mask=here, other=1).to(ct.dtype))
        ct = shared if OP.last else tl.where(ct == 0.0, ct, shared)
    return ct, top, found


@triton.jit
def load_source_vectors(g, gw, table, out, table_at, o_col, in_row, cols, across, OP):
    """The same for four outputs side by side, which are all there or none, each with whether they are."""
    here, side = in_row & (o_col >= 0) & (o_col < cols.outputs), tl.arange(0, SIDE)[None, :]
    at = tl.multiple_of(g + (out + o_col), SIDE * g.dtype.element_ty.itemsize)
    ct = widen(tl.load(at[:, None] + side, mask=here[:, None], other=0.0))
    if OP.kind == SUM and OP.last:
        divisors = (table_at + o_col * across)[:, None] + side * across
        ct = divide_by_number(ct, table, divisors, here[:, None] & (side >= 0), OP)
    cts = split_vector(ct)
    winners = cts
    if OP.kind == WINNER:
        at = tl.multiple_of(gw + (out + o_col), SIDE * gw.dtype.element_ty.itemsize)
        winners = split_vector(tl.load(at[:, None] + side, mask=here[:, None], other=0).to(tl.int32))
    found = ()
    for k in tl.static_range(SIDE):
        found = found + (((cts[k], cts[k], winners[k]), here),)
    return found


@triton.jit
def load_sources(g, gv, gw, table, out, table_at, col, first_col, in_row, lanes, cols, OP, COL, BESIDE: tl.constexpr):
    """The outputs of a row that read a tile of ``cover_tiles``."""
    sources = ()
    if BESIDE:
        for b in tl.static_range((COL.padding - COL.taps + 1) // SIDE, (COL.padding + SIDE - 1) // SIDE + 1):
            found = load_source_vectors(g, gw, table, out, table_at, (col + b) * SIDE, in_row, cols, lanes.t[3], OP)
            for k in tl.static_range(SIDE):
                if b * SIDE + k > COL.padding - COL.taps and b * SIDE + k < COL.padding + SIDE:
                    sources = sources + (found[k],)
    for b in tl.static_range(0 if BESIDE else COL.readers):
        o_col = first_col + (COL.first + b)
        here = in_row & (o_col >= 0) & (o_col < cols.outputs)
        across, table_across = (o_col * lanes.y[3]).to(tl.int64), (o_col * lanes.t[3]).to(tl.int64)
        source = load_source(g + out, gv + out, gw + out, table + table_at, across, table_across, here, OP)
        sources = sources + ((source, here),)
    return sources


@triton.constexpr_function
def tap_in_tile(cell, e, tile):
    """The tap by which the e-th of the outputs that read a tile reads one of its cells; −1 if it does not."""
    taps, _, bins, cells, outputs, left, first, _, _ = tile
    start = (first + e) * cells // outputs - left
    end = -(-(first + e + 1) * cells // outputs) if bins else start + taps
    return cell - start if start <= cell < end else -1


@triton.jit
def sum_columns(sources, NR: tl.constexpr, COL):
    """What each column of a tile receives from each of the ``NR`` rows of outputs, of averages."""
    sums = ()
    for a in tl.static_range(NR):
        for c in tl.static_range(COL.cells):
            total = tl.zeros_like(sources[0][0][0])
            for b in tl.static_range(COL.readers):
                if tap_in_tile(c, b, COL) >= 0:
                    total += sources[a * COL.readers + b][0][0]
            sums = sums + (total,)
    return sums


@triton.jit
def load_cell_state(x, xw, at, inside, g, OP):
    """The state of a cell, as far as what it receives depends on it."""
    v = widen(tl.zeros(at.shape, g.dtype.element_ty))
    w = v
    if OP.kind == TIED or OP.kind == SOFT:
        v = widen(tl.load(x + at, mask=inside, other=0.0))
        if OP.factor != 1 and not OP.states:
            v = scale(v, OP.factor)
        w = tl.full(v.shape, 1.0, v.dtype)
        if OP.states and OP.kind == SOFT:
            w = tl.load(xw + at, mask=inside, other=0.0)
    return v, w


@triton.jit
def cover(
    g, gv, gw, x, xw, dx, table, lanes, rows, cols,
    OP: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr, V: tl.constexpr, INNER: tl.constexpr, ALIKE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Every cell adds up what it receives from the ``ROW.readers`` × ``COL.readers`` outputs that may read it.

    A lane has ``V`` cells side by side, along columns or, with ``INNER``, the last axis, the first at a multiple of V.
    ``ALIKE``: one output reads all of them.
    """
    i = lane_indices(BLOCK)
    outer0, outer1, row, col, inner = locate(i, lanes.cuts, BLOCK)
    col, inner = col * (1 if INNER else V), inner * (V if INNER else 1)
    side = tl.arange(0, V)[None, :]
    at = outer0 * lanes.x[0] + outer1 * lanes.x[1] + row * lanes.x[2]
    if V == 1:
        at = at + col * lanes.x[3] + inner * lanes.x[4]
    elif INNER:
        at = tl.multiple_of(at + col * lanes.x[3] + inner, V)
    else:
        at = tl.multiple_of(at + inner * lanes.x[4] + col, V)
    at = at[:, None] + side
    base = (plane_offset(outer0, outer1, inner, lanes.y))[:, None]
    table_base = (plane_offset(outer0, outer1, inner, lanes.t))[:, None]
    row, col, inside = row[:, None], col[:, None], (i < lanes.total)[:, None]
    if INNER:
        base, table_base = base + side * lanes.y[4], table_base + side * lanes.t[4]
    elif not ALIKE:
        col = col + side
    v, w = load_cell_state(x, xw, at, inside, g, OP)
    total = widen(tl.zeros(at.shape, g.dtype.element_ty))
    for a in range(ROW.readers):  # outputs in their order, as ``cover_tiles`` adds them up
        o_row, tap_row, in_row = reader(row, ROW.readers - 1 - a, rows, ROW)
        part = tl.zeros_like(total) if OP.kind == SUM else total
        for b in range(COL.readers):
            o_col, tap_col, in_col = reader(col, COL.readers - 1 - b, cols, COL)
            out = base + o_row * lanes.y[2] + o_col * lanes.y[3]
            table_at = table_base + o_row * lanes.t[2] + o_col * lanes.t[3]
            here, tap = inside & in_row & in_col, tap_row * COL.taps + (tap_col + side if ALIKE else tap_col)
            source = load_source(g, gv, gw, table, out, table_at, here, OP)
            part += contribution(source, tap, here, v, w, OP)
        total = total + part if OP.kind == SUM else part
    tl.store(dx + at, narrow(total, dx), mask=inside)


@triton.jit
def sum_sources(sources, sums, v, w, R: tl.constexpr, C: tl.constexpr, OP, ROW, COL):
    """What cell ``R``, ``C`` of a tile, of state (v, w), receives.

    Taps are compared where they are found: under a name they would be numbers of the running kernel.
    """
    total = tl.zeros_like(v)
    for a in tl.static_range(ROW.readers):
        if tap_in_tile(R, a, ROW) >= 0:
            if OP.kind == SUM:
                total += sums[a * COL.cells + C]
            for b in tl.static_range(0 if OP.kind == SUM else COL.readers):
                if tap_in_tile(C, b, COL) >= 0:
                    source, here = sources[a * COL.readers + b]
                    if OP.kind == WINNER:
                        row_tap = tap_in_tile(R, a, ROW)
                        tap = row_tap * COL.taps + tap_in_tile(C, b, COL)
                        total = tl.where(source[2] == tap, total + source[0], total)
                    else:
                        total += contribution(source, 0, here, v, w, OP)
    return total


@triton.jit
def cover_tiles(
    g, gv, gw, x, xw, dx, table, lanes, rows, cols,
    OP: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr, BESIDE: tl.constexpr, JOIN: tl.constexpr,
    FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same for tiles of cells, each with the outputs that read it.

    Along an axis of padding p and stride S, of which L = ``left`` remains when whole strides are taken away, cell r of
    tile i of T cells is tap ``L + r − e·S`` of output ``(i·T + p − L)/S + e``: which tap reads which cell of a tile is
    known when a kernel is compiled. ``first`` is the first such e. Bins are known likewise: a tile has as many cells
    and bins as the axis, in lowest terms. ``JOIN``: a tile's columns lie side by side, the first at a multiple of so
    many cells, and with ``FLAT`` all of its cells do. ``BESIDE``: so do four outputs, one for each column.
    """
    i = lane_indices(BLOCK)
    inside = i < lanes.total
    outer0, outer1, row, col, inner = locate(i, lanes.cuts, BLOCK)
    base = plane_offset(outer0, outer1, inner, lanes.y)
    table_base = plane_offset(outer0, outer1, inner, lanes.t)
    first_row = row * ROW.outputs + (rows.lo - ROW.left) // ROW.stride
    first_col = col * COL.outputs + (cols.lo - COL.left) // COL.stride
    sources = ()
    for a in tl.static_range(ROW.readers):
        o_row = first_row + (ROW.first + a)
        in_row = inside & (o_row >= 0) & (o_row < rows.outputs)
        out, table_at = base + o_row * lanes.y[2], table_base + o_row * lanes.t[2]
        sources = sources + load_sources(
            g, gv, gw, table, out, table_at, col, first_col, in_row, lanes, cols, OP, COL, BESIDE
        )
    sums = sum_columns(sources, ROW.readers if OP.kind == SUM else 0, COL)
    apart_bytes: tl.constexpr = JOIN * dx.dtype.element_ty.itemsize
    first, totals = outer0 * lanes.x[0] + outer1 * lanes.x[1] + row * ROW.cells * lanes.x[2] + inner * lanes.x[4], ()
    for r in tl.static_range(ROW.cells):
        at, in_row = first + r * lanes.x[2], inside & (row * ROW.cells + r < rows.size)
        if not FLAT:
            totals = ()
        for c in tl.static_range(COL.cells):
            k = col * COL.cells + c
            v, w = load_cell_state(x + at, xw + at, k * lanes.x[3], in_row & (k < cols.size), g, OP)
            totals = totals + (sum_sources(sources, sums, v, w, r, c, OP, ROW, COL),)
        if not JOIN:
            for c in tl.static_range(COL.cells):
                k = col * COL.cells + c
                tl.store(dx + at + (k * lanes.x[3]).to(tl.int64), narrow(totals[c], dx), mask=in_row & (k < cols.size))
        elif not FLAT:
            store_vectors(tl.multiple_of(dx + (at + col * COL.cells), apart_bytes), totals, in_row, COL.cells)
    if FLAT:
        store_vectors(tl.multiple_of(dx + first, apart_bytes), totals, inside, ROW.cells * COL.cells)


# --- winners' tangents ------------------------------------------------------------------------------------------------


@triton.jit
def take(
    winners, u, y, lanes, rows, cols,
    NONE: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For every output the number at its winner; 0 if there is none."""
    i = lane_indices(BLOCK)
    inside = i < lanes.total
    outer0, outer1, row, col, inner = locate(i, lanes.cuts, BLOCK)
    out = offset_of((outer0, outer1, row, col, inner), lanes.y)
    code = tl.load(winners + out, mask=inside, other=0).to(tl.int32)
    has_winner = inside & (code != NONE)
    code = tl.where(has_winner, code, 0)
    h = start_of(row, rows, ROW) + (code // COL.taps) * ROW.dilation
    c = start_of(col, cols, COL) + (code % COL.taps) * COL.dilation
    at = offset_of((outer0, outer1, h, c, inner), lanes.x)
    tl.store(y + out, tl.load(u + at, mask=has_winner, other=0.0), mask=inside)

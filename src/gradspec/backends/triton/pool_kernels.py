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

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

UNSPECIALIZED = ["lanes", "step", "taps", *"xugw", "xw", "xu", "gv", "gw", "table", "winners"]
UNSPECIALIZED += [f"{letter}{i}" for letter in "nms" for i in (1, 2, 3, 4)]
UNSPECIALIZED += [f"{tensor}{axis}" for tensor in "xyt" for axis in range(5)]
UNSPECIALIZED += [f"{axis}_{what}" for axis in ("deep", "row", "col") for what in ("size", "outputs", "lo")]
"""Sizes, strides and addresses, of which Triton would compile a kernel for each kind: 1, a multiple of 16, and others.

A plan launches what was compiled first for tensors of its types, wherever they lie. Its results are memory of its own,
which begins at a multiple of 64 bytes.
"""


# --- lanes ------------------------------------------------------------------------------------------------------------


@triton.jit
def divided(i, cut, WIDE: tl.constexpr):
    """``i div n`` and ``i mod n``, by a product: ``cut`` is n, ⌈2^shift / n⌉ and shift, right for i < 2³¹."""
    if WIDE:
        q = i // cut[0]
    else:
        q = ((i.to(tl.uint64) * tl.cast(cut[1], tl.uint64)) >> tl.cast(cut[2], tl.uint64)).to(tl.int32)
    return q, i - q * cut[0]


@triton.jit
def located(i, cuts, AXES: tl.constexpr, WIDE: tl.constexpr):
    """The five indices of lanes; ``AXES`` has a bit for every axis but the first that has more than one index."""
    none = tl.zeros_like(i)
    inner, col, row, outer = none, none, none, none
    if AXES & 8:
        i, inner = divided(i, cuts[3], WIDE)
    if AXES & 4:
        i, col = divided(i, cuts[2], WIDE)
    if AXES & 2:
        i, row = divided(i, cuts[1], WIDE)
    if AXES & 1:
        i, outer = divided(i, cuts[0], WIDE)
    return i, outer, row, col, inner


@triton.jit
def lane_indices(block, B: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        block = block.to(tl.int64)
    return block * B + tl.arange(0, B)


@triton.jit
def share(a, b, c, BINS: tl.constexpr):
    """``⌊a·b / c⌋``. ``BINS`` is 2 where products are below 2²⁰: a half more than they are is then no whole number of
    times c in float32 either, whichever way it is rounded."""
    if BINS == 2:
        return (((a * b).to(tl.float32) + 0.5) * (1.0 / c)).to(a.dtype)
    else:
        return (a.to(tl.int64) * b // c).to(a.dtype)


@triton.jit
def start_of(o, axis, S: tl.constexpr, BINS: tl.constexpr):
    """Where the window of an output begins; ``axis`` is size, outputs and padding before."""
    if BINS:
        return share(o, axis[0], axis[1], BINS)
    else:
        return o * S - axis[2]


@triton.jit
def taps_of(o, axis, K: tl.constexpr, BINS: tl.constexpr):
    """How many taps the window of an output has."""
    if BINS:  # ⌈(o+1)·n/m⌉ = n − ⌊(m−o−1)·n/m⌋
        return axis[0] - share(axis[1] - 1 - o, axis[0], axis[1], BINS) - share(o, axis[0], axis[1], BINS)
    else:
        return tl.full(o.shape, K, o.dtype)


@triton.jit
def lifted(v):
    """A number as it is computed with."""
    if v.dtype == tl.float16 or v.dtype == tl.bfloat16:
        return v.to(tl.float32)
    else:
        return v


@triton.jit
def stored(v, pointer):
    """A number as it is stored, rounded to nearest; Triton's interpreter would cut it off to bfloat16."""
    if INTERPRETED and pointer.dtype.element_ty == tl.bfloat16 and v.dtype == tl.float32:
        bits = v.to(tl.int32, bitcast=True)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & -0x10000
        v = tl.where(v == v, rounded.to(tl.float32, bitcast=True), v)
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
def quotient(a, b):
    """Rounded correctly, which Triton's ``/`` on float32 is not."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.math.div_rn(a, b)


@triton.jit
def quotient_by_one(a, N: tl.constexpr):
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
        return quotient(a, n)


@triton.jit
def reciprocal(w):
    """``1/w``, and 1 where there is nothing to divide."""
    return quotient(tl.full(w.shape, 1.0, w.dtype), tl.where(w == 0.0, 1.0, w))


@triton.jit
def weight(v, m, KIND: tl.constexpr, P: tl.constexpr, FINE: tl.constexpr):
    """What a cell of size ``v`` weighs where the largest is ``m``: 1 if it is that one, also if it is infinite. Beside
    that 1, subnormal weights count only as factors of derivatives: ``FINE``."""
    if KIND == SOFT:
        if P < TINY:  # what overflows may still count
            z = (2.0 * P) * (v * 0.5 - m * 0.5)
        else:
            z = P * (v - m)
        return tl.where(v == m, 1.0, exponential(z, FINE))
    else:
        ratio = tl.where(v == m, 1.0, quotient(v, tl.where(m == 0.0, 1.0, m)))
        return power_of(ratio, P)


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
def joined(states, N: tl.constexpr, KIND: tl.constexpr, P: tl.constexpr, PLACES: tl.constexpr, FINE: tl.constexpr):
    """``N`` states as one, in order; with WINNER, of cells that all exist.

    A zero that comes with its place is the winner's, which the larger of two zeros need not be.
    """
    a = states[0]
    if N == 1:
        return a
    elif KIND == SOFT or KIND == NORM:
        m = a[0]
        for k in tl.static_range(1, N):
            m = larger(m, states[k][0])
        shares = ()
        w = tl.zeros_like(m)
        for k in tl.static_range(N):
            shares = shares + (states[k][1] * weight(states[k][0], m, KIND, P, FINE),)
            w += shares[k]
        part, u = reciprocal(w), tl.zeros_like(m)
        for k in tl.static_range(N):
            u += states[k][2] * (shares[k] * part)
        return m, w, u
    elif KIND == WINNER:
        m = a[0]
        for k in tl.static_range(1, N):
            m = larger(m, states[k][0])
        v, w = states[N - 1][0], states[N - 1][1]
        for k in tl.static_range(1, N):
            b = states[N - 1 - k]
            holds = (b[0] == m) | (b[0] != b[0])
            v, w = tl.where(holds, b[0], v), tl.where(holds, b[1], w)
        return v if PLACES else m, w, a[2]
    else:
        for k in tl.static_range(1, N):
            a = join(a, states[k], KIND)
        return a


@triton.jit
def loaded(at, real, LOWEST: tl.constexpr):
    """Cells, and the lowest number where there is none.

    Triton fills vectors of 8 or 16 bits with another if it is a negative integer: its sign covers those beside it.
    """
    if at.dtype.element_ty.is_floating():
        return lifted(tl.load(at, mask=real, other=LOWEST))
    else:
        return tl.where(real, tl.load(at, mask=real, other=0), LOWEST)


@triton.jit
def scaled(v, FACTOR: tl.constexpr):
    """Cells times a factor; their absolute values if it is 0."""
    if FACTOR == 0:
        return tl.abs(v)
    else:
        return v * tl.full(v.shape, FACTOR, v.dtype)


@triton.jit
def cell(
    x, xw, xu, at, real, code,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, STATES: tl.constexpr, MOVES: tl.constexpr,
):  # fmt: skip
    """The state of one cell: ``code`` is its tap or place. ``STATES``: it comes from an earlier pass. Without ``real``
    there is such a cell everywhere."""
    if real is None:
        v = lifted(tl.load(x + at))
        real = tl.full(v.shape, 1, tl.int1)
    else:
        v = loaded(x + at, real, LOWEST)
    if FACTOR != 1 and not STATES:
        v = tl.where(real, scaled(v, FACTOR), LOWEST)
    if KIND == WINNER:
        w = tl.where(real, code, -1)
        if STATES:
            before = tl.load(xw + at, mask=real, other=-1)
            w = tl.where(before < 0, -1, w + before)
    elif STATES:
        w = tl.load(xw + at, mask=real, other=0)
    elif KIND == NORM:
        w = tl.where(real & (v != 0.0), 1.0, 0.0).to(v.dtype)
    elif KIND == TIED:
        w = real.to(tl.int32)
    else:
        w = real.to(v.dtype)
    u = tl.zeros_like(v)
    if MOVES and KIND != WINNER:
        u = lifted(tl.load(xu + at, mask=real, other=0.0))
    return v, w, u


@triton.jit
def write(
    y, yw, yu, table, at, table_at, mask, state,
    KIND: tl.constexpr, LAST: tl.constexpr, FACTOR: tl.constexpr, GIVES: tl.constexpr, SPLIT: tl.constexpr,
    NONE: tl.constexpr, P: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Store what is asked for. Bits of ``GIVES``: a number, the state's w, its tangent; and that the number is the
    state's v, and not the value that it stands for."""
    v, w, u = state[0], state[1], state[2]
    if KIND == SUM and LAST:
        v = divided_by(v, table, table_at, mask, ONLY, INVERSE)
    if KIND == SOFT and LAST:
        padding = number_of(table, table_at, mask, ONLY, v.dtype)
        m = tl.where(padding > 0.0, larger(v, tl.zeros_like(v)), v)
        fine: tl.constexpr = GIVES & 4 != 0
        cells = w * weight(v, m, KIND, P, fine)
        w = tl.where(padding > 0.0, cells + padding * weight(tl.zeros_like(m), m, KIND, P, fine), cells)
        u = tl.where(padding > 0.0, u * (cells * reciprocal(w)), u)
        v = m
    if GIVES & 1:
        if KIND == SOFT and LAST and not GIVES & 8:
            value = v + quotient(tl.log(w), tl.full(w.shape, P, w.dtype))
            value = tl.where(w == 0.0, 0.0, FACTOR * value)
        elif KIND == NORM and LAST:
            value = tl.where(v == 0.0, 0.0, v * root(w, P))
        elif KIND == WINNER:
            value = tl.where(w < 0, 0, v)
        elif KIND == TIED and LAST:
            value = tl.where(w == 0, 0.0, v)
        else:
            value = v
        tl.store(y + at, stored(value, y), mask=mask)
    if GIVES & 2:
        if KIND == WINNER:
            w = tl.where(w < 0, NONE, w)
        tl.store(yw + at, stored(w, yw), mask=mask)
    if GIVES & 4:
        if LAST and SPLIT:
            u = quotient(u, tl.where(w == 0, 1, w).to(u.dtype))
        tl.store(yu + at, stored(u, yu), mask=mask)


@triton.jit
def divided_by(v, table, at, mask, ONLY: tl.constexpr, INVERSE: tl.constexpr):
    """Divided by an output's number, or with ``INVERSE`` multiplied by it."""
    number = number_of(table, at, mask, ONLY, v.dtype)
    if INVERSE:
        return v * number
    elif ONLY is None:
        return quotient(v, number)
    else:
        return quotient_by_one(v, ONLY)


@triton.jit
def number_of(table, at, mask, ONLY: tl.constexpr, dtype: tl.constexpr):
    """The number of an output, or the only one of all."""
    if ONLY is None:
        return tl.load(table + at, mask=mask, other=1.0)
    else:
        return tl.full(mask.shape, ONLY, dtype)


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
def tap_at(start, t, axis, taps, D: tl.constexpr, BINS: tl.constexpr):
    """The cell that a tap reads; one beyond the border is replaced by the nearest that its window has.

    A maximum does not change when cells count twice, and of equal ones the first wins.
    """
    if BINS:
        return start + tl.minimum(t, taps - 1)
    elif D == 1:
        return tl.maximum(tl.minimum(start + t, axis[0] - 1), 0)
    else:
        within = tl.minimum(tl.maximum(t, first_tap(start, D)), (axis[0] - 1 - start) // D)
        return tl.maximum(tl.minimum(start + within * D, axis[0] - 1), 0)


@triton.jit
def first_tap(start, D: tl.constexpr):
    """The first tap of a window that is not before the border."""
    return (tl.maximum(-start, 0) + (D - 1)) // D


@triton.jit
def is_real(start, t, axis, taps, D: tl.constexpr, BINS: tl.constexpr):
    """Whether a tap reads a cell."""
    if BINS:
        return t < taps
    else:
        return (start + t * D >= 0) & (start + t * D < axis[0])


@triton.jit
def kept(state, real, KIND: tl.constexpr, LOWEST: tl.constexpr):
    """A state where it counts; else that of no cell."""
    v, w, u = state[0], state[1], state[2]
    v = tl.where(real, v, LOWEST)
    if KIND != SUM:
        w, u = tl.where(real, w, 0), tl.where(real, u, 0.0)
    return v, w, u


@triton.jit
def row_of(
    x, xw, xu, h, left, taps, real, cols, across, step,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, STATES: tl.constexpr,
    MOVES: tl.constexpr, PLACES: tl.constexpr, KC: tl.constexpr, DC: tl.constexpr, BC: tl.constexpr, EC: tl.constexpr,
):  # fmt: skip
    """The state of what a window reads of row ``h``, whose first cell is at ``x``."""
    cells = ()
    for t in tl.static_range(KC):
        c = tap_at(left, t, cols, taps, DC, BC) if EC else left + t * DC
        if EC and KIND != MAX and KIND != WINNER:
            real = is_real(left, t, cols, taps, DC, BC)
        code = tl.full(h.shape, t, tl.int32)
        if PLACES:
            code = (h.to(tl.int64) * cols[0] + c) * step
        at = (c * across).to(tl.int64)
        cells = cells + (cell(x, xw, xu, at, real, code, KIND, LOWEST, FACTOR, STATES, MOVES),)
    v, w, u = joined(cells, KC, KIND, P, PLACES, MOVES)
    if KIND == WINNER and not PLACES and EC and not BC:
        w = tl.maximum(w, first_tap(left, DC))
    return v, w, u


@triton.jit
def window_of(
    found, k, top,
    KIND: tl.constexpr, P: tl.constexpr, MOVES: tl.constexpr, PLACES: tl.constexpr,
    KR: tl.constexpr, SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr, ER: tl.constexpr, KC: tl.constexpr,
):  # fmt: skip
    """The state of the k-th window of a strip, of those of the strip's rows; winners are told by their taps."""
    states = ()
    for t in tl.static_range(KR):
        v, w, u = found[k * SR + t]
        if KIND == WINNER and not PLACES:
            w = w + (tl.maximum(t, first_tap(top + k * SR, DR)) * KC if ER and not BR else t * KC)
        states = states + ((v, w, u),)
    return joined(states, KR, KIND, P, PLACES, MOVES)


@triton.jit
def rows_of(
    x, xw, xu, base, top, left, row_taps, col_taps, real, in_layer, rows, cols, x2, x3, step,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, STATES: tl.constexpr,
    MOVES: tl.constexpr, PLACES: tl.constexpr, KR: tl.constexpr, SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr,
    ER: tl.constexpr, KC: tl.constexpr, DC: tl.constexpr, BC: tl.constexpr, EC: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """The states of a strip's rows, in the layer that begins at ``base``. ``in_layer``: where it counts; None if it
    does everywhere."""
    found = ()
    for r in tl.static_range((STRIP - 1) * SR + KR):
        h = tap_at(top, r, rows, row_taps, DR, BR) if ER else top + r * DR
        at = base + h * x2
        state = row_of(
            x + at, xw + at, xu + at, h, left, col_taps, real, cols, x3, step,
            KIND, LOWEST, FACTOR, P, STATES, MOVES, PLACES, KC, DC, BC, EC,
        )  # fmt: skip
        if ER and KIND != MAX and KIND != WINNER:
            state = kept(state, is_real(top, r, rows, row_taps, DR, BR), KIND, LOWEST)
        if in_layer is not None:
            state = kept(state, in_layer, KIND, LOWEST)
        found = found + (state,)
    return found


@triton.jit(do_not_specialize=UNSPECIALIZED)
def reduce(
    x, xw, xu, y, yw, yu, table, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4, t0, t1, t2, t3, t4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo, step, deep_size, deep_outputs, deep_lo,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr,
    STATES: tl.constexpr, MOVES: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr, GIVES: tl.constexpr,
    NONE: tl.constexpr, HOLLOW: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    KD: tl.constexpr, SD: tl.constexpr, DD: tl.constexpr, ED: tl.constexpr,
    KR: tl.constexpr, SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr,
    ER: tl.constexpr, KC: tl.constexpr, SC: tl.constexpr, DC: tl.constexpr, BC: tl.constexpr, EC: tl.constexpr,
    AXES: tl.constexpr, STRIP: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Windows of few taps, a strip of ``STRIP`` of them to a lane, which share the rows that they have in common.

    ``ED``, ``ER`` and ``EC``: windows have taps without cells, or fewer taps than others, along the second axis, rows
    and columns. Along the second axis ``KD`` taps are read; if nothing is pooled along it, one, where the output is.
    """
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    rows, cols = (row_size, row_outputs, row_lo), (col_size, col_outputs, col_lo)
    i = lane_indices(tl.program_id(0), B, WIDE)
    inside = i < lanes
    outer0, outer1, strip, col, inner = located(tl.minimum(i, lanes - 1), cuts, AXES, WIDE)
    first = strip * STRIP
    top, left = start_of(first, rows, SR, BR), start_of(col, cols, SC, BC)
    row_taps, col_taps = taps_of(first, rows, KR, BR), taps_of(col, cols, KC, BC)
    depths = (deep_size, deep_outputs, deep_lo)
    front = outer1 * SD - deep_lo
    base = outer0 * x0 + outer1 * x1 + inner * x4
    selects: tl.constexpr = KIND == MAX or KIND == WINNER
    real = None
    if HOLLOW and selects:  # there may be no cell at all
        real = inside & (i * 0 < row_size) & (i * 0 < col_size) & (i * 0 < deep_size)
    layers = ()
    for d in tl.static_range(KD):
        if KD > 1:
            z = tap_at(front, d, depths, KD, DD, 0) if ED else front + d * DD
            base = outer0 * x0 + z * x1 + inner * x4
        in_layer = is_real(front, d, depths, KD, DD, 0) if ED and not selects else None
        found = rows_of(
            x, xw, xu, base, top, left, row_taps, col_taps, real, in_layer, rows, cols, x2, x3, step,
            KIND, LOWEST, FACTOR, P, STATES, MOVES, PLACES, KR, SR, DR, BR, ER, KC, DC, BC, EC, STRIP,
        )  # fmt: skip
        layers = layers + (found,)
    out = outer0 * y0 + outer1 * y1 + first * y2 + col * y3 + inner * y4
    table_at = outer0 * t0 + outer1 * t1 + first * t2 + col * t3 + inner * t4
    for k in tl.static_range(STRIP):
        windows = ()
        for d in tl.static_range(KD):
            windows = windows + (window_of(layers[d], k, top, KIND, P, MOVES, PLACES, KR, SR, DR, BR, ER, KC),)
        v, w, u = joined(windows, KD, KIND, P, PLACES, MOVES)
        if HOLLOW and selects:
            has_cells = reaches(first + k, rows, KR, SR, DR, BR) & reaches(col, cols, KC, SC, DC, BC)
            if KD > 1:
                has_cells = has_cells & reaches(outer1, depths, KD, SD, DD, 0)
            v = tl.where(has_cells, v, 0)
            if KIND == WINNER:
                w = tl.where(has_cells, w, -1)
        mask = inside & (first + k < row_outputs)
        if KIND == WINNER and MOVES:  # the winner's
            h, c = top + k * SR + w // KC * DR, left + w % KC * DC
            u = tl.load(xu + base + h * x2 + c * x3, mask=mask & (w >= 0), other=0.0)
        write(
            y, yw, yu, table, out + k * y2, table_at + k * t2, mask, (v, w, u),
            KIND, LAST, FACTOR, GIVES, SPLIT, NONE, P, ONLY, INVERSE,
        )  # fmt: skip


@triton.jit
def reaches(o, axis, taps, S: tl.constexpr, D: tl.constexpr, BINS: tl.constexpr):
    """Whether a window has real cells."""
    if BINS:
        return o == o
    else:
        start = o * S - axis[2]
        skipped = first_tap(start, D)
        return (skipped < taps) & (start + skipped * D < axis[0])


# --- windows side by side ---------------------------------------------------------------------------------------------

SIDE = tl.constexpr(4)
"""Cells that are read, and outputs that are written, at once."""


@triton.jit
def apart(cells):
    """Numbers side by side as tensors of their own."""
    even, odd = tl.split(tl.reshape(cells, (cells.shape[0], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def beside(numbers, N: tl.constexpr):
    """``N`` tensors, a power of two, as numbers side by side: halves are joined until one is left."""
    for halvings in tl.static_range(6):
        if N >> halvings > 1:
            joint = ()
            for k in tl.static_range(N >> (halvings + 1)):
                joint = joint + (tl.join(numbers[k], numbers[k + (N >> (halvings + 1))]),)
            numbers = joint
    return tl.reshape(numbers[0], (numbers[0].shape[0], N))


@triton.jit
def put_beside(at, numbers, mask, N: tl.constexpr):
    """Store ``N`` tensors side by side."""
    wide: tl.constexpr = triton.next_power_of_2(N)
    for _ in tl.static_range(N, wide):
        numbers = numbers + (numbers[0],)
    across = tl.arange(0, wide)[None, :]
    mask = mask[:, None] if wide == N else mask[:, None] & (across < N)
    tl.store(at[:, None] + across, stored(beside(numbers, wide), at), mask=mask)


@triton.jit
def followed(a, b, KIND: tl.constexpr):
    """The state of cells, and of others after them, as one."""
    v, w = a[0] + b[0] if KIND == SUM else larger(a[0], b[0]), a[1]
    if KIND == WINNER:
        w = tl.where((a[0] == a[0]) & ~(a[0] >= b[0]), b[1], a[1])
    return v, w


@triton.jit
def windows_among(states, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr):
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
            common = followed(common, states[g * n * S + t], KIND)
        heads = (common,)
        for k in tl.static_range(1, n):
            heads = heads + (followed(states[g * n + n - 1 - k], heads[k - 1], KIND),)
        found = found + (heads[n - 1],)
        tail = states[g * n * S + K - 1]
        for k in tl.static_range(1, n):
            after = states[g * n + K - 1 + k]
            tail = after if k == 1 else followed(tail, after, KIND)
            found = found + (followed(heads[n - 1 - k], tail, KIND),)
    return found


@triton.jit
def row_beside(
    start, r, col, in_row, col_size,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, KC: tl.constexpr, SC: tl.constexpr,
    EC: tl.constexpr, LC: tl.constexpr,
):  # fmt: skip
    """The states of what four windows read of row ``r`` of their strip. Without padding they would begin at ``start``;
    vectors are read from one before that on, as far as the last of their cells is."""
    before: tl.constexpr = (LC + SIDE - 1) // SIDE
    read: tl.constexpr = before + ((SIDE - 1) * SC + KC - 1 - LC) // SIDE + 1
    cells = ()
    for b in tl.static_range(read):
        c = (col * SC + (b - before)) * SIDE
        real = in_row & (c >= 0) & (c < col_size) if EC else in_row
        vector = start[:, None] + ((b - before) * SIDE + tl.arange(0, SIDE)[None, :])
        several = loaded(vector, real[:, None], LOWEST)
        several = apart(several if FACTOR == 1 else scaled(several, FACTOR))
        for k in tl.static_range(SIDE):
            if b * SIDE + k >= before * SIDE - LC:
                code = tl.full(c.shape, r * KC + (b * SIDE + k + LC - before * SIDE), tl.int32)
                cells = cells + ((several[k], code),)
    return windows_among(cells, SIDE, KC, SC, KIND)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def reduce_beside(
    x, xu, y, yw, yu, table, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4, t0, t1, t2, t3, t4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, MOVES: tl.constexpr, LAST: tl.constexpr,
    GIVES: tl.constexpr, NONE: tl.constexpr, HOLLOW: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    KR: tl.constexpr, SR: tl.constexpr, ER: tl.constexpr, KC: tl.constexpr, SC: tl.constexpr, EC: tl.constexpr,
    LC: tl.constexpr, AXES: tl.constexpr, STRIP: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The largest cell, the winner or the sum: strips of windows, four side by side, along an axis whose cells lie so,
    in rows of multiples of four. ``LC`` is the padding before.

    Cells are known by ``row · KC + column``, from which a window's own, subtracted, leaves the tap. Padding has the
    lowest value, and where that is the largest, the first cell of all wins.
    """
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    rows, cols = (row_size, row_outputs, row_lo), (col_size, col_outputs, col_lo)
    i = lane_indices(tl.program_id(0), B, WIDE)
    inside = i < lanes
    outer0, outer1, strip, col, inner = located(tl.minimum(i, lanes - 1), cuts, AXES, WIDE)
    first, top = strip * STRIP, strip * (STRIP * SR) - row_lo
    base, side = outer0 * x0 + outer1 * x1 + inner * x4, tl.arange(0, SIDE)[None, :]
    found = ()
    for r in tl.static_range((STRIP - 1) * SR + KR):
        h = top + r
        in_row = inside & (h >= 0) & (h < row_size) if ER else inside
        start = tl.multiple_of(x + (base + h * x2 + col * (SC * SIDE)), SIDE * x.dtype.element_ty.itemsize)
        found = found + (row_beside(start, r, col, in_row, col_size, KIND, LOWEST, FACTOR, KC, SC, EC, LC),)
    columns = ()
    for c in tl.static_range(SIDE):
        states = ()
        for r in tl.static_range((STRIP - 1) * SR + KR):
            states = states + (found[r][c],)
        columns = columns + (windows_among(states, STRIP, KR, SR, KIND),)
    o_col = col[:, None] * SIDE + side
    left = o_col * SC - LC
    out, table_at = outer0 * y0 + outer1 * y1 + inner * y4, outer0 * t0 + outer1 * t1 + inner * t4
    for k in tl.static_range(STRIP):
        a, b, c, d = columns[0][k], columns[1][k], columns[2][k], columns[3][k]
        o_row = first + k
        at = tl.multiple_of(out + o_row * y2 + col * SIDE, SIDE)[:, None] + side
        v, w, u = beside((a[0], b[0], c[0], d[0]), SIDE), at, at
        start, mask = (top + k * SR)[:, None], (inside & (o_row < row_outputs))[:, None] & (side >= 0)
        if KIND == WINNER:
            w = beside((a[1], b[1], c[1], d[1]), SIDE) - (k * SR * KC + side * SC)
            w = tl.where(v == LOWEST, first_tap(start, 1) * KC + first_tap(left, 1), w)
        if HOLLOW and KIND != SUM:
            has_cells = reaches(o_row, rows, KR, SR, 1, 0)[:, None] & reaches(o_col, cols, KC, SC, 1, 0)
            v, w = tl.where(has_cells, v, 0), tl.where(has_cells, w, -1)
        if MOVES:
            u = tl.load(xu + base[:, None] + (start + w // KC) * x2 + left + w % KC, mask=mask & (w >= 0), other=0.0)
        write(
            y, yw, yu, table, at, (table_at + o_row * t2)[:, None] + o_col * t3, mask, (v, w, u),
            KIND, LAST, 1, GIVES, False, NONE, 1.0, ONLY, INVERSE,
        )  # fmt: skip


# --- long windows folded ----------------------------------------------------------------------------------------------


@triton.jit
def join_max(a, b):
    return larger(a, b)


@triton.jit
def join_tied(v1, w1, u1, v2, w2, u2):
    return join((v1, w1, u1), (v2, w2, u2), TIED)


@triton.jit
def folded(
    v, w, u,
    KIND: tl.constexpr, P: tl.constexpr, PLACES: tl.constexpr, LOWEST: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """The states of each row of a block as one. Of those that hold the largest the first wins, as in ``joined``."""
    if KIND == MAX:
        v = tl.reduce(v, 1, join_max)
        return v, v, v
    elif KIND == SUM:
        v = tl.sum(v, 1)
        return v, v, v
    elif KIND == WINNER:
        m = tl.reduce(v, 1, join_max)
        none: tl.constexpr = 2**62 if w.dtype == tl.int64 else 2**31 - 1
        first = tl.min(tl.where((w >= 0) & ((v == m[:, None]) | (v != v)), w, none), 1)
        if PLACES:
            m = tl.reduce(tl.where(w == first[:, None], v, LOWEST), 1, join_max)
        return m, tl.where(first < none, first, -1), first
    elif KIND == TIED:
        return tl.reduce((v, w, u), 1, join_tied)
    else:
        m = tl.reduce(v, 1, join_max)
        shares = w * weight(v, tl.broadcast_to(m[:, None], v.shape), KIND, P, FINE)
        w = tl.sum(shares, 1)
        return m, w, tl.sum(u * (shares * reciprocal(w)[:, None]), 1)


@triton.jit
def fold_block(
    x, xw, xu, top, t, row_taps, inside, across, rows, step,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, STATES: tl.constexpr, MOVES: tl.constexpr,
    PLACES: tl.constexpr, DR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The states of taps ``t``. ``x``: where the first cell of each window's row is."""
    h = top + t * DR
    if WHOLE:
        real, at = inside & (t < WHOLE), t
    else:
        real, at = inside & (t < row_taps) & (h >= 0) & (h < rows[0]), (h * across).to(tl.int64)
    code = tl.zeros_like(h) + t
    if PLACES:
        code = h.to(tl.int64) * step
    return cell(x, xw, xu, at, real, code, KIND, LOWEST, FACTOR, STATES, MOVES)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def fold(
    x, xw, xu, y, yw, yu, table, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4, t0, t1, t2, t3, t4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo, step, taps,
    KIND: tl.constexpr, LOWEST: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr,
    STATES: tl.constexpr, MOVES: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr, GIVES: tl.constexpr,
    NONE: tl.constexpr, HOLLOW: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr, WHOLE: tl.constexpr,
    AXES: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Windows of many taps along rows: ``T`` lanes for each of ``B`` outputs walk over them together.

    ``WHOLE``: windows are rows of so many cells, which lie side by side and begin at multiples of four; or 0.
    """
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    xs, ys = (x0, x1, x2, x3, x4), (y0, y1, y2, y3, y4)
    ts = (t0, t1, t2, t3, t4)
    rows = (row_size, row_outputs, row_lo)
    i = lane_indices(tl.program_id(0), B, WIDE)
    inside = i < lanes
    outer0, outer1, row, col, inner = located(i, cuts, AXES, WIDE)
    base = outer0 * xs[0] + outer1 * xs[1] + col * xs[3] + inner * xs[4]
    start = tl.multiple_of(x + base, SIDE * x.dtype.element_ty.itemsize) if WHOLE else x + base
    x, xw, xu = start[:, None], (xw + base)[:, None], (xu + base)[:, None]
    top = start_of(row, rows, SR, BR)[:, None]
    row_taps = tl.zeros_like(row) + taps
    if BR:
        row_taps = taps_of(row, rows, 1, BR)
    t = tl.arange(0, T)[None, :]
    v, w, u = fold_block(
        x, xw, xu, top, t, row_taps[:, None], inside[:, None], x2, rows, step,
        KIND, LOWEST, FACTOR, STATES, MOVES, PLACES, DR, WHOLE,
    )  # fmt: skip
    for begin in range(T, WHOLE if WHOLE else taps, T):
        block = fold_block(
            x, xw, xu, top, t + begin, row_taps[:, None], inside[:, None], x2, rows, step,
            KIND, LOWEST, FACTOR, STATES, MOVES, PLACES, DR, WHOLE,
        )  # fmt: skip
        if KIND == WINNER:
            v, w, u = join((v, w, u), block, KIND)
        else:
            v, w, u = joined(((v, w, u), block), 2, KIND, P, PLACES, MOVES)
    state = folded(v, w, u, KIND, P, PLACES, LOWEST, MOVES)
    if KIND == MAX and HOLLOW:
        has_cells = reaches(row, rows, taps, SR, DR, BR)
        state = (tl.where(has_cells, state[0], 0), state[1], state[2])
    out = outer0 * ys[0] + outer1 * ys[1] + row * ys[2] + col * ys[3] + inner * ys[4]
    table_at = outer0 * ts[0] + outer1 * ts[1] + row * ts[2] + col * ts[3] + inner * ts[4]
    write(y, yw, yu, table, out, table_at, inside, state, KIND, LAST, FACTOR, GIVES, SPLIT, NONE, P, ONLY, INVERSE)


# --- windows read backwards -------------------------------------------------------------------------------------------


@triton.jit
def reader(i, j, axis, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BINS: tl.constexpr):
    """The j-th of the outputs that may read cell ``i``, the tap that would, and whether it does."""
    if BINS:  # the last is ⌈(i+1)·m/n⌉ − 1
        o = share(i, axis[1], axis[0], BINS) + j
        return o, i - start_of(o, axis, S, BINS), o < axis[1] - share(axis[0] - 1 - i, axis[1], axis[0], BINS)
    elif D == 1:
        o = (i + axis[2]) // S - j
        tap = i + axis[2] - o * S
        return o, tap, (o >= 0) & (o < axis[1]) & (tap < K)
    else:
        start = i + axis[2] - j * D
        o = tl.maximum(start, 0) // S
        return o, tl.zeros_like(i) + j, (start >= 0) & (o * S == start) & (o < axis[1])


@triton.jit
def received(source, tap, here, v, w, KIND: tl.constexpr, LAST: tl.constexpr, P: tl.constexpr):
    """What a cell of state (v, w) receives from an output that reads it by this tap.

    An output that no later pass reads sends 0, and its weights may be NaN.
    """
    ct, top, found = source[0], source[1], source[2]
    if KIND == WINNER:
        ct = tl.where(found == tap, ct, 0.0)
    elif KIND == TIED:
        ct = tl.where(here & ((v == top) | ((v != v) & (top != top))), ct, 0.0)
    elif KIND == SOFT:
        arrives = here if LAST else here & (ct != 0.0)
        ct = tl.where(arrives, ct * (w * weight(v, top, KIND, P, True)), 0.0)
    return ct


@triton.jit
def source_at(
    g, gv, gw, table, at, table_at, here,
    KIND: tl.constexpr, LAST: tl.constexpr, SPLIT: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """An output's cotangent, divided by what its cells share, its largest cell, and its winner."""
    ct = lifted(tl.load(g + at, mask=here, other=0.0))
    top, found = ct, ct
    if KIND == SUM and LAST:
        ct = divided_by(ct, table, table_at, here, ONLY, INVERSE)
    if KIND == TIED or KIND == SOFT:
        top = lifted(tl.load(gv + at, mask=here, other=0.0))
    if KIND == WINNER:
        found = tl.load(gw + at, mask=here, other=0).to(tl.int32)
    elif SPLIT or KIND == SOFT:
        shared = quotient(ct, tl.load(gw + at, mask=here, other=1).to(ct.dtype))
        ct = shared if LAST else tl.where(ct == 0.0, ct, shared)
    return ct, top, found


@triton.jit
def sources_beside(
    g, gw, table, out, table_at, o_col, in_row, col_outputs, t3,
    KIND: tl.constexpr, LAST: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """The same for four outputs side by side, which are all there or none, each with whether they are."""
    here, side = in_row & (o_col >= 0) & (o_col < col_outputs), tl.arange(0, SIDE)[None, :]
    at = tl.multiple_of(g + (out + o_col), SIDE * g.dtype.element_ty.itemsize)
    ct = lifted(tl.load(at[:, None] + side, mask=here[:, None], other=0.0))
    if KIND == SUM and LAST:
        divisors = (table_at + o_col * t3)[:, None] + side * t3
        ct = divided_by(ct, table, divisors, here[:, None] & (side >= 0), ONLY, INVERSE)
    cts = apart(ct)
    winners = cts
    if KIND == WINNER:
        at = tl.multiple_of(gw + (out + o_col), SIDE * gw.dtype.element_ty.itemsize)
        winners = apart(tl.load(at[:, None] + side, mask=here[:, None], other=0).to(tl.int32))
    found = ()
    for k in tl.static_range(SIDE):
        found = found + (((cts[k], cts[k], winners[k]), here),)
    return found


@triton.jit
def sources_of(
    g, gv, gw, table, out, table_at, col, first_col, in_row, col_outputs, y3, t3,
    KIND: tl.constexpr, LAST: tl.constexpr, SPLIT: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    KC: tl.constexpr, FC: tl.constexpr, NC: tl.constexpr, LO: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """The outputs of a row that read a tile of ``cover_tiles``."""
    sources = ()
    if BESIDE:
        for b in tl.static_range((LO - KC + 1) // SIDE, (LO + SIDE - 1) // SIDE + 1):
            found = sources_beside(
                g, gw, table, out, table_at, (col + b) * SIDE, in_row, col_outputs, t3, KIND, LAST, ONLY, INVERSE
            )
            for k in tl.static_range(SIDE):
                if b * SIDE + k > LO - KC and b * SIDE + k < LO + SIDE:
                    sources = sources + (found[k],)
    for b in tl.static_range(0 if BESIDE else NC):
        o_col = first_col + (FC + b)
        here = in_row & (o_col >= 0) & (o_col < col_outputs)
        across, table_across = (o_col * y3).to(tl.int64), (o_col * t3).to(tl.int64)
        source = source_at(
            g + out, gv + out, gw + out, table + table_at, across, table_across, here,
            KIND, LAST, SPLIT, ONLY, INVERSE,
        )  # fmt: skip
        sources = sources + ((source, here),)
    return sources


@triton.constexpr_function
def tap_in_tile(cell, e, K, T, M, L, F, BINS):
    """The tap by which the e-th of the outputs that read a tile reads one of its cells; −1 if it does not."""
    start = (F + e) * T // M - L
    taps = -(-(F + e + 1) * T // M) - start if BINS else K
    return cell - start if start <= cell < start + taps else -1


@triton.jit
def sums_of(
    sources, NR: tl.constexpr, KC: tl.constexpr, TC: tl.constexpr, MC: tl.constexpr, LC: tl.constexpr,
    FC: tl.constexpr, NC: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """What each column of a tile receives from each of the ``NR`` rows of outputs, of averages."""
    sums = ()
    for a in tl.static_range(NR):
        for c in tl.static_range(TC):
            total = tl.zeros_like(sources[0][0][0])
            for b in tl.static_range(NC):
                if tap_in_tile(c, b, KC, TC, MC, LC, FC, BC) >= 0:
                    total += sources[a * NC + b][0][0]
            sums = sums + (total,)
    return sums


@triton.jit
def state_of(x, xw, at, inside, g, KIND: tl.constexpr, FACTOR: tl.constexpr, STATES: tl.constexpr):
    """The state of a cell, as far as what it receives depends on it."""
    v = lifted(tl.zeros(at.shape, g.dtype.element_ty))
    w = v
    if KIND == TIED or KIND == SOFT:
        v = lifted(tl.load(x + at, mask=inside, other=0.0))
        if FACTOR != 1 and not STATES:
            v = scaled(v, FACTOR)
        w = tl.full(v.shape, 1.0, v.dtype)
        if STATES and KIND == SOFT:
            w = tl.load(xw + at, mask=inside, other=0.0)
    return v, w


@triton.jit(do_not_specialize=UNSPECIALIZED)
def cover(
    g, gv, gw, x, xw, dx, table, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4, t0, t1, t2, t3, t4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo,
    KIND: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr, STATES: tl.constexpr,
    LAST: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    KR: tl.constexpr, SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr, NR: tl.constexpr,
    KC: tl.constexpr, SC: tl.constexpr, DC: tl.constexpr, BC: tl.constexpr, NC: tl.constexpr,
    V: tl.constexpr, INNER: tl.constexpr, ALIKE: tl.constexpr, AXES: tl.constexpr, WIDE: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """Every cell adds up what it receives from the ``NR`` × ``NC`` outputs that may read it.

    A lane has ``V`` cells side by side, along columns or, with ``INNER``, the last axis, the first at a multiple of V.
    ``ALIKE``: one output reads all of them.
    """
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    rows, cols = (row_size, row_outputs, row_lo), (col_size, col_outputs, col_lo)
    i = lane_indices(tl.program_id(0), B, WIDE)
    outer0, outer1, row, col, inner = located(i, cuts, AXES, WIDE)
    col, inner = col * (1 if INNER else V), inner * (V if INNER else 1)
    side = tl.arange(0, V)[None, :]
    at = outer0 * x0 + outer1 * x1 + row * x2
    if V == 1:
        at = at + col * x3 + inner * x4
    elif INNER:
        at = tl.multiple_of(at + col * x3 + inner, V)
    else:
        at = tl.multiple_of(at + inner * x4 + col, V)
    at = at[:, None] + side
    base = (outer0 * y0 + outer1 * y1 + inner * y4)[:, None]
    table_base = (outer0 * t0 + outer1 * t1 + inner * t4)[:, None]
    row, col, inside = row[:, None], col[:, None], (i < lanes)[:, None]
    if INNER:
        base, table_base = base + side * y4, table_base + side * t4
    elif not ALIKE:
        col = col + side
    v, w = state_of(x, xw, at, inside, g, KIND, FACTOR, STATES)
    total = lifted(tl.zeros(at.shape, g.dtype.element_ty))
    for a in range(NR):  # outputs in their order, as ``cover_tiles`` adds them up
        o_row, tap_row, in_row = reader(row, NR - 1 - a, rows, KR, SR, DR, BR)
        part = tl.zeros_like(total) if KIND == SUM else total
        for b in range(NC):
            o_col, tap_col, in_col = reader(col, NC - 1 - b, cols, KC, SC, DC, BC)
            out, table_at = base + o_row * y2 + o_col * y3, table_base + o_row * t2 + o_col * t3
            here, tap = inside & in_row & in_col, tap_row * KC + (tap_col + side if ALIKE else tap_col)
            source = source_at(g, gv, gw, table, out, table_at, here, KIND, LAST, SPLIT, ONLY, INVERSE)
            part += received(source, tap, here, v, w, KIND, LAST, P)
        total = total + part if KIND == SUM else part
    tl.store(dx + at, stored(total, dx), mask=inside)


@triton.jit
def total_of(
    sources, sums, v, w, R: tl.constexpr, C: tl.constexpr, KIND: tl.constexpr, LAST: tl.constexpr, P: tl.constexpr,
    KR: tl.constexpr, TR: tl.constexpr, MR: tl.constexpr, LR: tl.constexpr, FR: tl.constexpr, NR: tl.constexpr,
    BR: tl.constexpr, KC: tl.constexpr, TC: tl.constexpr, MC: tl.constexpr, LC: tl.constexpr, FC: tl.constexpr,
    NC: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """What cell ``R``, ``C`` of a tile, of state (v, w), receives.

    Taps are compared where they are found: under a name they would be numbers of the running kernel.
    """
    total = tl.zeros_like(v)
    for a in tl.static_range(NR):
        if tap_in_tile(R, a, KR, TR, MR, LR, FR, BR) >= 0:
            if KIND == SUM:
                total += sums[a * TC + C]
            for b in tl.static_range(0 if KIND == SUM else NC):
                if tap_in_tile(C, b, KC, TC, MC, LC, FC, BC) >= 0:
                    source, here = sources[a * NC + b]
                    if KIND == WINNER:
                        row_tap = tap_in_tile(R, a, KR, TR, MR, LR, FR, BR)
                        tap = row_tap * KC + tap_in_tile(C, b, KC, TC, MC, LC, FC, BC)
                        total = tl.where(source[2] == tap, total + source[0], total)
                    else:
                        total += received(source, 0, here, v, w, KIND, LAST, P)
    return total


@triton.jit(do_not_specialize=UNSPECIALIZED)
def cover_tiles(
    g, gv, gw, x, xw, dx, table, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4, t0, t1, t2, t3, t4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo,
    KIND: tl.constexpr, FACTOR: tl.constexpr, P: tl.constexpr, SPLIT: tl.constexpr, STATES: tl.constexpr,
    LAST: tl.constexpr, ONLY: tl.constexpr, INVERSE: tl.constexpr,
    KR: tl.constexpr, SR: tl.constexpr, TR: tl.constexpr, MR: tl.constexpr, LR: tl.constexpr, FR: tl.constexpr,
    NR: tl.constexpr, BR: tl.constexpr, KC: tl.constexpr, SC: tl.constexpr, TC: tl.constexpr, MC: tl.constexpr,
    LC: tl.constexpr, FC: tl.constexpr, NC: tl.constexpr, BC: tl.constexpr, LO: tl.constexpr,
    BESIDE: tl.constexpr, JOIN: tl.constexpr, FLAT: tl.constexpr,
    AXES: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The same for tiles of ``TR`` × ``TC`` cells, each with the ``NR`` × ``NC`` outputs that read it.

    Along an axis with padding p, of which ``L`` is what is left of whole strides, cell r of tile i is tap
    ``L + r − e·S`` of output ``(i·T + p − L)/S + e``: which tap reads which cell of a tile is known beforehand.
    ``F`` is the first such e, and there are ``M`` strides. Bins are known likewise: T cells have the M bins that n
    cells have m of, in lowest terms. ``JOIN``: a tile's columns lie side by side, the first at a multiple of so many
    cells, and with ``FLAT`` all of its cells do. ``BESIDE``: so do four outputs; there is one to each column, and
    ``LO`` is the padding before.
    """
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    i = lane_indices(tl.program_id(0), B, WIDE)
    inside = i < lanes
    outer0, outer1, row, col, inner = located(i, cuts, AXES, WIDE)
    base = outer0 * y0 + outer1 * y1 + inner * y4
    table_base = outer0 * t0 + outer1 * t1 + inner * t4
    first_row, first_col = row * MR + (row_lo - LR) // SR, col * MC + (col_lo - LC) // SC
    sources = ()
    for a in tl.static_range(NR):
        o_row = first_row + (FR + a)
        in_row = inside & (o_row >= 0) & (o_row < row_outputs)
        out, table_at = base + o_row * y2, table_base + o_row * t2
        sources = sources + sources_of(
            g, gv, gw, table, out, table_at, col, first_col, in_row, col_outputs, y3, t3,
            KIND, LAST, SPLIT, ONLY, INVERSE, KC, FC, NC, LO, BESIDE,
        )  # fmt: skip
    sums = sums_of(sources, NR if KIND == SUM else 0, KC, TC, MC, LC, FC, NC, BC)
    apart_bytes: tl.constexpr = JOIN * dx.dtype.element_ty.itemsize
    first, totals = outer0 * x0 + outer1 * x1 + row * TR * x2 + inner * x4, ()
    for r in tl.static_range(TR):
        at, in_row = first + r * x2, inside & (row * TR + r < row_size)
        if not FLAT:
            totals = ()
        for c in tl.static_range(TC):
            k = col * TC + c
            v, w = state_of(x + at, xw + at, k * x3, in_row & (k < col_size), g, KIND, FACTOR, STATES)
            total = total_of(
                sources, sums, v, w, r, c, KIND, LAST, P,
                KR, TR, MR, LR, FR, NR, BR, KC, TC, MC, LC, FC, NC, BC,
            )  # fmt: skip
            totals = totals + (total,)
        if not JOIN:
            for c in tl.static_range(TC):
                k = col * TC + c
                tl.store(dx + at + (k * x3).to(tl.int64), stored(totals[c], dx), mask=in_row & (k < col_size))
        elif not FLAT:
            put_beside(tl.multiple_of(dx + (at + col * TC), apart_bytes), totals, in_row, TC)
    if FLAT:
        put_beside(tl.multiple_of(dx + first, apart_bytes), totals, inside, TR * TC)


# --- winners' tangents ------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=UNSPECIALIZED)
def take(
    winners, u, y, lanes,
    n1, m1, s1, n2, m2, s2, n3, m3, s3, n4, m4, s4, x0, x1, x2, x3, x4, y0, y1, y2, y3, y4,
    row_size, row_outputs, row_lo, col_size, col_outputs, col_lo,
    NONE: tl.constexpr, SR: tl.constexpr, DR: tl.constexpr, BR: tl.constexpr,
    KC: tl.constexpr, SC: tl.constexpr, DC: tl.constexpr, BC: tl.constexpr,
    AXES: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """For every output the number at its winner; 0 if there is none."""
    cuts = ((n1, m1, s1), (n2, m2, s2), (n3, m3, s3), (n4, m4, s4))
    xs, ys = (x0, x1, x2, x3, x4), (y0, y1, y2, y3, y4)
    rows, cols = (row_size, row_outputs, row_lo), (col_size, col_outputs, col_lo)
    i = lane_indices(tl.program_id(0), B, WIDE)
    inside = i < lanes
    outer0, outer1, row, col, inner = located(i, cuts, AXES, WIDE)
    out = outer0 * ys[0] + outer1 * ys[1] + row * ys[2] + col * ys[3] + inner * ys[4]
    code = tl.load(winners + out, mask=inside, other=0).to(tl.int32)
    has_winner = inside & (code != NONE)
    code = tl.where(has_winner, code, 0)
    h = start_of(row, rows, SR, BR) + (code // KC) * DR
    c = start_of(col, cols, SC, BC) + (code % KC) * DC
    at = outer0 * xs[0] + outer1 * xs[1] + h * xs[2] + c * xs[3] + inner * xs[4]
    tl.store(y + out, tl.load(u + at, mask=has_winner, other=0.0), mask=inside)

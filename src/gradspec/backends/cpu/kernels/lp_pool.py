"""Power pooling: one kernel for each float format, for windows of any rank.

A unit is a piece of a row of outputs. For p > 1 cells are divided by the largest one of their window, ``m``, so that
their powers neither overflow nor vanish: with ``z = |x|/m``, the norm is ``m·(Σ z^p)^(1/p)``, and the sum lies between
1 and the number of cells. A relative error of ``z`` is multiplied by p and then divided by it, and so it stays one
rounding. For p ≤ 1 no power leaves the range of its format, and 1 takes the place of ``m``.
"""

from __future__ import annotations

import math
from typing import Any

from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.backends.cpu.kernels.compiler import Type, choose, inlined, lanes, lanes_once, outlined, strided
from gradspec.backends.cpu.kernels.elementary import power_of
from gradspec.backends.cpu.kernels.memory import (
    FORMATS,
    Format,
    address_of,
    float_function,
    float_of_bits,
    maximum,
    pointer_to,
)
from gradspec.backends.cpu.kernels.taps import plane_at, range_of, words_at
from gradspec.backends.cpu.kernels.target import kernel_code

absolute, square_root = float_function("fabs"), float_function("sqrt")


def build(name: str) -> str:
    """The code of the kernel called ``"lp_pool:f32"``."""
    return kernel_code(_kernel(FORMATS[name.removeprefix("lp_pool:")]))


def _cells(form: Format) -> Any:
    """``read(t, x, at, step, n)``: the sizes of cells ``step`` apart, as neighbours."""
    number = form.computed
    widen, _ = form.functions()

    @outlined
    def read(t, x, at, step, n):
        if step == 1:
            for i in lanes(number, n):
                t[i] = absolute(widen(x[at + i]))
        elif step == 2 and n > 0:
            for i in lanes(number, n - 1):  # the last pair may end beyond the array
                even, _ = strided(x, at + 2 * i, 2)
                t[i] = absolute(widen(even))
            t[n - 1] = absolute(widen(x[at + 2 * (n - 1)]))
        else:
            for i in range(n):
                t[i] = absolute(widen(x[at + i * step]))

    return read


def _exponents(number: Type) -> Any:
    """``exponent(args, i)``: p (0) or 1/p (1), in two parts."""

    @inlined
    def exponent(args, i):
        word = args[f.NUMBERS] + 2 * i
        return number(float_of_bits(args[word])), number(float_of_bits(args[word + 1]))

    return exponent


@inlined
def is_exactly(p, p_rest, n):
    return (p == n) & (p_rest == 0)


def _steps(form: Format) -> tuple[Any, Any]:
    """What is done with ``n`` cells ``t`` of the outputs from ``at`` on: the largest are kept, or powers added up.

    Both are functions ``(args, t, largest, scale, total, at, n)``.
    """
    number, power, exponent = form.computed, power_of(form.computed), _exponents(form.computed)
    zero = number(0)

    @outlined
    def keep_largest(args, t, largest, scale, total, at, n):
        for i in lanes_once(number, n):
            largest[at + i] = maximum(largest[at + i], t[i])

    @outlined
    def add_powers(args, t, largest, scale, total, at, n):
        p, p_rest = exponent(args, 0)
        if is_exactly(p, p_rest, 1):
            for i in lanes_once(number, n):
                total[at + i] = total[at + i] + t[i]
        elif is_exactly(p, p_rest, 2):
            for i in lanes_once(number, n):
                z = t[i] / scale[at + i]
                total[at + i] = total[at + i] + z * z
        else:
            for i in lanes_once(number, n):
                z = t[i] / scale[at + i]
                total[at + i] = total[at + i] + choose(z == zero, zero, power(z, p, p_rest))

    return keep_largest, add_powers


def _norms(form: Format) -> tuple[Any, Any]:
    """``prepare(args, largest, scale, total, n)`` before powers are added up, and ``finish``, from sums to norms."""
    number, power, infinity = form.computed, power_of(form.computed), math.inf
    exponent, zero, one = _exponents(number), number(0), number(1)

    @outlined
    def prepare(args, largest, scale, total, n):
        for i in lanes(number, n):
            m = largest[i]
            scale[i] = choose((m > zero) & (m < number(infinity)), m, one)
            total[i] = zero

    @outlined
    def finish(args, largest, scale, total, n):
        p, p_rest = exponent(args, 0)
        q, q_rest = exponent(args, 1)
        if is_exactly(p, p_rest, 1):
            return
        if is_exactly(p, p_rest, 2):
            for i in lanes_once(number, n):
                total[i] = square_root(total[i])
        else:
            for i in lanes_once(number, n):
                total[i] = choose(total[i] == zero, zero, power(total[i], q, q_rest))
        for i in lanes_once(number, n):
            total[i] = choose(largest[i] < number(infinity), total[i] * scale[i], largest[i])

    return prepare, finish


def _kernel(form: Format) -> Any:
    number, stored_at, numbers_at = form.computed, pointer_to(form.stored), pointer_to(form.computed)
    _, narrow = form.functions()
    read, (keep_largest, add_powers), (prepare, finish) = _cells(form), _steps(form), _norms(form)
    exponent, infinity, width = _exponents(number), math.inf, number.bytes

    def walk(args, i, place, x, x_at, first, end, t, largest, scale, total, step):
        """``step`` for the real cells of the outputs ``first … end−1`` of a row, tap by tap, from axis ``i`` on."""
        axis = args[f.AXES] + i * f.AXIS
        stride, cell = args[axis + f.STRIDE], args[axis + f.CELL]
        for k in range(args[axis + f.KERNEL]):
            start, a, b = range_of(args, axis, k)
            if i < args[f.RANK] - 1:
                if place[i] >= a and place[i] < b:
                    at = x_at + (start + place[i] * stride) * cell
                    walk(args, i + 1, place, x, at, first, end, t, largest, scale, total, step)
            else:
                a, b = max(a, first), min(b, end)
                if a < b:
                    read(t, x, x_at + (start + a * stride) * cell, stride * cell, b - a)
                    step(args, t, largest, scale, total, a - first, b - a)

    def row_at(args, row, place):
        """The place of a row of outputs along every axis but the last; where it lies."""
        at, rest = 0, row
        for i in range(args[f.RANK] - 2, -1, -1):
            axis = args[f.AXES] + i * f.AXIS
            place[i] = rest % args[axis + f.OUTPUTS]
            rest //= args[axis + f.OUTPUTS]
            at += place[i] * args[axis + f.OUTPUT]
        return at

    @outlined
    def write(y, at, step, v, n):
        if step == 1:
            for i in lanes(number, n):
                y[at + i] = narrow(v[i])
        else:
            for i in range(n):
                y[at + i * step] = narrow(v[i])

    def kernel(args, lo, hi, workspace):
        base = address_of(workspace)
        place, room = words_at(base), args[f.TILE] * width
        t = numbers_at(base + args[f.SUMS_AT])
        largest, scale, total = (
            numbers_at(base + args[f.SUMS_AT] + room),
            numbers_at(base + args[f.SUMS_AT] + 2 * room),
            numbers_at(base + args[f.SUMS_AT] + 3 * room),
        )
        x, y, tiles, rows = stored_at(args[f.X]), stored_at(args[f.Y]), args[f.TILES], args[f.ROWS]
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        p, _ = exponent(args, 0)
        for unit in range(lo, hi):
            row, first = unit // tiles, unit % tiles * args[f.TILE]
            n = min(args[f.TILE], args[last + f.OUTPUTS] - first)
            x_at, y_at = plane_at(args, row // rows)
            y_at += row_at(args, row % rows, place) + first * args[last + f.OUTPUT]
            for i in lanes(number, n):
                largest[i] = number(0)
            if p > 1:
                walk(args, 0, place, x, x_at, first, first + n, t, largest, scale, total, keep_largest)
            if p == number(infinity):
                write(y, y_at, args[last + f.OUTPUT], largest, n)
            else:
                prepare(args, largest, scale, total, n)
                walk(args, 0, place, x, x_at, first, first + n, t, largest, scale, total, add_powers)
                finish(args, largest, scale, total, n)
                write(y, y_at, args[last + f.OUTPUT], total, n)

    return kernel

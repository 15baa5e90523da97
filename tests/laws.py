"""The laws of the specification, as functions of a case; see ``cases.py``. ``LAWS`` says which case each applies to."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from cases import OpCase, Shape, array
from gradspec.domains import Ball, Dual
from gradspec.spec.scalar import exp, log

Arrays = Sequence[np.ndarray | None]

# --- running a case ---------------------------------------------------------------------------------------------------


def operator(case: OpCase, mode: str = "") -> Callable[..., Any]:
    return getattr(gs.spec, case.operator + mode)


def as_array(result: Any) -> np.ndarray | None:
    return None if result is None else array(result.shape, result.cells)


def arrays(results: Any) -> tuple[np.ndarray | None, ...]:
    return tuple(map(as_array, results if isinstance(results, tuple) else (results,)))


def value(case: OpCase, inputs: Arrays) -> np.ndarray:
    return as_array(operator(case)(*inputs, **case.attributes))


def jvp(case: OpCase, inputs: Arrays, tangents: Arrays) -> np.ndarray:
    return as_array(operator(case, "_jvp")(*inputs, *tangents, **case.attributes))


def vjp(case: OpCase, inputs: Arrays, cotangent: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """One per differentiable input, None for one left out."""
    return arrays(operator(case, "_vjp")(*inputs, cotangent, **case.attributes))


# --- comparing --------------------------------------------------------------------------------------------------------


def same_number(a: Any, b: Any) -> bool:
    """Equal; of balls: one real number may be in both, and they are far too narrow for that to be luck."""
    if isinstance(a, Ball) or isinstance(b, Ball):
        difference = a - b
        return difference.contains(0) and difference.rad() < 1e-45
    return bool(a == b)


def assert_same(actual: Any, expected: Any, what: str = "") -> None:
    """The same shapes and the same numbers (tuples of arrays, entry by entry)."""
    if isinstance(actual, tuple):
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, what)
        return
    assert (actual is None) == (expected is None), what
    if actual is not None:
        actual, expected = np.asarray(actual, dtype=object), np.asarray(expected, dtype=object)
        assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
        wrong = [i for i in np.ndindex(actual.shape) if not same_number(actual[i], expected[i])]
        assert not wrong, f"{what}: cell {wrong[0]} is {actual[wrong[0]]}, expected {expected[wrong[0]]}"


def dot(a: Arrays, b: Arrays) -> Any:
    """``Σ aᵢ·bᵢ`` over all cells of all arrays."""
    return sum(((p.ravel() * q.ravel()).sum() for p, q in zip(a, b, strict=True) if p is not None), start=0)


def full(shape: Shape, number: Any) -> np.ndarray:
    return array(shape, [number] * math.prod(shape))


def zeros_like(t: np.ndarray | None, domain: gs.domains.Domain) -> np.ndarray | None:
    return None if t is None else full(t.shape, domain.scalar(0))


def basis(t: np.ndarray, domain: gs.domains.Domain) -> Iterator[np.ndarray]:
    for place in np.ndindex(t.shape):
        unit = zeros_like(t, domain)
        unit[place] = domain.scalar(1)
        yield unit


def with_tangents(case: OpCase, inputs: Arrays, tangents: Arrays, over: gs.domains.Domain) -> tuple[Any, ...]:
    """The inputs as dual numbers over ``over``; integers stay as they are."""
    lifted = list(inputs)
    for i, tangent in zip(case.differentiable, tangents, strict=True):
        if tangent is not None:
            lifted[i] = as_array(gs.dual(over).tensor(inputs[i], tangent))
    return tuple(lifted)


def tangent_of(t: np.ndarray) -> np.ndarray:
    """The tangents of dual numbers (an empty sum is the plain number 0, and constant)."""
    return array(t.shape, (cell.tangent if isinstance(cell, Dual) else 0 for cell in t.flat))


# --- shapes -----------------------------------------------------------------------------------------------------------


def shapes_are_as_stated(case: OpCase) -> None:
    inputs, tangents = case.inputs(), case.tangents()
    assert value(case, inputs).shape == case.output
    assert jvp(case, inputs, tangents).shape == case.output
    for cotangent, i in zip(vjp(case, inputs, case.cotangent()), case.differentiable, strict=True):
        assert (None if cotangent is None else cotangent.shape) == case.shapes[i]


def wrong_shapes_are_refused(case: OpCase) -> None:
    """Tangents and cotangents have the shape of what they belong to, nothing that merely fits."""
    inputs, tangents, cotangent = case.inputs(), case.tangents(), case.cotangent()
    for wrong in mistaken(cotangent):
        with pytest.raises(gs.ShapeError):
            vjp(case, inputs, wrong)
    for i, tangent in enumerate(tangents):
        for wrong in mistaken(tangent):
            with pytest.raises(gs.ShapeError):
                jvp(case, inputs, (*tangents[:i], wrong, *tangents[i + 1 :]))


def mistaken(t: np.ndarray | None) -> list[np.ndarray]:
    """``t`` with an axis too many, and with each axis twice as long."""
    if t is None:
        return []
    return [t[None], *(np.concatenate([t, t], axis) for axis in range(t.ndim) if t.shape[axis])]


# --- derivatives ------------------------------------------------------------------------------------------------------


def jvp_and_vjp_are_adjoint(case: OpCase) -> None:
    """``⟨g, jvp(dx)⟩ = ⟨vjp(g), dx⟩``, at ties too."""
    tangents, g = case.tangents(), case.cotangent()
    for kind in ("tied", "constant", "distinct"):
        inputs = case.inputs(kind)
        forward = dot([g], [jvp(case, inputs, tangents)])
        assert_same(dot(vjp(case, inputs, g), tangents), forward, kind)


def jvp_is_the_dual_part(case: OpCase) -> None:
    """Away from ties, the JVP is what dual arithmetic carries through the value."""
    inputs, tangents = case.inputs("distinct"), case.tangents()
    result = value(case, with_tangents(case, inputs, tangents, case.domain))
    assert_same(tangent_of(result), jvp(case, inputs, tangents))


def vjp_rows_are_jacobian_columns(case: OpCase) -> None:
    """``vjp(e_o)ᵢ = jvp(e_i)_o``: both are entry (o, i) of one matrix."""
    inputs, domain = case.inputs(), case.domain
    still = [zeros_like(t, domain) for t in case.tangents()]
    by_output = [vjp(case, inputs, unit) for unit in basis(case.cotangent(), domain)]
    for i, tangent in enumerate(still):
        if tangent is not None:
            units = basis(tangent, domain)
            columns = [jvp(case, inputs, (*still[:i], unit, *still[i + 1 :])).ravel() for unit in units]
            assert_same(np.stack([rows[i].ravel() for rows in by_output]), np.stack(columns, axis=1), f"input {i}")


def second_derivatives_agree(case: OpCase) -> None:
    """Four ways to one number: the JVP's own JVP along v, nested duals, u and v exchanged, and the VJP's JVP."""
    domain, inputs, g = case.domain, case.inputs("distinct"), case.cotangent()
    u, v = case.tangents("first"), case.tangents("second")
    along_u_then_v = tangent_of(jvp(case, with_tangents(case, inputs, v, domain), constants(u, domain)))
    assert_same(tangent_of(jvp(case, with_tangents(case, inputs, u, domain), constants(v, domain))), along_u_then_v)

    inner = with_tangents(case, inputs, v, domain)
    nested = with_tangents(case, inner, constants(u, domain), gs.dual(domain))
    assert_same(tangent_of(tangent_of(value(case, nested))), along_u_then_v, "nested")

    moved = [None if t is None else tangent_of(t) for t in vjp(case, inner, constants([g], domain)[0])]
    assert_same(dot(moved, u), dot([g], [along_u_then_v]), "reverse")


def constants(tensors: Arrays, domain: gs.domains.Domain) -> list[np.ndarray | None]:
    """As dual numbers without tangent."""
    return [None if t is None else as_array(gs.dual(domain).tensor(t)) for t in tensors]


def written_second_derivatives_agree(case: OpCase) -> None:
    """``_jvp_jvp`` and ``_jvp_vjp`` equal the dual part of the JVP and of the VJP."""
    domain, (x,), g = case.domain, case.inputs("distinct"), case.cotangent()
    (u,), (v,) = case.tangents("first"), case.tangents("second")
    moving = with_tangents(case, (x,), (v,), domain)
    curvature = as_array(operator(case, "_jvp_jvp")(x, u, v, **case.attributes))
    assert_same(curvature, tangent_of(jvp(case, moving, constants([u], domain))))
    pulled = as_array(operator(case, "_jvp_vjp")(x, v, g, **case.attributes))
    assert_same(pulled, tangent_of(vjp(case, moving, constants([g], domain)[0])[0]))


def linear_where_stated(case: OpCase) -> None:
    """JVPs are linear in the tangents, VJPs in the cotangent, linear operators in their inputs."""
    inputs, u, v, g = case.inputs(), case.tangents("first"), case.tangents("second"), case.cotangent()
    mixed = [None if p is None else p * 3 - q * 4 for p, q in zip(u, v, strict=True)]
    along_u, along_v = jvp(case, inputs, u), jvp(case, inputs, v)
    assert_same(jvp(case, inputs, mixed), along_u * 3 - along_v * 4, "jvp")
    doubled = tuple(None if t is None else t * 2 for t in vjp(case, inputs, g))
    assert_same(vjp(case, inputs, g * 2), doubled, "vjp")
    if case.linear:
        assert_same(value(case, [mixed[0], *inputs[1:]]), along_u * 3 - along_v * 4, "value")


# --- leading axes and names -------------------------------------------------------------------------------------------


def leading_axes_are_a_loop(case: OpCase) -> None:
    """Leading axes mean "independently for each": results stack, and cotangents of shared inputs add up."""
    inputs, tangents, g = case.inputs(), case.tangents(), case.cotangent()
    shared_tangents = [case.differentiable.index(i) for i in case.shared]

    def at(place: int, tensors: Arrays, shared: Sequence[int]) -> list[np.ndarray | None]:
        return [t if i in shared else t[place] for i, t in enumerate(tensors)]

    places = range(case.lead[0])
    apart = [(at(p, inputs, case.shared), at(p, tangents, shared_tangents), g[p]) for p in places]
    assert_same(value(case, inputs), np.stack([value(case, x) for x, _, _ in apart]), "value")
    assert_same(jvp(case, inputs, tangents), np.stack([jvp(case, x, dx) for x, dx, _ in apart]), "jvp")
    pulled = zip(*(vjp(case, x, ct) for x, _, ct in apart), strict=True)
    together = vjp(case, inputs, g)
    for i, parts in enumerate(pulled):
        if together[i] is not None:
            joined = np.stack(parts)
            assert_same(together[i], joined.sum(0) if i in shared_tangents else joined, f"vjp {i}")


def ranked_names_are_the_same(case: OpCase) -> None:
    """``max_pool2d`` is ``max_pool`` over two axes, and takes an int where both sizes are equal."""
    inputs, tangents, g = case.inputs(), case.tangents(), case.cotangent()
    attributes = {name: given for name, given in case.attributes.items() if name != "rank"}
    cubes = [name for name in ("kernel_size", "output_size") if len(set(attributes.get(name, ()))) == 1]
    spellings = [attributes, *(attributes | {name: attributes[name][0]} for name in cubes)]
    modes = {"": (), "_jvp": tangents, "_vjp": (g,)}
    if case.needs_exp:
        modes |= {"_jvp_jvp": (*tangents, *case.tangents("second")), "_jvp_vjp": (*tangents, g)}
    for mode, arguments in modes.items():
        expected = operator(case, mode)(*inputs, *arguments, **case.attributes)
        ranked = getattr(gs.spec, f"{case.operator}{case.rank}d{mode}")
        for spelling in spellings:
            assert_same(arrays(ranked(*inputs, *arguments, **spelling)), arrays(expected), f"{mode} {spelling}")


# --- two spatial axes, written out ------------------------------------------------------------------------------------
# The formulas of each operator once more, for rows and columns only, in nested loops and without the geometry of the
# specification. Output sizes come from the table, where they were worked out by hand.

Cell = tuple[int, int]


def both(setting: Any) -> tuple[Any, Any]:
    return tuple(setting) if isinstance(setting, tuple) else (setting, setting)


def padding_2d(padding: Any, sizes: Cell, kernel: Cell, stride: Cell, dilation: Cell) -> list[Cell]:
    """``(lo, hi)`` of rows and of columns."""
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding == "same":
        needed = [
            (math.ceil(Fraction(n, s)) - 1) * s + d * (k - 1) + 1 - n
            for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
        ]
        return [(math.floor(Fraction(max(total, 0), 2)), math.ceil(Fraction(max(total, 0), 2))) for total in needed]
    return [both(side) for side in both(padding)]


def windows_2d(case: OpCase) -> dict[Cell, list[Cell]]:
    """The cells of each window in row-major order, padding included."""
    rows, columns = case.shapes[0][-2:]
    height, width = case.output[-2:] if len(case.output) >= 2 and case.attributes.get("keepdims", True) else (1, 1)
    windows: dict[Cell, list[Cell]] = {(oh, ow): [] for oh in range(height) for ow in range(width)}
    if "kernel_size" not in case.attributes:
        for oh, ow in windows:
            for r in range(rows):
                for c in range(columns):
                    # Bin oh spans the real numbers from oh·rows/height to (oh+1)·rows/height; cell r spans r to r+1.
                    if (
                        Fraction(oh * rows, height) < r + 1
                        and r < Fraction((oh + 1) * rows, height)
                        and Fraction(ow * columns, width) < c + 1
                        and c < Fraction((ow + 1) * columns, width)
                    ):
                        windows[oh, ow].append((r, c))
        return windows

    a = case.attributes
    kh, kw = kernel = a["kernel_size"]
    sh, sw = stride = both(a.get("stride", kernel))
    dh, dw = dilation = both(a.get("dilation", 1))
    (top, bottom), (left, right) = padding_2d(a.get("padding", 0), (rows, columns), kernel, stride, dilation)
    for oh, ow in windows:
        for i in range(kh):
            for j in range(kw):
                r, c = oh * sh - top + dh * i, ow * sw - left + dw * j
                if r < rows + bottom and c < columns + right:
                    windows[oh, ow].append((r, c))
    return windows


def pooled_2d(case: OpCase, cells: list[Cell], plane: np.ndarray) -> tuple[Any, dict[Cell, Any]]:
    """The value of one window, and its derivative by each cell."""
    rows, columns = plane.shape
    a = case.attributes
    inside = [(r, c) for r, c in cells if 0 <= r < rows and 0 <= c < columns]
    padded = len(cells) - len(inside)
    scalar = case.domain.scalar
    if case.needs_exp:
        beta = scalar(a["beta"])
        powers = {cell: exp(beta * plane[cell]) for cell in inside}
        total = sum(powers.values(), start=scalar(0 if a.get("padding_mode") == "ignore" else padded))
        if not inside and a.get("padding_mode") == "ignore":
            return scalar(0), {}
        return log(total) / beta, {cell: power / total for cell, power in powers.items()}
    if not inside:
        return scalar(0), {}
    if case.ordered:
        best = max(plane[cell] for cell in inside)
        tied = [cell for cell in inside if plane[cell] == best]
        shares = {"first": {tied[0]: scalar(1)}, "all": dict.fromkeys(tied, scalar(1))}
        shares["split"] = dict.fromkeys(tied, scalar(1) / len(tied))
        return best, shares[case.ties]
    default = len(cells) if a.get("count_include_pad", True) else len(inside)
    divisor = scalar(a.get("divisor_override", default))
    return sum(plane[cell] for cell in inside) / divisor, dict.fromkeys(inside, 1 / divisor)


def pooling_equals_two_loops(case: OpCase) -> None:
    """Value, JVP, VJP and winners of a pooling over rows and columns."""
    windows = windows_2d(case)
    outputs = tuple(np.max(list(windows), axis=0) + 1)
    for kind in ("tied", "constant", "distinct"):
        (x,), (dx,), g = case.inputs(kind), case.tangents(), case.cotangent().reshape(*case.lead, *outputs)
        y, dy, ct = (zeros_like(t, case.domain) for t in (g, g, x))
        winners = np.full(g.shape, -1)
        for lead in np.ndindex(case.lead):
            for output, cells in windows.items():
                y[*lead, *output], partial = pooled_2d(case, cells, x[lead])
                for cell, slope in partial.items():
                    dy[*lead, *output] = dy[*lead, *output] + slope * dx[*lead, *cell]
                    ct[*lead, *cell] = ct[*lead, *cell] + slope * g[*lead, *output]
                if partial and case.ties == "first":
                    (winner,) = partial
                    winners[*lead, *output] = winner[0] * x.shape[-1] + winner[1]
        cotangent = g.reshape(case.output)
        assert_same(value(case, (x,)), y.reshape(case.output), f"value {kind}")
        assert_same(jvp(case, (x,), (dx,)), dy.reshape(case.output), f"jvp {kind}")
        assert_same(vjp(case, (x,), cotangent), (ct,), f"vjp {kind}")
        if case.ties == "first" and not case.operator.startswith("global"):
            both_results = operator(case)(x, return_indices=True, **case.attributes)
            assert_same(arrays(both_results), (y, winners), f"indices {kind}")


def meetings_2d(case: OpCase) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Every (cell of x, weight, cell of g) whose product the trilinear form of convolution adds up."""
    a, transposed = case.attributes, case.operator == "conv_transpose"
    image, kernel, produced = case.shapes[0], case.shapes[1], case.output
    (x_channels, rows, columns), (g_channels, height, width) = (
        (produced[-3:], image[-3:]) if transposed else (image[-3:], produced[-3:])
    )
    _, per_group, kh, kw = kernel
    groups = a.get("groups", 1)
    sh, sw = stride = both(a.get("stride", 1))
    dh, dw = dilation = both(a.get("dilation", 1))
    (top, _), (left, _) = padding_2d(a.get("padding", 0), (rows, columns), (kh, kw), stride, dilation)
    for m in range(g_channels):
        for c in range(x_channels):
            if m * groups // g_channels != c * groups // x_channels:  # in different groups
                continue
            for oh, ow in product(range(height), range(width)):
                for i, j in product(range(kh), range(kw)):
                    r, q = oh * sh - top + dh * i, ow * sw - left + dw * j
                    if 0 <= r < rows and 0 <= q < columns:
                        yield (c, r, q), (m, c % per_group, i, j), (m, oh, ow)


def convolution_equals_nested_loops(case: OpCase) -> None:
    """Value, JVP and VJP of (transposed) convolution over rows and columns, by adding up the trilinear form."""
    (x, w, b), (dx, dw, db), g = case.inputs(), case.tangents(), case.cotangent()
    y, dy = zeros_like(g, case.domain), zeros_like(g, case.domain)
    ctx, ctw, ctb = (zeros_like(t, case.domain) for t in (x, w, b))
    meetings = list(meetings_2d(case))
    for lead in np.ndindex(case.lead):
        for x_cell, weight, g_cell in meetings:
            read, wrote = (g_cell, x_cell) if case.operator == "conv_transpose" else (x_cell, g_cell)
            read, wrote = (*lead, *read), (*lead, *wrote)
            y[wrote] += x[read] * w[weight]
            dy[wrote] += dx[read] * w[weight] + x[read] * dw[weight]
            ctx[read] += g[wrote] * w[weight]
            ctw[weight] += x[read] * g[wrote]
        if b is not None:
            y[lead] += b[:, None, None]
            dy[lead] += db[:, None, None]
            ctb += g[lead].sum((-2, -1))
    assert_same(value(case, (x, w, b)), y, "value")
    assert_same(jvp(case, (x, w, b), (dx, dw, db)), dy, "jvp")
    assert_same(vjp(case, (x, w, b), g), (ctx, ctw, ctb), "vjp")


# --- symmetries -------------------------------------------------------------------------------------------------------

PER_AXIS = ("kernel_size", "stride", "padding", "dilation", "output_size", "output_padding")


def assert_equivalent(
    case: OpCase,
    other: OpCase,
    move_in: Callable[[int, np.ndarray], np.ndarray] = lambda i, t: t,
    move_out: Callable[[np.ndarray], np.ndarray] = lambda y: y,
    bijective: bool = True,
) -> None:
    """``other`` on moved inputs is ``case``, moved: value, JVP and, if cells only change places, VJP.

    ``move_in`` gets the number of the input first. Moving cells about changes which of the tied ones comes first, so
    ``ties="first"`` is tried without ties.
    """
    inputs = case.inputs("distinct" if case.ties == "first" else "tied")
    tangents, g = case.tangents(), case.cotangent()

    def moved(tensors: Arrays) -> tuple[np.ndarray | None, ...]:
        return tuple(None if t is None else move_in(i, t) for i, t in enumerate(tensors))

    assert_same(value(other, moved(inputs)), move_out(value(case, inputs)), "value")
    assert_same(jvp(other, moved(inputs), moved(tangents)), move_out(jvp(case, inputs, tangents)), "jvp")
    if bijective:
        assert_same(vjp(other, moved(inputs), move_out(g)), moved(vjp(case, inputs, g)), "vjp")


def changed(case: OpCase, **attributes: Any) -> OpCase:
    return replace(case, attributes={**case.attributes, **attributes})


def spatial_axes_permute(case: OpCase) -> None:
    """Permuting the axes of everything permutes the axes of the result."""
    flat = case.attributes.get("keepdims") is False
    backwards, onwards = (*range(case.rank)[::-1],), (*range(1, case.rank), 0)
    for order in permutations(range(case.rank)) if case.rank <= 3 else (backwards, onwards):

        def move(t: np.ndarray, order: Sequence[int] = order) -> np.ndarray:
            first = t.ndim - case.rank
            return t.transpose(*range(first), *(first + axis for axis in order))

        attributes = {
            name: tuple(given[axis] for axis in order) if name in PER_AXIS and isinstance(given, tuple) else given
            for name, given in case.attributes.items()
        }
        other = changed(case, **attributes)
        assert_equivalent(case, other, lambda i, t: t if i == 2 else move(t), lambda y: y if flat else move(y))


def leading_axes_permute(case: OpCase) -> None:
    """The order of a batch does not matter."""

    def move_in(i: int, t: np.ndarray) -> np.ndarray:
        return t if i in case.shared else t[::-1]

    assert_equivalent(case, case, move_in, lambda y: y[::-1])


def scaling_by_powers_of_two(case: OpCase) -> None:
    """Maxima and averages are homogeneous; convolution in the input and bias together, and in weight and bias."""
    inputs = case.inputs()
    for factor in (2, 8):
        y = value(case, inputs) * factor
        if case.operator.startswith("conv"):
            x, w, b = inputs
            scaled = None if b is None else b * factor
            assert_same(value(case, (x * factor, w, scaled)), y, "x and bias")
            assert_same(value(case, (x, w * factor, scaled)), y, "weight and bias")
        elif case.needs_exp:
            other = changed(case, beta=case.attributes["beta"] / factor)
            assert_same(value(other, (inputs[0] * factor,)), y, "x, and β by the inverse")
        else:
            assert_same(value(case, (inputs[0] * factor, *inputs[1:])), y, "x")


def smooth_minimum_mirrors_smooth_maximum(case: OpCase) -> None:
    """``smooth(−x, −β) = −smooth(x, β)``."""
    (x,) = case.inputs()
    other = changed(case, beta=-case.attributes["beta"])
    assert_same(value(other, (x * -1,)), value(case, (x,)) * -1)


# --- which law is about which case ------------------------------------------------------------------------------------


def _always(case: OpCase) -> bool:
    return True


def _has_cells(case: OpCase) -> bool:
    return all(n for shape in case.shapes if isinstance(shape, tuple) for n in shape)


def _convolves(case: OpCase) -> bool:
    return case.operator in ("conv", "conv_transpose")


def _pools(case: OpCase) -> bool:
    return case.operator.endswith("_pool")


LAWS: dict[Callable[[OpCase], None], Callable[[OpCase], bool]] = {
    shapes_are_as_stated: _always,
    wrong_shapes_are_refused: _always,
    jvp_and_vjp_are_adjoint: _always,
    jvp_is_the_dual_part: _always,
    vjp_rows_are_jacobian_columns: _has_cells,
    second_derivatives_agree: _always,
    written_second_derivatives_agree: lambda case: case.needs_exp,
    linear_where_stated: _always,
    leading_axes_are_a_loop: lambda case: bool(case.lead) and case.lead[0] > 0,
    ranked_names_are_the_same: lambda case: 1 <= case.rank <= 3,
    pooling_equals_two_loops: lambda case: _pools(case) and case.rank == 2,
    convolution_equals_nested_loops: lambda case: _convolves(case) and case.rank == 2,
    spatial_axes_permute: lambda case: (_convolves(case) or _pools(case)) and case.rank > 1,
    leading_axes_permute: lambda case: bool(case.lead),
    scaling_by_powers_of_two: _always,
    smooth_minimum_mirrors_smooth_maximum: lambda case: case.needs_exp,
}

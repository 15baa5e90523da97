"""What a wrong kernel of a reference most likely does instead: the first of some guesses that fits all its results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, islice
from math import frexp, inf, prod
from time import monotonic, process_time
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gradspec.conformance.checks.repeat import Outcome
from gradspec.conformance.judge.reduced import ARITHMETICS
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.changes import ReferenceChanges
from gradspec.conformance.model.device import ExhaustedError
from gradspec.conformance.model.problem import Array, Call, Shape
from gradspec.conformance.model.reference import FEW, FreeAxes, Resized, admits, classes, reference_of
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Failure
from gradspec.conformance.oracle.expected import EnclosedMeaning, GraphResults, expected
from gradspec.conformance.oracle.meaning import Bools, Floats, Judgement, round_array
from gradspec.conformance.shrink.search import conventions, size
from gradspec.domains.formats import BF16, format_named
from gradspec.graph.builder import apply_all
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.system.hosting import ChannelError, LeftBehindError
from gradspec.transforms.copy import Copier

MOST_CALLS = 4
"""Failures that a guess must fit."""
MOST_CELLS = 4096
"""Cells of all arrays of a call beyond which smaller calls are looked at first."""
A_GUESS = 3.0
"""Seconds of processor time for all guesses about one cause."""
MOST_NODES = 48
"""Nodes of a graph that are left out in turn."""
NARROW = ("f32", "f16", "bf16")
"""Accumulators that a result may have been added up in, from the widest on."""
ROUNDED_FACTORS = ("tf32", "truncated_tf32", "bf16_inputs")
USED = 2.0**-7
"""What part of what a liberty permits some cell must be off by: much smaller errors have another cause."""
BLOCKS = (2, 4, 8, 16, 32, 64, 128)
"""What a kernel may have taken a size to be a multiple of."""
FACTORS = {2.0: "twice", 0.5: "half", -1.0: "the negative of"}
"""What a wrong result may be of the right one."""
MOST_POWER, SMALL = 16, (2.0**-3, 2.0**-10)
"""Beyond which powers of two, and below what, numbers are said to be needed."""
NEARLY = 2.0**-6
"""How near, in proportion, a result is to a guess at it that is worth a closer look."""
GROSS = 4.0
"""How many times what is permitted a result is off by that more than rounding explains."""
DIGITS = 0.01
"""How wide an enclosure may be, in proportion, that says something about a kernel."""


@dataclass(frozen=True)
class Wrong:
    """One wrong result: the call, and what was given."""

    target: Target
    call: Call
    name: str
    got: Array

    @cached_property
    def meaning(self) -> EnclosedMeaning:
        found = expected(self.call)[self.name]
        assert isinstance(found, EnclosedMeaning)
        return found

    @cached_property
    def judgement(self) -> Judgement:
        return self.meaning.judge(self.got, self.target.arithmetic(self.call.problem))

    def given(self, call: Call) -> dict[Var, Array]:
        """The arrays of a call, by the inputs of the graph."""
        return dict(zip(self.meaning.results.graph.inputs, map(np.asarray, call.arguments()), strict=True))

    @cached_property
    def steps(self) -> dict[Var, Array]:
        """What every operation of the reference gives, as it is computed."""
        return self._run({**self.meaning.results.graph.constants}, self.given(self.call))

    def _run(self, known: dict[Var, Array], changed: dict[Var, Array]) -> dict[Var, Array]:
        """What is known, with what follows from what is changed."""
        found, new = known | changed, {*changed}
        for node in self.meaning.results.graph.nodes:
            if new.isdisjoint(node.outputs) and not (found.keys() >= {*node.outputs} and new.isdisjoint(node.inputs)):
                results = apply_all(node.op, node.attrs, *(found[v] for v in node.inputs))
                found |= zip(node.outputs, map(np.asarray, results), strict=True)
                new |= {*node.outputs}
        return found

    def is_near(self, changed: dict[Var, Array]) -> bool:
        """Whether the result is about what the reference computes from other arrays; to ask this first saves time."""
        found = self._run(self.steps, changed)[self.meaning.results.graph.outputs[self.meaning.place]]
        got, other = (array.astype(np.float64) for array in (self.got, found))
        finite = np.isfinite(got) & np.isfinite(other)
        return np.allclose(got[finite], other[finite], NEARLY, NEARLY * np.abs(other[finite]).max(initial=0.0))

    def fits(self, graph: Graph, call: Call, arithmetic: Arithmetic | None = None) -> bool:
        """Whether the result is that of another graph, of another call, or by another arithmetic."""
        arrays = [np.asarray(array) for array in call.arguments()]
        other = EnclosedMeaning(GraphResults(graph, arrays), self.meaning.place, self.meaning.is_derivative)
        judged = other.judge(self.got, arithmetic or self.target.arithmetic(self.call.problem))
        return judged.passed and not judged.wide.all()


T = TypeVar("T", int, float)
Guess: TypeAlias = Callable[[Wrong], bool]


def suspicion(target: Target, failures: Sequence[Failure], deadline: float = inf) -> str:
    """What the kernel most likely does, in a sentence without its full stop; nothing where no guess fits in time.

    It fits the first failure, which is the one that is shown, and some of the others.
    """
    told = [*failures[:1], *sorted(failures[1:], key=lambda failure: _tells_most(failure.judged_call))]
    wrong = sorted(islice(_results(target, told), MOST_CALLS), key=lambda w: -w.got.size)
    if not wrong:
        return ""
    start = process_time()
    is_choice = bool(conventions(failures[0].verdict.detail))
    for words, fits in _guesses(wrong, is_choice):
        with np.errstate(all="ignore"), suppress(Exception):  # a guess that cannot be tried is none
            if all(map(fits, wrong)):
                return words
        if process_time() > start + A_GUESS or monotonic() > deadline:
            break
    return ""


def _tells_most(call: Call) -> tuple[bool, int]:
    """Large calls first, of those that are judged in no time: in one cell much may be so by chance."""
    cells = sum(array.size for array in call.arrays().values())
    return cells > MOST_CELLS, -cells


def _results(target: Target, failures: Sequence[Failure]) -> Iterator[Wrong]:
    for failure in failures:
        with suppress(ExhaustedError, ChannelError, LeftBehindError):  # which is said elsewhere
            yield from _result(target, failure.judged_call.in_layout(), failure.verdict.result)


def _result(target: Target, call: Call, name: str) -> Iterator[Wrong]:
    """A result, if it is wrong."""
    got, meaning = Outcome.of(target, call).results.get(name), expected(call).get(name)
    if got is not None and isinstance(meaning, EnclosedMeaning) and got.shape == meaning.shape and got.size:
        wrong = Wrong(target, call, name, got)
        if not wrong.judgement.passed:
            yield wrong


def _guesses(wrong: Sequence[Wrong], is_choice: bool) -> Iterator[tuple[str, Guess]]:
    """Those first that explain most. With a liberty or other numbers a kink may lie elsewhere: the choice says more."""
    first = wrong[0]
    if first.got.size > 1:
        yield "the result is zeros", lambda w: not w.got.any()
        yield (
            "the result is one number in every cell",
            lambda w: len(np.unique(w.got)) == 1 and w.got.ravel()[0] == w.got.ravel()[0],
        )
    for name in first.call.named():
        yield f"the result is its input {name}", partial(_is_input, name)
    for name, declared in reference_of(first.call.problem).values.items():
        if (number := declared.removeprefix("labels or ")) != declared:
            yield f"it is wrong only where {name} has {number}", partial(_is_of_ignored, name, int(number))
    smallest = min(wrong, key=lambda w: size(w.call))
    sizes = [Sizes(smallest, free) for free in ReferenceChanges(smallest.call).axes]
    yield from _numbers(first, "iu")
    for one in sizes:
        yield from one.guesses(one.longer())
    yield "the result stays the same for other numbers, as a stale one does", _is_stale
    for one in sizes:
        yield from one.guesses(one.kinds())
    for factor, words in FACTORS.items():
        yield f"the result is {words} what is right", partial(_is_multiple, factor)
    for name in first.call.arrays():
        yield f"its input {name} is ignored", partial(_without, name)
    for pair in combinations(first.call.arrays(), 2):
        yield f"{' and '.join(pair)} are exchanged", partial(_fits_exchange, *pair)
    for node in first.meaning.results.graph.nodes[: MOST_NODES if np.isfinite(first.got).any() else 0]:
        for which, (words, _) in enumerate(_changes(node)):
            yield f"the {node.op.name} of `{node.outputs[0].name}` {words}", partial(_fits_changed_node, node, which)
    if first.judgement.arithmetic.wide_intermediates:
        yield f"the result is right only if {first.call.problem.dtype} is stored between operators", _is_of_stored
    if not is_choice:
        if words := _smallest_liberty(wrong):
            yield words, lambda _: True
        yield from _numbers(first, "f")
    yield from _places(first)
    for name in () if is_choice else first.call.named():
        plain = NeededNumbers("is not 0", np.zeros_like, lambda _, shape: np.zeros(shape))
        yield f"it is wrong only where {name} is not 0", partial(plain.are_needed, name)


def _is_input(name: str, w: Wrong) -> bool:
    other = w.call.named()[name]
    return w.got.shape == other.shape and np.array_equal(w.got, other, equal_nan=w.got.dtype.kind == "f")


def _is_stale(w: Wrong) -> bool:
    """Whether other numbers give the same result, which is wrong for them too, and another one than here."""
    if not np.isfinite(w.got.astype(np.float64)).all():  # which many numbers give
        return False
    other = w.call.mapped(lambda array: 2 * array + 1 if array.dtype.kind not in "iub" else array)
    got, meaning = Outcome.of(w.target, other).results.get(w.name), expected(other)[w.name]
    if got is None or meaning is None or not np.array_equal(got, w.got):
        return False
    assert isinstance(meaning, EnclosedMeaning)
    here, there = (one.enclosed().centre for one in (w.meaning, meaning))
    is_right = meaning.judge(w.got, w.judgement.arithmetic).passed
    return not is_right and not np.array_equal(here, there, equal_nan=True)


def _is_of_stored(w: Wrong) -> bool:
    problem = w.call.problem
    graph = reference_of(problem).with_stored_intermediates().program(problem, w.call.mode)
    return w.fits(graph, w.call, replace(w.judgement.arithmetic, wide_intermediates=False))


Liberty: TypeAlias = tuple[str, Callable[[Arithmetic], Arithmetic], Guess]
"""In words, as an arithmetic, and what else must be so."""


def _liberties(first: Wrong) -> Iterator[Liberty]:
    for name, change in ARITHMETICS.items():
        also = _is_right_of_few_bits if name in ROUNDED_FACTORS else lambda _: True
        yield f"the result is right only if arithmetic may be {name}", change, also
    own = first.judgement.arithmetic
    for form in (form for form in map(format_named, NARROW) if form.precision < own.accumulate.precision):
        words = f"the result is correct up to the accumulator: {form.precision} bits"
        yield words, partial(replace, accumulate=form), lambda _: True


def _smallest_liberty(wrong: Sequence[Wrong]) -> str:
    """The narrowest liberty that permits all results; nothing where they are far nearer than it permits."""
    fitting = list[tuple[float, float, str]]()
    for words, change, also in _liberties(wrong[0]):
        with suppress(Exception):  # an arithmetic that there is no theorem for
            judged = list[Judgement]()
            for w in wrong:
                judged.append(w.meaning.judge(w.got, change(w.judgement.arithmetic)))
                if not _tells(judged[-1]):
                    break
            else:
                radii = [_radii(w, judgement) for w, judgement in zip(wrong, judged, strict=True)]
                used = max(float(np.max(error / radius)) for error, radius in radii)
                if used >= USED and all(map(also, wrong)):
                    fitting.append((sum(float(np.mean(radius)) for _, radius in radii), -used, words))
    return min(fitting, default=(0.0, 0.0, ""))[2]


def _radii(w: Wrong, judgement: Judgement) -> tuple[Floats, Floats]:
    """In the wrong cells, how far the result is off and how far a liberty lets it be."""
    assert isinstance(judgement.meaning, EnclosedMeaning)
    found, wrong = judgement.meaning.enclosed(judgement.arithmetic), ~w.judgement.ok
    error = np.abs(w.got.astype(np.float64) - np.asarray(found.centre, np.float64))
    return error[wrong], np.broadcast_to(found.radius, wrong.shape)[wrong]


def _tells(judgement: Judgement) -> bool:
    """Whether a result passes, in some cell by an enclosure that has a sign and is not weak, or has some digits."""
    assert isinstance(judgement.meaning, EnclosedMeaning)
    found = judgement.meaning.enclosed(judgement.arithmetic)
    size = np.abs(found.centre)
    return judgement.passed and bool((~judgement.wide & (found.radius < size) | (found.radius <= DIGITS * size)).any())


def _is_right_of_few_bits(w: Wrong) -> bool:
    """Whether nothing is lost of numbers of 8 bits, which no format of factors rounds; narrow sums of their products
    are rounded all the same."""
    other = w.call.mapped(
        lambda array: round_array(array, BF16).astype(array.dtype) if array.dtype.kind == "f" else array
    )
    got, meaning = Outcome.of(w.target, other).results.get(w.name), expected(other)[w.name]
    return got is not None and meaning is not None and _tells(meaning.judge(got, w.judgement.arithmetic))


def _without(name: str, w: Wrong) -> bool:
    """Whether the result is the reference's with 0, or 1, for an input, a tangent or the cotangent."""
    array = w.call.arrays()[name]
    others = (np.full_like(array, number) for number in (0, 1))
    changed = (w.call.with_arrays({**w.call.arrays(), name: other}) for other in others)
    return any(w.fits(w.meaning.results.graph, call) for call in changed)


def _is_of_ignored(name: str, number: int, w: Wrong) -> bool:
    """Whether the result is right once labels that stand for none name the first class."""
    labels = w.call.arrays()[name]
    is_ignored = labels == number
    call = w.call.with_arrays({**w.call.arrays(), name: np.where(is_ignored, 0, labels).astype(labels.dtype)})
    return bool(is_ignored.any()) and not any(_result(w.target, call, w.name))


Change: TypeAlias = Callable[[Sequence[Any], Any], Any]
"""From the operands of a node and its result to what stands in the place of the result."""


def _changes(node: Node) -> Iterator[tuple[str, Change]]:
    """What kernels do in the place of an operation: leave it out, forget its sign, or divide by one less."""
    output, *others = node.outputs
    if others or not output.type.is_float:
        return
    for i in (i for i, v in enumerate(node.inputs) if v.type == output.type and v not in node.inputs[:i]):
        yield "is left out", partial(_operand, i)
    yield "has the wrong sign", lambda _, y: -y
    terms = prod(node.inputs[0].shape) // max(1, prod(output.shape)) if hasattr(node.attrs, "axes") else 1
    if terms > 1:
        yield "counts one term less than it has", lambda _, y: y * (terms / (terms - 1))


def _operand(i: int, operands: Sequence[Any], _: Any) -> Any:
    return operands[i]


def _fits_changed_node(like: Node, which: int, w: Wrong) -> bool:
    """Whether the result is the reference's with something else for one of its nodes."""
    graph = w.meaning.results.graph
    changed = next(n for n in graph.nodes if (n.op, n.outputs[0].name) == (like.op, like.outputs[0].name))
    _, change = list(_changes(changed))[which]  # there may be none, and then it is no guess
    steps = [w.steps[v] for v in (*changed.inputs, *changed.outputs)]
    if not w.is_near({changed.outputs[0]: change(steps[:-1], steps[-1])}):
        return False
    copy = Copier(graph)
    for node in graph.nodes:
        copy.node(node)
        if node is changed:
            copy.assign(node, [change(copy.all(node.inputs), copy(node.outputs[0]))])
    return w.fits(copy.builder.build(copy.all(graph.outputs), allow_unused=True), w.call)


def _is_multiple(factor: float, w: Wrong) -> bool:
    return w.meaning.judge(w.got / np.asarray(factor, w.got.dtype), w.judgement.arithmetic).passed


def _fits_exchange(one: str, other: str, w: Wrong) -> bool:
    arrays = w.call.arrays()
    call = w.call.with_arrays({**arrays, one: arrays[other], other: arrays[one]})
    return arrays[one].shape == arrays[other].shape and w.fits(w.meaning.results.graph, call)


# --- which numbers it is wrong for ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeededNumbers:
    """Numbers of an input without which a result is right: what stands for them, and others that are none."""

    words: str
    without: Callable[[Array], Array]
    drawn: Callable[[np.random.Generator, Shape], Array]

    def are_needed(self, name: str, w: Wrong) -> bool:
        array, rng = w.call.arrays()[name], np.random.default_rng(0)
        others = self.without(array), self.drawn(rng, array.shape).astype(array.dtype)
        return not np.array_equal(others[0], array, equal_nan=True) and all(_is_right(w, name, a) for a in others)


def _numbers(first: Wrong, kinds: str) -> Iterator[tuple[str, Guess]]:
    for name, array in first.call.arrays().items():
        if array.dtype.kind in kinds:
            for numbers in _kinds(first, name, array):
                yield f"it is wrong only where {name} {numbers.words}", partial(numbers.are_needed, name)


def _kinds(first: Wrong, name: str, array: Array) -> Iterator[NeededNumbers]:
    """Zeros, ties, those below zero, and those beyond a power of two, or below it."""
    if array.dtype.kind in "iu":
        below = classes(first.call.problem, name)
        yield NeededNumbers(
            "has a number twice",
            lambda a: (np.arange(a.size) % below).reshape(a.shape).astype(a.dtype),
            lambda rng, shape: rng.permutation(max(below, prod(shape)))[: prod(shape)].reshape(shape) % below * 1.0,
        )
    else:
        yield NeededNumbers("has a zero", lambda a: np.where(a == 0, 1, a).astype(a.dtype), _uniform(0.25, 1))
        yield NeededNumbers("is negative", np.abs, _uniform(0, 1))
    largest = float(np.abs(array.astype(np.float64)).max(initial=0.0, where=np.isfinite(array)))
    powers = [2.0**i for i in range(max(0, min(MOST_POWER, frexp(largest)[1])))]
    limit = _first_wrong(powers, lambda t: not _is_right(first, name, _clipped(t, array)))
    for t in powers[max(0, limit - 1) : limit]:
        yield NeededNumbers(f"is beyond ±{t:g}", partial(_clipped, t), _uniform(-t, t))
    if array.dtype.kind == "f":
        for t in SMALL:
            yield NeededNumbers(f"is within ±{t:g}", partial(_raised, t), _uniform(t, 1))


def _first_wrong(numbers: Sequence[T], is_wrong: Callable[[T], bool]) -> int:
    """The place of the first number from which on it is wrong, or 0 where that cannot be tried."""
    with suppress(Exception):
        return bisect_left(numbers, True, key=is_wrong)
    return 0


def _uniform(low: float, high: float) -> Callable[[np.random.Generator, Shape], Array]:
    return lambda rng, shape: rng.uniform(low, high, shape)


def _clipped(t: float, array: Array) -> Array:
    return np.clip(array, -t, t).astype(array.dtype)


def _raised(t: float, array: Array) -> Array:
    return np.where(np.abs(array) < t, np.copysign(t, array), array).astype(array.dtype)


def _is_right(w: Wrong, name: str, array: Array) -> bool:
    """Whether the result is right for other numbers, and has some."""
    call = w.call.with_arrays({**w.call.arrays(), name: array})
    if not admits(call) or any(_result(w.target, call, w.name)):
        return False
    meaning = expected(call)[w.name]
    return isinstance(meaning, EnclosedMeaning) and bool(np.any(meaning.enclosed().centre))


# --- where it is wrong ------------------------------------------------------------------------------------------------


def _places(first: Wrong) -> Iterator[tuple[str, Guess]]:
    """Along one axis, the cells from some place on, or one cell of each block."""
    for axis in (axis for axis in reversed(range(first.got.ndim)) if first.got.shape[axis] > 1):
        yield f"it is wrong in the last cells along axis {axis} alone", partial(_is_tail, axis)
        for block in BLOCKS:
            what = f"it is wrong in one cell of each {block} along axis {axis}"
            yield what, partial(_is_residue, axis, block)


def _along(w: Wrong, axis: int) -> Bools:
    """Which places along an axis have a wrong cell."""
    others = tuple(i for i in range(w.got.ndim) if i != axis)
    return np.asarray((~w.judgement.ok).any(axis=others)) if axis < w.got.ndim else np.zeros(0, np.bool_)


def _is_tail(axis: int, w: Wrong) -> bool:
    wrong = _along(w, axis)
    if len(wrong) == 1:  # which is the last one too
        return True
    if wrong.all() or not wrong.any():
        return False
    start = int(np.argmax(wrong))
    return bool(wrong[start:].all()) and start > 0


def _is_residue(axis: int, block: int, w: Wrong) -> bool:
    places = np.flatnonzero(_along(w, axis))
    return len(places) > 1 and len({*(places % block).tolist()}) == 1


# --- which sizes it is wrong at ---------------------------------------------------------------------------------------


Kind: TypeAlias = tuple[str, Callable[[int], object], Sequence[int], Sequence[int]]
"""In words, which sizes are of it, sizes that the result is right at, and some that it is wrong at."""


@dataclass(frozen=True)
class Sizes:
    """The sizes along a free axis at which the smallest wrong call stays wrong: its cells come again, or are cut."""

    smallest: Wrong
    free: FreeAxes

    def of(self, w: Wrong) -> int:
        return self.free.size(ReferenceChanges(w.call).types)

    def longer(self) -> Iterator[Kind]:
        """Sizes that are needed by numbers are few, but along the axis of samples, where the second may be wrong."""
        n = self.of(self.smallest)
        if n > 2 * FEW:
            n = 1 + _first_wrong(range(1, n), self._is_wrong)
        if n > (1 if min(self.free.axes) == (0, 0) else 2 * FEW):
            yield f"longer than {n - 1}", lambda m: m >= n, [n - 1], [n + 1]

    def kinds(self) -> Iterator[Kind]:
        n = self.of(self.smallest)
        power = 1 << (n - 1).bit_length()
        yield "no power of two", lambda m: m & (m - 1) > 0, [power, 2 * power], [power + 1, 3 * power]
        for block in BLOCKS:
            whole = -(-n // block) * block
            yield f"no multiple of {block}", block.__rmod__, [whole, whole + 2 * block], [whole + 1]

    def guesses(self, kinds: Iterable[Kind]) -> Iterator[tuple[str, Guess]]:
        i, axis = min(self.free.axes)
        for words, has, right, wrong in kinds:
            what = f"it is wrong only where axis {axis} of {self.smallest.call.problem.inputs[i]} is {words}"
            yield what, partial(self._fits, has, right, wrong)

    def _fits(self, has: Callable[[int], object], right: Sequence[int], wrong: Sequence[int], w: Wrong) -> bool:
        if w is not self.smallest or not has(self.of(w)):
            return bool(has(self.of(w)))
        error, radius = _radii(w, w.judgement)
        is_imprecise = bool((error <= GROSS * radius).all())  # which some sizes show and others do not
        return not is_imprecise and not any(map(self._is_wrong, right)) and all(map(self._is_wrong, wrong))

    def _is_wrong(self, n: int) -> bool:
        call = self.smallest.call
        resized = Resized(self.free.resized(ReferenceChanges(call).types, n)).call(call)
        return any(_result(self.smallest.target, resized, self.smallest.name))

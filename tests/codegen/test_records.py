"""Records: what the host packs is what a kernel reads by the same names, wherever the bytes lie."""

import ctypes
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

import numpy as np
import pytest

from gradspec.codegen import cache as kernel_cache
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import KernelError, copied, i64, pointer
from gradspec.codegen.objects import object_code
from gradspec.codegen.records import Block, Memory, Operand, Record, Scratch, Words, address, block_address, layout
from gradspec.codegen.translation import kernel_code

ENGINES = []
words_at = pointer(i64)


class Kind(IntEnum):
    ROUND, SQUARE = 3, 5


@dataclass(frozen=True)
class Point(Record):
    x: int
    weight: float


@dataclass(frozen=True)
class Path(Record):
    points: tuple[Point, ...]
    is_closed: bool
    kind: Kind = Kind.ROUND
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole(Record):
    scale: int
    paths: tuple[Path, ...]
    origin: Point
    corners: tuple[Point, Point]
    numbers: tuple[int, int, int]
    table: Words | None
    memory: Memory | None
    first: Operand | None
    second: Operand | None
    many: Annotated[tuple[int, ...], 5] = (1, 2, 3, 4, 5)


TABLE, MEMORY = np.array([100, 200, 300], np.int64), np.array([1.5, 2.5])
WHOLE = Whole(
    scale=7,
    paths=(
        Path((Point(1, 0.5), Point(2, -0.25)), True, Kind.SQUARE, (4, 5, 6)),
        Path((), False),
        Path((Point(3, 2.0),), True, lengths=(8,)),
    ),
    origin=Point(-4, 1.25),
    corners=(Point(10, 3.0), Point(11, -3.0)),
    numbers=(21, 22, 23),
    table=TABLE,
    memory=MEMORY,
    first=None,
    second=Operand(1),
)


def scalars(w, out):
    out[0] = w.scale + w.origin.x
    out[1] = 4 if w.origin.weight * 4.0 == 5.0 else 0
    out[2] = w.corners[1].x + w.numbers[2] + len(w.numbers) + w.many[4]


def paths(w, out):
    at = 0
    for i in range(len(w.paths)):
        path = w.paths[i]
        out[at] = len(path.points) * 1000 + len(path.lengths)
        out[at + 1] = (1 if path.is_closed else 2) + (10 if path.kind == Kind.SQUARE else 20)
        for j in range(len(path.points)):
            out[at + 1] += 100 * path.points[j].x
            if path.points[j].weight < 0.0:
                out[at + 1] += 10_000
        for j in range(len(path.lengths)):
            out[at] += path.lengths[j]
        at += 2


def tables(w, out):
    for i in range(3):
        out[i] = w.table[i] + 1


def on_records(function):
    """The function as a kernel: what it reads are the arguments, and it writes to the workspace."""

    def kernel(w, lo, hi, workspace):
        function(w, words_at(address_of(workspace)))

    return kernel


def compiled(kernel, record):
    """A function of the address of a record in bytes, and of an array to write to."""
    engine = kernel_cache._engine()
    code = object_code(kernel_code(kernel, record))
    engine.add_object_file(kernel_cache._llvm().ObjectFileRef.from_data(code))
    engine.finalize_object()
    ENGINES.append(engine)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    run = signature(engine.get_function_address("kernel"))
    return lambda block, out: run(block, 0, 0, address(out))


@pytest.mark.parametrize("function", [scalars, paths, tables], ids=lambda f: f.__name__)
def test_kernels_read_what_the_host_wrote(function):
    """By the same function: in Python on the record, and as machine code on its bytes, wherever they are copied to."""
    wanted, run, block = [0] * 8, compiled(on_records(function), Whole), Block(WHOLE).at([11, 22])
    function(WHOLE, wanted)
    for shift in (0, 8, 24):
        room = np.zeros(len(block) + shift, np.uint8)
        room[shift:] = np.frombuffer(block, np.uint8)
        out = np.zeros(8, np.int64)
        run(address(room) + shift, out)
        assert out.tolist() == wanted


def test_operands_are_patched_and_the_rest_is_not():
    kind = layout(Whole)
    block = Block(WHOLE)
    a, b = (np.frombuffer(block.at(addresses), np.int64) for addresses in ([1, 2], [3, 4]))
    at = {name: kind.fields[name].offset // 8 for name in ("first", "second", "memory", "table")}
    assert np.flatnonzero(a != b).tolist() == [at["second"]]
    assert (a[at["first"]], a[at["second"]], b[at["second"]]) == (0, 2, 4)
    assert (a[at["memory"]], a[at["table"]]) == (address(MEMORY), address(TABLE))
    assert block.size == a.nbytes


def test_an_operand_may_be_anywhere():
    @dataclass(frozen=True)
    class Inner(Record):
        n: int
        x: Operand | None

    @dataclass(frozen=True)
    class Outer(Record):
        x: Operand
        inner: tuple[Inner, ...]
        last: int
        y: Operand

    globals().update(Inner=Inner)
    block = Block(Outer(Operand(2), (Inner(5, Operand(0)), Inner(6, None)), 9, Operand(1)))
    size = layout(Outer).size
    assert np.frombuffer(block.at([70, 71, 72]), np.int64).tolist() == [72, size, 2, 9, 71, 5, 70, 6, 0]


# --- what kernels keep ------------------------------------------------------------------------------------------------


@dataclass
class Kept(Scratch):
    count: int
    places: Annotated[tuple[int, ...], 4]
    is_done: bool
    mean: float


kept_at, copy_at = pointer(Kept), copied(Path)


def keeping(w, lo, hi, workspace):
    kept = kept_at(address_of(workspace))
    kept.count, kept.is_done = len(w.points), False
    for i in range(4):
        kept.places[i] = 10 * i
        kept.places[i] += w.points[0].x
    kept.mean = w.points[0].weight
    if kept.count == 2 and not kept.is_done:
        kept.is_done = True


def test_kernels_change_what_is_their_own():
    out = np.zeros(layout(Kept).size // 8, np.int64)
    block = Block(WHOLE.paths[0]).at([])
    compiled(keeping, Path)(block_address(block), out)
    assert out[:6].tolist() == [2, 1, 11, 21, 31, 1]
    assert out[6:].view(np.float64).tolist() == [0.5]


def copying(w, lo, hi, workspace):
    source, own = words_at(address_of(w)), copy_at(address_of(workspace))
    for i in range(30):
        words_at(address_of(workspace))[i] = source[i]
    own.kind = Kind.SQUARE + len(own.points)


def test_a_copy_of_a_record_may_be_changed_and_holds_together():
    block = Block(WHOLE.paths[2]).at([])
    out, padded = np.zeros(30, np.int64), np.zeros(30, np.int64)
    padded[: len(block) // 8] = np.frombuffer(block, np.int64)
    compiled(copying, Path)(address(padded), out)
    at = layout(Path).fields["kind"].offset // 8
    assert out[at] == Kind.SQUARE + 1
    assert np.flatnonzero(out != padded).tolist() == [at]


def changing_arguments(w, lo, hi, workspace):
    w.scale = 1


def changing_entries(w, lo, hi, workspace):
    w.numbers[0] = 1


def unknown_field(w, lo, hi, workspace):
    w.paths[0].points[0].y  # noqa: B018


def fields_of_a_number(w, lo, hi, workspace):
    w.scale.more  # noqa: B018


def unknown_scratch(w, lo, hi, workspace):
    kept_at(address_of(workspace)).nothing = 1


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (changing_arguments, "Whole.scale is not a field that kernels may change"),
        (changing_entries, "these are not entries that kernels may change"),
        (unknown_field, "Point has no field y; it has x, weight"),
        (fields_of_a_number, "i64 has no fields"),
        (unknown_scratch, "Kept.nothing is not a field that kernels may change"),
    ],
)
def test_what_a_record_is_not_made_for_is_refused(kernel, message):
    with pytest.raises(KernelError, match=message):
        kernel_code(kernel, Whole)


@pytest.mark.parametrize("hint", [str, list[int], tuple[int, float], int | str, dict[str, int]], ids=str)
def test_a_record_holds_what_has_a_place_in_memory(hint):
    @dataclass(frozen=True)
    class Odd(Record):
        entry: hint = field()

    with pytest.raises(TypeError, match=r"Odd\.entry: a record cannot hold"):
        layout(Odd)

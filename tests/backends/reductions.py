"""Single tasks of reductions: with what is prepared in front of them, on arrays of any layout, in guarded memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backends.pooling import GUARD, LAYOUTS, PATTERN, REPEATED, rubbish
from gradspec.backends.cpu import LOWERINGS
from gradspec.codegen.records import address, block_address
from gradspec.graph.ir import Node, Op, Var
from gradspec.graph.types import TensorType, bf16, f16, f32, f64
from gradspec.runtime.task import Task, Work

FLOATS = {t.name: t for t in (f32, f64, f16, bf16)}
READABLE = LAYOUTS | REPEATED


def node_of(op: Op, attrs: Any, *types: TensorType) -> Node:
    """The operator on inputs of these types."""
    (result,) = op.types(attrs, *types)
    inputs = tuple(Var(f"x{i}", type, None) for i, type in enumerate(types))
    return Node(op, attrs, inputs, (Var("y", result, None),))


def lowered(node: Node) -> Task:
    task = LOWERINGS[node.op.name].task(Work((node,), node.outputs))
    assert task is not None
    return task


def carry_out(
    task: Task, arrays: Mapping[Var, np.ndarray], result: np.ndarray, backwards: bool = False, fence: Any = None
) -> None:
    """Fill ``result``, in one piece or unit by unit, the last one first; nothing around the workspace is written."""
    values = dict(arrays)
    for earlier in task.before:
        (made,) = earlier.outputs
        values[made] = rubbish(made.type)
        carry_out(earlier, values, values[made], backwards, fence)
    if task.units:
        _call(task, *task.bind(*(values[v] for v in task.inputs), result), backwards, fence)


def _call(task: Task, block: bytes, units: int, workspace: int, backwards: bool, fence: Any) -> None:
    assert workspace % 64 == 0
    if fence is not None:
        memory = fence.bytes(workspace)
        task.function(block_address(block), 0, units, address(memory))
        return
    memory = np.full(GUARD + workspace + GUARD, PATTERN, np.uint8)
    at = GUARD // 2 + -(address(memory) + GUARD // 2) % 64
    for lo, hi in [(i, i + 1) for i in reversed(range(units))] if backwards else [(0, units)]:
        task.function(block_address(block), lo, hi, address(memory) + at)
    assert (memory[:at] == PATTERN).all(), "something before the workspace is written"
    assert (memory[at + workspace :] == PATTERN).all(), "something behind the workspace is written"


def result_of(node: Node, *arrays: np.ndarray, backwards: bool = False) -> np.ndarray:
    """The result, in a fresh array that was full of rubbish."""
    result = rubbish(node.outputs[0].type)
    carry_out(lowered(node), dict(zip(node.inputs, arrays, strict=True)), result, backwards)
    return result


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers in another layout; where cells share memory, the first of them everywhere."""
    form = READABLE[layout]
    parent = np.zeros(form.parent(array.shape), array.dtype)
    if layout in REPEATED and array.size:
        parent[...] = array[tuple(slice(0, n) for n in parent.shape)]
    elif array.size:
        form.view(parent, array.shape)[...] = array
    return form.view(parent, array.shape)


@np.errstate(invalid="ignore")
def assert_same_bits(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    """Bit for bit, but for the signs and payloads of NaNs."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), context
    kind = f"u{wanted.itemsize}"
    equal = np.ascontiguousarray(found).view(kind) == np.ascontiguousarray(wanted).view(kind)
    same = equal.reshape(found.shape) | ((found != found) & (wanted != wanted))
    wrong = np.argwhere(~same)
    assert not len(wrong), (*context, wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_written_in_every_layout(node: Node, arrays: Sequence[np.ndarray], wanted: np.ndarray) -> None:
    """What is asked for, and nothing beside it."""
    for name, form in LAYOUTS.items():
        parent = rubbish(TensorType(node.outputs[0].dtype, form.parent(wanted.shape)))
        expected = parent.copy()
        form.view(expected, wanted.shape)[...] = wanted
        carry_out(lowered(node), dict(zip(node.inputs, arrays, strict=True)), form.view(parent, wanted.shape))
        assert_same_bits(parent, expected, node.op.name, name)


# --- numbers ----------------------------------------------------------------------------------------------------------


def rough(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Full significands over many exponents: nearly every sum rounds."""
    return np.asarray(rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Few cells are infinite or NaN, so that most outputs have some and some have none."""
    unlike = rng.choice(np.array([np.inf, -np.inf, np.nan, -0.0, 0.0]), shape)
    return np.where(rng.random(shape) < 0.02, unlike, rough(rng, shape, np.dtype(np.float64))).astype(dtype)


def huge(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Sums overflow, or nearly."""
    info = np.finfo(dtype) if dtype.kind == "f" else np.finfo(np.float32)
    return np.asarray(rng.uniform(-0.6, 0.7, shape) * float(info.max)).astype(dtype)


def tiny(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Some ten steps above zero."""
    least = float(np.nextafter(np.zeros((), dtype), np.ones((), dtype)))
    return np.asarray(rng.integers(-9, 10, shape) * least).astype(dtype)

"""A call of PyTorch written out as a program that prints the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gradspec.conformance.call import Array, Call
from gradspec.conformance.targets.pytorch_functions import function
from gradspec.conformance.targets.source import arrays

COMPILE = "torch.compile(dynamic=False, fullgraph=True)"


def program(call: Call, channels_last: bool = False, compiled: bool = False) -> str:
    """The call as its users write it.

    >>> from gradspec.conformance.call import Problem
    >>> problem = Problem("max_pool", 1, ((1, 3),), {"kernel_size": (2,), "stride": (1,)})
    >>> print(program(Call(problem, "vjp", (np.float32([[1, np.nan, 2]]),), cotangent=np.float32([[1, 2]]))))
    from math import nan
    <BLANKLINE>
    import torch
    <BLANKLINE>
    x = torch.tensor([[1.0, nan, 2.0]])
    g = torch.tensor([[1.0, 2.0]])
    x.requires_grad_()
    y = torch.nn.functional.max_pool1d(x, kernel_size=(2,), stride=(1,))
    grad_x, = torch.autograd.grad(y, (x,), g)
    print("grad_x", tuple(grad_x.shape), grad_x.tolist())
    """
    given = arrays(call)
    lines = [line for name, array in given.items() for line in _tensor(name, array, call, channels_last)]
    lines += list(_asked(call, compiled))
    printed = call.problem.results(call.mode)
    if call.mode == "value" and call.variant != "with_indices":
        printed = ("y",)
    lines += [f'print("{name}", tuple({name}.shape), {name}.tolist())' for name in printed]
    return "\n".join([*_imports(given), *_helpers(call), *lines])


def _imports(given: dict[str, Array]) -> list[str]:
    floats = [array.astype(np.float64) for array in given.values()]
    words = [word for word, test in (("inf", np.isinf), ("nan", np.isnan)) if any(test(a).any() for a in floats)]
    return [*([f"from math import {', '.join(words)}", ""] if words else []), "import torch", ""]


# --- tensors ---------------------------------------------------------------------------------------------------------


def _tensor(name: str, array: Array, call: Call, channels_last: bool) -> Iterator[str]:
    rank = call.problem.rank
    yield f"{name} = {_written(array)}"
    if call.layout == "channels_last" and array.ndim > rank:
        yield f"{name} = {name}.movedim({-rank - 1}, -1).contiguous().movedim(-1, {-rank - 1})"
    if call.layout == "non_contiguous" and array.ndim:
        yield f"{name} = spread({name})"
    if channels_last and array.ndim == rank + 2:
        yield f"{name} = {name}.to(memory_format=torch.channels_last{'_3d' * (rank == 3)})"


def _helpers(call: Call) -> list[str]:
    if call.layout != "non_contiguous":
        return []
    return [
        "",
        "def spread(tensor):  # the same numbers with gaps between them in memory",
        "    places = tuple(slice(1, None, 2) for _ in tensor.shape)",
        "    memory = torch.zeros([2 * n + 1 for n in tensor.shape], dtype=tensor.dtype)",
        "    memory[places] = tensor",
        "    return memory[places]",
        "",
        "",
    ]


def _written(array: Array) -> str:
    dtype = "" if array.dtype in (np.float32, np.int64) else f", dtype=torch.{array.dtype.name}"
    if not array.size:
        return f"torch.zeros({array.shape}, dtype=torch.{array.dtype.name})"
    cells = _cells(array)
    if array.size > 8 and len(set(cells)) == 1:
        return f"torch.full({array.shape}, {cells[0]}{dtype})"
    return f"torch.tensor({_nested(cells, array.shape)}{dtype})"


def _nested(cells: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return cells[0]
    step = len(cells) // shape[0]
    parts = (_nested(cells[i : i + step], shape[1:]) for i in range(0, len(cells), step))
    return f"[{', '.join(parts)}]"


def _cells(array: Array) -> list[str]:
    """Numbers as short as they can be and still be read as the same ones."""
    write: Callable[[object], str] = _short if array.dtype == np.float32 else repr
    cells = array.ravel()
    return [write(cell) for cell in (cells if write is _short else cells.astype(_wide(array)).tolist())]


def _wide(array: Array) -> type:
    return np.int64 if array.dtype.kind in "iu" else np.float64


def _short(cell: object) -> str:
    """The shortest decimal of a float32, unless its way through float64 would round it to a neighbour."""
    text = str(cell)
    return text if np.isnan(cell) or np.float32(float(text)) == cell else repr(float(cell))  # type: ignore[call-overload, arg-type]


# --- calls -----------------------------------------------------------------------------------------------------------


def _asked(call: Call, compiled: bool) -> Iterator[str]:
    """The lines that compute the results from the tensors."""
    names, chosen = tuple(call.named()), call.problem.differentiable
    used = function(call.problem)
    used = used.with_indices() if call.variant == "with_indices" else used
    applied = _applied(call, names)
    if compiled and call.mode == "jvp":
        yield from _compiled_jvp(call, used.source(*names))
        return
    if compiled or call.mode == "jvp" or applied != f"f({', '.join(names)})":
        yield from _defined(used.source(*names), names, compiled)
    else:
        applied = used.source(*names)
    tensors = f"({', '.join(chosen)}{',' * (len(chosen) == 1)})"
    along = f"({', '.join('d' + name for name in chosen)}{',' * (len(chosen) == 1)})"
    yield from _MODES[call.mode](call, applied, tensors, along)


def _defined(body: str, names: tuple[str, ...], compiled: bool) -> list[str]:
    decorated = [f"@{COMPILE}"] if compiled else []
    return ["", "", *decorated, f"def f({', '.join(names)}):", f"    return {body}", "", ""]


def _compiled_jvp(call: Call, body: str) -> Iterator[str]:
    names, chosen = tuple(call.named()), call.problem.differentiable
    along = [f"d{name}" for name in chosen]
    yield from ["", "", f"@{COMPILE}", f"def tangent({', '.join([*names, *along])}):"]
    pairs = f"({', '.join(chosen)},), ({', '.join(along)},)"
    yield f"    return torch.func.jvp(lambda {', '.join(chosen)}: {body}, {pairs})[1]"
    yield from ["", "", f"dy = tangent({', '.join([*names, *along])})"]


def _applied(call: Call, names: tuple[str, ...]) -> str:
    """The operator on its inputs, as the variant calls it."""
    batched = 2 if call.problem.op == "max_unpool" else 1
    if call.variant == "samples":
        samples = [f"{name}[i]" for name in names[:batched]] + list(names[batched:])
        return f"torch.stack([f({', '.join(samples)}) for i in range(len(x))])"
    if call.variant == "vmap":
        axes = tuple(0 if place < batched else None for place in range(len(names)))
        return f"torch.vmap(f, in_dims={axes})({', '.join(names)})"
    return f"f({', '.join(names)})"


def _value(call: Call, applied: str, tensors: str, along: str) -> Iterator[str]:
    yield f"{'y, indices' if call.variant == 'with_indices' else 'y'} = {applied}"


def _jvp(call: Call, applied: str, tensors: str, along: str) -> Iterator[str]:
    taker = "torch.autograd.functional" if call.variant == "double_backward" else "torch.func"
    yield f"y, dy = {taker}.jvp({_of_chosen(call)}, {tensors}, {along})"


def _of_chosen(call: Call) -> str:
    """The function of the differentiable inputs alone."""
    names, chosen = tuple(call.named()), call.problem.differentiable
    return "f" if names == chosen else f"lambda {', '.join(chosen)}: f({', '.join(names)})"


def _vjp(call: Call, applied: str, tensors: str, along: str) -> Iterator[str]:
    chosen = call.problem.differentiable
    yield from (f"{name}.requires_grad_()" for name in chosen)
    yield f"y = {applied}"
    if call.variant == "one_by_one":
        yield from (f"grad_{name}, = torch.autograd.grad(y, {name}, g, retain_graph=True)" for name in chosen)
        return
    grads = ", ".join(f"grad_{name}" for name in chosen) + "," * (len(chosen) == 1)
    yield f"{grads} = torch.autograd.grad(y, {tensors}, g)"


def _second(call: Call, applied: str, tensors: str, along: str) -> Iterator[str]:
    chosen = call.problem.differentiable
    yield from (f"{name}.requires_grad_()" for name in (*chosen, "g"))
    yield f"y = {applied}"
    yield f"grads = torch.autograd.grad(y, {tensors}, g, create_graph=True)"
    names = ", ".join(call.problem.results("second"))
    yield f"{names} = torch.autograd.grad(grads, ({', '.join(chosen)}, g), {along}, materialize_grads=True)"


_MODES: dict[str, Callable[[Call, str, str, str], Iterator[str]]] = {
    "value": _value,
    "jvp": _jvp,
    "vjp": _vjp,
    "second": _second,
}

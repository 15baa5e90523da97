"""A call of PyTorch as its users write it: the lines that a reproducer prints are those that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.problem import Array, Call
from gradspec.conformance.targets.program import applied, nested_text


def compiled_by(backend: str) -> str:
    """The decorator of a function that is compiled for the shapes it is called with.

    >>> print(compiled_by("eager"))
    torch.compile(dynamic=False, fullgraph=True, backend='eager')
    """
    return applied(
        "torch.compile", dynamic=False, fullgraph=True, **({} if backend == "inductor" else {"backend": backend})
    )


def program(call: Call, body: str, channels_last: bool = False, compiled: bool = False, device: Device = HOST) -> str:
    """The call as its users write it; ``body`` is what gives the value.

    >>> from gradspec.conformance.model.problem import Problem
    >>> problem = Problem("max_pool", 1, ((1, 3),), {"kernel_size": (2,), "stride": (1,)})
    >>> call = Call(problem, "vjp", (np.float32([[1, np.nan, 2]]),), cotangent=np.float32([[1, 2]]))
    >>> print(program(call, "torch.max_pool1d(x, 2, 1)"))
    from math import nan
    <BLANKLINE>
    import torch
    <BLANKLINE>
    x = torch.tensor([[1.0, nan, 2.0]])
    g = torch.tensor([[1.0, 2.0]])
    x.requires_grad_()
    y = torch.max_pool1d(x, 2, 1)
    grad_x, = torch.autograd.grad(y, (x,), g)
    print("grad_x", tuple(grad_x.shape), grad_x.tolist())
    """
    given = call.arrays()
    lines = [line for name, array in given.items() for line in _tensor(name, array, call, channels_last, device)]
    definitions, statements = lines_of(call, body, compiled_by("inductor") if compiled else "")
    lines += [*(["", "", *definitions, "", ""] if definitions else []), *statements]
    lines += [f'print("{name}", tuple({name}.shape), {name}.tolist())' for name in results_of(call)]
    return "\n".join([*_imports(given), *(SPREAD if call.layout == "non_contiguous" else ()), *lines])


def results_of(call: Call) -> tuple[str, ...]:
    """The names of what the lines compute."""
    has_index = call.mode != "value" or call.variant == "with_indices"
    return call.problem.results(call.mode) if has_index else ("y",)


# --- tensors ---------------------------------------------------------------------------------------------------------

SPREAD = (
    "",
    "def spread(tensor):  # the same numbers with gaps between them in memory",
    "    places = tuple(slice(1, None, 2) for _ in tensor.shape)",
    "    memory = tensor.new_zeros([2 * n + 1 for n in tensor.shape])",
    "    memory[places] = tensor",
    "    return memory[places]",
    "",
    "",
)


def _imports(given: dict[str, Array]) -> list[str]:
    floats = [array.astype(np.float64) for array in given.values()]
    words = [word for word, test in (("inf", np.isinf), ("nan", np.isnan)) if any(test(a).any() for a in floats)]
    return [*([f"from math import {', '.join(words)}", ""] if words else []), "import torch", ""]


def _tensor(name: str, array: Array, call: Call, channels_last: bool, device: Device) -> Iterator[str]:
    rank = call.problem.rank_of(array.ndim)
    yield f"{name} = {device.entered(_written(array), 'torch')}"
    if call.layout == "channels_last" and array.ndim > rank:
        yield f"{name} = {name}.movedim({-rank - 1}, -1).contiguous().movedim(-1, {-rank - 1})"
    if call.layout == "non_contiguous" and array.ndim:
        yield f"{name} = spread({name})"
    if call.layout == "cropped" and array.ndim:
        yield f"{name} = torch.nn.functional.pad({name}, [1, 1] * {array.ndim})[{', '.join(['1:-1'] * array.ndim)}]"
    if call.layout == "broadcast" and array.ndim > rank:
        yield f"{name} = {name}[:1].expand({array.shape})"
    if channels_last and array.ndim == call.problem.rank + 2:
        yield f"{name} = {name}.to(memory_format=torch.channels_last{'_3d' * (rank == 3)})"


def _written(array: Array) -> str:
    """Numbers as short as they can be and still be read as the same ones."""
    dtype = "" if array.dtype in (np.float32, np.int64) else f", dtype=torch.{array.dtype.name}"
    if not array.size:
        return f"torch.zeros({array.shape}, dtype=torch.{array.dtype.name})"
    wide = np.int64 if array.dtype.kind in "iu" else np.float64
    is_short = array.dtype == np.float32
    cells = list(map(_short, array.ravel())) if is_short else list(map(repr, array.ravel().astype(wide).tolist()))
    if array.size > 8 and len(set(cells)) == 1:
        return f"torch.full({array.shape}, {cells[0]}{dtype})"
    return f"torch.tensor({nested_text(cells, array.shape)}{dtype})"


def _short(cell: np.float32) -> str:
    """The shortest decimal of a float32, unless its way through float64 would round it to a neighbour."""
    text = str(cell)
    return text if np.isnan(cell) or np.float32(float(text)) == cell else repr(float(cell))


# --- lines -----------------------------------------------------------------------------------------------------------


def lines_of(call: Call, body: str, decorator: str = "") -> tuple[list[str], list[str]]:
    """What is defined, with the decorator if there is one, and the lines that compute the results from the tensors."""
    names, chosen = tuple(call.named()), call.problem.differentiable
    along = [f"d{name}" for name in chosen]
    if decorator and body.startswith("("):  # the compiler gives no generators
        body = f"tuple{body}"
    if decorator and call.mode == "jvp":
        pairs, given = f"({', '.join(chosen)},), ({', '.join(along)},)", ", ".join([*names, *along])
        tangent = f"    return torch.func.jvp(lambda {', '.join(chosen)}: {body}, {pairs})[1]"
        return [f"@{decorator}", f"def tangent({given}):", tangent], [f"dy = tangent({given})"]
    applied, plain = _applied(call, names), f"f({', '.join(names)})"
    if not decorator and call.mode != "jvp" and applied == plain:
        return [], [*mode_lines(call.mode, call.variant, names, chosen, body)]
    defined = [f"def f({', '.join(names)}):", f"    return {body}"]
    decorated = [f"@{decorator}", *defined] if decorator else defined
    return decorated, [*mode_lines(call.mode, call.variant, names, chosen, applied)]


def _applied(call: Call, names: Sequence[str]) -> str:
    """The operator on its inputs, as the variant calls it."""
    batched = 2 if call.problem.op == "max_unpool" else 1
    if call.variant == "samples":
        samples = [f"{name}[i]" for name in names[:batched]] + list(names[batched:])
        return f"torch.stack([f({', '.join(samples)}) for i in range(len(x))])"
    if call.variant == "vmap":
        axes = tuple(0 if place < batched else None for place in range(len(names)))
        return f"torch.vmap(f, in_dims={axes})({', '.join(names)})"
    return f"f({', '.join(names)})"


def mode_lines(mode: str, variant: str, names: Sequence[str], chosen: Sequence[str], applied: str) -> Iterator[str]:
    """How PyTorch is asked for a value, or for derivatives by the ``chosen`` of the tensors that are named.

    ``applied`` is the value as it is written; a JVP needs the function ``f`` itself.
    """
    comma = "," * (len(chosen) == 1)
    tensors, along = (f"({', '.join(prefix + name for name in chosen)}{comma})" for prefix in ("", "d"))
    if mode == "value":
        yield f"{'y, indices' if variant == 'with_indices' else 'y'} = {applied}"
    elif mode == "jvp":
        taker = "torch.autograd.functional" if variant == "double_backward" else "torch.func"
        f = "f" if tuple(names) == tuple(chosen) else f"lambda {', '.join(chosen)}: f({', '.join(names)})"
        yield f"y, dy = {taker}.jvp({f}, {tensors}, {along})"
    else:
        yield from (f"{name}.requires_grad_()" for name in (*chosen, *(["g"] if mode == "second" else [])))
        yield f"y = {applied}"
        yield from _pulled(mode, variant, chosen, tensors, along)


def _pulled(mode: str, variant: str, chosen: Sequence[str], tensors: str, along: str) -> Iterator[str]:
    """The cotangents of the chosen tensors, or in mode ``second`` theirs."""
    if mode == "second":
        yield f"grads = torch.autograd.grad(y, {tensors}, g, create_graph=True)"
        names = ", ".join(f"second_{name}" for name in (*chosen, "g"))
        yield f"{names} = torch.autograd.grad(grads, ({', '.join(chosen)}, g), {along}, materialize_grads=True)"
    elif variant == "one_by_one":
        yield from (f"grad_{name}, = torch.autograd.grad(y, {name}, g, retain_graph=True)" for name in chosen)
    else:
        grads = ", ".join(f"grad_{name}" for name in chosen) + "," * (len(chosen) == 1)
        yield f"{grads} = torch.autograd.grad(y, {tensors}, g)"

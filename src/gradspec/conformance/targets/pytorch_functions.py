"""Which function of PyTorch a problem calls, with which arguments, and what PyTorch's documentation leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from gradspec.conformance.call import Problem
from gradspec.conformance.targets.windows import Windows, first_shape, spatial, windows
from gradspec.spec.window import per_axis


@dataclass(frozen=True)
class Function:
    """One function of PyTorch with its settings; ``squeezed`` are axes of size 1 that its result loses."""

    path: str
    settings: Mapping[str, Any]
    squeezed: tuple[int, ...] = ()

    def resolved(self) -> Callable[..., Any]:
        """The function of tensors itself: plain Python, as ``torch.compile`` wants it."""
        import torch

        function, settings, axes = attrgetter(self.path)(torch), dict(self.settings), self.squeezed

        def call(*tensors: Any) -> Any:
            given = function(*tensors, **settings)
            if not axes:
                return given
            return tuple(part.squeeze(axes) for part in given) if isinstance(given, tuple) else given.squeeze(axes)

        return call

    def source(self, *names: str) -> str:
        """The call as it is written, on tensors of these names."""
        settings = [f"{name}={value!r}" for name, value in self.settings.items()]
        call = f"torch.{self.path}({', '.join([*names, *settings])})"
        if not self.squeezed:
            return call
        squeezed = f"squeeze({self.squeezed})"
        return f"(part.{squeezed} for part in {call})" if "return_indices" in self.settings else f"{call}.{squeezed}"

    @property
    def has_indices(self) -> bool:
        return "max_pool" in self.path

    def with_indices(self) -> Function:
        return replace(self, settings={**self.settings, "return_indices": True})


def function(problem: Problem) -> Function:
    """The call a user of PyTorch writes for a problem that is offered.

    >>> problem = Problem("max_pool", 2, ((1, 2, 5, 5),), {"kernel_size": (2, 2), "padding": ((1, 1), (0, 0))})
    >>> function(problem).source("x")
    'torch.nn.functional.max_pool2d(x, kernel_size=(2, 2), padding=(1, 0))'
    """
    return _FUNCTIONS[problem.op](problem)


# --- settings --------------------------------------------------------------------------------------------------------


def keeps_sizes(axes: Windows) -> bool:
    """Whether the padding is the one that PyTorch calls ``"same"``: stride 1, and an odd cell more at the end."""
    same = tuple((total // 2, total - total // 2) for total in axes.overhang)
    return set(axes.stride) == {1} and axes.padding == same


def is_symmetric(axes: Windows) -> bool:
    return all(lo == hi for lo, hi in axes.padding)


def _unless(usual: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Settings that differ from what PyTorch takes by default."""
    return {name: value for name, value in settings.items() if value != usual.get(name)}


def _sliding(problem: Problem, **more: Any) -> dict[str, Any]:
    axes, rank = windows(problem), problem.rank
    ones, zeros = (1,) * rank, (0,) * rank
    pooled = problem.op.endswith("pool")
    usual = {"stride": axes.kernel if pooled else ones, "padding": zeros, "dilation": ones}
    padding = tuple(lo for lo, _ in axes.padding) if is_symmetric(axes) else "same"
    settings = _unless(usual, stride=axes.stride, padding=padding, dilation=axes.dilation)
    return {**settings, **{name: value for name, value in more.items() if value}}


def _pool(problem: Problem) -> Function:
    given = problem.attributes
    more = {"ceil_mode": given.get("ceil_mode", False), "divisor_override": given.get("divisor_override")}
    settings = {"kernel_size": tuple(given["kernel_size"]), **_sliding(problem, **more)}
    if not given.get("count_include_pad", True):
        settings["count_include_pad"] = False
    return Function(f"nn.functional.{problem.op}{problem.rank}d", settings)


def _adaptive(problem: Problem) -> Function:
    sizes = tuple(problem.attributes["output_size"])
    if problem.rank == 1:  # one axis cannot be left as it is: the documentation knows no None there
        sizes = tuple(n if m is None else m for n, m in zip(spatial(problem), sizes, strict=True))
    return Function(f"nn.functional.{problem.op}{problem.rank}d", {"output_size": sizes})


def _global(problem: Problem) -> Function:
    axes, keep = tuple(range(-problem.rank, 0)), bool(problem.attributes.get("keepdims", True))
    if _is_split(problem) or problem.rank > 3:
        path = "amax" if problem.op == "global_max_pool" else "mean"
        return Function(path, {"dim": axes, **({"keepdim": True} if keep else {})})
    kind = problem.op.removeprefix("global_")
    one = {"output_size": (1,) * problem.rank}
    return Function(f"nn.functional.adaptive_{kind}{problem.rank}d", one, () if keep else axes)


def _conv(problem: Problem) -> Function:
    given = problem.attributes
    more: dict[str, Any] = {}
    if problem.op == "conv_transpose":
        extra = per_axis("output_padding", given.get("output_padding", 0), problem.rank, least=0)
        more["output_padding"] = extra if any(extra) else None
    more["groups"] = None if given.get("groups", 1) == 1 else given["groups"]
    return Function(f"nn.functional.{problem.op}{problem.rank}d", _sliding(problem, **more))


def _unpool(problem: Problem) -> Function:
    kernel, stride = zip(*(_unpooling(*axis) for axis in _unpooled_axes(problem)), strict=True)
    sizes = {"kernel_size": kernel, "stride": stride, "output_size": tuple(problem.attributes["output_size"])}
    return Function(f"nn.functional.max_unpool{problem.rank}d", sizes)


def _unpooled_axes(problem: Problem) -> list[tuple[int, int]]:
    return list(zip(spatial(problem), problem.attributes["output_size"], strict=True))


def _unpooling(n: int, size: int) -> tuple[int, int]:
    """A kernel and stride whose pooling takes ``size`` cells to ``n``; the kernel is 0 where there is none."""
    stride = max(size // n, 1)
    return max(size - (n - 1) * stride, 0), stride


def _columns(problem: Problem) -> Function:
    given = problem.attributes
    first = {"output_size": tuple(given["output_size"])} if problem.op == "fold" else {}
    settings = {**first, "kernel_size": tuple(given["kernel_size"]), **_sliding(problem)}
    return Function(f"nn.functional.{problem.op}", settings)


_FUNCTIONS: dict[str, Callable[[Problem], Function]] = {
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_max_pool": _adaptive,
    "adaptive_avg_pool": _adaptive,
    "global_max_pool": _global,
    "global_avg_pool": _global,
    "conv": _conv,
    "conv_transpose": _conv,
    "max_unpool": _unpool,
    "unfold": _columns,
    "fold": _columns,
}


def _is_split(problem: Problem) -> bool:
    return bool(problem.attributes.get("ties") == "split")


# --- what is not offered ---------------------------------------------------------------------------------------------


def undocumented(problem: Problem, mode: str) -> str | None:
    """Why PyTorch's documentation has no such call; None where it has.

    >>> undocumented(Problem("max_pool", 4, ((1, 1, 2, 2, 2, 2),), {"kernel_size": (2, 2, 2, 2)}), "value")
    'max_pool is documented for one to three spatial axes'
    """
    return next(_reasons(problem, mode), None)


def _reasons(problem: Problem, mode: str) -> Iterator[str]:
    op, given = problem.op, problem.attributes
    if op not in _FUNCTIONS:
        yield f"PyTorch has no {op}"
        return
    yield from _wrong_axes(problem)
    ties = given.get("ties", "first")
    if mode != "value" and not (ties == "first" or (ties == "split" and op == "global_max_pool")):
        yield f'no function of PyTorch pools with ties="{ties}" over these windows'
    if op in ("max_pool", "avg_pool", "conv", "conv_transpose", "unfold", "fold"):
        yield from _wrong_windows(problem)
    if op == "max_unpool" and not all(_unpooling(*axis)[0] for axis in _unpooled_axes(problem)):
        yield "max_unpool is documented for output sizes that a pooling takes to the input's"


def _wrong_axes(problem: Problem) -> Iterator[str]:
    op, rank, shape = problem.op, problem.rank, first_shape(problem)
    if function_of_any_rank(problem):
        return
    if op in ("unfold", "fold") and rank != 2:
        yield f"{op} is documented for two spatial axes"
    if rank > 3:
        yield f"{op} is documented for one to three spatial axes"
    own = 1 if op == "fold" else rank  # the columns of a fold have one axis for all places
    if len(shape) - own not in (1, 2):
        yield f"{op} is documented for one batch axis or none, and one channel axis"
    if op == "unfold" and len(shape) == rank + 1:
        yield "unfold is documented for batches"
    if 0 in shape[-own - 1 :] and op != "conv":
        yield f"{op} takes an empty batch, and no other empty axis"
    outputs = {"conv": 0, "conv_transpose": 1}.get(op)
    if outputs is not None and (problem.shapes[1] or ())[outputs] == 0:
        yield f"{op} takes no weight without output channels"


def function_of_any_rank(problem: Problem) -> bool:
    """Whether the problem is a reduction over the last axes: ``mean`` or ``amax``."""
    if problem.op == "global_max_pool":
        return _is_split(problem)
    return problem.op == "global_avg_pool" and problem.rank > 3


def _wrong_windows(problem: Problem) -> Iterator[str]:
    op, axes = problem.op, windows(problem)
    if not is_symmetric(axes) and not (op == "conv" and keeps_sizes(axes)):
        yield f"{op} is documented for equal padding on both sides of an axis"
    if not op.endswith("pool"):
        return
    if any(2 * lo > k for (lo, _), k in zip(axes.padding, axes.kernel, strict=True)):
        yield f"{op} is documented for padding of at most half the kernel"
    if op == "avg_pool" and set(axes.dilation) != {1}:
        yield "avg_pool has no dilation"
    if op == "avg_pool" and problem.rank == 1 and problem.attributes.get("divisor_override") is not None:
        yield "avg_pool1d has no divisor_override"


def has_batch(problem: Problem) -> bool:
    """Whether the first axis of x is a batch of at least one sample."""
    shape = first_shape(problem)
    own = 1 if problem.op == "fold" else problem.rank
    return len(shape) == own + 2 and shape[0] > 0


def smallest(op: str, rank: int, dtype: str) -> Problem:
    """A problem of few cells that PyTorch offers, for each operator and rank that it has."""
    one, two = (1,) * rank, (2,) * rank
    x = (1, 1, 1) if op == "fold" else (1, 1, *two)
    shapes: tuple[tuple[int, ...] | None, ...] = (x,)
    if op in ("conv", "conv_transpose"):
        shapes = (x, (1, 1, *one), (1,))
    elif op == "max_unpool":
        shapes = (x, x)
    attributes: dict[str, Any] = {}
    if op in ("max_pool", "avg_pool", "unfold", "fold"):
        attributes["kernel_size"] = one if op == "fold" else two
    if op.startswith("adaptive") or op in ("max_unpool", "fold"):
        attributes["output_size"] = two if op == "max_unpool" else one
    if op.startswith("global"):
        attributes["rank"] = rank
    return Problem(op, rank, shapes, attributes, dtype)

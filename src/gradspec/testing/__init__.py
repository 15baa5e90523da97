"""Testing one's own kernels: `check_kernel` in any test, and a fixture of that name for pytest.

    def test_max_pool(check_kernel):
        check_kernel(my_max_pool, op="max_pool2d")

``docs/check_your_kernel.md`` tells how kernels are called and how findings are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any
from warnings import warn

if TYPE_CHECKING:
    from gradspec.conformance.model.run import Run
    from gradspec.conformance.targets.reference.kernel import ReferenceKernel
    from gradspec.conformance.targets.user.target import UserKernels

__all__ = ["FewCasesWarning", "check_kernel"]

DEFAULT_CASES = 300


class FewCasesWarning(UserWarning):
    """So few cases were judged that a kernel which passed them may still be wrong."""


def check_kernel(
    kernel: object,
    op: str | None = None,
    *,
    spec: object = None,
    inputs: object = None,
    params: str | None = None,
    array: str | None = None,
    arithmetic: Mapping[str, Any] | str | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    cases: int | None = DEFAULT_CASES,
    seconds: float | None = None,
    at_least: int = 0,
    seed: int = 0,
    ops: Iterable[str] = (),
    features: Iterable[str] = (),
    modes: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    ranks: Iterable[int] = (),
    blocks: Iterable[int] = (),
    allow: Iterable[str] = (),
    conventions: Iterable[str] = (),
    algorithm: str | None = None,
    strict: bool | None = None,
    timeout: float = 60.0,
    device: str = "cpu",
    isolate: bool = True,
    **domain: object,
) -> Run:
    """Judge a kernel, and raise an ``AssertionError`` that reports every defect by its smallest case.

    The kernel is a function named after an operator of ``gs.spec``, or any function with ``op`` naming it; ``jvp`` and
    ``vjp`` are its derivatives. Or it is a module, an instance or a mapping with such functions. Other keywords are
    attributes and axes, ``kernel_size={(3, 3)}``: the domain that cases are drawn from, instead of what the object
    declares.

    With ``spec``, it is any kernel, judged by that reference: a function of ``gs``, PyTorch or JAX, an ``nn.Module``, a
    graph, an ONNX file. ``inputs`` are types, ``"f32[8,64],f32[64]"`` or ``[gs.f32[8, 64], …]``, several lists of them,
    or a function that draws arrays from a random generator. ``params="inputs"`` gives it the parameters of the
    reference as arguments.

    ``array`` names the library whose arrays the kernel takes, ``"torch"``, ``"jax"`` or ``"cupy"``, and
    ``device="cuda"`` puts them on a GPU.

    A run ends after ``cases`` or ``seconds``; fewer judged cases of a mode than ``at_least`` fail. If ``strict``
    is not False, a choice other than the specification's is a defect, but for those that ``conventions`` names.
    ``arithmetic`` has keywords of ``gradspec.conformance.Arithmetic.of``; with ``spec``, it may be ``"triton"``,
    ``"cuda"`` or ``"cuda_fast_math"``, which is found by the kernel's library and device otherwise. The kernel runs in
    a copy of this process, so that a crash, or a call of more than ``timeout`` seconds, is a defect; with
    ``isolate=False`` it runs here, for a debugger.

    >>> def scaled_relu(x, scale):
    ...     return np.maximum(x, 0) * scale
    >>> check_kernel(scaled_relu, spec=lambda x, s: gs.relu(x) * s, inputs="f32[8,64],f32[64]", cases=50).findings
    []
    """
    __tracebackhide__ = True  # pytest then shows the finding, and not this function
    declared = {"conventions": tuple(conventions), "arithmetic": arithmetic}
    from gradspec.conformance.campaign.request import require_spec

    require_spec(spec, inputs=inputs, params=params)
    if spec is None:
        own = {**declared, "dtypes": tuple(dtypes), "array": array}
        target: Any = _target(kernel, op, jvp, vjp, strict, domain, own)
        ops, modes, dtypes = tuple(ops) or target.ops, tuple(modes) or target.modes, target.dtypes
        ranks = tuple(ranks) or target.ranks
    else:
        target = _reference_kernel(spec, inputs, kernel, params, array, jvp, vjp)
        target.declaring(**declared, strict=strict is not False, **domain)
    limits = {"cases": cases, "seconds": seconds, "at_least": at_least, "seed": seed, "timeout": timeout}
    chosen = {"ops": ops, "features": features, "modes": modes, "dtypes": dtypes, "ranks": ranks, "sizes": blocks}
    return _run_judge(target, isolate, allow=allow, algorithm=algorithm, device=device, **limits, **chosen)


def _run_judge(target: Any, isolate: bool, **options: Any) -> Run:
    """The run, if it is clean; what it found as an error otherwise."""
    __tracebackhide__ = True
    from gradspec.conformance.campaign.check import check
    from gradspec.conformance.report.words import too_few

    run = check(target, isolate=isolate and _can_be_isolated(target.name), **options)
    run.target, run.repeat = target.name, ""  # no command has this object
    if run.by_kind("defect"):
        raise AssertionError(_terminal_text(run))
    if run.errors:
        raise RuntimeError(f"not all cases could be judged: {'; '.join(run.errors)}")
    if not run.tally.judged:
        raise ValueError(f"no case could be judged: {_reasons(run)}")
    if run.lacks:
        raise AssertionError(f"{run.target}: {too_few(run)}")
    if run.is_small:
        warn(f"{run.target}: {too_few(run)}", FewCasesWarning, stacklevel=3)
    return run


def _can_be_isolated(name: str) -> bool:
    from gradspec.system.forking import unforkable

    why = unforkable()
    if why:
        text = f"{name} is judged in this process, which a crash would end: {why}. isolate=False says that it is meant"
        warn(text, RuntimeWarning, stacklevel=4)
    return not why


def _target(
    kernel: object,
    op: str | None,
    jvp: Callable[..., Any] | None,
    vjp: Callable[..., Any] | None,
    strict: bool | None,
    domain: Mapping[str, Any],
    own: Mapping[str, Any],
) -> UserKernels:
    from gradspec.conformance.model.domain import KernelDomain
    from gradspec.conformance.targets.user.target import UserKernels

    target = UserKernels(kernel, op=op, jvp=jvp, vjp=vjp)
    KernelDomain.of(**domain)  # before anything else, whether it can be meant
    is_strict = target.declared("strict", True) if strict is None else strict
    # What raises NotImplementedError is found out beforehand, so that cases are made of the rest.
    return target.declaring(**own, strict=is_strict, is_tried=True, **domain)


def _reference_kernel(spec: Any, inputs: Any, kernel: Any, *more: Any) -> ReferenceKernel:
    from gradspec.conformance.targets.reference.kernel import ReferenceKernel

    params, array, jvp, vjp = more
    return ReferenceKernel(kernel, spec, inputs, params=params, array=array, jvp=jvp, vjp=vjp)


def _reasons(run: Run) -> str:
    reasons = [reason for reason, _ in run.tally.not_offered.most_common(3)]
    reasons = reasons or [f"it offers no {mode} of {op}" for op, mode in run.lacking]
    return "; ".join(reasons) or "none was made in time"


def _terminal_text(run: Run) -> str:
    """The run as the terminal shows it."""
    from rich.console import Console

    from gradspec.conformance.report.terminal import show

    page = StringIO()
    show(run, Console(file=page, width=100, color_system=None))
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    worst, more = run.by_kind("defect")[0].title, len(run.by_kind("defect")) - 1
    return "\n".join([f"{run.target}: {worst}" + (f" (and {more} more)" if more else ""), *lines])

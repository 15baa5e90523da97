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
    from gradspec.conformance.targets.user.target import UserKernels

DEFAULT_CASES = 300


class FewCasesWarning(UserWarning):
    """So few cases were judged that a kernel which passed them may still be wrong."""


def check_kernel(
    kernel: Any,
    op: str | None = None,
    *,
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
    isolate: bool = True,
    **domain: Any,
) -> Run:
    """Judge a kernel, and raise an ``AssertionError`` that tells every defect by its smallest case.

    The kernel is a function, named as an operator of ``gs.spec`` or with ``op`` saying which it is, and ``jvp`` and
    ``vjp`` its derivatives; or a module, an instance or a mapping with such functions. A run ends after so many cases
    or seconds; a seed gives the same cases. Fewer judged cases than ``at_least`` fail; few of them, because time
    ended the run, are a `FewCasesWarning`. ``ops``, ``features``, ``modes``, ``dtypes`` and ``ranks`` choose among
    them. Unless ``strict`` is False, here or in the object itself, a choice that is not the specification's (another
    tie rule, say) is a defect, save those that ``conventions`` names. ``algorithm`` says how sums are computed, if not
    term by term: ``"fft"``, ``"winograd"``, ``"integral_image"`` or ``"prefix_sum"``. Other keywords are attributes and
    axes, ``kernel_size={(3, 3)}`` or ``channels=range(8, 1025, 8)``: the domain that cases are drawn from, instead of
    what the object declares. ``blocks`` are sizes of its tiles, around which there are cases then.

    The kernel runs in a copy of this process: a call that crashes, or does not end within ``timeout`` seconds, is a
    defect, and the other cases go on. With ``isolate=False`` it runs here, for a debugger.

    >>> import numpy as np
    >>> def first_half(x, kernel_size, stride):
    ...     return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :].max(-1)
    >>> run = check_kernel(first_half, "max_pool1d", cases=50, dtypes=["f32"])
    >>> run.cases, run.findings
    (50, [])
    """
    __tracebackhide__ = True  # pytest then shows the finding, and not this function
    from gradspec.conformance.campaign.check import check
    from gradspec.conformance.report.words import too_few

    target = _target(kernel, op, jvp, vjp, dtypes, conventions, strict, domain)
    run = check(
        target,
        cases=cases,
        seconds=seconds,
        at_least=at_least,
        seed=seed,
        ops=tuple(ops) or target.ops,
        features=features,
        modes=tuple(modes) or target.modes,
        dtypes=target.dtypes,
        ranks=tuple(ranks) or target.ranks,
        sizes=blocks,
        allow=allow,
        algorithm=algorithm,
        timeout=timeout,
        isolate=isolate and _can_be_isolated(target.name),
    )
    run.target, run.repeat = target.name, ""  # no command has this object
    if run.by_kind("defect"):
        raise AssertionError(_told(run))
    if run.errors:
        raise RuntimeError(f"not all cases could be judged: {'; '.join(run.errors)}")
    if not run.tally.judged:
        raise ValueError(f"no case could be judged: {_reasons(run)}")
    if run.lacks:
        raise AssertionError(f"{run.target}: {too_few(run)}")
    if run.is_small:
        warn(f"{run.target}: {too_few(run)}", FewCasesWarning, stacklevel=2)
    return run


def _can_be_isolated(name: str) -> bool:
    from gradspec.system.forking import unforkable

    why = unforkable()
    if why:
        text = f"{name} is judged in this process, which a crash would end: {why}. isolate=False says that it is meant"
        warn(text, RuntimeWarning, stacklevel=3)
    return not why


def _target(
    kernel: Any,
    op: str | None,
    jvp: Callable[..., Any] | None,
    vjp: Callable[..., Any] | None,
    dtypes: Iterable[str],
    conventions: Iterable[str],
    strict: bool | None,
    domain: Mapping[str, Any],
) -> UserKernels:
    from gradspec.conformance.model.domain import KernelDomain
    from gradspec.conformance.targets.user.target import UserKernels

    target = UserKernels(kernel, op=op, jvp=jvp, vjp=vjp)
    KernelDomain.of(**domain)  # before anything else, whether it can be meant
    is_strict = target.declared("strict", True) if strict is None else strict
    # What raises NotImplementedError is found out beforehand, so that cases are made of the rest.
    own = {"dtypes": tuple(dtypes), "conventions": tuple(conventions), "strict": is_strict, "is_tried": True}
    return target.declaring(**own, **domain)


def _reasons(run: Run) -> str:
    return "; ".join(reason for reason, _ in run.tally.not_offered.most_common(3)) or "none was made in time"


def _told(run: Run) -> str:
    """The run as the terminal shows it."""
    from rich.console import Console

    from gradspec.conformance.report.terminal import show

    page = StringIO()
    show(run, Console(file=page, width=100, color_system=None))
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    worst, more = run.by_kind("defect")[0].title, len(run.by_kind("defect")) - 1
    return "\n".join([f"{run.target}: {worst}" + (f" (and {more} more)" if more else ""), *lines])

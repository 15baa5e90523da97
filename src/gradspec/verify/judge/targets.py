"""Who is judged: something that bounds networks over boxes."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from typing import ClassVar

import numpy as np

from gradspec.conformance.model.problem import Array
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets.program import Code, scope_of
from gradspec.conformance.targets.torch.functions import function, undocumented
from gradspec.interop.extras import require
from gradspec.verify.judge.cases import BoundsCase, weights_of
from gradspec.verify.judge.networks import MODULES, arrays, network, program

EXACT, KERNEL, PERMITTED = "exact", "kernel", "permitted"
"""What bounds must contain: exact values, those of our compiled kernels, all that the tolerance permits a kernel."""

Ends = tuple[Array, Array]


class BoundsTarget(ABC):
    """Something that gives lower and upper bounds, by one or several methods."""

    name: str
    packages: tuple[str, ...] = ()
    methods: ClassVar[dict[str, tuple[str, ...]]]
    """Each method with what its bounds must contain."""

    def versions(self) -> str:
        return ", ".join(f"{package} {_version(package)}" for package in self.packages)

    def refusal(self, case: BoundsCase) -> str | None:
        """Why such a case is not offered, by the documentation; None where it is."""
        return None

    @abstractmethod
    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        """Lower and upper bounds over the box; ``NotOfferedError`` where they are refused."""

    @abstractmethod
    def reproducer(self, case: BoundsCase, method: str, box: Ends) -> str:
        """A program that prints the bounds."""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # imported from a folder
        return str(getattr(import_module(package), "__version__", "of unknown version"))


class OurBounds(BoundsTarget):
    """``gs.bounds``."""

    name = "bounds"
    packages = ("gradspec", "numpy")
    methods: ClassVar = {
        "boxes any": (EXACT, KERNEL, PERMITTED),
        "crown any": (EXACT, KERNEL, PERMITTED),
        "alpha any": (EXACT, KERNEL, PERMITTED),
        "crown real": (EXACT,),
    }

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        given = {**MODULES, **weights_of(case), "lower": box[0], "upper": box[1]}
        found = scope_of([*network(case), _asked(method)], given)["found"]
        return found.lower, found.upper

    def reproducer(self, case: BoundsCase, method: str, box: Ends) -> str:
        shown = "print(found.lower.tolist(), found.upper.tolist())"
        imports = ["import gradspec as gs", "import numpy as np"]
        return program(imports, arrays(case, box), network(case), [_asked(method), shown])


def _asked(method: str) -> str:
    how, kernels = method.split()
    return f'found = gs.bounds(graph, lower, upper, method="{how}", kernels="{kernels}")'


class LirpaBounds(BoundsTarget):
    """auto_LiRPA's bounds of the same network in PyTorch.

    Its documentation does not say which modules it takes, so that every exception is a refusal.
    """

    name = "auto_lirpa"
    packages = ("auto_LiRPA", "torch")
    methods: ClassVar = {"IBP": (EXACT, KERNEL), "CROWN": (EXACT, KERNEL)}

    def __init__(self) -> None:
        require("torch", "gradspec check auto_lirpa")
        require("auto_LiRPA", "gradspec check auto_lirpa")

    def refusal(self, case: BoundsCase) -> str | None:
        problems = [problem for _, problem in case.shapes() if problem is not None]
        return next((why for why in (undocumented(problem, "value") for problem in problems) if why), None)

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        modules = {name: import_module(name) for name in ("torch", "auto_LiRPA")}
        given = {"np": np, **modules, **weights_of(case), "lower": box[0], "upper": box[1]}
        try:
            with _silence():
                lower, upper = scope_of([*_module(case), *_perturbed(method)], given)["found"]
        except Exception as error:
            said = re.sub(r"\d+", "n", str(error).strip().partition("\n")[0])
            raise NotOfferedError(f"{type(error).__name__}: {said}"[:120].rstrip(": ")) from error
        return lower.detach().numpy(), upper.detach().numpy()

    def reproducer(self, case: BoundsCase, method: str, box: Ends) -> str:
        imports = ["import auto_LiRPA", "import numpy as np", "import torch"]
        return program(imports, arrays(case, box), _module(case), [*_perturbed(method), "print(*found)"])


@contextmanager
def _silence() -> Iterator[None]:
    """It warns about bounds it replaces and about itself, which the judge sees from the bounds."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


def _module(case: BoundsCase) -> list[str]:
    """The network as a module of PyTorch."""
    lines = ["class Net(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{name} = torch.nn.Parameter(torch.tensor({name}))" for name in weights_of(case)]
    lines.append("    def forward(self, x):")
    for place, (step, (_, problem)) in enumerate(zip(case.steps, case.shapes(), strict=False)):
        if step.op in ("conv", "conv_transpose", "linear"):
            bias = f"self.bias{place}" if f"bias{place}" in weights_of(case) else None
            lines.append(f"        weight, bias = self.weight{place}, {bias}")
        call = Code("torch.relu(x)" if step.op == "relu" else "torch.nn.functional.linear(x.flatten(1), weight, bias)")
        lines.append(f"        x = {call if problem is None else function(problem)}")
    return [*lines, "        return x"]


def _perturbed(method: str) -> list[str]:
    return [
        "model = auto_LiRPA.BoundedModule(Net().eval(), torch.tensor(lower))",
        "ends = {'x_L': torch.tensor(lower), 'x_U': torch.tensor(upper)}",
        "box = auto_LiRPA.PerturbationLpNorm(norm=np.inf, **ends)",
        "x = auto_LiRPA.BoundedTensor(torch.tensor(lower), box)",
        f"found = model.compute_bounds(x=(x,), method={method!r})",
    ]


TARGETS: dict[str, tuple[type[BoundsTarget], tuple[str, ...]]] = {
    "bounds": (OurBounds, ()),
    "auto_lirpa": (LirpaBounds, ("auto_LiRPA", "torch")),
}
"""The targets that are known by name, with the packages they need."""

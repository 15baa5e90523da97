"""What is judged: something that bounds networks over boxes. The lines of a program are both run and printed."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.conformance.model.geometry import OPERATORS, spelled
from gradspec.conformance.model.problem import Array
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets.program import Code, applied, literal, scope_of
from gradspec.conformance.targets.torch.functions import function, undocumented
from gradspec.graph.types import DTYPES
from gradspec.interop.extras import require
from gradspec.ops.linear import linear
from gradspec.ops.pointwise import relu
from gradspec.ops.shape import flatten
from gradspec.transforms.trace import trace
from gradspec.verify.bounds import bounds
from gradspec.verify.judge.cases import BoundsCase, Ends, weights_of

EXACT, KERNEL, PERMITTED = "exact", "kernel", "permitted"
"""What bounds must contain: exact values, those of our compiled kernels, all that the tolerance permits a kernel."""
_OURS = {**OPERATORS, **DTYPES, "relu": relu, "linear": linear, "flatten": flatten, "trace": trace, "bounds": bounds}
MODULES = {"gs": SimpleNamespace(**_OURS), "np": np}
"""What programs import."""


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


def network(case: BoundsCase) -> list[str]:
    """The lines that define the network as a function ``net`` of ours, and its ``graph``."""
    lines = ["def net(x):"]
    for i, step in enumerate(case.steps):
        operands = [Code(name if name == "x" else f"{name}{i}") for name in step.named_shapes()]
        if step.op == "linear":
            operands[0] = Code("gs.flatten(x, 1)")
        settings = {} if step.signature else spelled(step)
        lines.append(f"    x = {applied(f'gs.{step.op}', *operands, **settings)}")
    return [*lines, "    return x", f"graph = gs.trace(net, gs.f32{list(case.shape)})"]


def _operands(case: BoundsCase, box: Ends) -> dict[str, Array]:
    return {**weights_of(case), "lower": box[0], "upper": box[1]}


def _program(imports: str, case: BoundsCase, box: Ends, *parts: list[str]) -> str:
    """A program that can be copied: imports, arrays and other lines, with a blank line between the parts."""
    assignments = [f"{name} = {literal(array)}" for name, array in _operands(case, box).items()]
    return "\n\n".join([imports, *map("\n".join, (assignments, *parts))])


class OurBounds(BoundsTarget):
    """``gs.bounds``."""

    name = "bounds"
    packages = ("gradspec", "numpy")
    methods: ClassVar = {
        **dict.fromkeys(("boxes any", "crown any", "alpha any"), (EXACT, KERNEL, PERMITTED)),
        "crown real": (EXACT,),
    }

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        lines = [*network(case), self._call(method)]
        result = scope_of(lines, {**MODULES, **_operands(case, box)})["found"]
        return result.lower, result.upper

    def reproducer(self, case: BoundsCase, method: str, box: Ends) -> str:
        lines = [self._call(method), "print(found.lower.tolist(), found.upper.tolist())"]
        return _program("import gradspec as gs\nimport numpy as np", case, box, network(case), lines)

    @staticmethod
    def _call(method: str) -> str:
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
        return next(filter(None, (undocumented(step, "value") for step in case.operators)), None)

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        scope = {"np": np, **{name: import_module(name) for name in self.packages}, **_operands(case, box)}
        # It warns about bounds it replaces and about itself, which the judge sees from the bounds.
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            try:
                lower, upper = scope_of([*_module(case), *self._call(method)], scope)["found"]
            except Exception as error:
                words = re.sub(r"\d+", "n", str(error).strip().partition("\n")[0])
                raise NotOfferedError(f"{type(error).__name__}: {words}"[:120].rstrip(": ")) from error
        return lower.detach().numpy(), upper.detach().numpy()

    def reproducer(self, case: BoundsCase, method: str, box: Ends) -> str:
        imports = "import auto_LiRPA\nimport numpy as np\nimport torch"
        return _program(imports, case, box, _module(case), [*self._call(method), "print(*found)"])

    @staticmethod
    def _call(method: str) -> list[str]:
        return [
            "model = auto_LiRPA.BoundedModule(Net().eval(), torch.tensor(lower))",
            "ends = {'x_L': torch.tensor(lower), 'x_U': torch.tensor(upper)}",
            "box = auto_LiRPA.PerturbationLpNorm(norm=np.inf, **ends)",
            "x = auto_LiRPA.BoundedTensor(torch.tensor(lower), box)",
            f"found = model.compute_bounds(x=(x,), method={method!r})",
        ]


def _module(case: BoundsCase) -> list[str]:
    """The network as a module of PyTorch."""
    lines = ["class Net(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{name} = torch.nn.Parameter(torch.tensor({name}))" for name in weights_of(case)]
    lines.append("    def forward(self, x):")
    others = {"relu": "torch.relu(x)", "linear": "torch.nn.functional.linear(x.flatten(1), weight, bias)"}
    for i, step in enumerate(case.steps):
        if "weight" in step.named_shapes():
            bias = f"self.bias{i}" if "bias" in step.named_shapes() else None
            lines.append(f"        weight, bias = self.weight{i}, {bias}")
        lines.append(f"        x = {others.get(step.op) or function(step)}")
    return [*lines, "        return x"]


TARGETS: dict[str, type[BoundsTarget]] = {"bounds": OurBounds, "auto_lirpa": LirpaBounds}
"""The targets that are known by name."""

"""How a kernel is called in each library: a few lines of Python, which are run and which reproducers show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.problem import ON_NANS, Call
from gradspec.conformance.targets.program import assignments, imports, scope_of
from gradspec.system.hosting import HostedFunction

ENTERED = {
    "numpy": "{}",
    "torch": "torch.from_numpy({})",
    "jax": "jnp.asarray({})",
    "cupy": "cupy.asarray({})",
}
ARRAYS = tuple(ENTERED)
"""The libraries whose arrays a kernel may take."""
"""An array of NumPy as one of the library."""
_BFLOAT16 = "torch.from_numpy({}.view(np.int16)).view(torch.bfloat16)"
IMPORTS = {
    "numpy": (),
    "torch": ("import torch",),
    "jax": ("import jax", "import jax.numpy as jnp"),
    "cupy": ("import cupy",),
}

HOSTED_MODULES = {
    "torch": [("torch", "torch")],
    "jax": [("jax", "jax"), ("jnp", "jax.numpy")],
}
"""What the lines name, by the modules that it is."""
BARE = ("numpy", "cupy")
"""Libraries without derivatives: a kernel brings its own."""
_GRADIENTS = [
    "def gradients(y, x, g, **more):",
    "    found = torch.autograd.grad(y, x, g, allow_unused=True, **more)",
    "    return tuple(torch.zeros_like(t) if part is None else part for part, t in zip(found, x))",
]
"""Of a function that may not depend on all of its inputs."""

_ON_NANS = [
    f"def {ON_NANS}(*arrays):",
    "    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty is full of NaNs then",
    "    try:",
    "        return {}(*arrays)",
    "    finally:",
    "        torch.use_deterministic_algorithms(False)",
]


@dataclass(frozen=True)
class Caller:
    """The function of one mode of a kernel, in the arrays of a library.

    ``floats`` are the places of the inputs that have derivatives, ``of`` the result that is differentiated, if the
    kernel gives several. With ``on_nans``, ``torch.empty`` is full of NaNs meanwhile.
    """

    array: str
    mode: str
    inputs: int
    floats: tuple[int, ...]
    of: int | None = None
    on_nans: bool = False

    @staticmethod
    def of_call(array: str, call: Call) -> Caller:
        problem = call.problem
        floats = tuple(map(problem.inputs.index, problem.differentiable))
        several = problem.interface.of if len(problem.interface.values) > 1 else None
        return Caller(array, call.mode, len(problem.inputs), floats, several, call.variant == ON_NANS)

    @property
    def lines(self) -> list[str]:
        """The definition of the function, in terms of ``kernel``."""
        return [*self._plain(), *(line.format(self._plain_name) for line in _ON_NANS if self.on_nans)]

    def _plain(self) -> list[str]:
        if self.mode == "value" or self.array in BARE:  # whose derivatives come with the kernel
            return []
        return self._torch() if self.array == "torch" else self._jax()

    @property
    def _result(self) -> str:
        return "" if self.of is None else f"[{self.of}]"

    def _split(self) -> list[str]:
        return [
            f"    x, more = list(arrays[:{self.inputs}]), arrays[{self.inputs}:]",
            f"    floats = {list(self.floats)}",
        ]

    def _torch(self) -> list[str]:
        if self.mode == "jvp":
            return [
                "def jvp(*arrays):",
                *self._split(),
                "    def of_floats(*moved):",
                "        for i, t in zip(floats, moved):",
                "            x[i] = t",
                f"        return kernel(*x){self._result}",
                "    return torch.func.jvp(of_floats, tuple(x[i] for i in floats), more)[1]",
            ]
        head = [
            f"def {self.mode}(*arrays):",
            *self._split(),
            "    for i in floats:",
            "        x[i] = x[i].detach().requires_grad_()",
            "    points = [x[i] for i in floats]",
        ]
        if self.mode == "vjp":
            return [*head, f"    return gradients(kernel(*x){self._result}, points, more[0])", *_GRADIENTS]
        return [
            *head,
            "    g = more[0].detach().requires_grad_()",
            f"    first = gradients(kernel(*x){self._result}, points, g, create_graph=True)",
            "    total = sum((part * v).sum() for part, v in zip(first, more[1:]))",
            "    known = [*points, g]",
            "    found = torch.autograd.grad(total, known, allow_unused=True) if total.requires_grad else ()",
            "    if all(part is None for part in found):  # a gradient depends on its cotangent, at least",
            "        raise NotImplementedError('its backward pass is not differentiable')",
            "    return tuple(torch.zeros_like(t) if part is None else part for part, t in zip(found, known))",
            *_GRADIENTS,
        ]

    def _jax(self) -> list[str]:
        head = [
            f"def {self.mode}(*arrays):",
            *self._split(),
            "    def of_floats(*moved):",
            "        every = list(x)",
            "        for i, t in zip(floats, moved):",
            "            every[i] = t",
            f"        return kernel(*every){self._result}",
            "    points = [x[i] for i in floats]",
        ]
        if self.mode == "vjp":
            return [*head, "    return jax.vjp(of_floats, *points)[1](more[0])"]
        if self.mode == "jvp":
            return [*head, "    return jax.jvp(of_floats, points, list(more))[1]"]
        return [
            *head,
            "    def pulled(*moved):",
            "        return jax.vjp(of_floats, *moved[:-1])[1](moved[-1])",
            "    return jax.vjp(pulled, *points, more[0])[1](tuple(more[1:]))",
        ]

    @property
    def name(self) -> str:
        """What the function is called that takes the arrays."""
        return ON_NANS if self.on_nans else self._plain_name

    @property
    def _plain_name(self) -> str:
        if self.mode == "value" or self.array not in BARE:
            return "kernel" if self.mode == "value" else self.mode
        return f"kernel_{self.mode}"

    def function(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        if not self.lines:
            return kernel
        if isinstance(kernel, HostedFunction):
            return kernel.within(lines=self.lines, name=self.name, modules=HOSTED_MODULES[self.array])
        found: Callable[..., Any] = scope_of(self.lines, {**modules_of(self.array), "kernel": kernel})[self.name]
        return found


def entered(array: str, name: str, dtype: str, device: Device = HOST) -> str:
    """The expression that makes an array of the library, on a device, of one of NumPy."""
    text = (_BFLOAT16 if (array, dtype) == ("torch", "bf16") else ENTERED[array]).format(name)
    return device.entered(text, array)


def modules_of(array: str) -> dict[str, Any]:
    """The modules that the lines name."""
    if array == "torch":
        import torch

        return {"torch": torch, "np": np}
    if array == "jax":
        import jax
        import jax.numpy as jnp

        return {"jax": jax, "jnp": jnp, "np": np}
    if array == "cupy":
        return {"cupy": import_module("cupy"), "np": np}
    return {"np": np}


def as_sequence(given: Any) -> Sequence[Any]:
    return given if isinstance(given, tuple | list) else (given,)


def named_results(call: Call, given: Any) -> dict[str, Any]:
    """What a function returned, by the names of the results; None stands for what it does not give."""
    names, parts = call.problem.results(call.mode), as_sequence(given)
    if len(parts) != len(names):
        meant = f"{len(names)} {'is' if len(names) == 1 else 'are'} meant: {', '.join(names)}"
        raise TypeError(f"{len(parts)} results were returned; {meant}. Return None for what is not given")
    return {name: part for name, part in zip(names, parts, strict=True) if part is not None}


def program(call: Call, array: str, definitions: Sequence[str], device: Device = HOST) -> str:
    """A program that calls ``kernel``, which the definitions make, in a mode."""
    caller = Caller.of_call(array, call)
    moved = list(map(call.problem.direction, call.problem.differentiable)) if call.directions else []
    names = [*call.named(), *[call.problem.cotangent] * (call.cotangent is not None), *moved]
    dtypes = {name: call.problem.dtype if name not in call.named() else call.problem.dtype_of(name) for name in names}
    given = ", ".join(entered(array, name, dtypes[name], device) for name in names)
    shown = f"{caller.name}({given})"
    if (array, call.problem.dtype) == ("torch", "bf16"):  # which NumPy has no name for
        is_one = call.mode == "jvp" or (len(call.problem.results(call.mode)) == 1 and call.mode == "value")
        shown = f"{shown}.float()" if is_one else f"tuple(part.float() for part in {shown})"
    head = [*imports(call, *IMPORTS[array]), *definitions, *caller.lines]
    return "\n".join([*(line for line in head if line), "", *assignments(call), f"print({shown})"])

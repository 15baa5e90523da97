"""Optional packages: what is missing, and the command that installs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

EXTRAS = {"torch": "torch", "jax": "jax", "onnx": "onnx", "onnxruntime": "onnx", "triton": "gpu", "matplotlib": "bench"}
"""The extra of gradspec that brings each package."""


def require(package: str, wanted_for: str) -> ModuleType:
    """An optional package; if it is not installed, an ImportError with the command that installs it.

    >>> require("no_such_package", "gs.to_nowhere")
    Traceback (most recent call last):
        ...
    ImportError: gs.to_nowhere needs no_such_package, which is not installed; run: pip install no_such_package
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is installed, and something that it needs is not
            raise
        extra = EXTRAS.get(package)
        command = f'pip install "gradspec[{extra}]"' if extra else f"pip install {package}"
        raise ImportError(
            f"{wanted_for} needs {package}, which is not installed; run: {command}", name=package
        ) from None

"""PyTorch's tensors and JAX's arrays in CPU memory, passed to and from NumPy without copies.

Neither library is imported here: who holds one of their arrays has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradspec.graph.arrays import register_library
from gradspec.graph.ir import Array
from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError


class TorchTensors:
    """Tensors keep their strides. Those that a transformation of PyTorch follows are refused, not cut off from it."""

    name = "PyTorch"
    wants_aligned = False

    def owns(self, type: type) -> bool:
        return issubclass(type, getattr(sys.modules.get("torch"), "Tensor", ()))

    def to_numpy(self, value: Any) -> Array:
        from gradspec.interop.torch.types import array_of

        _require_plain_tensor(sys.modules["torch"], value)
        return array_of(value.detach())

    def from_numpy(self, array: Array, like: Any) -> Any:
        from gradspec.interop.torch.types import tensor_of

        is_repeated = 0 in array.strides
        if any(stride < 0 for stride in array.strides) or not (is_repeated or array.flags.writeable):
            array = array.copy()  # PyTorch has neither negative strides nor memory that is only read
        return tensor_of(array)

    def is_on_device(self, value: Any) -> bool:
        if value.device.type == "cpu" and "gradspec.interop.torch.device" not in sys.modules:
            return False
        from gradspec.interop.torch.device import is_there

        return is_there(value)

    def type_of(self, value: Any) -> TensorType:
        from gradspec.interop.torch.types import gradspec_type

        _require_untracked(sys.modules["torch"], value)
        return gradspec_type(value)

    def run(self, graph: Any, arrays: Sequence[Any]) -> Any:
        from gradspec.interop.torch.module import run_there

        return run_there(graph, arrays)


def _require_plain_tensor(torch: Any, tensor: Any) -> None:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout} on {tensor.device} was given; this runs on dense tensors in CPU "
            "memory: move it with .cpu(), or .to_dense(); for CUDA tensors there are single operators, functions of "
            "gradspec.torch and gs.to_torch(graph)"
        )
    _require_untracked(torch, tensor)


def _require_untracked(torch: Any, tensor: Any) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "a tensor that requires grad was given, and autograd would not see what happens to it; use functions of "
            "gradspec.torch or gs.to_torch(graph), which autograd knows, or pass tensor.detach()"
        )
    if _is_followed(torch, tensor):
        raise UnsupportedError(
            "a tensor inside torch.func, forward-mode differentiation, torch.compile or torch.export was given, and "
            "they would not see what happens to it; use the functions of gradspec.torch or gs.to_torch(graph)"
        )


def _is_followed(torch: Any, tensor: Any) -> bool:
    """Whether the tensor stands for more than its numbers."""
    if torch.compiler.is_compiling() or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return True
    from gradspec.interop.torch.private import is_functorch_wrapped_tensor, is_in_dual_level

    if is_functorch_wrapped_tensor(tensor):
        return True
    return is_in_dual_level() and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


class JaxArrays:
    """JAX takes over memory that begins at a multiple of 64 bytes, and copies other memory."""

    name = "JAX"
    wants_aligned = True

    def owns(self, type: type) -> bool:
        jax = sys.modules.get("jax")
        return issubclass(type, (getattr(jax, "Array", ()), getattr(getattr(jax, "core", None), "Tracer", ())))

    def to_numpy(self, value: Any) -> Array:
        jax = sys.modules["jax"]
        if isinstance(value, jax.core.Tracer):
            raise UnsupportedError(
                f"an array {value.aval} inside a transformation of JAX (jit, grad, jvp, vmap) was given, and JAX would "
                "not see what happens to it; use gs.to_jax(graph), which these know"
            )
        devices = value.devices()
        if len(devices) != 1 or next(iter(devices)).platform != "cpu":
            raise UnsupportedError(
                f"an array on {', '.join(map(str, devices))} was given; gradspec runs on arrays in the memory of one "
                'CPU device: move it with jax.device_put(x, jax.devices("cpu")[0]), or use gs.to_jax(graph)'
            )
        return np.asarray(value)

    def from_numpy(self, array: Array, like: Any) -> Any:
        jax = sys.modules["jax"]
        return jax.device_put(array, like.sharding if like.committed else None)

    def is_on_device(self, value: Any) -> bool:
        return False  # what is not in CPU memory is refused by ``to_numpy``

    def type_of(self, value: Any) -> TensorType:
        raise NotImplementedError

    def run(self, graph: Any, arrays: Sequence[Any]) -> Any:
        raise NotImplementedError


register_library(TorchTensors())
register_library(JaxArrays())

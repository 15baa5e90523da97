"""The names of PyTorch that we use and it does not promise: what a new version breaks, it breaks here.

``tests/interop/test_private.py`` tries each of them alone, and says what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd as below_autograd
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher as python_dispatcher
from torch._dispatch.python import no_python_dispatcher as below_python_dispatcher
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch._jit_internal import boolean_dispatched
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled as set_forward_enabled
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gradspec.spec.errors import UnsupportedError

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "OpOverload",
    "SingleLevelFunction",
    "TorchDispatchMode",
    "below_autograd",
    "below_python_dispatcher",
    "boolean_dispatched",
    "decomposition_table",
    "enable_single_level_autograd_function",
    "is_functorch_wrapped_tensor",
    "is_legacy_batchedtensor",
    "python_dispatcher",
    "pytree",
    "set_forward_enabled",
    "suggest_memory_format",
]

_are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
tracing_state: Callable[[], Any] = torch._C._get_tracing_state
count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
is_forward_enabled: Callable[[], bool] = torch._C._is_fwd_grad_enabled
after_autograd: Any = torch._C._after_autograd_keyset
add_batch_dim: Callable[[Tensor, int, int], Tensor] = torch._add_batch_dim
remove_batch_dim: Callable[[Tensor, int, int, int], Tensor] = torch._remove_batch_dim
make_dual: Callable[..., Tensor] = torch._VF._make_dual
unpack_dual: Callable[..., tuple[Tensor, Tensor | None]] = torch._VF._unpack_dual
without_tangent: Callable[[Tensor, int], Tensor] = torch.ops.aten._fw_primal
tensor_without_memory: Callable[..., Any] = Tensor._make_wrapper_subclass
EXPORTING = {"_is_compiling_flag": True, "_is_exporting_flag": True}
"""Attributes of ``torch.compiler`` while ``torch.export`` runs a model."""
MASKS, DECIDED = (torch.bool, torch.uint8), {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def is_transforming() -> bool:
    """Whether a transformation, a mode or a tracer sees every operator that is called."""
    return bool(_are_transforms_active() or count_modes() or is_in_dual_level() or tracing_state())


def is_in_dual_level() -> bool:
    return forward_ad._current_level >= 0


def legacy_levels() -> int:
    """How many batches of the kind that ``is_grads_batched`` makes are nested here."""
    torch._C._vmapmode_increment_nesting()
    return int(torch._C._vmapmode_decrement_nesting())


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Tensors made here are plain ones, whatever transformation, mode or inference is going on."""
    with _disable_current_modes(), temporarily_clear_interpreter_stack(), torch.inference_mode(False):
        yield


@contextmanager
def compiler_options(recompile_limit: int | None = None, **inductor: Any) -> Iterator[None]:
    """Settings of ``torch.compile``; loading it takes two seconds."""
    import torch._dynamo
    import torch._inductor.config

    with ExitStack() as stack:
        if recompile_limit is not None:
            stack.enter_context(torch._dynamo.config.patch(recompile_limit=recompile_limit))
        stack.enter_context(torch._inductor.config.patch(**inductor))
        yield


class PreDispatchMode(ProxyTorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operators before PyTorch composes them, as modes of its tracer alone do; it loads none of the compiler."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self._mode_key, self.enter_stack = torch._C._TorchDispatchModeKey.PROXY, []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _NumberBlind(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """An error where the numbers of tensors decide about shapes, or about what is called."""

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> object:
        is_known = func is torch.ops.aten.index.Tensor and not any(i is not None and i.dtype in MASKS for i in args[1])
        if not is_known and DECIDED.intersection(func.tags):
            raise UnsupportedError(f"the numbers that {func} is given decide what it gives")
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


number_blind: Callable[[], AbstractContextManager[Any]] = _NumberBlind

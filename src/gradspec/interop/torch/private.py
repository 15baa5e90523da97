"""The names of PyTorch that we use and it does not promise: what a new version breaks, it breaks here.

``tests/interop/test_private.py`` tries each of them alone, and says what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd as below_autograd
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch._decomp import decomposition_table
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
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "OpOverload",
    "SingleLevelFunction",
    "TorchDispatchMode",
    "add_batch_dim",
    "after_autograd",
    "below_autograd",
    "boolean_dispatched",
    "compiler_options",
    "count_modes",
    "decomposition_table",
    "enable_single_level_autograd_function",
    "is_forward_enabled",
    "is_functorch_wrapped_tensor",
    "is_in_dual_level",
    "is_legacy_batchedtensor",
    "is_transforming",
    "legacy_levels",
    "make_dual",
    "outside_transforms",
    "pytree",
    "remove_batch_dim",
    "set_forward_enabled",
    "suggest_memory_format",
    "tracing_state",
    "unpack_dual",
    "without_tangent",
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

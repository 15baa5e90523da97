"""What PyTorch and JAX do not promise and we rely on, each alone: a row that fails says what a new version breaks."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradspec.interop.torch import private
from gradspec.spec.errors import UnsupportedError

SOURCE = Path(__file__).parents[2] / "src" / "gradspec"


def is_transform_seen() -> bool:
    seen = []
    torch.func.grad(lambda x: seen.append(private.is_transforming()) or x.sum())(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        seen.append(private.is_transforming())
    with private.FakeTensorMode():
        seen.append(private.is_transforming())
    return all(seen) and not private.is_transforming()


def is_wrapping_seen() -> bool:
    seen = []
    torch.func.vmap(lambda x: seen.append(private.is_functorch_wrapped_tensor(x)) or x)(torch.ones(2))
    return seen == [True] and not private.is_functorch_wrapped_tensor(torch.ones(2))


def is_legacy_batch_opened() -> bool:
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            opened = private.remove_batch_dim(g, private.legacy_levels(), 0, 0)
            seen.append((private.is_legacy_batchedtensor(g), tuple(opened.shape)))
            return 2 * g

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Twice.apply(x), x, torch.ones(5, 3), is_grads_batched=True)
    return seen == [(True, (5, 3))]


def are_tangents_passed() -> bool:
    with torch.autograd.forward_ad.dual_level():
        dual = private.make_dual(torch.ones(2), torch.full((2,), 3.0), level=0)
        plain = private.without_tangent(dual, 0)
        return (
            private.unpack_dual(dual, level=0)[1].tolist() == [3, 3] and private.unpack_dual(plain, level=0)[1] is None
        )


def is_forward_mode_switched() -> bool:
    with private.set_forward_enabled(False):
        was = private.is_forward_enabled()
    return not was and private.is_forward_enabled()


def is_level_entered() -> bool:
    class Twice(private.SingleLevelFunction):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    with private.enable_single_level_autograd_function():
        y = Twice.apply(x)
    with private.below_autograd():
        untracked = x * 2
    return y.requires_grad and not untracked.requires_grad and "CPU" in str(private.after_autograd)


def are_plain_tensors_made_inside_transforms() -> bool:
    made = []

    def inside(x):
        with private.outside_transforms():
            made.append(torch.ones(1))
        return x.sum()

    with torch.inference_mode(), private.FakeTensorMode():
        torch.func.grad(inside)(torch.ones(2))
    return type(made[0]) is torch.Tensor and not made[0].is_inference()


def are_operators_recognised() -> bool:
    operator = torch.ops.aten.silu.default
    return isinstance(operator, private.OpOverload) and operator in private.decomposition_table


def is_scripting_redirected() -> bool:
    return any(choice["index"] == 255 for choice in private.boolean_dispatched.values())


def is_every_operator_seen() -> bool:
    seen = []

    class Seeing(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((str(func), private.count_modes()))
            return func(*args, **(kwargs or {}))

    with Seeing():
        torch.ones(2) + 1
    return ("aten.add.Tensor", 0) in seen


def are_operators_seen_before_they_are_composed() -> bool:
    seen = []

    class Seeing(private.PreDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            with private.below_python_dispatcher():
                return func(*args, **(kwargs or {}))

    with private.python_dispatcher(), Seeing():
        torch.einsum("ij->ji", torch.ones(2, 3))
    torch.ones(2) + 1
    return seen == ["aten.ones.default", "aten.einsum.default"]


def are_numbers_kept_from_deciding() -> bool:
    refused = 0
    for decided in (torch.nonzero, torch.any, lambda x: x[x > 0], lambda x: x[[0, 0]], torch.linalg.matrix_rank, float):
        try:
            with private.number_blind():
                decided(torch.ones(2, 2) if decided is not float else torch.ones(()))
        except UnsupportedError:
            refused += 1
    return refused == 3


def is_memory_missing() -> bool:
    class Outline(torch.Tensor):
        __torch_dispatch__ = None

    made = private.tensor_without_memory(Outline, (2, 3), strides=(1, 2), dtype=torch.float16, device="cpu")
    flags = all(hasattr(torch.compiler, name) for name in private.EXPORTING)
    return (type(made), made.shape, made.stride(), made.dtype, flags) == (Outline, (2, 3), (1, 2), torch.float16, True)


def is_memory_format_known() -> bool:
    lying = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    return private.suggest_memory_format(lying) is torch.channels_last


def are_trees_opened() -> bool:
    leaves, structure = private.pytree.tree_flatten({"a": [1, 2], "b": (3,)})
    return leaves == [1, 2, 3] and private.pytree.tree_unflatten(leaves, structure) == {"a": [1, 2], "b": (3,)}


def is_tracing_seen() -> bool:
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []
    make_fx(lambda x: seen.append(private.is_transforming()) or x + 1)(torch.ones(2))
    return seen == [True] and private.tracing_state() is None


def are_jax_programs_read() -> bool:
    import jax
    from jax.extend import source_info_util
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

    program = jax.make_jaxpr(lambda x: jax.nn.relu(x) * 2.0)(np.ones(2, np.float32))
    last = program.jaxpr.eqns[-1]
    is_placed = "test_private" in source_info_util.summarize(last.source_info)
    kinds = isinstance(program, ClosedJaxpr), isinstance(program.jaxpr, Jaxpr), isinstance(last.invars[1], Literal)
    return all(kinds) and last.primitive.name == "mul" and is_placed


def is_jax_seen_running() -> bool:
    import jax

    jax.devices()
    return bool(sys.modules["jax._src.xla_bridge"]._backends)


USES = {
    "gs.to_torch under torch.func, forward mode and fake tensors": is_transform_seen,
    "gs.to_torch under vmap, and arrays that refuse wrapped tensors": is_wrapping_seen,
    "gs.to_torch with is_grads_batched": is_legacy_batch_opened,
    "forward mode of gs.to_torch": are_tangents_passed,
    "forward mode inside of forward mode": is_forward_mode_switched,
    "the autograd kernel of gradspec::graph": is_level_entered,
    "constants and workspaces made inside of transformations": are_plain_tensors_made_inside_transforms,
    "gs.from_torch, for operators that decompose": are_operators_recognised,
    "torch.jit.script of gradspec.torch": is_scripting_redirected,
    "the judge's watch over memory, and referee --own-work": is_every_operator_seen,
    "references of PyTorch, written down operator by operator": are_operators_seen_before_they_are_composed,
    "references of PyTorch, which numbers must not steer": are_numbers_kept_from_deciding,
    "references of PyTorch, which see tensors without numbers": is_memory_missing,
    "channels_last results of gradspec.torch": is_memory_format_known,
    "gs.from_torch, for arguments in trees": are_trees_opened,
    "gs.to_torch under make_fx": is_tracing_seen,
    "gs.from_jax": are_jax_programs_read,
    "the process of kernels, which must not be copied while XLA runs": is_jax_seen_running,
}


@pytest.mark.rows(len(USES))
@pytest.mark.parametrize("what_breaks", USES)
def test_a_private_name_does_what_we_rely_on(what_breaks):
    import gradspec.torch  # noqa: F401, which registers its functions with torch.jit

    assert USES[what_breaks](), f"this version breaks {what_breaks}"


ELSEWHERE = {
    "backends/triton/plans.py": "torch._C._dynamo.guards, where it has a faster way to allocate",
    "graph/tree.py": "torch.utils._pytree, if it is loaded",
    "interop/jax/reader.py": "jax.extend: how programs are written down",
    "referee/recording.py": "torch.utils._python_dispatch: its text runs where nothing of gradspec is",
    "system/host.py": "jax._src.xla_bridge, if it is loaded",
}
"""What cannot stand in ``interop/torch/private.py``: packages before ``interop``, hosts, and JAX's one module."""


def test_private_names_are_in_one_module():
    private_name = re.compile(
        r"\b(?:torch|jax)\.(?:\w+\.)*_[a-z]\w+|from torch[.\w]* import .*\b_[a-z]|from jax\.extend"
    )
    files = {file.relative_to(SOURCE).as_posix(): file.read_text() for file in SOURCE.rglob("*.py")}
    found = {name for name, text in files.items() if private_name.search(text)}
    assert found == {*ELSEWHERE, "interop/torch/private.py"}

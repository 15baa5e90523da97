"""Graphs from and to other libraries. Each is imported when a function that needs it is first called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import gradspec.wiring  # noqa: F401  (what is known while a model is read is computed by the kernels)
from gradspec.graph.family import Family, require_graph
from gradspec.graph.graph import Graph
from gradspec.interop.extras import require

if TYPE_CHECKING:
    import onnx
    import torch


Dynamic: TypeAlias = Mapping[str, Mapping[int, Any]]
"""Names of open sizes, by input and axis."""


@overload
def from_torch(
    module: Any,
    *example_args: Any,
    params: str | Sequence[str] = ...,
    example_kwargs: Mapping[str, Any] | None = ...,
    dynamic: None = ...,
    training: bool = ...,
) -> Graph: ...
@overload
def from_torch(
    module: Any,
    *example_args: Any,
    params: str | Sequence[str] = ...,
    example_kwargs: Mapping[str, Any] | None = ...,
    dynamic: Dynamic,
    training: bool = ...,
) -> Family: ...
def from_torch(
    module: Any,
    *example_args: Any,
    params: str | Sequence[str] = "constants",
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    training: bool = False,
) -> Graph | Family:
    """The graph of a PyTorch model: an ``nn.Module``, ``ExportedProgram``, ``fx.GraphModule``, or function of tensors.

    A module is captured by ``torch.export`` in evaluation mode, for arguments like ``example_args`` and
    ``example_kwargs``: tensors, arrays or types such as ``gs.f32[1, 3, 8, 8]``, in any nesting. The graph's inputs and
    outputs are the tensors of these and of the result, flattened. ``params`` says how to treat parameters and buffers:
    ``"constants"`` of the graph, ``"inputs"`` after those of the model, in the order of its state dict, or a list of
    the names that become inputs while the rest are constants. With ``training``, every part of the model keeps its own
    mode: batch normalisation then uses the statistics of the batch, and the running ones are neither read nor changed.
    All operators that a graph cannot express are listed in one error.

    ``dynamic`` names sizes that stay dynamic, by input and axis: ``{"x": {0: "batch"}}``. The result is then a family,
    which creates a graph for each size, and each float dtype, of the arrays that it is called with.

    >>> import torch
    >>> print(from_torch(torch.nn.MaxPool2d(2), torch.zeros(1, 3, 8, 8)))
    graph(input: f32[1, 3, 8, 8]):
      max_pool : f32[1, 3, 4, 4] = max_pool(input, kernel_size=(2, 2), stride=(2, 2))
      return max_pool
    >>> pool = from_torch(torch.nn.MaxPool2d(2), torch.zeros(1, 3, 8, 8), dynamic={"input": {0: "batch"}})
    >>> pool(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 3, 4, 4])
    """
    require("torch", "gs.from_torch")
    if dynamic is not None:
        from gradspec.interop.torch.reader import read_family

        return read_family(
            module, example_args, params=params, example_kwargs=example_kwargs or {}, dynamic=dynamic, training=training
        )
    from gradspec.interop.torch.reader import read

    return read(module, example_args, params=params, example_kwargs=example_kwargs, training=training)


def to_torch(graph: Graph | Family, parameters: str | Sequence[str] = ()) -> torch.nn.Module:
    """A graph as an ``nn.Module`` that works with autograd, ``torch.func``, ``torch.compile`` and ``torch.export``.

    The graph's constants are buffers of the module, or parameters where ``parameters`` names them; ``"all"`` is every
    floating-point one. They are copies, and can be trained and loaded; ``module.graph`` is the graph with their current
    values. Tensors are passed in and out without copies. The module of a family takes tensors of every size that the
    family takes, and of another float dtype after conversion, ``module.double()``.

    >>> import torch
    >>> square = to_torch(gs.trace(lambda x: x * x, gs.f32[2]))
    >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
    >>> square(x).sum().backward()
    >>> x.grad
    tensor([2., 6.])
    """
    require("torch", "gs.to_torch")
    if isinstance(graph, Family):
        from gradspec.interop.torch.module import write_family

        return write_family(graph, parameters)
    require_graph("to_torch", graph)
    from gradspec.interop.torch.module import write

    return write(graph, parameters)


@overload
def from_onnx(
    model: Any, shapes: Mapping[str, Any] | None = ..., constants: Mapping[str, Any] | None = ..., dynamic: None = ...
) -> Graph: ...
@overload
def from_onnx(
    model: Any,
    shapes: Mapping[str, Any] | None = ...,
    constants: Mapping[str, Any] | None = ...,
    *,
    dynamic: Dynamic | bool,
) -> Family: ...
def from_onnx(
    model: Any,
    shapes: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    dynamic: Dynamic | bool | None = None,
) -> Graph | Family:
    """The graph of an ONNX model: a path or a ``ModelProto``.

    ``shapes`` binds symbolic dimensions: ``{"batch": 8}``, or the whole shape of an input, ``{"x": (8, 3, 32, 32)}``.
    ``constants`` fixes inputs that the graph's shapes depend on, such as the run-time sizes of a Reshape.

    With ``dynamic=True``, sizes that neither the model nor ``shapes`` fixes stay dynamic: the result is a family, which
    creates a graph for each size, and each float dtype, of the arrays that it is called with. ``dynamic={"x": {0:
    "batch"}}`` makes only the named sizes dynamic, by input and axis.

    >>> model = gs.to_onnx(gs.trace(lambda x: gs.relu(x), gs.f32[2]))
    >>> print(from_onnx(model))
    graph(x: f32[2]):
      relu : f32[2] = relu(x)
      return relu
    """
    require("onnx", "gs.from_onnx")
    if dynamic is not None and dynamic is not False:
        from gradspec.interop.onnx.reader import read_family

        return read_family(model, shapes or {}, constants or {}, dynamic)
    from gradspec.interop.onnx.reader import read

    return read(model, shapes or {}, constants or {})


def to_onnx(
    graph: Graph, *, opset: int | None = None, nan_safe: bool = False, name: str = "gradspec"
) -> onnx.ModelProto:
    """A graph as an ONNX model, checked by ONNX's own checker.

    ``opset`` is the version of ONNX's operators that the model uses, 18 unless given, which is also the oldest. ONNX
    Runtime 1.31 runs models up to 26; later opsets give a ``gs.FormatWarning``. ONNX does not define the maximum with a
    NaN, and ONNX Runtime ignores the NaN: with ``nan_safe``, max pooling is written with more nodes that do not rely on
    it. ``name`` is the model's name.

    >>> model = to_onnx(gs.trace(lambda x: gs.max_pool2d(x, 2), gs.f32[1, 3, 8, 8]))
    >>> [node.op_type for node in model.graph.node]
    ['MaxPool']
    """
    require("onnx", "gs.to_onnx")
    require_graph("to_onnx", graph)
    from gradspec.interop.onnx.writer import write

    return write(graph, opset=opset, nan_safe=nan_safe, name=name)


def from_jax(
    function: Callable[..., Any], *example_args: Any, example_kwargs: Mapping[str, Any] | None = None
) -> Graph:
    """The graph of a function of JAX arrays, jitted or not.

    It is traced by ``jax.make_jaxpr`` for arguments like ``example_args`` and ``example_kwargs``: arrays, their
    ``jax.ShapeDtypeStruct``, or types such as ``gs.f32[8, 64]``, in any pytree. The graph's inputs and outputs are the
    arrays of these and of the result, flattened; numbers, strings and captured arrays become part of the graph. Nested
    calls, loops of known length and branches are inlined. All primitives that a graph cannot express are listed in one
    error. 64-bit types need ``jax_enable_x64``.

    >>> import jax
    >>> print(from_jax(lambda x, w: jax.nn.relu(x @ w), gs.f32[8, 64], gs.f32[64, 10]))
    graph(x: f32[8, 64], w: f32[64, 10]):
      matmul : f32[8, 10] = matmul(x, w)
      relu   : f32[8, 10] = relu(matmul)
      return relu
    """
    require("jax", "gs.from_jax")
    from gradspec.interop.jax.reader import read

    return read(function, example_args, example_kwargs or {})


def to_jax(graph: Graph) -> Callable[..., Any]:
    """A graph as a function of JAX arrays, for ``jit``, ``grad``, ``jvp``, ``vmap`` and sharding.

    It takes one JAX or NumPy array per input, of its shape and dtype, and returns one array or a tuple. It consists of
    ``jax.lax`` operations, and its derivatives are the graph's. A graph with 64-bit types needs ``jax_enable_x64``.

    >>> import jax
    >>> square = to_jax(gs.trace(lambda x: gs.sum(x * x), gs.f32[2]))
    >>> jax.grad(square)(jax.numpy.array([1.0, 3.0])).tolist()
    [2.0, 6.0]
    """
    require("jax", "gs.to_jax")
    require_graph("to_jax", graph)
    from gradspec.interop.jax.program import write

    return write(graph)

"""What other libraries call an operator or an argument, and what it is called here: for errors that tell."""

from __future__ import annotations

from collections.abc import Iterable

WRITTEN = {
    "Graph.batch(n)": "vmap",
    "Graph.save(path)": "save",
    "bf16": "bfloat16",
    "boolean": "bool bool_",
    "broadcast_to(x, shape)": "expand",
    "clamp(x, min, max)": "clip",
    "compile(function, *types)": "jit",
    "concat([x[None] for x in arrays])": "stack",
    "concat(arrays, axis)": "cat concatenate hstack vstack",
    "conformance.check(kernel)": "check",
    "convert(x, gs.f64)": "astype cast double float half to type",
    "cross_entropy(logits, labels)": "nll_loss",
    "div(a, b)": "divide true_divide",
    "equal(a, b)": "eq",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "greater(a, b)": "greater_than gt",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "i8": "int8",
    "less(a, b)": "lt",
    "matmul(a, b)": "bmm dot mm",
    "max_pool(..., return_indices=True)": "argmax",
    "maximum(a, b), or max_pool over windows,": "max",
    "minimum(a, b)": "min",
    "mul(a, b)": "multiply",
    "mul(x, x)": "square",
    "mul(x, x), or x ** n of a variable,": "pow power",
    "neg(x)": "negative",
    "reshape(x, shape)": "squeeze view",
    "reshape(x, shape), or x[None],": "unsqueeze expand_dims",
    "resize(x, size, mode)": "interpolate upsample",
    "silu(x)": "swish",
    "smooth_max_pool(x, kernel_size, beta=1)": "logsumexp",
    "sub(a, b)": "subtract",
    "testing.check_kernel(kernel)": "check_kernel",
    "transpose(x, axes)": "T permute swapaxes t",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "u8": "uint8",
    "where(condition, a, b)": "masked_fill",
}
"""How it is written with ``gs``, and what PyTorch, NumPy and JAX call it, as functions or methods."""

ABSENT = frozenset(("array", "as_tensor", "asarray", "contiguous", "item", "numpy", "ones", "tensor", "zeros"))
"""What is not written with ``gs``: arrays are made and looked at elsewhere."""

CALLED = {name: written for written, names in WRITTEN.items() for name in names.split()}

METHODS = frozenset(
    (
        *("abs", "add", "broadcast_to", "clamp", "detach", "div", "equal", "erf", "exp", "flatten", "gelu"),
        *("greater", "less", "log", "log_softmax", "matmul", "maximum", "mean", "minimum", "mul", "neg", "pad"),
        *("relu", "reshape", "sigmoid", "silu", "softmax", "sqrt", "sub", "sum", "tanh", "transpose", "where"),
    )
)
"""Functions of ``gs`` that other libraries have as methods as well."""

ARGUMENTS = {
    "axes": ("axis",),
    "axis": ("axes",),
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "keepdim": ("keepdims",),
    "kernel": ("kernel_size",),
    "kernel_shape": ("kernel_size",),
    "strides": ("stride",),
    "pads": ("padding",),
    "dilations": ("dilation",),
    "group": ("groups",),
    "size": ("shape",),
    "input": ("x", "a", "logits"),
    "other": ("b",),
    "target": ("labels",),
    "tensors": ("xs",),
    "arrays": ("xs",),
    "pad": ("padding",),
    "weights": ("weight",),
    "perm": ("axes",),
    "a_min": ("min",),
    "a_max": ("max",),
    "start_axis": ("start_dim",),
    "end_axis": ("end_dim",),
}
"""Names of arguments elsewhere, and what they may be called here."""


def named(name: str) -> str:
    """What to write instead of a name that ``gs`` does not have, as the end of a sentence.

    >>> named("cat")
    '; it is written gs.concat(arrays, axis) here'
    >>> named("no_such_thing")
    ''
    """
    if name.lower().startswith(("f8", "float8", "fp8")):
        return "; floats of 8 bits are gs.f8_e4m3, which others call e4m3fn, and gs.f8_e5m2"
    if name in ABSENT:
        return "; arrays are made and looked at with NumPy, PyTorch or JAX, and gs takes them as they are"
    return f"; it is written gs.{CALLED[name]} here" if name in CALLED else ""


def as_method(name: str) -> str:
    """What to write instead of a method that variables do not have.

    >>> as_method("sum")
    'operators are functions: gs.sum(x, ...)'
    >>> as_method("astype")
    'operators are functions: gs.convert(x, gs.f64)'
    """
    written = CALLED.get(name) or (f"{name}(x, ...)" if name in METHODS else None)
    return f"operators are functions{f': gs.{written}'.rstrip(',') if written else ' of gs, such as gs.relu(x)'}"


def argument(name: str, known: Iterable[str]) -> str:
    """What to write instead of an argument that a function does not have.

    >>> argument("dim", ["x", "axis", "keepdims"])
    "no argument 'dim'; write axis= (it has x, axis, keepdims)"
    >>> argument("inplace", ["x"])
    "no argument 'inplace'; it has x"
    """
    names = list(known)
    here = next((other for other in ARGUMENTS.get(name, ()) if other in names), None)
    has = f"it has {', '.join(names)}"
    return f"no argument {name!r}; write {here}= ({has})" if here else f"no argument {name!r}; {has}"

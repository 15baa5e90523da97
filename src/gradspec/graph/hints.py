"""What other libraries call an operator or an argument, and what it is called here: for errors that tell."""

from __future__ import annotations

from collections.abc import Iterable

JOINED = "concat(arrays, axis)"
CONVERTED = "convert(x, gs.f64)"
PRODUCT = "matmul(a, b)"
MOVED = "transpose(x, axes)"
SHAPED = "reshape(x, shape)"
REPEATED = "broadcast_to(x, shape)"
RAISED = "mul(x, x), or x ** n of a variable,"

CALLED = {
    "T": MOVED,
    "argmax": "max_pool(..., return_indices=True)",
    "as_tensor": None,
    "array": None,
    "asarray": None,
    "astype": CONVERTED,
    "bfloat16": "bf16",
    "bmm": PRODUCT,
    "bool": "boolean",
    "bool_": "boolean",
    "cast": CONVERTED,
    "cat": JOINED,
    "check": "conformance.check(kernel)",
    "check_kernel": "testing.check_kernel(kernel)",
    "clip": "clamp(x, min, max)",
    "concatenate": JOINED,
    "contiguous": None,
    "divide": "div(a, b)",
    "dot": PRODUCT,
    "double": CONVERTED,
    "eq": "equal(a, b)",
    "expand": REPEATED,
    "float": CONVERTED,
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "greater_than": "greater(a, b)",
    "gt": "greater(a, b)",
    "half": CONVERTED,
    "hstack": JOINED,
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "int8": "i8",
    "interpolate": "resize(x, size, mode)",
    "item": None,
    "jit": "compile(function, *types)",
    "logsumexp": "smooth_max_pool(x, kernel_size, beta=1)",
    "lt": "less(a, b)",
    "masked_fill": "where(condition, a, b)",
    "max": "maximum(a, b), or max_pool over windows,",
    "min": "minimum(a, b)",
    "mm": PRODUCT,
    "multiply": "mul(a, b)",
    "negative": "neg(x)",
    "nll_loss": "cross_entropy(logits, labels)",
    "numpy": None,
    "ones": None,
    "permute": MOVED,
    "pow": RAISED,
    "power": RAISED,
    "save": "Graph.save(path)",
    "square": "mul(x, x)",
    "squeeze": SHAPED,
    "stack": "concat([x[None] for x in arrays])",
    "subtract": "sub(a, b)",
    "swapaxes": MOVED,
    "swish": "silu(x)",
    "t": MOVED,
    "tensor": None,
    "to": CONVERTED,
    "true_divide": "div(a, b)",
    "type": CONVERTED,
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "uint8": "u8",
    "unsqueeze": "reshape(x, shape), or x[None],",
    "expand_dims": "reshape(x, shape), or x[None],",
    "upsample": "resize(x, size, mode)",
    "view": SHAPED,
    "vmap": "Graph.batch(n)",
    "vstack": JOINED,
    "zeros": None,
}
"""Names of PyTorch, NumPy and JAX, as functions or methods, and how it is written with ``gs``; None: it is not."""

METHODS = frozenset(
    [
        "abs",
        "add",
        "broadcast_to",
        "clamp",
        "detach",
        "div",
        "equal",
        "erf",
        "exp",
        "flatten",
        "gelu",
        "greater",
        "less",
        "log",
        "log_softmax",
        "matmul",
        "maximum",
        "mean",
        "minimum",
        "mul",
        "neg",
        "pad",
        "relu",
        "reshape",
        "sigmoid",
        "silu",
        "softmax",
        "sqrt",
        "sub",
        "sum",
        "tanh",
        "transpose",
        "where",
    ]
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
    if name not in CALLED:
        return ""
    written = CALLED[name]
    if written is None:
        return "; arrays are made and looked at with NumPy, PyTorch or JAX, and gs takes them as they are"
    return f"; it is written gs.{written} here"


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

"""Everything ``import gradspec as gs`` offers beyond the specification, loaded when a name of it is first used."""

import gradspec.backends.numpy
import gradspec.runtime.run
import gradspec.transforms.batch
import gradspec.transforms.jvp
import gradspec.transforms.vjp  # noqa: F401  (the rooms above register what graphs call)
from gradspec.graph.builder import Builder
from gradspec.graph.ir import Graph
from gradspec.graph.types import bf16, f16, f32, f64, i8, i32, i64, u8
from gradspec.ops.layout import broadcast_to, reshape
from gradspec.ops.pointwise import add, div, mul, neg, sub
from gradspec.ops.reduce import sum
from gradspec.runtime.evaluate import evaluate
from gradspec.transforms.trace import trace

__all__ = [
    "Builder",
    "Graph",
    "add",
    "bf16",
    "broadcast_to",
    "div",
    "evaluate",
    "f16",
    "f32",
    "f64",
    "i8",
    "i32",
    "i64",
    "mul",
    "neg",
    "reshape",
    "sub",
    "sum",
    "trace",
    "u8",
]

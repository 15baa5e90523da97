"""Where the packages are joined: everything that one declares it needs of later ones is provided here, and only here.

``a + b`` on variables is an operator, ``graph.vjp()`` a transformation, and ``graph(x)`` runs on a backend. Every way
into the package that leads to graphs imports this module: ``gradspec.library``, from which ``gs`` has its names, the
command line, programs that PyTorch exported, and the judge of our own kernels.
"""

from __future__ import annotations

from gradspec.backends import cpu, numpy
from gradspec.graph.graph import SERVICES, Services
from gradspec.graph.ir import OVERLOADS, Overloads
from gradspec.ops.bits import bitwise_and, bitwise_not, bitwise_or, bitwise_xor, left_shift, right_shift
from gradspec.ops.box import OPERATORS, BoundOperators
from gradspec.ops.curves import curve_box, curve_lines
from gradspec.ops.gather import indexed
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import abs, add, div, gate, maximum, minimum, mul, neg, sub
from gradspec.ops.pool import global_max_pool
from gradspec.ops.select import equal, greater, where
from gradspec.runtime.calls import eager, run
from gradspec.runtime.task import BACKENDS, Backend
from gradspec.saving.graphs import save
from gradspec.transforms.copy import batch
from gradspec.transforms.jvp import jvp
from gradspec.transforms.simplify import simplify
from gradspec.transforms.vjp import vjp

OVERLOADS.provide(
    Overloads(
        add=add,
        sub=sub,
        mul=mul,
        div=div,
        matmul=matmul,
        neg=neg,
        abs=abs,
        getitem=indexed,
        invert=bitwise_not,
        and_=bitwise_and,
        or_=bitwise_or,
        xor=bitwise_xor,
        lshift=left_shift,
        rshift=right_shift,
    )
)

OPERATORS.provide(
    BoundOperators(maximum, minimum, greater, equal, where, gate, global_max_pool, curve_box, curve_lines)
)

SERVICES.provide(Services(jvp=jvp, vjp=vjp, batch=batch, simplify=simplify, save=save, run=run, eager=eager))

BACKENDS.provide(
    {
        "cpu": Backend(cpu.lowering, numpy.kernel, fallback="numpy: no compiled kernel", simplifies=True),
        "numpy": Backend(lambda name: None, numpy.kernel, fallback="numpy", simplifies=False),
    }
)

"""Every module and function of ``torch.nn`` comes in and has PyTorch's value, or is refused as docs/pytorch.md says."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gradspec as gs
from interop.layers import Call
from interop.torch_nn import FUNCTIONS, MODULES, NO_EXAMPLE, NOT_CALLED, called_by_modules

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, about names that it has replaced

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
PARTS = 4
"""Tests that the examples are dealt out to."""

EXAMPLES = {**MODULES, **{name: (lambda f=function: Call(f), given) for name, (function, given) in FUNCTIONS.items()}}


def refused():
    """The names in the first column of the page's table, with its second column."""
    table = PAGE.read_text().split("| refused of `torch.nn` | because |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return {name: why.strip() for names, why in rows for name in re.findall("`([^`]+)`", names)}


def is_function(name):
    value = getattr(F, name)
    ours = getattr(value, "__module__", None) in (None, "torch", "torch._C._nn", "torch._jit_internal", F.__name__)
    return ours and callable(value) and not inspect.isclass(value) and not name.startswith("_")


def test_every_module_and_function_has_an_example():
    assert MODULES.keys() | NOT_CALLED == {*nn.modules.__all__}
    functions = {name for name in dir(F) if is_function(name) and not called_by_modules(name)}
    assert FUNCTIONS.keys() | NO_EXAMPLE == functions
    assert refused().keys() <= EXAMPLES.keys()


@pytest.mark.rows(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_not_refused_has_the_value_of_torch(part):
    for name in sorted(EXAMPLES.keys() - refused().keys())[part::PARTS]:
        make, given = EXAMPLES[name]
        torch.manual_seed(0)
        module = make().double().eval()
        expected = [y for y in pytree.tree_leaves(module(*given)) if isinstance(y, Tensor)]
        try:
            graph = gs.from_torch(module, *given)
        except Exception as error:
            pytest.fail(f"{name} is refused, and the page does not say so: {error}")
        found = gs.compile(graph, backend="numpy")(*(x.numpy() for x in given))
        for ours, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", refused())
def test_what_the_page_says_is_refused_is(name):
    make, given = EXAMPLES[name]
    by_export = "`torch.export`" in refused()[name]
    with pytest.raises(Exception, match="" if by_export else "a graph cannot express|PyTorch cannot undo") as caught:
        gs.from_torch(make().double().eval(), *given)
    assert isinstance(caught.value, gs.UnsupportedError) != by_export

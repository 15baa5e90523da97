"""The script that measures what the runtime costs: what it draws, what it sums up, and the bound on workspaces."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "runtime_costs.py"


@pytest.fixture(scope="module")
def costs():
    spec = spec_from_file_location("runtime_costs", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_convolutions_are_a_thousand_different_ones_of_every_kind(costs):
    drawn = costs.random_convolutions(1000)
    assert len(set(drawn)) == 1000
    assert drawn == costs.random_convolutions(1000)
    kinds, shapes, _, kernels, strides, paddings, dilations, groups = (
        set(column) for column in zip(*drawn, strict=True)
    )
    assert kinds == set(costs.CONVOLUTIONS)
    assert {len(shape) - 2 for shape in shapes} == {1, 2, 3}
    assert {s for stride in strides for s in stride} == {1, 2, 3}
    assert {d for dilation in dilations for d in dilation} == {1, 2, 3}
    assert any(lo != hi for padding in paddings for lo, hi in padding)
    assert any(len(set(kernel)) > 1 for kernel in kernels)
    assert groups == {1, 2, 3, 8}
    assert any(g == shape[1] == channels > 1 for _, shape, channels, *_, g in drawn)


def test_every_kind_can_be_planned_and_called(costs):
    first = {geometry[0]: geometry for geometry in costs.random_convolutions(50)}
    plans = [*costs.planned(costs.conv_graph, first.values())]
    assert [plan.kind for plan in plans] == list(first)
    assert all(plan.processor > 0 for plan in plans)


def test_planning_is_summed_up_where_no_kernel_came(costs):
    plans = [costs.Planned("conv", float(ms), ms / 2, 0) for ms in range(1, 101)]
    summary = costs.summary([*plans, costs.Planned("conv", 900.0, 900.0, 3)])
    assert (summary["planned"], summary["kernels"]) == (101, 3)
    assert (summary["planning, ms"], summary["99 % below, ms"], summary["slowest, ms"]) == (50.5, 100.0, 100.0)
    assert summary["99 % below, ms of processor time"] == 50.0


def test_the_workspace_of_a_convolution_is_bounded_whatever_the_input(costs):
    rows = list(costs.conv_workspace())
    assert {row["cell"] for row in rows} == {f"C{i}" for i in range(1, 13)}
    assert {row["mode"] for row in rows} == set(costs.MODES)
    assert max(row["workspace per thread, bytes"] for row in rows) <= 8 * 2**20
    assert not [row for row in rows if "NumPy" in row["kernels"]]


def test_the_script_says_what_its_sections_are(costs):
    _, _, listed, _ = costs.__doc__.split("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == list(costs.SECTIONS)

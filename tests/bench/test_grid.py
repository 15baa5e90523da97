"""The grid is the published one."""

import re

import numpy as np
import pytest

from gradspec.bench.grid import CELLS, GRID, MATMULS, Conv, Pool, data, problem, problems

POOLS = """P1 (8,64,112,112) 3 2 1 · P2 (8,64,112,112) 2 2 0 · P3 (8,64,56,56) 3 1 1 · P4 (4,32,128,128) 13 1 6
· P5 (1,3,1024,1024) 5 1 2 · P6 (2,32,32,64,64) 3 2 1 · P7 (16,64,16384) 4 4 0 · P8 (1,8,16,16,16,16) 2 2 0
· P9 (8,256,14,14)→7×5 · P10 (8,512,28,28)→1×1 · P11 (1,16,14,14) 2 2 0"""
CONVS = """C1 (8,64,56,56) 64 3 1 1 · C2 (8,3,224,224) 64 7 2 3 · C3 (8,256,14,14) 256 3 1 1 · C4 (8,64,56,56) 256 1 1 0
· C5 (1,64,56,56) 64 3 1 1 · C6 (8,128,56,56) 128 3 1 1 groups=128 · C7 (4,64,64,64) 64 3 1 2 dilation=2
· C8 (16,64,4096) 128 9 1 4 · C9 (1,16,16,56,56) 32 3 1 1 · C10 (8,64,28,28) 64 4 2 1 transposed
· C11 (1,8,14,14) 8 3 1 1 · C12 (1,4,10,10,10,10) 8 3 1 1"""


def numbers(text, separator):
    return tuple(map(int, text.split(separator)))


def pool_of(text):
    name, shape, sizes, target = re.fullmatch(r"(\w+) \((.*?)\)(?: (.*))?(?:→(.*))?", text).groups()
    if target:
        return Pool(name, numbers(shape, ","), output_size=numbers(target, "×"))
    return Pool(name, numbers(shape, ","), *numbers(sizes, " "))


def conv_of(text):
    name, shape, *rest = text.replace("(", "").replace(")", "").split()
    extras = dict(word.split("=") for word in rest[4:] if "=" in word)
    extras = {key: int(value) for key, value in extras.items()} | {"transposed": "transposed" in rest}
    return Conv(name, numbers(shape, ","), *map(int, rest[:4]), **extras)


@pytest.mark.parametrize(("suite", "published", "read"), [("pool", POOLS, pool_of), ("conv", CONVS, conv_of)])
def test_the_grid_is_the_published_one(suite, published, read):
    assert GRID[suite] == tuple(read(text.strip()) for text in published.split("·"))


@pytest.mark.parametrize(
    ("cell", "output"),
    [
        ("P1", (8, 64, 56, 56)),
        ("P4", (4, 32, 128, 128)),
        ("P6", (2, 32, 16, 32, 32)),
        ("P7", (16, 64, 4096)),
        ("P9", (8, 256, 7, 5)),
        ("P10", (8, 512, 1, 1)),
        ("C2", (8, 64, 112, 112)),
        ("C7", (4, 64, 64, 64)),
        ("C10", (8, 64, 56, 56)),
        ("C12", (1, 8, 10, 10, 10, 10)),
        ("N1", (64, 10)),
        ("N2", (4, 64, 56, 56)),
    ],
)
def test_result_shapes(cell, output):
    assert CELLS[cell].output() == output


def test_the_networks_have_the_parameters_of_the_originals():
    lenet, resnet = GRID["net"]
    weights = [[shape for name, shape in net.inputs().items() if "weight" in name] for net in (lenet, resnet)]
    assert weights[0] == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert weights[1] == [(64, 3, 7, 7), *[(64, 64, 3, 3)] * 4]


@pytest.mark.parametrize(
    ("names", "bytes"),
    [
        (("P2", "max", "forward"), 4 * 8 * 64 * (112**2 + 56**2)),
        (("P2", "max", "vjp"), 8 * 8 * 64 * (112**2 + 56**2)),
        (("C5", "conv", "forward"), 4 * (2 * 64 * 56**2 + 64 * 64 * 9)),
        (("C5", "conv", "jvp"), 8 * (2 * 64 * 56**2 + 64 * 64 * 9)),
    ],
)
def test_bytes_read_and_written(names, bytes):
    assert problem(*names).bytes == bytes


@pytest.mark.parametrize(
    ("names", "flops"),
    [
        (("C1", "conv", "forward"), 2 * 8 * 64 * 56**2 * 64 * 9),
        (("C1", "conv", "vjp"), 6 * 8 * 64 * 56**2 * 64 * 9),
        (("C6", "conv", "forward"), 2 * 8 * 128 * 56**2 * 9),
        (("C10", "conv", "forward"), 2 * 8 * 64 * 28**2 * 64 * 16),
        (("N1", "net", "forward"), 2 * 64 * (6 * 784 * 25 + 16 * 100 * 150 + 400 * 120 + 120 * 84 + 840)),
        (("P1", "max", "forward"), 0),
    ],
)
def test_operations(names, flops):
    assert problem(*names).flops == flops


def test_a_gradient_of_a_network_skips_the_gradient_of_its_input():
    forward, gradient = (problem("N1", "net", mode).flops for mode in ("forward", "vjp"))
    assert gradient == 3 * forward - 2 * 64 * 6 * 784 * 25


def test_problems_cover_the_grid():
    pools = problems("pool", (), (), ())
    assert len(pools) == 3 * (3 * 11 - 1)  # no adaptive smooth maximum
    assert len(problems("conv", (), (), ())) == 3 * 12
    nets = [f"{name} net {mode}" for mode in ("forward", "vjp") for name in ("N1", "N2")]
    assert [str(p) for p in problems("net", (), (), ())] == nets
    assert [str(p) for p in problems("pool", ["P2", "P1"], ["avg"], ["vjp", "jvp"])] == [
        "P1 avg jvp",
        "P2 avg jvp",
        "P1 avg vjp",
        "P2 avg vjp",
    ]


@pytest.mark.parametrize("names", [("P11", "max", "jvp"), ("P11", "max", "vjp"), ("C11", "conv", "jvp")])
def test_numbers_are_repeatable_different_and_unequal(names):
    once, again = data(problem(*names)), data(problem(*names))
    arrays = [*once.inputs, *once.tangents, once.cotangent]
    for a, b in zip(arrays, [*again.inputs, *again.tangents, again.cotangent], strict=True):
        assert a.dtype == np.float32
        assert np.array_equal(a, b)
    assert len(np.unique(once.inputs[0])) == once.inputs[0].size
    for x, dx in zip(once.inputs, once.tangents, strict=False):
        assert x.shape == dx.shape
        assert not np.array_equal(x, dx)


def test_matrix_products_are_counted_as_everywhere():
    assert [(cell.side, cell.flops("forward")) for cell in MATMULS] == [(n, 2 * n**3) for n in (1024, 1536)]
    assert CELLS["copy"].flops("forward") == 0


def test_the_second_network_is_a_resnet_up_to_its_first_stage():
    layers = [(x.kind, x.channels, x.kernel, x.stride, x.padding) for x in GRID["net"][1].layers]
    block = [("keep", 0, 0, 1, 0), ("conv", 64, 3, 1, 1), ("relu", 0, 0, 1, 0), ("conv", 64, 3, 1, 1)]
    block += [("add", 0, 0, 1, 0), ("relu", 0, 0, 1, 0)]
    assert layers == [("conv", 64, 7, 2, 3), ("relu", 0, 0, 1, 0), ("max_pool", 0, 3, 2, 1), *block, *block]
    assert [cell.shape for cell in GRID["net"]] == [(64, 1, 28, 28), (4, 3, 224, 224)]


@pytest.mark.parametrize(
    ("names", "may_be_fixed"),
    [
        (("C1", "conv", "forward"), True),
        (("N1", "net", "forward"), True),
        (("C1", "conv", "jvp"), False),
        (("N1", "net", "vjp"), False),
        (("P1", "max", "forward"), False),
        (("matmul 1024", "matmul", "forward"), False),
    ],
)
def test_weights_may_be_constants_where_nothing_is_differentiated(names, may_be_fixed):
    assert problem(*names).has_fixed_weights == may_be_fixed

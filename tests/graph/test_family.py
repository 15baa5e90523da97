"""Families of graphs: what sizes and dtypes settle, and what is remembered."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.family import Family, OpenType
from gradspec.graph.types import type_of
from gradspec.transforms.copy import with_floats

WEIGHT = np.random.default_rng(0).standard_normal((4, 3))


def family_of(function, dims, made=None, most=32, dtype=gs.f32):
    """The family of a function, and in ``made`` what it was asked to make."""
    inputs = {f"x{i}": OpenType(dtype, sizes) for i, sizes in enumerate(dims)}

    def make(sizes, changed):
        if made is not None:
            made.append((dict(sizes), changed))
        graph = gs.trace(function, *(t.at(sizes) for t in inputs.values()))
        return graph if changed is None else with_floats(graph, changed)

    return Family(inputs, make, most=most)


def layer(x0, x1):
    return gs.relu(gs.linear(x0, WEIGHT.astype(np.float32))) + x1


def layers(made=None, **options):
    return family_of(layer, [("batch", 3), ("batch", "width")], made, **options)


def arrays(batch, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal((batch, n)).astype(dtype) for n in (3, 4)]


@pytest.mark.parametrize("dtype", [np.float16, gs.bf16.numpy, np.float32, np.float64], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_a_call_is_that_of_the_graph_traced_for_it(batch, dtype):
    given = arrays(batch, dtype)
    weight = WEIGHT.astype(np.float32).astype(dtype)
    traced = gs.trace(lambda x, y: gs.relu(gs.linear(x, weight)) + y, *map(type_of, given))
    found = layers()(*given)
    assert found.dtype == dtype
    assert np.array_equal(found, traced(*given))


def test_each_size_and_dtype_is_made_once():
    made = []
    family = layers(made)
    for batch, dtype in [(2, np.float32), (3, np.float32), (2, np.float32), (2, np.float64), (3, np.float32)]:
        family(*arrays(batch, dtype))
    family.at(batch=2, width=4)
    family.at(batch=2, width=4, dtype=gs.f32)
    family.at(gs.f64[2, 3], gs.f64[2, 4])
    sizes = {"batch": 2, "width": 4}
    assert made == [(sizes, None), ({**sizes, "batch": 3}, None), (sizes, gs.f64)]


def test_no_more_are_kept_than_allowed():
    made = []
    family = layers(made, most=2)
    for batch in (1, 2, 1, 3, 1, 2):
        family(*arrays(batch))
    assert [sizes["batch"] for sizes, _ in made] == [1, 2, 3, 2]


def test_threads_make_a_graph_once():
    made, results = [], []
    family = layers(made)
    slow = family._make
    family._make = lambda sizes, dtype: (time.sleep(0.01), slow(sizes, dtype))[1]
    threads = [threading.Thread(target=lambda: results.append(family(*arrays(2)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(results) == 4


def test_equal_constants_lie_in_one_place():
    """And those that are not equal do not, whatever their names are."""
    family = family_of(
        lambda x: gs.sum(x * np.arange(x.shape[1], dtype=np.float32)) + x @ np.eye(3, dtype=np.float32), [("n", 3)]
    )
    one, two = (next(iter(family.at(n=n).constants.values())) for n in (1, 2))
    assert one is two
    sizes = family_of(lambda x: x * np.float32([[len(x.shape), x.shape[0]]]), [("n", 2)])
    one, two = (next(iter(sizes.at(n=n).constants.values())) for n in (1, 2))
    assert one.tolist() == [[2, 1]]
    assert two.tolist() == [[2, 2]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_derivatives(dtype):
    family = layers()
    for batch in (1, 4):
        given, ct = arrays(batch, dtype), arrays(batch, dtype, seed=1)[1]
        graph = family.at(*given)
        for found, right in zip(family.vjp("x0")(*given, ct), graph.vjp("x0")(*given, ct), strict=True):
            assert np.array_equal(found, right)
        for found, right in zip(family.jvp("x1")(*given, ct), graph.jvp("x1")(*given, ct), strict=True):
            assert np.array_equal(found, right)
    second = family.vjp().vjp("x0")
    assert len(second.at(*arrays(2, dtype)).inputs) == len(family.at(*arrays(2, dtype)).vjp().vjp("x0").inputs)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_compiled(backend):
    family = layers()
    run = gs.compile(family, backend=backend, threads=1)
    for batch in (2, 3, 2):
        given, out = arrays(batch), np.empty((batch, 4), np.float32)
        assert run(*given, out=out) is out
        np.testing.assert_allclose(out, family(*given), rtol=1e-6)
    assert run.at(batch=2, width=4) is run.at(*arrays(2))
    assert "compiled family(x0: f32[batch, 3]" in repr(run)


def test_printing_says_what_is_open():
    family = layers()
    assert str(family) == "family(x0: f32[batch, 3], x1: f32[batch, width])"
    family(*arrays(2, np.float64))
    assert str(family).endswith("with graphs for:\n  batch=2, width=4, f64")


def test_plain_numbers_take_the_dtype_of_the_rest():
    family = family_of(lambda x, s: x * s, [("n",), ()])
    assert family(np.ones(3), 2.0).tolist() == [2.0, 2.0, 2.0]
    assert family(np.ones(2, np.float32), 2).dtype == np.float32


def test_lists_of_plain_numbers_do_too():
    family = family_of(lambda x, y: x * y, [("n",), ("n",)], dtype=gs.f64)
    assert family([1.0, 0.1], [1.0, 1.0]).tolist() == [1.0, 0.1]
    assert family(np.ones(2), [1.0, 0.1]).tolist() == [1.0, 0.1]
    assert family(np.ones(2, np.float32), [1.0, 1.0]).dtype == np.float32


def test_integers_stay_as_they_are():
    inputs = {"logits": OpenType(gs.f32, ("n", 3)), "labels": OpenType(gs.i64, ("n",))}

    def make(sizes, dtype):
        graph = gs.trace(gs.cross_entropy, *(t.at(sizes) for t in inputs.values()))
        return graph if dtype is None else with_floats(graph, dtype)

    family = Family(inputs, make)
    logits, labels = np.random.default_rng(0).standard_normal((4, 3)), np.int64([0, 2, 1, 1])
    assert family(logits, labels) == gs.cross_entropy(logits, labels)
    with pytest.raises(gs.DTypeError, match=r"labels: i64\[n\] was given f64\[4\]"):
        family(logits, labels.astype(float))
    with pytest.raises(gs.DTypeError, match=r"logits: f32\[n, 3\] was given i64"):
        family(logits.astype(int), labels)


MISTAKES = {
    "sizes of one name": (lambda f: f(*arrays(2)[:1], arrays(3)[1]), gs.ShapeError, "batch is 3, and 2 in x0"),
    "a fixed size": (
        lambda f: f(np.ones((2, 5), np.float32), np.ones((2, 4), np.float32)),
        gs.ShapeError,
        "axis 1 is 3",
    ),
    "axes": (
        lambda f: f(np.ones(3, np.float32), np.ones((2, 4), np.float32)),
        gs.ShapeError,
        "pass an array of 2 axes",
    ),
    "two dtypes": (lambda f: f(arrays(2)[0], arrays(2, float)[1]), gs.DTypeError, "x0: f32, x1: f64; convert some"),
    "too few arrays": (lambda f: f(arrays(2)[0]), TypeError, "takes 2 arrays"),
    "too many arrays": (lambda f: f(*arrays(2), arrays(2)[0]), TypeError, "takes 2 arrays"),
    "an unknown size": (lambda f: f.at(batch=2, height=3), gs.ShapeError, "open sizes are batch=…, width=…"),
    "no size": (lambda f: f.at(), gs.ShapeError, "nothing was given"),
    "a negative size": (lambda f: f.at(batch=-1, width=4), gs.ShapeError, "batch"),
    "sizes and arrays": (lambda f: f.at(*arrays(2), batch=2), TypeError, "not both"),
    "integers": (lambda f: f.at(batch=2, width=4, dtype=gs.i32), gs.DTypeError, "i32 is none"),
    "pickling": (pickle.dumps, TypeError, "cannot be pickled"),
    "another library": (gs.to_onnx, TypeError, r"family\.at\(batch=8, width=8\)"),
    "types": (lambda f: gs.compile(f, gs.f32[2, 3]), TypeError, "types already"),
    "no example": (lambda f: f.example(), ValueError, "made no graph so far"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    made = []
    act, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        act(layers(made))
    assert len(made) <= (mistake == "too many arrays")


def test_a_maker_that_gives_other_sizes_is_found_out():
    family = Family({"x": OpenType(gs.f32, ("n",))}, lambda sizes, dtype: gs.trace(gs.relu, gs.f32[3]))
    with pytest.raises(
        gs.ShapeError, match=r"for n=2 the inputs should be \[f32\[2\]\], and the model has \[f32\[3\]\]"
    ):
        family.at(n=2)


def test_a_copy_is_the_family():
    family = layers()
    assert copy.deepcopy([family]) == [family]


def test_floats_of_two_kinds_are_not_exchanged():
    graph = gs.trace(lambda x: gs.convert(gs.convert(x, gs.f16), gs.f32) * x, gs.f32[2])
    with pytest.raises(gs.DTypeError, match="computes in f16, f32"):
        with_floats(graph, gs.f64)
    inputs = {"x": OpenType(gs.f32, ("n",)), "y": OpenType(gs.f16, ("n",))}
    mixed = Family(inputs, lambda sizes, dtype: gs.trace(lambda x, y: x + gs.convert(y, gs.f32), gs.f32[2], gs.f16[2]))
    assert mixed(np.ones(2, np.float32), np.ones(2, np.float16)).tolist() == [2.0, 2.0]
    with pytest.raises(gs.DTypeError, match="floats of more than one dtype"):
        mixed(np.ones(2), np.ones(2))


def test_conversions_go_to_the_new_dtype():
    graph = gs.trace(lambda n: gs.convert(n, gs.f32) * 0.5, gs.i64[2])
    converted = with_floats(graph, gs.f64)
    assert converted(np.int64([2**53 - 1, 3])).tolist() == [2**52 - 0.5, 1.5]
    assert with_floats(graph, gs.f32) is graph
    huge = gs.trace(lambda x: x * np.float32([1e30]), gs.f32[1])
    assert with_floats(huge, gs.f16)(np.ones(1, np.float16)).tolist() == [np.inf]

"""Weights by name: files that other libraries read and write, and graphs that are given their parameters."""

import json
import os
import struct
from collections import OrderedDict
from dataclasses import dataclass
from random import Random
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import gradspec as gs
from interop.networks import TORCH

RANDOM = np.random.default_rng(8)
ARRAYS = {
    "conv1.weight": RANDOM.standard_normal((3, 2, 2, 2), np.float32),
    "conv1.bias": np.float32([1, -1, 0]),
    "half": np.float16([[1, 2]]),
    "brain": np.array([1.5, 2], ml_dtypes.bfloat16),
    "double": np.array(3.0),
    "count": np.array(7, np.int64),
    "empty": np.ones((0, 3), np.float32),
}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_those_of_safetensors(tmp_path):
    gs.save_weights(tmp_path / "ours", ARRAYS)
    theirs = safetensors.torch.load_file(tmp_path / "ours")
    assert {n: tuple(t.shape) for n, t in theirs.items()} == {n: a.shape for n, a in ARRAYS.items()}
    assert theirs["brain"].tolist() == [1.5, 2]
    numpys = {name: array for name, array in ARRAYS.items() if name != "brain"}
    safetensors.numpy.save_file(numpys, tmp_path / "theirs", {"made": "elsewhere"})
    same(gs.load_weights(tmp_path / "theirs"), numpys)


@dataclass
class Block:
    weight: Any
    bias: Any


def test_names_are_paths(tmp_path):
    tree = {"conv": Block(np.ones((1, 2)), None), "rest": [jnp.zeros(2), (torch.ones(3),)], 3: np.zeros(1)}
    gs.save_weights(tmp_path / "w", {"net": {str(key): value for key, value in tree.items()}})
    found = gs.load_weights(tmp_path / "w")
    assert sorted(found) == ["net.3", "net.conv.weight", "net.rest.0", "net.rest.1.0"]
    assert found["net.rest.1.0"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "two weights have the name 'a.b'"),
        (np.ones(1), "cannot have the name ''"),
        ({"__metadata__": np.ones(1)}, "cannot have the name '__metadata__'"),
    ],
)
def test_names_must_be_distinct(tree, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        gs.save_weights(tmp_path / "w", tree)
    assert os.listdir(tmp_path) == []


def test_all_that_cannot_be_stored_is_listed(tmp_path):
    with pytest.raises(gs.DTypeError, match=r"(?s)a holds complex128.*c holds object"):
        gs.save_weights(tmp_path / "w", {"a": np.ones(1, complex), "b": np.ones(1), "c": np.array([{}])})


def test_views_and_strides_are_stored_by_value(tmp_path):
    x = torch.arange(6.0).reshape(2, 3)
    gs.save_weights(tmp_path / "w", {"x": x, "turned": x.T, "repeated": x[:, :1].expand(2, 4)})
    found = gs.load_weights(tmp_path / "w")
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["repeated"].tolist() == [[0] * 4, [3] * 4]


def test_what_is_there_stays_until_the_new_file_is_complete(tmp_path, monkeypatch):
    gs.save_weights(tmp_path / "w", {"a": np.ones(1)})

    def fails(*_):
        raise OSError("no space")

    monkeypatch.setattr("gradspec.interop.weights.save_file", fails)
    with pytest.raises(OSError, match="no space"):
        gs.save_weights(tmp_path / "w", {"a": np.zeros(1)})
    assert os.listdir(tmp_path) == ["w"]
    assert gs.load_weights(tmp_path / "w")["a"].tolist() == [1]


def test_arrays_stay_in_the_file(tmp_path):
    gs.save_weights(tmp_path / "w", {"a": np.ones(1000), "b": np.zeros(5, np.float32)})
    found = gs.load_weights(tmp_path / "w")["a"]
    assert not found.flags.writeable
    with open(tmp_path / "w", "r+b") as file:
        content = file.read()
        place = content.index(struct.pack("<d", 1.0))
        file.seek(place)
        file.write(struct.pack("<d", 9.0))
    assert found[0] == 9
    os.remove(tmp_path / "w")
    assert found[-1] == 1


@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_state_dicts_come_back(name, tmp_path):
    make = next(make for key, (make, _) in TORCH.items() if name in key.lower())
    module, other = make(), make()
    gs.save_weights(tmp_path / "w", module.state_dict())
    for tensor in other.state_dict().values():
        tensor.zero_()
    loaded = gs.load_weights(tmp_path / "w", like=other.state_dict())
    assert type(loaded) is OrderedDict
    other.load_state_dict(loaded)
    for a, b in zip(module.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    next(iter(loaded.values())).zero_()  # it has memory of its own
    same_file = safetensors.torch.load_file(tmp_path / "w")
    assert all(torch.equal(same_file[n], t) for n, t in module.state_dict().items())


def test_parameters_that_require_grad_are_stored(tmp_path):
    layer, path = torch.nn.Linear(2, 1), tmp_path / "w"
    weights = dict(layer.named_parameters())
    gs.save_weights(path, weights)
    assert torch.equal(gs.load_weights(path, like=weights)["weight"], layer.weight.detach())


def test_kinds_and_structure_are_those_of_like(tmp_path):
    like = {"a": jnp.ones(2), "b": (torch.ones(3), np.ones(1))}
    gs.save_weights(tmp_path / "w", like)
    found = gs.load_weights(tmp_path / "w", like)
    assert [type(found["a"]), *map(type, found["b"])] == [type(like["a"]), torch.Tensor, np.ndarray]
    with pytest.raises(gs.ShapeError) as caught:
        gs.load_weights(tmp_path / "w", {"a": jnp.ones(3), "b": [np.ones(3)], "c": np.ones(1)})
    lines = str(caught.value).split("\n")[1:]
    assert [line.split()[0].rstrip(":") for line in lines] == ["a", "b.0", "c", "b.1"]


# --- hostile files ----------------------------------------------------------------------------------------------------


def pack(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


FAULTS = {
    "empty": b"",
    "short": b"\1\0",
    "header longer than the file": struct.pack("<Q", 2**60) + b"{}",
    "not JSON": pack(b"{"),
    "not an object": pack([1]),
    "key twice": pack(b'{"a": 1, "a": 2}'),
    "unknown dtype": pack({"a": entry("F8")}, bytes(4)),
    "negative size": pack({"a": entry(shape=[-1])}, bytes(4)),
    "huge size": pack({"a": entry(shape=[2**40, 2**40])}, bytes(4)),
    "wrong length": pack({"a": entry(shape=[2])}, bytes(4)),
    "overlap": pack({"a": entry(), "b": entry()}, bytes(4)),
    "gap": pack({"a": entry(offsets=(4, 8))}, bytes(8)),
    "outside": pack({"a": entry(offsets=(0, 4)), "b": entry(offsets=(4, 8))}, bytes(4)),
    "data left over": pack({"a": entry()}, bytes(5)),
    "a boolean of 2": pack({"a": entry("BOOL", (1,), (0, 1))}, b"\2"),
}


@pytest.mark.parametrize("content", FAULTS.values(), ids=FAULTS)
def test_damaged_files_are_refused(content, tmp_path):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(gs.FormatError, match=str(tmp_path / "w")):
        gs.load_weights(tmp_path / "w")


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path):
        with pytest.raises(FileExistsError, match="not a regular file"):
            gs.save_weights(target, WEIGHTS)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert not (tmp_path / "pipe").is_file()


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(gs.FormatError, match="not a regular file"):
            gs.load_weights(path)
    with pytest.raises(FileNotFoundError):
        gs.load_weights(tmp_path / "none")


def test_mutated_files_load_or_are_refused(tmp_path):
    gs.save_weights(tmp_path / "w", ARRAYS)
    whole, random, outcomes = (tmp_path / "w").read_bytes(), Random(3), {"loaded": 0, "refused": 0}
    for _ in range(300):
        place, span = random.randrange(len(whole)), random.randint(0, 9)
        mutant = whole[:place] + random.choice([random.randbytes(span), b"", b"9" * span]) + whole[place + span :]
        (tmp_path / "w").write_bytes(mutant)
        try:
            repr(gs.load_weights(tmp_path / "w"))
            outcomes["loaded"] += 1
        except gs.FormatError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20


# --- graphs -----------------------------------------------------------------------------------------------------------


def network(x, weight, bias):
    return gs.relu(gs.conv2d(x, weight, bias))


GRAPH = gs.trace(network, gs.f32[1, 2, 4, 4], gs.f32[3, 2, 2, 2], gs.f32[3])
X = RANDOM.standard_normal((1, 2, 4, 4), np.float32)
WEIGHTS = {"weight": ARRAYS["conv1.weight"], "bias": ARRAYS["conv1.bias"]}


@pytest.mark.parametrize("kind", [np.array, torch.tensor, jnp.array], ids=["numpy", "torch", "jax"])
def test_named_inputs_become_constants(kind):
    bound = gs.bind(GRAPH, {name: kind(array) for name, array in WEIGHTS.items()}, inputs=["x"])
    assert [v.name for v in bound.inputs] == ["x"]
    assert [v.name for v in bound.constants] == ["weight", "bias"]
    expected = torch.relu(torch.conv2d(torch.tensor(X), *map(torch.tensor, WEIGHTS.values())))
    np.testing.assert_allclose(bound(X), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_not_named_stays_an_input():
    bound = gs.bind(GRAPH, {"bias": WEIGHTS["bias"]})
    assert [v.name for v in bound.inputs] == ["x", "weight"]
    np.testing.assert_array_equal(bound(X, WEIGHTS["weight"]), GRAPH(X, *WEIGHTS.values()))
    assert gs.bind(GRAPH, {}) is GRAPH


def test_everything_may_be_bound():
    bound = gs.bind(GRAPH, {"x": X, **WEIGHTS})
    assert bound.inputs == ()
    np.testing.assert_array_equal(bound(), GRAPH(X, *WEIGHTS.values()))


def test_numbers_take_the_dtype_of_the_input():
    assert gs.bind(gs.trace(lambda x, k: x * k, gs.f64[()], gs.f64[()]), {"k": 2.0})(3.0) == 6


def test_all_that_does_not_fit_is_listed():
    graph = gs.trace(lambda x, a, b, c: x * a + b * c, *[gs.f32[2]] * 4)
    values = {"a": np.ones(3, np.float32), "b": np.ones(2), "other": np.ones(1), "more": np.ones(1)}
    with pytest.raises(gs.ShapeError) as caught:
        gs.bind(graph, values, inputs=["x"])
    text = str(caught.value)
    assert "a has shape (3,) and dtype float32; f32[2] is needed" in text
    assert "b has shape (2,) and dtype float64; f32[2] is needed" in text
    assert "c: f32[2] is missing" in text
    assert "other is not expected; strict=False" in text
    assert "more is not expected" in text
    with pytest.raises(gs.DTypeError):
        gs.bind(graph, {"a": np.ones(2)})
    with pytest.raises(ValueError, match="no inputs called z; it has x, a, b, c"):
        gs.bind(graph, {}, inputs=["z"])
    with pytest.raises(TypeError, match="names are needed, not str; give a dict"):
        gs.bind(graph, "weights.safetensors")


def test_names_that_the_graph_lacks_are_left_alone_when_asked():
    bound = gs.bind(GRAPH, {**WEIGHTS, "num_batches_tracked": np.array(3)}, strict=False)
    assert [v.name for v in bound.inputs] == ["x"]


def test_later_changes_to_the_weights_are_not_seen():
    weights = {name: torch.tensor(array) for name, array in WEIGHTS.items()}
    bound = gs.bind(GRAPH, weights)
    weights["weight"].zero_()
    np.testing.assert_array_equal(bound(X), GRAPH(X, *WEIGHTS.values()))


def test_weights_of_a_file_are_not_copied(tmp_path):
    gs.save_weights(tmp_path / "w", WEIGHTS)
    weights = gs.load_weights(tmp_path / "w")
    bound = gs.bind(GRAPH, weights)
    for var, array in bound.constants.items():
        assert np.shares_memory(array, weights[var.name])
    np.testing.assert_array_equal(bound(X), GRAPH(X, *WEIGHTS.values()))


def test_parameters_that_require_grad_are_not_bound():
    layer = torch.nn.Conv2d(2, 3, 2)
    with pytest.raises(gs.UnsupportedError, match="requires grad"):
        gs.bind(GRAPH, dict(layer.named_parameters()))
    assert len(gs.bind(GRAPH, layer.state_dict()).constants) == 2

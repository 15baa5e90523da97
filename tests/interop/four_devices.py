"""Data-parallel runs over four host devices, compared with one; ``test_to_jax_transforms.py`` runs this script.

The data are small whole numbers, so that sums are exact in any order and equality is demanded.
"""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradspec as gs
from interop.quick_jax import QUICK

BATCH, DEVICES = 8, 4
SHAPES = ((4, 2, 3, 3), (4,), (5, 72))


def network(x, w, b, v):
    y = gs.relu(gs.conv2d(x, w, b, padding=1))
    y = gs.concat([gs.max_pool2d(y, 3, 2, 1), gs.avg_pool2d(y, 2)], 1)
    return gs.linear(gs.flatten(y, 1), v)


def function(batch):
    return gs.to_jax(gs.trace(network, gs.f32[batch, 2, 6, 6], *(gs.f32[s] for s in SHAPES)))


def loss(f):
    return lambda params, x: f(x, *params).sum()


def jit(f, **options):
    return jax.jit(f, compiler_options=QUICK, **options)


def assert_equal(found, right):
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert np.array_equal(got, wanted)


def assert_split(array):
    """Every device holds its own part of the batch and no other."""
    parts = {shard.index[0].start: shard.data.shape[0] for shard in array.addressable_shards}
    assert parts == dict.fromkeys(range(0, BATCH, BATCH // DEVICES), BATCH // DEVICES)


def main():
    random = np.random.default_rng(0)
    x, dx = (random.integers(-1, 2, (BATCH, 2, 6, 6)).astype(np.float32) for _ in range(2))
    params = [random.integers(-1, 2, s).astype(np.float32) for s in SHAPES]
    mesh = jax.make_mesh((DEVICES,), ("batch",), axis_types=(AxisType.Auto,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("batch",), ()))
    f = function(BATCH)

    value = jit(f, in_shardings=(split, whole, whole, whole))(x, *params)
    assert_split(value)
    assert_equal(value, jit(f)(x, *params))
    print("values")

    step = jax.value_and_grad(loss(f), (0, 1))
    compiled = jit(step, in_shardings=(whole, split)).lower(params, x).compile()
    found, right = compiled(params, x), jit(step)(params, x)
    assert_split(found[1][1])
    assert all(g.sharding.is_fully_replicated for g in found[1][0])
    assert "all-gather" not in compiled.as_text()  # no device sees the batch of another
    assert_equal(found, right)
    print("gradients")

    def pushed(x, dx):
        return jax.jvp(lambda x: f(x, *params), (x,), (dx,))[1]

    tangent = jit(pushed, in_shardings=(split, split))(x, dx)
    assert_split(tangent)
    assert_equal(tangent, jit(pushed)(x, dx))
    print("forward")

    part = jax.value_and_grad(loss(function(BATCH // DEVICES)))
    split_params, split_batch = PartitionSpec(), PartitionSpec("batch")

    def on_each_device(params, x):
        """Gradients of parameters that all devices share are summed over them by ``shard_map`` itself."""
        value, gradients = part(params, x)
        return jax.lax.psum(value, "batch"), gradients

    mapped = jax.shard_map(on_each_device, mesh=mesh, in_specs=(split_params, split_batch), out_specs=split_params)
    assert_equal(jit(mapped)(params, x), (right[0], right[1][0]))
    print("mapped")


if __name__ == "__main__":
    main()

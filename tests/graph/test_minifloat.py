"""Floats of eight and four bits: every number of a format and all halves between them, beside PyTorch and ml_dtypes."""

from fractions import Fraction
from math import inf, nan

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from jax import numpy as jnp

import gradspec as gs
from gradspec.conformance import enclosure
from interop.layers import Call

FORMATS = {
    "f8_e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "f8_e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
    "f4_e2m1": (ml_dtypes.float4_e2m1fn, None),
}
every_format = pytest.mark.parametrize("name", FORMATS)
every_dtype = pytest.mark.parametrize("name", ["f8_e4m3", "f8_e5m2"])


def numbers(name):
    """All of the format, the halves between neighbours and beyond the ends, and what lies next to a half."""
    codes = np.arange(256 if name.startswith("f8") else 16, dtype=np.uint8).astype(np.uint8)
    kind = FORMATS[name][0]
    values = (codes.view(kind) if name.startswith("f8") else np.arange(-12, 13) / 2).astype(np.float32)
    finite = np.unique(values[np.isfinite(values)])
    ends = finite[-1] + (finite[-1] - finite[-2]) * np.float32([0.5, 1, 1.5])
    halves = np.concatenate([(finite[1:] + finite[:-1]) / 2, ends, -ends])
    beside = [np.nextafter(halves, np.float32(end)) for end in (-inf, inf)]
    return np.concatenate([finite, halves, *beside, np.float32([1e30, -1e30, 1e-30, -1e-30, -0.0])])


SPECIAL = np.float32([inf, -inf, nan])


@np.errstate(over="ignore")
@every_format
def test_rounding_is_that_of_ml_dtypes(name):
    x = np.concatenate([numbers(name), SPECIAL[: 3 if name.startswith("f8") else 2]])
    wanted = x.astype(FORMATS[name][0]).astype(np.float32)
    for rounded in (gs.round_to(x, name, False), np.float32(gs.spec.round_to(x.tolist(), name, False).tolist())):
        np.testing.assert_array_equal(rounded, wanted)
        assert np.array_equal(np.signbit(rounded), np.signbit(wanted)) or np.isnan(wanted).any()


@every_dtype
def test_rounding_saturates_as_pytorch_does(name):
    x = np.concatenate([numbers(name), SPECIAL])
    wanted = torch.from_numpy(x).to(FORMATS[name][1]).float().numpy()
    for rounded in (gs.round_to(x, name), np.float32(gs.spec.round_to(x.tolist(), name).tolist())):
        np.testing.assert_array_equal(rounded, wanted)


@every_format
def test_rationals_are_rounded_exactly(name):
    for x in numbers(name)[:-5]:
        nearest = gs.spec.round_to([Fraction(float(x))], name, True).tolist()[0]
        assert isinstance(nearest, Fraction)
        assert nearest == Fraction(float(gs.round_to(x, name, True)))
    third = Fraction(1, 3)
    assert gs.spec.round_to([third], "f8_e4m3").tolist() == [Fraction(11, 32)]


@every_dtype
@pytest.mark.parametrize("source", [gs.f16, gs.bf16, gs.f32, gs.f64, gs.i32], ids=str)
def test_conversion_rounds_once(name, source):
    x = numbers(name)
    x = (np.round(np.clip(x, -500, 500)) if source is gs.i32 else np.clip(x, -6e4, 6e4)).astype(source.numpy)
    stored = gs.convert(x, getattr(gs, name), saturate=False)
    assert stored.dtype == FORMATS[name][0]
    wanted = x.astype(np.float64).astype(FORMATS[name][0]).astype(np.float32)
    np.testing.assert_array_equal(gs.convert(stored, gs.f32), wanted)


def scaled(x):
    scale = x.abs().amax() / 448
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


def test_pytorch_s_conversions_are_read_with_their_derivatives():
    x = torch.linspace(-3, 5, 12, requires_grad=True)
    graph = gs.from_torch(Call(scaled), x)
    y, g = graph.vjp()(x.detach().numpy(), np.ones(12, np.float32))
    assert np.array_equal(y, scaled(x).detach().numpy())
    scaled(x).sum().backward()
    np.testing.assert_allclose(g, x.grad.numpy(), rtol=1e-5, atol=1e-6)


@every_dtype
def test_a_kernel_may_round_cotangents_as_pytorch_does(name):
    x, g = torch.linspace(-3, 5, 12, requires_grad=True), torch.linspace(0.3, 500, 12)
    y = x.to(FORMATS[name][1]).float()
    y.backward(g)
    assert not torch.equal(x.grad, g)
    graph = gs.trace(lambda x: gs.round_to(x, name), gs.f32[12]).vjp()
    low, high = (np.asarray(end[1]) for end in enclosure(graph, x.detach().numpy(), g.numpy()))
    np.testing.assert_array_equal(low, torch.minimum(x.grad, g))
    np.testing.assert_array_equal(high, torch.maximum(x.grad, g))


def test_tensors_of_eight_bits_pass_both_ways():
    x = torch.tensor([1.0, -7.5, 448.0]).to(torch.float8_e4m3fn)
    doubled = Call(lambda x: (x.float() * 0.3).to(torch.float8_e5m2))
    result = gs.from_torch(doubled, x)(x)
    assert result.dtype is torch.float8_e5m2
    assert torch.equal(result.float(), doubled(x).float())
    assert torch.equal(gs.reshape(x, (3, 1)).float(), x.float()[:, None])


def test_jax_s_conversions_do_not_saturate():
    function = jax.jit(lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32) * 2)
    x = np.float32([0.3, -17, 448, 500, inf])
    np.testing.assert_array_equal(gs.from_jax(function, x)(x), function(x))


def test_products_of_eight_bits_are_those_of_their_numbers():
    a, b = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    scales = torch.rand(2) + 0.5

    def product(a, b, scales):
        options = {"scale_a": scales[0], "scale_b": scales[1], "out_dtype": torch.bfloat16}
        return torch._scaled_mm(a, b.t(), **options)

    ours = gs.from_torch(Call(product), a, b, scales)(a, b, scales)
    torch.testing.assert_close(ours, product(a, b, scales))


def test_bounds_are_steps():
    """Rounding never decreases: what lies between two halves has one value, and a conversion adds no error."""
    graph = gs.trace(lambda x: gs.convert(gs.convert(x, gs.f8_e4m3), gs.f32), gs.f32[3])
    found = gs.bounds(graph, np.float32([16.5, 16.9, 500]), np.float32([16.9, 17.1, 1e9]), method="boxes")
    assert (found.lower.tolist(), found.upper.tolist()) == ([16, 16, 448], [16, 18, 448])


def test_nothing_is_computed_in_eight_bits():
    x = np.ones(2, ml_dtypes.float8_e4m3fn)
    with pytest.raises(gs.DTypeError, match=r"f8_e4m3 is for storage.* as by gs.convert\(x, gs.f32\)"):
        gs.add(x, x)
    with pytest.raises(gs.DTypeError, match="the format 'f8' is not known; give one of f8_e4m3"):
        gs.round_to(np.ones(2), "f8")
    with pytest.raises(gs.UnsupportedError, match="f8_e4m3"):
        gs.to_onnx(gs.trace(lambda x: gs.convert(x, gs.f8_e4m3), gs.f32[2]))


def test_graphs_of_eight_bits_are_saved(tmp_path):
    graph = gs.trace(lambda x: gs.convert(x * 1.5, gs.f8_e4m3), gs.f32[2])
    graph.save(tmp_path / "graph.safetensors")
    assert str(gs.load(tmp_path / "graph.safetensors")) == str(graph)

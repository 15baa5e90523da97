"""Operators of ONNX Runtime's own domain, and those that ONNX dropped: what they are there, they are here."""

import numpy as np
import pytest
from onnx import helper

import gradspec as gs
from interop.onnx_models import one_node, theirs


def reals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, Y, SKIP, ROW, OTHER = reals(2, 3, 4), reals(2, 4, 3), reals(2, 3, 4, seed=1), reals(4, seed=2), reals(4, seed=3)
IMAGE, KERNEL, BIAS, MATRIX = reals(1, 3, 6, 6), reals(2, 3, 3, 3), reals(2), reals(3, 4)


def microsoft(op_type, arrays, constants=(), outputs=1, **attributes):
    proto = one_node(op_type, 17, arrays, constants, outputs, domain="com.microsoft", **attributes)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto, arrays


def named(case, *outputs):
    """The model with other names for the results of its node; an empty one is not asked for."""
    proto, arrays = case
    proto.graph.node[0].output[:] = outputs
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs if name)
    return proto, arrays


PACKED = [reals(2, 3, 8), reals(8, 12), reals(12)]
HEADED = [reals(2, 3, 8), reals(2, 5, 8), reals(2, 5, 4)]
PAST = [reals(2, 2, 2, 4), reals(2, 2, 2, 4, seed=9)]
BY_HEAD = [reals(2, 2, 5, 4), reals(2, 2, 5, 4, seed=5)]


def attention(*more, outputs=1, **attributes):
    return microsoft("Attention", [*PACKED, *more], outputs=outputs, num_heads=2, **attributes)


def multi_head(*arrays, constants=(), outputs=1, **attributes):
    return microsoft("MultiHeadAttention", arrays, constants, outputs, num_heads=2, **attributes)


CONV = [IMAGE], [KERNEL, BIAS]
GEMM = [MATRIX, MATRIX.T.copy()], [BIAS[:1]]
CASES = {
    "BiasGelu": microsoft("BiasGelu", [X], [ROW]),
    "Gelu": microsoft("Gelu", [X]),
    "FastGelu": microsoft("FastGelu", [X]),
    "FastGelu with a bias": microsoft("FastGelu", [X], [ROW]),
    "QuickGelu": microsoft("QuickGelu", [X], alpha=1.5),
    "SkipLayerNormalization": microsoft("SkipLayerNormalization", [X, SKIP], [ROW], epsilon=1e-3),
    "all of it": named(microsoft("SkipLayerNormalization", [X, SKIP], [ROW, OTHER, ROW]), "y0", "", "", "y3"),
    "of squares": named(microsoft("SkipSimplifiedLayerNormalization", [X, SKIP], [ROW, OTHER]), "y0", "", "", "y3"),
    "FusedMatMul": microsoft("FusedMatMul", [X, SKIP], transB=1, alpha=0.5),
    "FusedMatMul of the other": microsoft("FusedMatMul", [Y, reals(2, 4, 5)], transA=1),
    "FusedMatMul of a vector": microsoft("FusedMatMul", [ROW, reals(4, 4)], transB=1),
    "FusedMatMul by a vector": microsoft("FusedMatMul", [reals(3, 4), ROW], transB=1),
    "FusedMatMul, broadcast": microsoft("FusedMatMul", [X, reals(5, 4)], transB=1, alpha=2.0),
    "FusedConv": microsoft("FusedConv", *CONV, activation="Relu", kernel_shape=[3, 3]),
    "FusedConv with a sum": microsoft("FusedConv", [IMAGE, KERNEL, BIAS, reals(1, 2, 4, 4)], activation="Relu"),
    "FusedConv, leaky": microsoft("FusedConv", *CONV, activation="LeakyRelu", activation_params=[0.25], strides=[2, 2]),
    "FusedConv, clipped": microsoft("FusedConv", *CONV, activation="Clip", activation_params=[-0.5, 1.5]),
    "FusedConv, hard": microsoft("FusedConv", *CONV, activation="HardSigmoid", activation_params=[0.3, 0.4]),
    "FusedGemm": microsoft("FusedGemm", *GEMM, activation="Tanh", beta=2.0),
    "FusedGemm, leaky": microsoft("FusedGemm", *GEMM, activation="LeakyRelu", activation_alpha=0.25),
    "Attention": attention(),
    "Attention to what is past": attention(unidirectional=1, scale=0.3),
    "Attention by lengths": attention(np.int32([2, 3])),
    "Attention with a mask": attention(np.int32([[1, 0, 1], [1, 1, 0]]), mask_filter_value=-5.0),
    "Attention with a mask for each place": attention(np.tri(3, dtype=np.int32)[None].repeat(2, 0)),
    "Attention of other sizes": microsoft(
        "Attention", [reals(2, 3, 8), reals(8, 20), reals(20)], num_heads=2, qkv_hidden_sizes=[8, 8, 4]
    ),
    "Attention with a past": attention(
        np.ones((2, 5), np.int32), reals(2, 2, 2, 2, 2, seed=4), outputs=2, unidirectional=1
    ),
    "MultiHeadAttention": multi_head(*HEADED, outputs=3),
    "MultiHeadAttention with a bias": multi_head(*HEADED, constants=[reals(20)]),
    "MultiHeadAttention with a mask": multi_head(*HEADED, constants=[reals(20), np.int32([[1, 1, 0, 1, 1]] * 2)]),
    "MultiHeadAttention with a past": multi_head(
        HEADED[0], HEADED[0], HEADED[0], constants=[None, None, None, *PAST], outputs=3, unidirectional=1
    ),
    "MultiHeadAttention by head": multi_head(HEADED[0], *BY_HEAD, constants=[reals(24)]),
    "LayerNormalization": (one_node("LayerNormalization", 12, [X], [ROW, OTHER], axis=-1), [X]),
    "SimplifiedLayerNormalization": (one_node("SimplifiedLayerNormalization", 13, [X], [ROW], epsilon=1e-3), [X]),
    "Affine": (one_node("Affine", 7, [X], alpha=2.0, beta=-1.0), [X]),
    "Crop": (one_node("Crop", 7, [IMAGE], border=[1, 0, 2, 3]), [IMAGE]),
    "Crop to a size": (one_node("Crop", 7, [IMAGE], border=[1, 2, 0, 0], scale=[3, 4]), [IMAGE]),
    "ImageScaler": (one_node("ImageScaler", 7, [IMAGE], bias=[1.0, -2.0, 0.5], scale=0.25), [IMAGE]),
    "ParametricSoftplus": (one_node("ParametricSoftplus", 7, [X], alpha=2.0, beta=0.5), [X]),
    "ScaledTanh": (one_node("ScaledTanh", 7, [X], alpha=2.0, beta=0.5), [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_onnx_runtime_computes(name):
    proto, arrays = CASES[name]
    ours = gs.from_onnx(proto)(*arrays)
    for a, b in zip(ours if isinstance(ours, tuple) else (ours,), theirs(proto, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, strict=True)


@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        (microsoft("FusedConv", *CONV, activation="Swirl"), gs.UnsupportedError, "the activation 'Swirl'"),
        (microsoft("FusedMatMul", [X, SKIP], transBatchA=1), gs.UnsupportedError, "leading axes"),
        (multi_head(*HEADED, unidirectional=1), gs.UnsupportedError, "unidirectional"),
        (attention(np.int32([1, 2, 3, 0])), gs.UnsupportedError, "a mask of another shape"),
        (microsoft("Gelu", [X], alpha=1.0), gs.FormatError, "'alpha' is not one that Gelu has"),
        (microsoft("Gelu", [X, X]), gs.FormatError, "it has 2 inputs"),
        ((one_node("Crop", 7, [IMAGE], border=[3, 3, 3, 3]), None), gs.FormatError, "nothing is left"),
        ((one_node("Crop", 7, [IMAGE], border=[1, 1]), None), gs.FormatError, "its border is"),
        ((one_node("ImageScaler", 7, [IMAGE], bias=[1.0], scale=1.0), None), gs.FormatError, "3 channels"),
    ],
)
def test_what_they_do_not_say_is_refused(case, error, said):
    with pytest.raises(error, match=said):
        gs.from_onnx(case[0])


def test_an_attribute_that_onnx_runtime_would_not_mind_is_a_warning():
    """Before ONNX had LayerNormalization; since then it is refused."""
    misspelt = {"axis": -1, "epsion": 1e-3}
    with pytest.warns(gs.FormatWarning, match="'epsion' is no attribute of LayerNormalization, which is passed over"):
        gs.from_onnx(one_node("LayerNormalization", 16, [X], [ROW, OTHER], **misspelt))
    with pytest.raises(gs.FormatError, match="epsion"):
        gs.from_onnx(one_node("LayerNormalization", 17, [X], [ROW, OTHER], **misspelt))


def test_a_model_without_onnx_s_own_operators_needs_no_version_of_them():
    proto, arrays = microsoft("Gelu", [X])
    del proto.opset_import[0]
    np.testing.assert_allclose(gs.from_onnx(proto)(*arrays), theirs(proto, arrays)[0], rtol=2e-5, atol=2e-6)

"""``module:object``, ``check_kernel`` and the pytest fixture: anyone's kernels, from one function upwards."""

import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

import gradspec as gs
from conformance.target_calls import call_of
from gradspec.conformance.campaign.request import check_target
from gradspec.conformance.checks import guards
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.problem import MODES, Problem
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.user.target import UserKernels, loaded
from gradspec.testing import FewCasesWarning, check_kernel

pytest_plugins = ["pytester"]

MAX = Problem("max_pool", 1, ((2, 6),), {"kernel_size": (2,), "stride": (2,)})
CONV = Problem("conv", 1, ((2, 2, 5), (3, 2, 2), (3,)), {"stride": (1,), "padding": ((0, 0),), "groups": 1})
UNBIASED = replace(CONV, shapes=(*CONV.shapes[:2], None))


def windows(x, kernel_size, stride):
    return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :]


def max_pool(x, kernel_size, stride):
    if len(kernel_size) > 1:
        raise NotImplementedError("one axis only")
    return windows(x, kernel_size, stride).max(-1)


def max_pool_jvp(x, dx, kernel_size, stride):
    winners = windows(x, kernel_size, stride).argmax(-1)[..., None]
    return np.take_along_axis(windows(dx, kernel_size, stride), winners, -1)[..., 0]


def max_pool1d_vjp(x, g, kernel_size, stride, *, last=False):
    dx = np.zeros_like(x)
    for o in range(g.shape[-1]):
        window = x[..., o * stride[0] : o * stride[0] + kernel_size[0]]
        winner = kernel_size[0] - 1 - np.flip(window, -1).argmax(-1) if last else window.argmax(-1)
        place = (o * stride[0] + winner)[..., None]
        np.put_along_axis(dx, place, np.take_along_axis(dx, place, -1) + g[..., o : o + 1], -1)
    return dx


def last_tie(x, g, kernel_size, stride):
    return max_pool1d_vjp(x, g, kernel_size, stride, last=True)


FUNCTIONS = {f.__name__: f for f in (max_pool, max_pool_jvp, max_pool1d_vjp)}


class Kernels:
    dtypes = ("f32",)
    ranks = (1,)
    max_pool = staticmethod(max_pool)
    max_pool_jvp = staticmethod(max_pool_jvp)
    max_pool1d_vjp = staticmethod(max_pool1d_vjp)


def as_module() -> ModuleType:
    module = ModuleType("kernels")
    vars(module).update(FUNCTIONS)
    return module


# --- what kernels may be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [FUNCTIONS, as_module(), Kernels(), Kernels], ids=["mapping", "module", "instance", "class"]
)
def test_every_kind_of_object(given):
    target = UserKernels(given)
    assert (target.ops, target.modes) == (("max_pool",), ("value", "jvp", "vjp"))
    for mode in target.modes:
        assert target.refusal(MAX, mode) is None
        assert {verdict.kind for verdict in judge_call(target, call_of(MAX, mode))} == {"pass"}
    assert target.refusal(MAX, "second") == "it has no max_pool_vjp_vjp"
    assert target.refusal(CONV, "value") == target.refusal(replace(CONV, dtype="i8"), "value") == "it has no conv"


def test_one_function_is_enough():
    by_name, told = UserKernels(max_pool), UserKernels(lambda a, kernel_size: 0 * a[..., ::2], op="max_pool")
    assert by_name.modes == told.modes == ("value",)
    assert {verdict.kind for verdict in judge_call(told, call_of(MAX))} == {"defect"}


def test_a_ranked_name_is_of_that_rank():
    target = UserKernels({"max_pool": max_pool, "max_pool1d": lambda x, kernel_size: x[..., 0::2]})
    assert target.run(call_of(MAX))["y"].shape == (2, 3)
    assert target.refusal(Problem("max_pool", 2, ((6, 6),), {"kernel_size": (2, 2)}), "value") is None
    assert "no max_pool_vjp of rank 2" in UserKernels(max_pool1d_vjp).refusal(replace(MAX, rank=2), "vjp")


def test_ranks_are_those_of_each_operator():
    target = UserKernels({"max_pool1d": max_pool, "avg_pool2d": lambda x, kernel_size: x})
    problem = Problem("avg_pool", 1, ((6,),), {"kernel_size": (2,)})
    assert target.refusal(problem, "value") == "it has no avg_pool of rank 1"


def test_not_implemented_is_not_offered():
    call = call_of(Problem("max_pool", 2, ((6, 6),), {"kernel_size": (2, 2)}))
    with pytest.raises(NotOfferedError, match="one axis only"):
        UserKernels(max_pool).run(call)
    assert [verdict.kind for verdict in judge_call(UserKernels(max_pool), call)] == ["not_offered"]


# --- what they are given ----------------------------------------------------------------------------------------------


def told(function, problem=MAX, mode="value", **more):
    """What a function that records its arguments was given."""
    seen = {}

    def record(*arrays, **attributes):
        seen.update(arrays=arrays, attributes=attributes)
        return function

    suffix = {"value": "", "jvp": "_jvp", "vjp": "_vjp", "second": "_vjp_vjp"}[mode]
    UserKernels({problem.op + suffix: record, **more}).run(call_of(problem, mode))
    return seen


def test_kwargs_take_every_attribute_settled():
    given = told(np.zeros(3), Problem("max_pool", 2, ((6, 6),), {"kernel_size": (2, 3)}))["attributes"]
    assert given == {
        "kernel_size": (2, 3),
        "stride": (2, 3),
        "padding": ((0, 0), (0, 0)),
        "dilation": (1, 1),
        "ceil_mode": False,
        "ties": "first",
        "return_indices": True,
    }


@pytest.mark.parametrize("problem", [CONV, UNBIASED], ids=["bias", "no bias"])
@pytest.mark.parametrize(("mode", "count"), [*zip(MODES, (3, 6, 4, 7), strict=True)])
def test_arrays_come_in_the_order_of_the_specification(problem, mode, count):
    call = call_of(problem, mode)
    given = told(np.zeros(3), problem, mode)["arrays"]
    assert len(given) == count
    assert all(a is b or np.array_equal(a, b) for a, b in zip(given, call.inputs, strict=False))
    if mode == "vjp":
        assert np.array_equal(given[3], call.cotangent)


def test_the_specification_itself_is_a_kernel():
    """Every operator and derivative of ``gs.spec``, told by its names: arguments and attributes fit."""
    target = UserKernels({name: as_arrays(getattr(gs.spec, name)) for name in ("conv", "conv_jvp", "conv_vjp")})
    for mode in ("value", "jvp", "vjp"):
        for problem in (CONV, UNBIASED):
            assert target.refusal(problem, mode) is None
            assert {verdict.kind for verdict in judge_call(target, call_of(problem, mode))} == {"pass"}


def as_arrays(function):
    def array(tensor):
        return None if tensor is None else np.array(tensor.tolist(), np.float32).reshape(tensor.shape)

    def kernel(*arrays, **attributes):
        found = function(*arrays, **attributes)
        return tuple(map(array, found)) if isinstance(found, tuple) else array(found)

    return kernel


def test_names_may_be_ones_own_and_in_any_order():
    def conv(stride, w, x):
        return None

    def unbiased(image, filters, stride, padding, dilation, groups):
        return image

    for function in (lambda x, weight: x, unbiased):
        target = UserKernels({"conv": function})
        assert target.refusal(CONV, "value") == "conv takes no bias"
        assert np.array_equal(target.run(call_of(UNBIASED))["y"], call_of(UNBIASED).inputs[0])
    swapped = UserKernels({"max_pool_vjp": lambda g, x, kernel_size: x})
    assert np.array_equal(swapped.run(call_of(MAX, "vjp"))["grad_x"], call_of(MAX, "vjp").inputs[0])
    assert "needs 'w'" not in str(UserKernels(conv).refusal(UNBIASED, "value"))


@pytest.mark.parametrize(
    ("function", "problem", "reason"),
    [
        (lambda x: x, MAX, "max_pool takes no kernel_size"),
        (lambda x, kernel_size: x, replace(MAX, attributes={"kernel_size": (2,), "stride": (1,)}), "takes no stride"),
        (lambda x, kernel_size: x, replace(MAX, attributes={"kernel_size": (2,), "ties": "all"}), "takes no ties"),
        (lambda x, kernel_size, mood: x, MAX, "needs 'mood', which gs.spec.max_pool does not have"),
        (lambda x, kernel_size, stride: x, replace(MAX, dtype="bf16"), "dtypes bf16 is not among"),
    ],
)
def test_what_has_no_place_is_not_offered(function, problem, reason):
    assert reason in UserKernels({"max_pool": function}).declines(problem, "value")


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("max_pool2d", lambda x, kernel_size, strides: x, "max_pool2d takes `strides`.*max_pool; did you mean stride"),
        ("avg_pool", lambda x, kernal_size: x, "avg_pool takes `kernal_size`.*did you mean kernel_size"),
        ("max_pool", lambda x, kernel, stride=None: x, "`kernel`.*did you mean kernel_size"),
        ("conv", lambda x, w, strides: x, "conv takes `strides`, .*did you mean stride"),
        ("conv_transpose", lambda x, w, b, out_padding=0: x, "`out_padding`.*did you mean output_padding"),
        ("max_pool_vjp", lambda x, g, kernel_size, pad=0: x, "max_pool_vjp takes `pad`.*did you mean padding"),
    ],
)
def test_a_misspelt_attribute_is_named(name, function, message):
    with pytest.raises(ValueError, match=message):
        UserKernels({name: function})


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("conv", lambda data, weights, shift, stride: data),
        ("conv_transpose_vjp", lambda inputs, weights, shift, output_grad, stride: inputs),
        ("max_pool", lambda inputs, kernel_size, block=64, verbose=False: inputs),
    ],
)
def test_arrays_and_further_parameters_may_have_any_name(name, function):
    assert len(UserKernels({name: function}).ops) == 1


def test_attributes_at_their_defaults_need_no_parameter():
    target = UserKernels({"max_pool": lambda x, kernel_size: windows(x, kernel_size, kernel_size).max(-1)})
    assert target.refusal(MAX, "value") is None  # its stride is the kernel's size
    assert {verdict.kind for verdict in judge_call(target, call_of(MAX))} == {"pass"}


# --- what they give ---------------------------------------------------------------------------------------------------


def test_indices_with_the_value_or_without():
    def pool(x, kernel_size, stride, return_indices):
        seen = windows(x, kernel_size, stride)
        y, places = seen.max(-1), seen.argmax(-1) + stride[0] * np.arange(seen.shape[-2])
        return (y, places) if return_indices else y

    target = UserKernels({"max_pool1d": pool})
    assert target.variants(MAX, "value") == ("without_indices",)
    assert {*target.run(call_of(MAX))} == {"y", "indices"}
    assert {*target.run(call_of(MAX, variant="without_indices"))} == {"y"}
    assert {verdict.kind for verdict in judge_call(target, call_of(MAX))} == {"pass"}


def test_gradients_may_be_left_out():
    call = call_of(CONV, "vjp")
    for given, names in (
        (np.zeros(1), {"grad_x"}),
        ((None, np.zeros(1), None), {"grad_weight"}),
        ((np.zeros(1),) * 3, {"grad_x", "grad_weight", "grad_bias"}),
    ):
        assert {*UserKernels({"conv_vjp": lambda *a, g=given, **k: g}).run(call)} == names
    without = UserKernels({"conv_vjp": lambda *arrays, **attributes: (np.zeros(1), np.zeros(1), None)})
    assert {*without.run(call_of(UNBIASED, "vjp"))} == {"grad_x", "grad_weight"}
    with pytest.raises(TypeError, match=r"2 results were returned; 3 are meant: .*grad_bias. Return None"):
        UserKernels({"conv_vjp": lambda *arrays, **attributes: (np.zeros(1),) * 2}).run(call)
    with pytest.raises(TypeError, match="4 results were returned; at most 3"):
        UserKernels({"conv_vjp": lambda *arrays, **attributes: (np.zeros(1),) * 4}).run(call)


def test_tensors_are_arrays():
    torch = pytest.importorskip("torch")

    def max_pool1d(x, kernel_size, stride):
        tensor = torch.tensor(x, requires_grad=True)
        return torch.nn.functional.max_pool1d(tensor, kernel_size, stride)

    assert {verdict.kind for verdict in judge_call(UserKernels(max_pool1d), call_of(MAX))} == {"pass"}


def test_out_is_written_into():
    def pool(x, kernel_size, stride, out=None):
        y = windows(x, kernel_size, stride).max(-1)
        if out is None:
            return y
        out[...] = y
        return out

    call, outs = call_of(MAX), {"y": np.zeros((2, 3), np.float32)}
    UserKernels({"max_pool": pool}).run_into(call, outs)
    assert np.array_equal(outs["y"], pool(call.inputs[0], (2,), (2,)))
    with pytest.raises(NotOfferedError, match="takes no out="):
        UserKernels(max_pool).run_into(call, outs)


# --- what they declare ------------------------------------------------------------------------------------------------


def test_declarations_are_read():
    threads = []
    declared = {
        "arithmetic": {"accumulate": "f16", "flush_to_zero": True},
        "dtypes": ("f16", "i8"),
        "conventions": ("last_tie",),
        "reduced": {"tf32": "the manual, page 3"},
        "repeatable": False,
        "strict": True,
        "set_threads": threads.append,
    }
    target = UserKernels({"max_pool": max_pool, **declared})
    arithmetic = target.arithmetic(replace(MAX, dtype="f16"))
    assert (arithmetic.accumulate.name, arithmetic.flush_to_zero) == ("f16", True)
    assert (target.dtypes, target.repeatable, target.strict) == (("f16", "i8"), False, True)
    assert (target.conventions(), target.reduced()) == ({"last_tie"}, declared["reduced"])
    assert target.set_threads(3)
    assert threads == [3]
    assert not UserKernels(max_pool).set_threads(3)
    assert target.arithmetic(replace(MAX, dtype="i8")) is not None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: UserKernels({"max_pool": max_pool, "dtypes": ("f8",)}), ValueError, "'f8'; give some of f16"),
        (
            lambda: UserKernels({"max_pool": max_pool, "conventions": ["ties"]}),
            ValueError,
            "'ties', which is none; use",
        ),
        (lambda: UserKernels({"max_pool": max_pool, "reduced": {"f8": ""}}), ValueError, "'f8' is not a mode.*ftz"),
        (lambda: UserKernels({"max_pool": max_pool, "arithmetic": {"sum": "f16"}}), TypeError, "has no sum"),
        (
            lambda: UserKernels(windows),
            ValueError,
            'nothing in windows is named like an operator.*by name, {"max_pool2d"',
        ),
        (lambda: UserKernels(max_pool, op="maxpool"), ValueError, "'maxpool' is not an operator.*max_pool, avg_pool"),
        (lambda: UserKernels(3, op="max_pool"), TypeError, "cannot be called; give a function"),
        (lambda: check_kernel("mine:relu", spec=gs.relu, inputs="f32[2]"), TypeError, "'mine:relu', which cannot be"),
        (lambda: UserKernels(FUNCTIONS, vjp=max_pool1d_vjp), ValueError, "vjp= belongs to one function"),
        (lambda: loaded("torchh:"), ValueError, "'torchh:' is not a target.*module:object"),
        (lambda: loaded("math"), ValueError, r"nothing in math is named like an operator.*say\. The"),
        (lambda: loaded("./a/kernels.py:f"), ValueError, r"names a file; leave out \.py: a\.kernels:f$"),
        (lambda: loaded("../kernels.py"), ValueError, r"run the check in its folder, and leave out \.py: kernels$"),
        (lambda: loaded("nowhere.at_all:kernels"), ValueError, "no module 'nowhere.at_all'.*in its folder or install"),
        (lambda: loaded("math:kernels"), ValueError, "module math has no 'kernels'; it has acos"),
        (lambda: loaded("math:sin"), ValueError, "nothing in math:sin is named like an operator"),
    ],
)
def test_mistakes_are_told(make, error, message):
    with pytest.raises(error, match=message):
        make()


# --- loading and programs ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in, with a module of kernels that no path leads to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    lines = ["def max_pool1d(x, kernel_size):", "    return x.reshape(*x.shape[:-1], -1, 2).max(-1)"]
    nested = ["class inside:", "    avg_pool = staticmethod(max_pool1d)", "table = {'max_pool1d': max_pool1d}"]
    nested += ["class made:", "    def max_pool(self, x, kernel_size):", "        return max_pool1d(x, kernel_size)"]
    nested += ["def other(x):", "    return x", "ready = made()"]
    (tmp_path / "kernels_here.py").write_text("\n".join([*lines, *nested]))
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there")
    (tmp_path / "cannot_be_read.py").write_text("def f(:")
    yield tmp_path
    sys.modules.pop("kernels_here", None)


def test_the_current_folder_is_searched(folder):
    assert loaded("kernels_here:max_pool1d").modes == ("value",)
    assert target_named("kernels_here:inside").ops == ("avg_pool",)
    assert target_named("kernels_here:inside").name == "kernels_here:inside"
    assert target_named("kernels_here").ops == ("max_pool",)
    assert check_target("kernels_here") == "kernels_here"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_more:f", "importing 'needs_more' failed: ModuleNotFoundError: No module named 'a_module_that_is_not"),
        ("cannot_be_read:f", r"importing 'cannot_be_read' failed: SyntaxError: .*cannot_be_read.py, line 1"),
        ("kernels_here.py:made", r"leave out \.py: kernels_here:made$"),
        ("kernels_here.py", r"leave out \.py: kernels_here$"),
        ("src/kernels_here.py:made", r"leave out \.py: src.kernels_here:made$"),
        ("kernels_here:other", r"name a function max_pool2d, conv or avg_pool_vjp, say\. The operators are"),
    ],
)
def test_why_nothing_can_be_loaded(folder, name, message):
    with pytest.raises(ValueError, match=message):
        loaded(name)


@pytest.mark.parametrize("name", ["kernels_here", "kernels_here:max_pool1d", "kernels_here:table", "kernels_here:made"])
def test_programs_run_where_the_kernel_is(folder, name):
    program = loaded(name).reproducer(call_of(MAX))
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == str(max_pool(call_of(MAX).inputs[0], (2,), (2,))).split()


@pytest.mark.parametrize(
    ("given", "imported"),
    [
        (lambda m: m.max_pool1d, "max_pool1d"),
        (lambda m: m.made, "made"),
        (lambda m: m.ready, "ready"),
        (lambda m: m.made(), "made"),
        (lambda m: m.table, "max_pool1d"),
        (lambda m: m, "max_pool1d"),
    ],
    ids=["function", "class", "instance of the module", "instance", "mapping", "module"],
)
def test_programs_import_objects_from_where_they_live(folder, given, imported):
    loaded("kernels_here:table")
    program = UserKernels(given(sys.modules["kernels_here"])).reproducer(call_of(MAX))
    assert f"from kernels_here import {imported}\n" in program
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == str(max_pool(call_of(MAX).inputs[0], (2,), (2,))).split()


def test_programs_do_not_make_an_instance_that_may_be_like_no_other():
    kernels = Kernels()
    kernels.max_pool = lambda x, kernel_size, stride: max_pool(x, kernel_size, stride)
    assert "# max_pool: the kernel" in UserKernels(kernels).reproducer(call_of(MAX))
    derivative = UserKernels(max_pool, vjp=lambda x, g, kernel_size: x).reproducer(call_of(MAX, "vjp"))
    assert "# max_pool_vjp: the kernel" in derivative


def test_programs_name_a_function_where_it_lives():
    program = UserKernels(max_pool).reproducer(call_of(MAX))
    assert f"from {max_pool.__module__} import max_pool\n" in program
    assert program.endswith("print(max_pool(x, kernel_size=(2,), stride=(2,)))")
    assert "# max_pool: the kernel" in UserKernels({"max_pool": lambda x, kernel_size: x}).reproducer(call_of(MAX))


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (lambda x, weight, bias, g, stride: None, "x, weight, None, g, stride=(1,)"),
        (lambda x, weight, bias, stride, g: None, "x, weight, None, g=g, stride=(1,)"),
        (lambda x, w, b, /, cotangent, *, stride: None, "x, weight, None, cotangent=g, stride=(1,)"),
        (lambda x, weight, g: None, "x, weight, g"),
    ],
)
def test_programs_pass_arrays_as_the_judge_does(kernel, arguments):
    """An absent bias has its place: without it, ``g`` would be one."""
    program = UserKernels({"conv_vjp": kernel}).reproducer(call_of(UNBIASED, "vjp"))
    assert program.endswith(f"print(conv_vjp({arguments}))")


# --- check_kernel -----------------------------------------------------------------------------------------------------


def short(array):
    """Numbers of 11 bits, as TF32 has."""
    fraction, exponent = np.frexp(array)
    return np.ldexp(np.round(fraction * 2**11) / 2**11, exponent).astype(array.dtype)


@pytest.mark.exhaustive
def test_reduced_precision_that_is_allowed_is_told_by_its_smallest_case():
    kernels = {"conv1d": lambda x, weight: gs.conv(short(x), short(weight)), "reduced": {"tf32": "its manual"}}
    run = check_kernel(kernels, dtypes=["f32"], allow=["tf32"], cases=40)
    assert [(f.kind, f.case["problem"]["shapes"][:2]) for f in run.findings] == [("reduced", [[1, 1], [1, 1, 1]])]


def test_a_right_kernel_passes():
    run = check_kernel(max_pool, "max_pool1d", jvp=max_pool_jvp, vjp=max_pool1d_vjp, cases=60)
    assert run.findings == []
    assert (run.cases, run.tally.judged, run.seed, run.target) == (60, 60, 0, "max_pool")
    assert {mode for _, mode, *_ in run.tally.grid} == {"value", "jvp", "vjp"}


def test_a_wrong_tie_is_told_by_two_equal_cells():
    with pytest.raises(AssertionError) as caught:
        check_kernel(last_tie, "max_pool1d_vjp", cases=20, features=["ties"])
    text = str(caught.value)
    assert text.startswith("last_tie: The last of equal cells wins")
    assert "x = np.array([1.0, 1.0], np.float32)" in text
    assert "# gives: grad_x[0] = 0.0" in text
    assert "# right: 1.0" in text


@pytest.mark.exhaustive
def test_conventions_may_be_declared_or_let_be():
    for told in ({"conventions": ["last_tie", "last_nan"]}, {"strict": False}):
        run = check_kernel(last_tie, "max_pool1d_vjp", cases=20, features=["ties"], **told)
        assert {finding.kind for finding in run.findings} == {"convention"}


def test_a_strict_kernel_is_told_what_to_declare():
    target = UserKernels({"max_pool1d_vjp": last_tie, "strict": True})
    call = call_of(MAX, "vjp")
    call.inputs[0][...] = 0
    (verdict,) = judge_call(target, call)
    assert verdict.kind == "defect"
    assert 'declare conventions=["last_tie"], or pass strict=False' in verdict.detail
    assert "documentation" not in verdict.detail


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("own", "given", "is_strict"),
    [
        ({}, None, True),
        ({"strict": False}, None, False),
        ({"strict": False}, True, True),
        ({"strict": True}, False, False),
    ],
)
def test_the_objects_own_strictness_holds_unless_the_caller_says_otherwise(own, given, is_strict):
    kernels = {"max_pool1d_vjp": last_tie, **own}
    if is_strict:
        with pytest.raises(AssertionError, match="pass strict=False"):
            check_kernel(kernels, cases=12, features=["ties"], strict=given)
    else:
        check_kernel(kernels, cases=12, features=["ties"], strict=given)


def test_a_changed_input_is_shown():
    def pool(x, kernel_size):
        y = windows(x, kernel_size, kernel_size).max(-1)
        x[...] = 0
        return y

    with pytest.raises(AssertionError, match=r"print\(x\)  # as the call has left it"):
        check_kernel(pool, "max_pool1d", cases=12)


def test_results_may_be_declared_to_be_fresh():
    kernels = {"max_pool": lambda x, kernel_size: x[..., :: kernel_size[0]]}
    call = call_of(Problem("max_pool", 1, ((3,),), {"kernel_size": (1,)}))
    assert guards.inputs(UserKernels(kernels), call) == []
    (verdict,) = guards.inputs(UserKernels(kernels | {"fresh_results": True}), call)
    assert "memory of x" in verdict.detail


def test_the_same_seed_makes_the_same_cases():
    def right(x, kernel_size):
        met.append(x.tobytes())
        return windows(x, kernel_size, kernel_size).max(-1)

    met, runs = [], []
    for seed in (5, 5, 6):
        one_thread = {"max_pool1d": right, "threadsafe": False}  # several would take turns as they like
        check_kernel(one_thread, cases=15, seed=seed, isolate=False)
        runs.append(tuple(met))
        met.clear()
    assert runs[0] == runs[1] != runs[2]


def test_what_is_not_implemented_is_found_out_beforehand():
    def avg_pool(x, kernel_size, stride, padding):
        if len(kernel_size) > 1 or padding != ((0, 0),):
            raise NotImplementedError
        return windows(x, kernel_size, stride).mean(-1)

    run = check_kernel(avg_pool, cases=30)
    assert (run.tally.judged, run.findings) == (30, [])


def test_warnings_of_numpy_are_not_errors_of_the_kernel():
    with np.errstate(all="raise"):
        call = call_of(Problem("avg_pool", 1, ((2,),), {"kernel_size": (2,)}))
        call.inputs[0][...] = [np.inf, -np.inf]
        target = UserKernels({"avg_pool": lambda x, kernel_size: windows(x, kernel_size, kernel_size).mean(-1)})
        assert {verdict.kind for verdict in judge_call(target, call)} == {"pass"}


def test_too_few_cases_fail_or_warn():
    hurried = {"op": "max_pool1d", "seconds": 1e-3}
    with pytest.raises(AssertionError, match=r"^max_pool: Too few cases: \d+ w.* and at least 200 were asked for"):
        check_kernel(max_pool, **hurried, at_least=200)
    with pytest.warns(FewCasesWarning, match="^max_pool: Few cases: "):
        check_kernel(max_pool, **hurried, at_least=1)
    with pytest.raises(ValueError, match="at_least is 9 of 8 cases"):
        check_kernel(max_pool, cases=8, at_least=9)


def test_nothing_offered_is_an_error():
    with pytest.raises(ValueError, match="no case could be judged: max_pool takes no kernel_size"):
        check_kernel(lambda x: x, "max_pool", cases=20)


# --- the plugin -------------------------------------------------------------------------------------------------------

TESTS = """
import numpy as np

def pool(x, kernel_size, stride):
    return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :].{reduction}(-1)

def test_pool(check_kernel):
    check_kernel(pool, "max_pool1d", cases=30)
"""


def test_the_fixture_judges_and_tells(pytester):
    pytester.makepyfile(test_right=TESTS.format(reduction="max"), test_wrong=TESTS.format(reduction="min"))
    result = pytester.runpytest_inprocess(
        "-p", "gradspec.testing.plugin", "-p", "no:xdist", "-p", "no:cacheprovider", "--gradspec-seed=4"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["gradspec: seed 4", "*pool: The maximum is wrong*", "pool: 30 cases, seed 4"])
    result.stdout.no_fnmatch_line("*def check_kernel*")
    result.stdout.no_fnmatch_line("*def checked*")


def test_the_command_line_wins(pytester):
    pytester.makepyfile(TESTS.format(reduction="max"))
    result = pytester.runpytest_inprocess("-p", "gradspec.testing.plugin", "-p", "no:xdist", "--gradspec-cases=7")
    result.stdout.fnmatch_lines(["gradspec: cases 7", "pool: 7 cases, seed 0"])


def test_few_cases_are_warned_of(pytester):
    pytester.makepyfile(TESTS.format(reduction="max"))
    result = pytester.runpytest_inprocess(
        "-Wdefault", "-pgradspec.testing.plugin", "-pno:xdist", "--gradspec-seconds=1e-3", "--gradspec-at-least=1"
    )
    result.assert_outcomes(passed=1)  # with warnings, of which JAX may bring another
    result.stdout.fnmatch_lines(["gradspec: seconds 0.001, at_least 1", "*FewCasesWarning: pool: Few cases: *"])


def test_the_plugin_imports_nothing_before_it_is_used():
    script = "import sys, gradspec.testing.plugin; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "gradspec.testing.plugin" in found
    assert not any(name.startswith(("gradspec.conformance", "gradspec.graph", "numpy", "rich")) for name in found)

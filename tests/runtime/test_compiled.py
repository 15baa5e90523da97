"""Compiled graphs as they are called: results, ``out``, errors, threads, and the plans that calls share."""

import gc
import sys
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from ctypes import memset
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import gradspec as gs
import lenet5
import resnet18
from gradspec.codegen.cache import KERNEL_TYPE
from gradspec.graph import tree
from gradspec.runtime import calls
from gradspec.runtime import compiled as running
from gradspec.runtime import threads as pool
from gradspec.runtime.compiled import Executable, Program, lift_constants
from gradspec.runtime.job import COUNT, REACHED, Steps
from gradspec.runtime.plan import make_plan
from runtime.toys import Toy, program, toy_backend

RANDOM = np.random.default_rng(4)
NAMES = ("add", "sub", "mul", "neg", "relu", "max_pool", "max_pool_gather", "max_pool_scatter")


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def square(x):
    return x * x


def several(x):
    """An input, views, a repeated result and a constant, all returned."""
    y = -x
    return x, y, gs.reshape(y, (6,)), y, gs.transpose(x, (1, 0)), gs.detach(x), y + np.float32([1, 2, 3])


def toy(graph, lowering, names=NAMES):
    run = program(graph, dict.fromkeys(names, lowering))
    return lambda *arrays, out=None: run.call(arrays, out)


RUNNERS = {
    "cpu": lambda g: gs.compile(g),
    "one thread": lambda g: gs.compile(g, threads=1),
    "numpy": lambda g: gs.compile(g, backend="numpy"),
    "graph": lambda g: g,
    "toy": lambda g: toy(g, Toy()),
    "toy chains": lambda g: toy(g, Toy(pointwise=True), NAMES[:5]),
}
runners = pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
outs = pytest.mark.parametrize("runner", [r for name, r in RUNNERS.items() if name != "graph"])


@runners
def test_results_share_no_memory(runner):
    x = normal(2, 3)
    before = x.copy()
    results = runner(gs.trace(several, gs.f32[2, 3]))(x)
    right = (x, -x, -x.reshape(6), -x, x.T, x, -x + np.float32([1, 2, 3]))
    for got, wanted in zip(results, right, strict=True):
        np.testing.assert_array_equal(got, wanted)
    for result in results:
        result[...] = 7
    np.testing.assert_array_equal(x, before)
    assert sum(np.shares_memory(a, b) for a in results for b in results) == len(results)


@runners
def test_a_result_that_is_returned_twice_is_two_arrays(runner):
    first, second = runner(gs.trace(lambda x: (y := -x, y), gs.f32[3]))(normal(3))
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_a_numpy_step_that_gives_back_its_operand_does_not_see_the_arena_change():
    graph = gs.trace(lambda x: gs.detach(-x) + gs.exp(x * x), gs.f32[3])
    x = normal(3)
    np.testing.assert_array_equal(toy(graph, Toy(), ("neg", "mul"))(x), -x + np.exp(x * x))


@runners
def test_constants_are_not_given_away(runner):
    b = gs.Builder()
    x = b.input(gs.f32[3], "x")
    c = b.const(np.float32([1, 2, 3]))
    graph = b.build((-x, c, gs.reshape(c, (3, 1)), gs.concat([c, c], 0)))
    run = runner(graph)
    for result in run(normal(3)):
        result[...] = 9
    assert [r.ravel().tolist() for r in run(normal(3))[1:]] == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 1, 2, 3]]


def test_constants_may_lie_at_odd_addresses():
    b = gs.Builder()
    odd = strange(normal(2, 3), "odd")
    odd[...] = 2
    run = toy(b.build(b.input(gs.f32[2, 3], "x") * b.share(odd, "c")), Toy())
    assert run(np.ones((2, 3), np.float32)).tolist() == [[2.0] * 3] * 2


# --- out --------------------------------------------------------------------------------------------------------------


def strange(array, how):
    """Room for a result that no kernel writes at once."""
    if how == "fresh":
        return np.empty_like(array)
    if how == "reversed":
        return np.empty_like(array)[:, ::-1]
    if how == "columns":
        return np.empty(array.shape[::-1], array.dtype).T
    if how == "spread":
        return np.empty((4, 6), array.dtype)[::2, ::2]
    return np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)  # at an odd address


@outs
@pytest.mark.parametrize("how", ["fresh", "reversed", "columns", "spread", "odd"])
def test_a_result_is_put_into_out(runner, how):
    x = normal(2, 3)
    out = strange(x, how)
    assert runner(gs.trace(lambda x: x * x - x, gs.f32[2, 3]))(x, out=out) is out
    np.testing.assert_array_equal(out, x * x - x)


@outs
def test_out_may_be_the_input(runner):
    x = normal(3, 3)
    right = (x * x).T
    assert runner(gs.trace(lambda x: gs.transpose(x * x, (1, 0)), gs.f32[3, 3]))(x, out=x) is x
    np.testing.assert_array_equal(x, right)
    y, z = normal(3, 3), normal(3, 3)
    right = y + z, -y, y.T.copy()
    graph = gs.trace(lambda y, z: (y + z, -y, gs.transpose(y, (1, 0))), gs.f32[3, 3], gs.f32[3, 3])
    results = runner(graph)(y, z, out=(y, z, None))
    assert results[0] is y
    assert results[1] is z
    for got, wanted in zip(results, right, strict=True):
        np.testing.assert_array_equal(got, wanted)


@outs
def test_out_for_repeated_results_and_views(runner):
    x = normal(2, 3)
    wanted = runner(gs.trace(several, gs.f32[2, 3]))(x)
    given = tuple(np.empty_like(w) if i != 3 else None for i, w in enumerate(wanted))
    results = runner(gs.trace(several, gs.f32[2, 3]))(x, out=given)
    assert all(r is g for r, g in zip(results, given, strict=True) if g is not None)
    for got, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, right)
    assert sum(np.shares_memory(a, b) for a in results for b in results) == len(results)


def read_only():
    array = np.empty((2, 3), np.float32)
    array.flags.writeable = False
    return array


TWICE = np.empty((2, 3), np.float32)


@outs
@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.empty((3, 2), np.float32), gs.ShapeError, ["neg: f32[2, 3]", "(3, 2)", "shape (2, 3)"]),
        (np.empty((2, 3)), gs.DTypeError, ["neg: f32[2, 3]", "float64", "float32"]),
        (np.empty((2, 3), ">f4"), gs.DTypeError, [">f4", "float32"]),
        (read_only(), ValueError, ["read-only"]),
        ([[0.0] * 3] * 2, TypeError, ["list", "NumPy array"]),
        ((), TypeError, ["holds 0 arrays", "returns 2"]),
        ((None,), TypeError, ["holds 1 array,", "returns 2", "tuple"]),
        ((TWICE, TWICE[:, ::-1]), ValueError, ["out[0] and out[1] share memory"]),
    ],
)
def test_a_wrong_out_is_refused_before_any_work(runner, out, error, words):
    x = normal(2, 3)
    graph = gs.trace(lambda x: (-x, x * x), gs.f32[2, 3])
    whole = out if isinstance(out, tuple) else (out, None)
    with pytest.raises(error) as caught:
        runner(graph)(x, out=whole)
    assert all(word in str(caught.value) for word in words)


# --- arguments --------------------------------------------------------------------------------------------------------


@runners
@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ([], TypeError, ["takes 1 arrays", "x: f32[2, 3]", "not 0"]),
        ([normal(2, 3)] * 2, TypeError, ["not 2"]),
        ([normal(3, 2)], gs.ShapeError, ["x: f32[2, 3]", "(3, 2)"]),
        ([np.zeros((2, 3))], gs.DTypeError, ["f64", "gs.convert(x, gs.f32)"]),
        ([np.zeros((2, 3), np.complex64)], gs.DTypeError, ["complex64"]),
        ([np.zeros((2, 3), object)], gs.DTypeError, ["object"]),
    ],
)
def test_wrong_arguments_are_refused(runner, arrays, error, words):
    with pytest.raises(error) as caught:
        runner(gs.trace(square, gs.f32[2, 3]))(*arrays)
    assert all(word in str(caught.value) for word in words)


@runners
@pytest.mark.parametrize("how", ["fresh", "reversed", "columns", "spread", "odd"])
def test_arguments_of_any_layout(runner, how):
    x = strange(normal(2, 3), how)
    x[...] = normal(2, 3)
    np.testing.assert_array_equal(runner(gs.trace(square, gs.f32[2, 3]))(x), x * x)
    np.testing.assert_array_equal(runner(gs.trace(square, gs.f32[2, 3]))(x.view(np.memmap)), x * x)


@runners
def test_numbers_and_lists_are_arguments_too(runner):
    graph = gs.trace(lambda x, y: x * y, gs.f64[()], gs.f64[2])
    assert runner(graph)(2, [1.0, 4.0]).tolist() == [2.0, 8.0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"backend": "gpu"}, gs.UnsupportedError),
        ({"threads": 0}, ValueError),
        ({"threads": True}, ValueError),
        ({"threads": 1.5}, ValueError),
    ],
)
def test_what_cannot_be_compiled_for(arguments, error):
    with pytest.raises(error, match="|".join(str(v) for v in arguments.values())):
        gs.compile(square, gs.f32[2], **arguments)
    with pytest.raises(TypeError, match="types already"):
        gs.compile(gs.trace(square, gs.f32[2]), gs.f32[2])


@pytest.mark.parametrize("keeps", [True, False])
def test_a_fresh_result_may_keep_the_layout_of_its_input(keeps):
    graph = gs.trace(square, gs.f32[2, 3, 4])
    run = program(graph, {"mul": Toy(keeps_layout=keeps)})
    x = normal(3, 4, 2).transpose(2, 0, 1)
    assert run.call((x,)).strides == (x.strides if keeps else (48, 16, 4))
    for out in (np.empty_like(x), np.empty((2, 3, 4), np.float32), np.empty((2, 4, 3), np.float32).swapaxes(1, 2)):
        assert run.call((x,), out) is out
        np.testing.assert_array_equal(out, x * x)


def test_the_layout_of_the_arrays_may_change_the_work():
    class Layered(Toy):
        def task(self, work):
            task = super().task(work)

            def bind(*arrays):
                return task.bind(*arrays)[0], 1, 64 if arrays[0].flags.c_contiguous else 4096

            def function(args, lo, hi, workspace):
                memset(workspace, 255, 64 if self.dense else 4096)
                task.function(args, lo, hi, workspace)

            return replace(task, bind=bind, function=KERNEL_TYPE(function))

    toy = Layered()
    run = program(gs.trace(square, gs.f32[3, 3]), {"mul": toy})
    for x in (normal(3, 3), normal(3, 3).T, normal(3, 3)):
        toy.dense = x.flags.c_contiguous
        np.testing.assert_array_equal(run.call((x,)), x * x)


def test_numbers_are_checked_at_every_call_when_they_are_there():
    class Checked(Toy):
        def task(self, work):
            task = super().task(work)
            return replace(task, checks=tuple((v, self.check) for v in task.inputs))

        def check(self, array):
            if (array < 0).any():
                raise ValueError(f"{array.tolist()} has a negative number")

    graph = gs.trace(lambda x, y: gs.relu(-x) + gs.relu(y), gs.f32[2], gs.f32[2])
    run = program(graph, {"neg": Toy(), "add": Toy(), "relu": Checked()})
    x, y = np.float32([-1, -2]), np.float32([3, 4])
    for _ in range(2):
        assert run.call((x, y)).tolist() == [4, 6]
    for array, found in ((x, [-1.0, 2.0]), (y, [-1.0, 4.0])):
        before = array.copy()
        array[0] = -array[0] if array is x else -1
        with pytest.raises(ValueError, match="has a negative number") as caught:
            run.call((x, y))
        assert str(found) in str(caught.value)
        array[...] = before
    assert run.call((x, y)).tolist() == [4, 6]


def test_empty_arrays_reach_no_kernel():
    class Refusing(Toy):
        def task(self, work):
            task = super().task(work)
            return replace(task, units=0, bind=None)

    assert program(gs.trace(square, gs.f32[0, 3]), {"mul": Refusing()}).call((normal(0, 3),)).shape == (0, 3)


# --- many calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "toy"])
def test_32_threads_call_one_object(name):
    def network(x):
        return gs.max_pool2d(gs.relu(x * x - 1.0), 2) + gs.max_pool2d(-x, 2)

    graph = gs.trace(network, gs.f32[2, 8, 8])
    run = RUNNERS[name](graph)
    arrays = [normal(2, 8, 8) for _ in range(128)]
    with ThreadPoolExecutor(32) as threads:
        results = list(threads.map(run, arrays))
    for got, x in zip(results, arrays, strict=True):
        np.testing.assert_array_equal(got, gs.compile(graph, backend="numpy")(x))


def network(x, w):
    x = gs.max_pool2d(gs.relu(x * 2.0 - w), 2)
    x = gs.avg_pool2d(gs.max_pool2d(x, 3, 1, 1) + x, 2)
    return gs.transpose(x, (1, 0, 2)) * x[:, :1]


def types_of(params):
    return tree.map_leaves(lambda array: gs.f32[array.shape], params)


IMAGES = gs.f32[16, 64, 64]
DIGITS, COLOURS, LABELS = gs.f32[2, 1, 28, 28], gs.f32[2, 3, 48, 40], gs.i64[2]
LENET = lenet5.initial(np.random.default_rng(0))


@cache
def resnet():
    """Its parameters and statistics, which take a second to draw."""
    return resnet18.initial(np.random.default_rng(0), classes=10)


NETWORKS = {
    "LeNet-5": lambda: gs.trace(lambda x: lenet5.logits(x, LENET), DIGITS),
    "LeNet-5, value and gradient": lambda: gs.trace(gs.value_and_grad(lenet5.loss), types_of(LENET), DIGITS, LABELS),
    "ResNet-18": lambda: gs.trace(lambda x: resnet18.logits(x, *resnet()), COLOURS),
    "ResNet-18, value and gradient": lambda: gs.trace(
        gs.value_and_grad(resnet18.loss), *map(types_of, resnet()), COLOURS, LABELS
    ),
    "value": lambda: gs.trace(network, IMAGES, IMAGES),
    "forward mode": lambda: gs.trace(network, IMAGES, IMAGES).jvp(),
    "reverse mode": lambda: gs.trace(network, IMAGES, IMAGES).vjp(),
    "a constant": lambda: gs.trace(lambda x: network(x, np.ones(IMAGES.shape, np.float32)), IMAGES),
    "one step": lambda: gs.trace(square, IMAGES),
    "nothing to keep": lambda: gs.trace(square, gs.f32[3]),
}


def bytes_of_arrays():
    """What NumPy has allocated since tracing began, but for the words of jobs: 128 bytes a step."""
    domain, words = np.lib.tracemalloc_domain, sys.modules[Steps.__module__].__file__
    snapshot = tracemalloc.take_snapshot()
    kept = snapshot.filter_traces([tracemalloc.DomainFilter(True, domain), tracemalloc.Filter(False, words)])
    return sum(trace.size for trace in kept.traces)


@pytest.mark.rows(4)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_call_takes_the_memory_that_the_plan_states(name, threads):
    graph = NETWORKS[name]()
    arrays = [normal(*v.shape) if v.type.is_float else np.zeros(v.shape, v.dtype.numpy) for v in graph.inputs]
    compiled = gs.compile(graph, threads=threads)
    assert all(step.task or step.view for step in compiled.plan.steps)
    compiled(*arrays)  # kernels are loaded, and what lowerings remember of these layouts is there
    operands = lift_constants(graph.simplify())[1]
    gc.collect()
    tracemalloc.start()
    program = Program(Executable(compiled.plan), operands)
    results = program.call(arrays, None, threads)
    found, (_, peak) = bytes_of_arrays(), tracemalloc.get_traced_memory()
    again = program.call(arrays, results, threads)
    assert bytes_of_arrays() == found
    tracemalloc.stop()
    assert found == compiled.plan.memory(threads)
    assert peak < found + 2**16 + 2**12 * len(compiled.plan.steps)  # Python's own objects
    assert again is results or all(a is b for a, b in zip(again, results, strict=True))


def test_prepared_constants_are_part_of_the_memory():
    graph = gs.trace(lambda x, w: x * w, gs.f32[512, 512], gs.f32[512, 512])
    planned = make_plan(graph, 1, toy_backend({"mul": Toy(packs="twice")}))
    x, w = normal(512, 512), normal(512, 512)
    executable = Executable(planned)
    tracemalloc.start()
    run = Program(executable, [w])
    result = run.call((x,))
    found = bytes_of_arrays()
    tracemalloc.stop()
    assert planned.prepared_bytes == [w.nbytes, w.nbytes]
    assert found == planned.memory(1) == 3 * x.nbytes + 64 + 3 * 64  # a workspace of 64 bytes, and three blocks
    np.testing.assert_array_equal(result, x * w)


def test_what_is_no_longer_read_is_let_go():
    x = np.ones((512, 512))
    for names in ((), ("neg",)):
        run = program(
            gs.trace(lambda x: gs.sum(-gs.exp(-gs.exp(-gs.exp(x)))), gs.f64[x.shape]), dict.fromkeys(names, Toy())
        )
        run.call((x,))
        tracemalloc.start()
        run.call((x,))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * x.nbytes


class Costly(Toy):
    """Each task has units that another thread may do, and costs what it is said to."""

    def __init__(self, units, cost, **settings):
        super().__init__(**settings)
        self.units, self.cost = units, cost

    def task(self, work):
        return replace(super().task(work), units=self.units, cost=self.cost)


@pytest.fixture
def jobs(monkeypatch):
    """The number of threads that each job was given, and of its steps. None is carried out."""
    found = []

    def carry_out(job, workspace, stride, threads):
        found.append((threads, int(job[COUNT] - job[REACHED])))

    monkeypatch.setattr(pool, "carry_out", carry_out)
    return found


def test_work_is_split_by_its_cost(jobs):
    run = program(gs.trace(square, gs.f32[2]), {"mul": Costly(100, 1e6)})
    for threads in (2, 4, 64):
        run.call((normal(2),), None, threads)
    assert jobs == [(2, 1), (4, 1), (50, 1)]
    gs.set_num_threads(3)
    run.call((normal(2),))
    gs.set_num_threads(None)
    assert jobs[-1] == (3, 1)


@pytest.mark.parametrize(
    ("names", "units", "expected"),
    [
        (("neg", "exp"), 100, [(8, 6)]),
        (("neg", "exp"), 1, [(1, 6)]),  # there is nothing to share
        (("neg", "exp"), 3, [(3, 6)]),
        (("neg",), 100, [(8, 1)] * 3),  # NumPy steps stand in between
        (("neg", "exp", "transpose"), 100, [(8, 6)]),
    ],
)
def test_steps_run_as_one_job_as_far_as_nothing_of_numpy_is_in_between(jobs, names, units, expected):
    graph = gs.trace(lambda x: gs.exp(-gs.exp(-gs.exp(-x))), gs.f32[2])
    run = program(graph, dict.fromkeys(names, Costly(units, 1e6)))
    run.call((normal(2),), None, 8)
    assert jobs == expected


def test_an_interrupted_call_keeps_no_frame():
    class Interrupted(Toy):
        def bind(self, *arrays):
            if self.stop:
                raise KeyboardInterrupt
            return self.bound(*arrays)

        def task(self, work):
            task = super().task(work)
            self.bound = task.bind
            return replace(task, bind=self.bind)

    toy = Interrupted()
    run = program(gs.trace(lambda x: gs.sum(-x), gs.f32[2]), {"neg": toy})
    for toy.stop in (True, False, True, False):
        x = normal(2)  # at another address than the last one, which still lives
        if toy.stop:
            with pytest.raises(KeyboardInterrupt):
                run.call((x,))
        else:
            assert run.call((x,)) == -x.sum()


# --- plans that calls share -------------------------------------------------------------------------------------------


@pytest.fixture
def looked_up(monkeypatch):
    """The structures that plans were looked up by."""
    found = []
    structure = running.structure_of
    monkeypatch.setattr(running, "structure_of", lambda graph: found.append(structure(graph)) or found[-1])
    return found


@pytest.fixture
def plans(monkeypatch):
    """How many plans were made."""
    made = []
    plan = running.make_plan
    monkeypatch.setattr(running, "make_plan", lambda *args, **kwargs: made.append(1) or plan(*args, **kwargs))
    running._executables.clear()
    calls._calls.clear()
    return made


def test_a_graph_is_planned_once(plans, looked_up):
    graph = gs.trace(square, gs.f32[3])
    for _ in range(3):
        graph(normal(3))
    assert len(looked_up) == 1
    gs.trace(lambda other: other * other, gs.f32[3])(normal(3))
    assert len(plans) == 1
    gs.trace(square, gs.f32[4])(normal(4))
    gs.trace(square, gs.f64[4])(np.ones(4))
    gs.trace(lambda x, y: x * y, gs.f32[4], gs.f32[4])(normal(4), normal(4))
    assert len(plans) == 4


def test_captured_arrays_are_read_as_they_are(plans):
    weight = np.float64([1, 2])
    gradient = gs.grad(lambda x: gs.sum(x * weight * weight))
    assert gradient(np.ones(2)).tolist() == [1, 4]
    weight[:] = 3, 5
    assert gradient(np.ones(2)).tolist() == [9, 25]
    assert len(plans) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: gs.scale(x, 0.0), lambda x: gs.scale(x, -0.0)),
        (lambda x: gs.clamp(x, 1, 2), lambda x: gs.clamp(x, 1, 3)),
        (lambda x: x - gs.relu(x), lambda x: gs.relu(x) - x),
        (lambda x: (x, -x), lambda x: (-x, x)),
    ],
)
def test_graphs_that_differ_have_plans_of_their_own(plans, one, other):
    x = np.float64([-1, 0, 2])
    found = [gs.trace(f, gs.f64[3])(x) for f in (one, other)]
    right = [gs.compile(f, gs.f64[3], backend="numpy")(x) for f in (one, other)]
    assert len(plans) == 4
    assert str(found) == str(right)


def test_operators_on_arrays_are_planned_once(plans, looked_up):
    for _ in range(3):
        gs.relu(normal(7))
        gs.add(normal(7), normal(7))
    gs.relu(normal(8))
    gs.relu(np.ones(7))
    assert len(plans) == len(looked_up) == 4


def test_nothing_keeps_arrays_or_graphs_alive():
    x, weight = normal(2, 6, 6), normal(1024)
    graph = gs.trace(lambda x: gs.sum(x) + gs.sum(gs.reshape(weight, (32, 32))), gs.f32[2, 6, 6])
    gs.max_pool2d(x, 2), gs.relu(x), graph(x)
    constant = next(iter(graph.constants.values()))
    dying = [weakref.ref(x), weakref.ref(graph), weakref.ref(constant)]
    del x, graph, constant
    gc.collect()
    assert [ref() for ref in dying] == [None] * 3


def pool2(x):
    return gs.max_pool2d(x, 2, 1)


@pytest.mark.parametrize("ranked", [True, False])
def test_calls_of_pooling_operators_are_remembered(ranked):
    x = normal(2, 3, 5, 5)

    def pool(*args, **kwargs):
        return gs.max_pool2d(x, *args, **kwargs) if ranked else gs.max_pool(x, (2, 2), *args[1:], **kwargs)

    shapes = [pool(2, 2).shape, pool(2, (1, 2)).shape, pool(2, 2, ceil_mode=True).shape, pool(2, 2).shape]
    assert shapes == [(2, 3, 2, 2), (2, 3, 4, 2), (2, 3, 3, 3), (2, 3, 2, 2)]
    for _ in range(2):
        with pytest.raises(gs.ShapeError, match="True"):
            pool(2, True)
    np.testing.assert_array_equal(pool(2, np.int64(1)), pool(2, 1))
    np.testing.assert_array_equal(pool(2, 1), gs.compile(pool2, gs.f32[x.shape], backend="numpy")(x))


IMAGE, WEIGHT, ROWS = normal(2, 4, 5, 6), normal(3, 4, 2, 2), normal(4, 6)
CALLS = {
    "avg_pool2d": lambda x: gs.avg_pool2d(x, 2),
    "smooth_max_pool2d": lambda x: gs.smooth_max_pool2d(x, 2, beta=2.0),
    "adaptive_avg_pool2d": lambda x: gs.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d": lambda x: gs.adaptive_max_pool2d(x, (3, None), True),
    "global_avg_pool2d": lambda x: gs.global_avg_pool2d(x, False),
    "global_max_pool": lambda x: gs.global_max_pool(x, 1, keepdims=False),
    "max_pool3d": lambda x: gs.max_pool3d(x, 2, return_indices=True),
    "lp_pool2d": lambda x: gs.lp_pool2d(x, 2.5, 2),
    "conv2d": lambda x: gs.conv2d(x, WEIGHT, padding=(1, 0)),
    "conv2d with a bias": lambda x: gs.conv2d(x, WEIGHT, np.float32([1, 2, 3]), 2, 1),
    "conv_transpose2d": lambda x: gs.conv_transpose2d(x, normal(4, 2, 2, 2) * 0 + 1, stride=2),
    "unfold": lambda x: gs.unfold(x, (2, 2), stride=2),
    "relu": gs.relu,
    "clamp": lambda x: gs.clamp(x, -0.5, None),
    "add": lambda x: gs.add(x, x),
    "add a number": lambda x: gs.add(x, 1.5),
    "a number first": lambda x: gs.sub(2, x),
    "matmul": lambda x: gs.matmul(ROWS[:, :5], x),
    "linear": lambda x: gs.linear(x, ROWS, bias=np.float32([1, 2, 3, 4])),
    "softmax": lambda x: gs.softmax(x, axis=-2),
    "mean": lambda x: gs.mean(x, (0, 2), keepdims=True),
    "concat": lambda x: gs.concat([x, x, x], 1),
    "reshape": lambda x: gs.reshape(x, (8, 30)),
    "transpose": lambda x: gs.transpose(x, (3, 1, 0, 2)),
    "where": lambda x: gs.where(gs.greater(x, 0.0), x, 1.0),
    "batch_norm": lambda x: gs.batch_norm(x, *(np.float32([1, 2, 3, 4]),) * 4),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_remembered_calls_mean_the_same(call):
    right = gs.compile(call, gs.f32[IMAGE.shape])(IMAGE)
    for _ in range(2):
        for got, wanted in zip(np.atleast_1d(call(IMAGE)), np.atleast_1d(right), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("a number first", "where")])
def test_calls_of_every_operator_are_compiled_once(monkeypatch, name):
    """A second call, on other arrays of the same types, neither reads its arguments nor builds a graph."""
    CALLS[name](IMAGE)
    monkeypatch.setattr(calls, "Builder", None)
    monkeypatch.setattr(calls, "program_for", None)
    CALLS[name](IMAGE + 1)


def test_arguments_that_are_equal_but_not_the_same_are_told_apart():
    x = np.float32([-1, 0, 2])
    assert str(gs.scale(x, 0.0)) != str(gs.scale(x, -0.0))
    assert gs.mean(x, 0, True).shape == gs.mean(x, 0, 1).shape == (1,)
    with pytest.raises(gs.ShapeError):
        gs.max_pool(x, (True,))
    assert gs.max_pool(x, (1,)).tolist() == x.tolist()
    assert [gs.add(x, n).tolist() for n in (1, 1.5, -1)] == [[0, 1, 3], [0.5, 1.5, 3.5], [-2, -1, 1]]


def test_a_number_that_does_not_fit_its_array_is_refused_whether_remembered_or_not():
    x = np.int32([1, 2])
    assert gs.add(x, 1).tolist() == [2, 3]
    for _ in range(2):
        with pytest.raises(gs.DTypeError, match=r"0\.5 is not an integer"):
            gs.add(x, 0.5)


def test_errors_name_the_inputs_of_the_graph_that_is_called():
    first, second = (gs.trace(f, gs.f32[2]) for f in (lambda x: x * x, lambda image: image * image))
    first(np.ones(2, np.float32))
    with pytest.raises(gs.ShapeError, match=r"image: f32\[2\]"):
        second(np.ones(3, np.float32))
    with pytest.raises(TypeError, match=r"image: f32\[2\]"):
        second()


def test_a_graph_with_a_constant_is_not_taken_for_one_with_an_input():
    w, x = np.float32([[[1, 2]]]), np.float32([[1, 2, 3]])
    fixed, free = gs.trace(lambda x: gs.conv1d(x, w), gs.f32[1, 3]), gs.trace(gs.conv1d, gs.f32[1, 3], gs.f32[1, 1, 2])
    assert fixed(x).tolist() == free(x, w).tolist() == [[5.0, 8.0]]
    assert free(x, -w).tolist() == [[-5.0, -8.0]]

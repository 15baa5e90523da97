"""Damaged models, and a process of bounded memory and time that reads them: ``python hostile.py FOLDER SEED COUNT``.

It reports what became of them as JSON. What it may open is watched: only files in the folder of the model.
"""

import json
import os
import resource
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import gradspec as gs
from gradspec.graph.graph import check
from saving.test_hostile_files import mutated_structure, opened

MEMORY = 1 << 30  # bytes beyond what the process has when it begins
SECONDS = 120  # of processor time for one batch

REFUSALS = {
    ".onnx": (gs.FormatError, gs.UnsupportedError, gs.ShapeError, gs.DTypeError),
    ".gradspec": (gs.FormatError,),
}

# --- good models ------------------------------------------------------------------------------------------------------


def tensor(name, *shape, dtype=np.float32):
    """A small initializer, all ones."""
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(nodes, shape, initializers=(), opset=17):
    made = [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(made[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(made, "good", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def classifier():
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        ("Conv", ["x", "w", "b"], ["a"], {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}),
        ("BatchNormalization", ["a", "s", "s", "s", "s"], ["n"], {"epsilon": 1e-3}),
        ("Relu", ["n"], ["r"]),
        ("MaxPool", ["r"], ["p"], window),
        ("AveragePool", ["p"], ["q"], {**window, "auto_pad": "SAME_UPPER", "count_include_pad": 1}),
        ("Flatten", ["q"], ["f"]),
        ("Gemm", ["f", "m"], ["g"], {"transB": 1}),
        ("Softmax", ["g"], ["y"]),
    ]
    weights = [tensor("w", 2, 1, 3, 3), tensor("b", 2), tensor("s", 2), tensor("m", 3, 2)]
    return model(nodes, [1, 1, 4, 4], weights)


def shapes():
    nodes = [
        ("Constant", [], ["k"], {"value": ints("", 1, -1)}),
        ("Reshape", ["x", "k"], ["a"]),
        ("Shape", ["a"], ["n"]),
        ("Gather", ["n", "zero"], ["m"]),
        ("Unsqueeze", ["a", "zero"], ["u"]),
        ("Transpose", ["u"], ["t"], {"perm": [2, 0, 1]}),
        ("Slice", ["t", "zero", "two"], ["s"]),
        ("Concat", ["s", "s"], ["c"], {"axis": 0}),
        ("Pad", ["c", "pads"], ["p"]),
        ("Squeeze", ["p"], ["q"]),
        ("ReduceMean", ["q"], ["y"], {"axes": [0], "keepdims": 0}),
    ]
    return model(nodes, [2, 3], [ints("zero", 0), ints("two", 2), ints("pads", 0, 0, 0, 1, 0, 0)])


def segmenter():
    nodes = [
        ("Conv", ["x", "w"], ["a"], {"strides": [2, 2], "auto_pad": "SAME_LOWER", "group": 1}),
        ("Clip", ["a", "low", "high"], ["c"]),
        ("ConvTranspose", ["c", "v"], ["u"], {"strides": [2, 2], "output_padding": [0, 0]}),
        ("Resize", ["x", "", "scales"], ["z"], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
        ("GlobalAveragePool", ["z"], ["g"]),
        ("Mul", ["u", "g"], ["m"]),
        ("Sigmoid", ["m"], ["o"]),
        ("Split", ["o"], ["first", "second"], {"axis": 2}),
        ("Add", ["first", "second"], ["y"]),
    ]
    scales = numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales")
    low, high = (numpy_helper.from_array(np.float32(n), name) for n, name in ((0, "low"), (6, "high")))
    return model(nodes, [1, 1, 6, 6], [tensor("w", 1, 1, 3, 3), tensor("v", 1, 1, 2, 2), scales, low, high])


def activations():
    """A chain of operators with few attributes, and sizes that are computed."""
    kinds = ["HardSwish", "Elu", "LeakyRelu", "Softplus", "Celu", "Selu", "ThresholdedRelu", "HardSigmoid", "Mish"]
    kinds += ["LpNormalization", "LogSoftmax", "Erf", "Abs", "Identity", "Tanh"]
    nodes = [(kind, [f"v{i}"], [f"v{i + 1}"]) for i, kind in enumerate(kinds)]
    return model([("Neg", ["x"], ["v0"]), *nodes], [2, 3], opset=20)


def sizes():
    nodes = [
        ("DepthToSpace", ["x"], ["d"], {"blocksize": 2}),
        ("LRN", ["d"], ["n"], {"size": 3}),
        ("InstanceNormalization", ["n", "one", "one"], ["i"]),
        ("LpPool", ["i"], ["l"], {"kernel_shape": [2, 2], "p": 2}),
        ("Shape", ["l"], ["s"]),
        ("Range", ["zero", "three", "step"], ["r"]),
        ("ConstantOfShape", ["r"], ["c"]),
        ("Tile", ["l", "s"], ["t"]),
        ("Expand", ["t", "twice"], ["e"]),
        ("Cast", ["s"], ["f"], {"to": TensorProto.FLOAT}),
        ("ReduceSum", ["e", "axes"], ["u"]),
        ("Pow", ["u", "two"], ["p"]),
        ("Where", ["yes", "p", "u"], ["w"]),
        ("CastLike", ["w", "x"], ["y"]),
    ]
    numbers = [numpy_helper.from_array(np.array(n), name) for n, name in ((0, "zero"), (3, "three"), (1, "step"))]
    two = numpy_helper.from_array(np.float32(2), "two")
    yes = numpy_helper.from_array(np.array(True), "yes")
    return model(
        nodes, [1, 4, 2, 2], [tensor("one", 1), *numbers, two, yes, ints("axes", 1, 2), ints("twice", 2, 1, 1, 1)]
    )


def composed():
    """Functions that call functions, a branch, and nodes that are not in order."""
    scaled = helper.make_node("LeakyRelu", ["t"], ["r"])
    scaled.attribute.append(AttributeProto(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT))
    twice = [helper.make_node("leak", [a], [b], domain="mine", slope=0.5) for a, b in (("t", "u"), ("u", "r"))]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    chosen = helper.make_graph(
        [helper.make_node("Exp", ["b"], ["e"])], "then", [], [helper.make_empty_tensor_value_info("e")]
    )
    nodes = [
        ("If", ["yes"], ["y"], {"then_branch": chosen, "else_branch": chosen}),
        ("twice", ["a"], ["b"], {"domain": "mine"}),
        ("leak", ["x"], ["a"], {"domain": "mine", "slope": 0.25}),
    ]
    found = model(nodes, [2, 3], [numpy_helper.from_array(np.array(True), "yes")])
    found.graph.output[0].name = "y"
    found.opset_import.append(helper.make_opsetid("mine", 1))
    found.functions.append(helper.make_function("mine", "leak", ["t"], ["r"], [scaled], imports, ["slope"]))
    found.functions.append(helper.make_function("mine", "twice", ["t"], ["r"], twice, imports))
    return found


def early():
    """Operators of an opset that had other attributes."""
    nodes = [
        ("Add", ["x", "s"], ["a"], {"broadcast": 1, "axis": 1}),
        ("PRelu", ["a", "s"], ["p"]),
        ("Pad", ["p"], ["b"], {"paddings": [0, 0, 1, 0, 0, 1]}),
        ("Tile", ["b", "two", "one"], ["t"]),
        ("Cast", ["t"], ["c"], {"to": "FLOAT"}),
        ("Concat", ["c", "c"], ["d"]),
        ("Reshape", ["d"], ["y"], {"shape": [0, -1]}),
    ]
    numbers = [numpy_helper.from_array(np.float32(n), name) for n, name in ((2, "two"), (1, "one"))]
    return model(nodes, [2, 3, 2], [tensor("s", 3), *numbers], opset=1)


def with_external_data(folder):
    """The weights lie in a file beside the model."""
    (folder / "weights.bin").write_bytes(np.ones(9, np.float32).tobytes())
    found = model([("Conv", ["x", "w"], ["y"])], [1, 1, 4, 4], [tensor("w", 1, 1, 3, 3)])
    stored = found.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "36")):
        stored.external_data.add(key=key, value=value)
    return found


def good_models(folder):
    return [
        classifier(),
        shapes(),
        segmenter(),
        activations(),
        sizes(),
        composed(),
        early(),
        with_external_data(folder),
    ]


def saved_graphs(folder):
    def network(x, w):
        return gs.mean(gs.max_pool2d(gs.relu(gs.conv2d(x, w, padding=1)), 2), (0, 1))

    graph = gs.trace(network, gs.f32[1, 4, 4], gs.f32[2, 1, 3, 3])
    bound = gs.bind(graph, {"w": np.ones((2, 1, 3, 3), np.float32)})
    for found in (graph, bound, graph.vjp("w"), bound.jvp().batch(2)):
        found.save(folder / "good.gradspec")
        yield (folder / "good.gradspec").read_bytes()


# --- damage -----------------------------------------------------------------------------------------------------------

NASTY_INTS = [0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 10**9]
NASTY_FLOATS = [0.0, -1.0, float("nan"), float("inf"), 1e-40, 3e38]
PLACES = ["/etc/passwd", "../secret", "sub/../../secret", "link", "pipe", "weights.bin", "", ".", "\0", "C:\\x", "//x"]
PLACES.append("x" * 300)


def cut(content, random):
    """Bytes changed, cut, repeated, put in, or taken from elsewhere in the file."""
    for _ in range(random.randint(1, 3)):
        place, other, span = (random.randint(0, n) for n in (len(content), len(content), 12))
        same = bytes([random.choice((0, 127, 255))] * span)
        new = random.choice([random.randbytes(span), b"", content[other : other + span], same])
        content = content[:place] + new + content[place + random.choice([0, span]) :]
    return content[: random.randint(0, len(content))] if random.random() < 0.1 else content


def parts(message):
    """All messages in a message, itself first."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                yield from parts(child)


def names_in(proto):
    used = [name for node in proto.graph.node for name in (*node.input, *node.output)]
    return ["", "x", "none", *used, *(t.name for t in proto.graph.initializer)]


def other_value(field, value, names, random):
    """Another value that a field of this type can hold."""
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    if isinstance(value, bytes):
        return random.choice([b"", value[:-1], value * 2, random.randbytes(8)])
    if isinstance(value, str):
        return random.choice([*names, *PLACES, value + "x", "Relu", "Loop", "If"])
    if isinstance(value, float):
        return random.choice(NASTY_FLOATS)
    number = random.choice([*NASTY_INTS, value + 1, value - 1, random.randint(0, 24)])
    bits = 63 if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 31
    least = -(2**bits) if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_INT32) else 0
    return min(max(number, least), 2**bits - 1)


def damage_field(message, names, random):
    """One field changed: another value, or none."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = random.choice(fields)
    if field.is_repeated:
        damage_list(field, value, names, random)
    elif field.message_type is None and random.random() < 0.8:
        setattr(message, field.name, other_value(field, value, names, random))
    else:
        message.ClearField(field.name)


def damage_list(field, values, names, random):
    """One element more or less, or another one, or two exchanged."""
    i, j = random.randrange(len(values)), random.randrange(len(values))
    action = random.choice(["drop", "repeat", "swap", "change"])
    if action == "drop":
        del values[i]
    elif field.message_type is not None:
        kept = copy_of(values[i])
        if action == "repeat":
            values.add().CopyFrom(kept)
        else:
            values[i].CopyFrom(values[j])
            values[j].CopyFrom(kept)
    elif action == "repeat":
        values.extend([values[i]] * random.choice([1, 5, 70]))
    elif action == "swap":
        values[i], values[j] = values[j], values[i]
    else:
        values[i] = other_value(field, values[i], names, random)


def copy_of(message):
    found = type(message)()
    found.CopyFrom(message)
    return found


def damage_attribute(proto, random):
    node = random.choice(proto.graph.node)
    if node.attribute:
        attribute = random.choice(node.attribute)
        attribute.type = random.choice(AttributeProto.AttributeType.values())
        attribute.i, attribute.f, attribute.s = random.choice(NASTY_INTS), 0.5, b"SAME_UPPER"
        attribute.ints.extend(random.choices(NASTY_INTS, k=random.randint(0, 5)))


def damage_external(proto, random):
    """Data in a file, most often one that is not to be read."""
    if proto.graph.initializer:
        stored = random.choice(proto.graph.initializer)
        stored.ClearField("raw_data")
        stored.data_location = TensorProto.EXTERNAL
        del stored.external_data[:]
        for key, values in (("location", PLACES), ("offset", NASTY_INTS), ("length", NASTY_INTS)):
            if random.random() < 0.8:
                stored.external_data.add(key=key, value=str(random.choice(values)))


def damage_sizes(proto, random):
    """Sizes of tensors or of inputs that nothing holds, or that nothing has."""
    attributes = [a.t.dims for node in proto.graph.node for a in node.attribute if a.HasField("t")]
    stored = [t.dims for t in proto.graph.initializer] + attributes
    stated = [size for info in proto.graph.input for size in info.type.tensor_type.shape.dim]
    if stored and random.random() < 0.5:
        dims = random.choice(stored)
        dims[:] = random.choices([*NASTY_INTS, *dims], k=random.randint(0, 5))
    elif stated:
        random.choice(stated).dim_value = random.choice(NASTY_INTS)


def damage_wiring(proto, random):
    """Names exchanged, so that nodes go round in circles or use what comes later."""
    node, names = random.choice(proto.graph.node), names_in(proto)
    side = random.choice([node.input, node.output])
    if side:
        side[random.randrange(len(side))] = random.choice(names)


def damage_opset(proto, random):
    proto.opset_import[0].version = random.choice([*range(30), *NASTY_INTS])


DAMAGES = [damage_attribute, damage_external, damage_sizes, damage_wiring, damage_opset]


def damaged(proto, random):
    """A copy of a model with one or two things wrong that a parser of messages does not mind."""
    copy = copy_of(proto)
    for _ in range(random.randint(1, 2)):
        if not copy.graph.node or not copy.opset_import:
            break
        damage = random.choice([None] * 3 + DAMAGES)
        if damage is None:
            damage_field(random.choice(list(parts(copy))), names_in(copy), random)
        else:
            damage(copy, random)
    return copy.SerializeToString()


def hostile_files(folder, seed, count):
    """Damaged files, one by one: three of four are ONNX models."""
    random = Random(seed)
    good = good_models(folder)
    graphs = list(saved_graphs(folder))
    for number in range(count):
        if number % 4 == 3:
            content = random.choice(graphs)
            yield ".gradspec", cut(content, random) if number % 8 == 3 else mutated_structure(*opened(content), random)
        elif number % 4 == 2:
            yield ".onnx", cut(random.choice(good).SerializeToString(), random)
        else:
            yield ".onnx", damaged(random.choice(good), random)


# --- the process that reads them --------------------------------------------------------------------------------------


def limit():
    """No more memory than a little, and an end to everything."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def watch(folder, opened_outside):
    """Note what is opened that lies outside of the folder and of Python's own files, and whatever else reaches out."""
    allowed = [os.path.realpath(p) for p in (folder, sys.prefix, sys.base_prefix, *filter(None, sys.path))]

    def hook(event, arguments):
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not any(os.path.commonpath([path, place]) == place for place in allowed):
                opened_outside.append(path)
        elif event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "ctypes.dlopen"):
            opened_outside.append(event)

    sys.addaudithook(hook)


def exhausted(error):
    """Whether memory or the stack ran out on the way to this error, whatever it was turned into."""
    while error is not None:
        if isinstance(error, MemoryError | RecursionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(path):
    """``"loaded"`` or the name of the refusal; anything else that happens is a failure and says so."""
    read = gs.from_onnx if path.suffix == ".onnx" else gs.load
    try:
        graph = read(path)
        str(check(graph))
    except REFUSALS[path.suffix] as error:
        return f"failure: exhausted by {error!r}" if exhausted(error) else type(error).__name__
    except Exception as error:
        return f"failure: {error!r}"
    return "loaded"


def main(folder, seed, count):
    outcomes, outside = Counter(), []
    files = hostile_files(folder, seed, count)
    first = next(files)
    limit()
    watch(folder, outside)
    for suffix, content in chain([first], files):
        path = folder / f"hostile{suffix}"
        path.write_bytes(content)
        found = outcome(path)
        outcomes[f"{suffix} {found}"] += 1
        if found.startswith("failure") or outside:
            (folder / f"failed{suffix}").write_bytes(content)
            break
    print(json.dumps({"outcomes": outcomes, "outside": outside}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

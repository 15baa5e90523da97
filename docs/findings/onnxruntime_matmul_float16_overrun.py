import ctypes
import mmap
import os

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

PAGE = mmap.PAGESIZE
kept = []


def at_the_end_of_memory(array):
    """The same numbers, right before a page that may not be touched."""
    memory = mmap.mmap(-1, 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    kept.append(memory)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + PAGE), PAGE, 0) == 0
    placed = np.frombuffer(memory, array.dtype, array.size, PAGE - array.nbytes).reshape(array.shape)
    placed[...] = array
    return placed


types = [
    helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name, shape in (("a", (3, 1)), ("b", (1, 1)))
]
result = helper.make_tensor_value_info("y", TensorProto.FLOAT16, (3, 1))
graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", types, [result])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

child = os.fork()
if child == 0:
    given = {
        "a": at_the_end_of_memory(np.ones((3, 1), np.float16)),
        "b": at_the_end_of_memory(np.ones((1, 1), np.float16)),
    }
    session.run(None, given)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("ended by signal" if status < 0 else "exit code", abs(status))
print("fixed" if status == 0 else "not fixed")

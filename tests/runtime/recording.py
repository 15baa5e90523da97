"""Work that notes, in machine code, which of its units were carried out, how often, and by how many threads at once."""

import numpy as np

from gradspec.codegen.cache import kernel
from gradspec.codegen.records import address
from gradspec.runtime import threads

STRIDE = 64


class Recorder:
    """Units of work that are counted, each of which takes some time."""

    def __init__(self, units, nanoseconds=0):
        self.units, self.cost = units, 1e9
        self.kernel = kernel("codegen.kernel_sources.recorder", "recorder")
        self._counts = np.zeros(units, np.int64)
        self.args = np.array([nanoseconds, address(self._counts), 0, 0], np.int64)

    def run(self, count):
        room = np.zeros(STRIDE * count, np.uint8)
        threads.run(self.kernel, address(self.args), self.units, address(room), STRIDE, count)

    @property
    def counts(self):
        return self._counts.tolist()

    @property
    def running(self):
        """How many threads are in the kernel now."""
        return int(self.args[2])

    @property
    def shared(self):
        """How often a thread found another one in its workspace."""
        return int(self.args[3])

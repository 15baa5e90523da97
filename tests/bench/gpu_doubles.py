"""Contenders on a GPU that is none, for workers to run: CPU tensors of a small size, and events of a made-up clock."""

from dataclasses import replace

import torch

from gradspec.bench.contenders import Participant, Race
from gradspec.bench.contenders.gpu import CopyOnGpu, TorchOnGpu
from gradspec.bench.grid import GPU_GRID
from gradspec.conformance.model.device import Device


class Clock:
    """Milliseconds pass when work is done, and events note when it was and in which order."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def work(self, what, milliseconds):
        self.log.append(what)
        self.now += milliseconds


class Event:
    def __init__(self, clock):
        self.clock, self.at = clock, None

    def record(self):
        self.clock.log.append("event")
        self.at = self.clock.now

    def synchronize(self):
        self.clock.log.append("wait")

    def elapsed_time(self, end):
        return end.at - self.at


class OtherBytes:
    def __init__(self, clock):
        self.clock = clock

    def zero_(self):
        self.clock.work("flush", 7.0)


class Made:
    """A contender on CPU tensors whose calls take ``milliseconds`` of the made-up clock."""

    def __init__(self, milliseconds):
        super().__init__(torch, device="cpu")
        clock = Clock()
        self.__dict__.update(clock=clock, milliseconds=milliseconds, _other_bytes=OtherBytes(clock))

    def _event(self):
        return Event(self.clock)

    def variants(self, problem):
        small = replace(problem, cell=replace(problem.cell, shape=(2, 3, 8, 8)))
        return {name: self.lasting(call) for name, call in super().variants(small).items()}

    def lasting(self, call):
        def called():
            self.clock.work("call", self.milliseconds)
            return call()

        return called


class MadeTorch(Made, TorchOnGpu):
    pass


class MadeCopy(Made, CopyOnGpu):
    pass


def ours(threads):
    return MadeTorch(2.0)


def eager(threads):
    return MadeTorch(3.0)


def copy(threads):
    return MadeCopy(0.5)


class MadeGpu(Device):
    name, is_host = "cuda", False

    def facts(self, library):
        return {"GPU": "Made", "driver": "1.2", "CUDA": "12.8", "cuDNN": "91002", "TF32": "off"}


RACE = Race(
    Participant("gradspec", "gpu_doubles:ours", ("torch",), "torch"),
    Participant("machine", "gpu_doubles:copy"),
    (Participant("torch-eager", "gpu_doubles:eager", ("torch",), "torch"),),
    MadeGpu(),
    GPU_GRID,
)

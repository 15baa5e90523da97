"""What threads carry out together in a call, as host and machine code see it: steps, and those who help with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gradspec.codegen.records import Scratch


@dataclass
class JobStep(Scratch):
    """A kernel, its arguments, and its units of work, of which at least and at most so many are taken at a time."""

    function: int
    arguments: int
    units: int
    least: int
    most: int


@dataclass
class Job(Scratch):
    slots: int
    """Of threads."""
    shares: int
    """In how many chunks what is left of a range is cut."""
    counted: int
    """Counters of each step."""
    reached: int
    """The first step that is not known to be done."""
    halted: int
    """Whether the job is halted."""
    running: int
    """How many threads have a chunk."""
    desks: int
    """Where the addresses of all desks are,"""
    workers: int
    """and how many there are."""
    helpers: int
    """How many workers were hired."""
    workspace: int
    """That of slot 0,"""
    stride: int
    """and how many bytes lie between those of two slots."""
    hired: tuple[int, ...]
    """The desks of the helpers: the first has slot 1."""
    steps: tuple[JobStep, ...]
    counters: tuple[int, ...]
    """Of each step: the units that are done, and for each range those that are taken."""


DONE, TAKEN = range(2)
"""Among the counters of a step."""


PTHREAD_WORDS = 8
"""The most that a system takes for a mutex, or for a condition."""


@dataclass
class Desk(Scratch):
    """Where a worker sits and waits for jobs."""

    job: int
    """0: it is free. ``TAKEN_UP``: a caller is about to hire its worker; then the address of the caller's job, which is
    a multiple of 8, and one more from when the worker begins until it has left the job."""
    slot: int
    """The worker's in the job."""
    is_asleep: int
    leaves: int
    """Whether it is to go home."""
    mutex: Annotated[tuple[int, ...], PTHREAD_WORDS]
    called: Annotated[tuple[int, ...], PTHREAD_WORDS]
    """The condition that wakes it."""


TAKEN_UP = 2

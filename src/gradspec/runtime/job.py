"""What threads carry out together in a call, as host and machine code see it: a sequence of steps."""

from __future__ import annotations

from dataclasses import dataclass

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
    steps: tuple[JobStep, ...]
    counters: tuple[int, ...]
    """Of each step: the units that are done, and for each range those that are taken."""


DONE, TAKEN = range(2)
"""Among the counters of a step."""

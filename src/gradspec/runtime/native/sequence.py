"""What threads do together in a call: a sequence of steps, each of them units of work that any thread may take.

A job is a block of words: ``HEADER`` of them, ``STEP`` for each step, and then, again for each step, the counters that
change. Every thread that works on it calls ``kernel(job, slot, budget, workspace)``: it takes chunks of the first step
that is not done, waits until the others have done theirs, and goes on with the next. Threads may come late, leave, and
come back; none is counted on but those that have taken a chunk and not finished it. ``budget`` is the time in
nanoseconds after which a thread leaves between chunks. A thread that waits looks around for a while, then lets others
run, then sleeps in between, so that one which waits long for another leaves it the processor.

The units of a step are cut into as many ranges as there are slots, fewer if that would make them tiny. A thread begins
with its own, so that it finds in its cache what it made of the same part in the step before, and then helps with the
others. Chunks shrink with what is left of a range, so that the threads end together.

A negative slot halts the job: after that call no chunk is running, and none will be begun. A thread counts itself as
running before it looks whether the job is halted, and whoever halts it does so before looking whether a thread is
running; these accesses have one order, so one of the two sees the other.
"""

from __future__ import annotations

import platform
import time

STEPS, SLOTS, SHARES, COUNTERS, COUNTED, REACHED, HALTED, RUNNING = range(8)
"""Words of the header: the number of steps and of slots, in how many chunks what is left of a range is cut, the word
where counters begin and how many each step has, the first step that is not known to be done, whether the job is halted,
and how many threads have a chunk."""
HEADER = 8

FUNCTION, ARGS, UNITS, LEAST, MOST = range(5)
"""Words of a step: what is called, with what, for how many units, at least and at most how many at a time."""
STEP = 8

DONE, TAKEN = 0, 1
"""Counters of a step: how many units are done, and how many are taken of each range."""

LOOKS, YIELDS, SLEEP = 20_000, 100_000, 50_000
"""Nanoseconds that a waiting thread looks around, until which it lets others run, and that it sleeps from then on."""

PAUSES = {
    "aarch64": ("llvm.aarch64.isb", "i32", "i32 15"),
    "arm64": ("llvm.aarch64.isb", "i32", "i32 15"),
    "x86_64": ("llvm.x86.sse2.pause", "", ""),
}
"""What makes a processor look less often: an intrinsic, the types of its arguments, and these."""


def build(name: str) -> str:
    """The intermediate code."""
    intrinsic, types, arguments = PAUSES.get(platform.machine(), ("llvm.donothing", "", ""))
    words = {
        "declared": f"declare void @{intrinsic}({types})",
        "pause": f"call void @{intrinsic}({arguments})",
        "clock": time.CLOCK_MONOTONIC,
        **{key.lower(): value for key, value in globals().items() if key.isupper() and isinstance(value, int)},
    }
    return INTERMEDIATE % words


INTERMEDIATE = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @nanosleep(ptr, ptr)
%(declared)s

define internal i64 @now() noinline {
  %%time = alloca [2 x i64]
  call i32 @clock_gettime(i32 %(clock)d, ptr %%time)
  %%seconds = load i64, ptr %%time
  %%rest = getelementptr i64, ptr %%time, i64 1
  %%nanoseconds = load i64, ptr %%rest
  %%scaled = mul i64 %%seconds, 1000000000
  %%sum = add i64 %%scaled, %%nanoseconds
  ret i64 %%sum
}

define internal void @idle(i64 %%waited) noinline {
entry:
  %%time = alloca [2 x i64]
  %%looks = icmp slt i64 %%waited, %(looks)d
  br i1 %%looks, label %%look, label %%longer
look:
  %(pause)s
  ret void
longer:
  %%yields = icmp slt i64 %%waited, %(yields)d
  br i1 %%yields, label %%yield, label %%sleep
yield:
  call i32 @sched_yield()
  ret void
sleep:
  store i64 0, ptr %%time
  %%rest = getelementptr i64, ptr %%time, i64 1
  store i64 %(sleep)d, ptr %%rest
  call i32 @nanosleep(ptr %%time, ptr null)
  ret void
}

define void @kernel(ptr %%job, i64 %%slot, i64 %%budget, ptr %%workspace) {
entry:
  %%steps.at = getelementptr i64, ptr %%job, i64 %(steps)d
  %%slots.at = getelementptr i64, ptr %%job, i64 %(slots)d
  %%shares.at = getelementptr i64, ptr %%job, i64 %(shares)d
  %%counters.at = getelementptr i64, ptr %%job, i64 %(counters)d
  %%counted.at = getelementptr i64, ptr %%job, i64 %(counted)d
  %%reached.at = getelementptr i64, ptr %%job, i64 %(reached)d
  %%halted.at = getelementptr i64, ptr %%job, i64 %(halted)d
  %%running.at = getelementptr i64, ptr %%job, i64 %(running)d
  %%came = call i64 @now()
  %%halts = icmp slt i64 %%slot, 0
  br i1 %%halts, label %%halt, label %%begin

begin:
  %%steps = load i64, ptr %%steps.at
  %%slots = load i64, ptr %%slots.at
  %%shares = load i64, ptr %%shares.at
  %%counters = load i64, ptr %%counters.at
  %%counted = load i64, ptr %%counted.at
  %%leave = add i64 %%came, %%budget
  %%first = load atomic i64, ptr %%reached.at acquire, align 8
  br label %%next.step

next.step:
  %%k = phi i64 [ %%first, %%begin ], [ %%k.next, %%step.done ]
  %%is.step = icmp slt i64 %%k, %%steps
  br i1 %%is.step, label %%step, label %%out

step:
  %%k.words = mul i64 %%k, %(step)d
  %%k.place = add i64 %%k.words, %(header)d
  %%record = getelementptr i64, ptr %%job, i64 %%k.place
  %%function.at = getelementptr i64, ptr %%record, i64 %(function)d
  %%args.at = getelementptr i64, ptr %%record, i64 %(args)d
  %%units.at = getelementptr i64, ptr %%record, i64 %(units)d
  %%least.at = getelementptr i64, ptr %%record, i64 %(least)d
  %%most.at = getelementptr i64, ptr %%record, i64 %(most)d
  %%function = load ptr, ptr %%function.at
  %%args = load ptr, ptr %%args.at
  %%units = load i64, ptr %%units.at
  %%least = load i64, ptr %%least.at
  %%most = load i64, ptr %%most.at
  %%k.counted = mul i64 %%k, %%counted
  %%k.counters = add i64 %%counters, %%k.counted
  %%k.counter = getelementptr i64, ptr %%job, i64 %%k.counters
  %%done.at = getelementptr i64, ptr %%k.counter, i64 %(done)d
  %%ranges.at = getelementptr i64, ptr %%k.counter, i64 %(taken)d
  %%chunks = sdiv i64 %%units, %%least
  %%is.scarce = icmp slt i64 %%chunks, %%slots
  %%wanted = select i1 %%is.scarce, i64 %%chunks, i64 %%slots
  %%is.none = icmp slt i64 %%wanted, 1
  %%ranges = select i1 %%is.none, i64 1, i64 %%wanted
  %%own = srem i64 %%slot, %%ranges
  br label %%range

range:
  %%i = phi i64 [ 0, %%step ], [ %%i.next, %%next.range ]
  %%is.range = icmp slt i64 %%i, %%ranges
  br i1 %%is.range, label %%look.range, label %%wait.begin

look.range:
  %%ahead = add i64 %%own, %%i
  %%is.over = icmp sge i64 %%ahead, %%ranges
  %%wrapped = sub i64 %%ahead, %%ranges
  %%r = select i1 %%is.over, i64 %%wrapped, i64 %%ahead
  %%r.end = add i64 %%r, 1
  %%begin.scaled = mul i64 %%units, %%r
  %%range.begin = sdiv i64 %%begin.scaled, %%ranges
  %%end.scaled = mul i64 %%units, %%r.end
  %%end = sdiv i64 %%end.scaled, %%ranges
  %%length = sub i64 %%end, %%range.begin
  %%taken.at = getelementptr i64, ptr %%ranges.at, i64 %%r
  br label %%look

look:
  %%seen = load atomic i64, ptr %%taken.at monotonic, align 8
  %%is.unit = icmp slt i64 %%seen, %%length
  br i1 %%is.unit, label %%enter, label %%next.range

next.range:
  %%i.next = add i64 %%i, 1
  br label %%range

enter:
  atomicrmw add ptr %%running.at, i64 1 seq_cst
  %%halted = load atomic i64, ptr %%halted.at seq_cst, align 8
  %%is.halted = icmp ne i64 %%halted, 0
  br i1 %%is.halted, label %%exit, label %%take

exit:
  atomicrmw sub ptr %%running.at, i64 1 seq_cst
  br label %%out

take:
  %%taken = phi i64 [ %%seen, %%enter ], [ %%found, %%size ]
  %%left = sub i64 %%length, %%taken
  %%is.left = icmp sgt i64 %%left, 0
  br i1 %%is.left, label %%size, label %%none

none:
  atomicrmw sub ptr %%running.at, i64 1 seq_cst
  br label %%next.range

size:
  %%part = sdiv i64 %%left, %%shares
  %%is.small = icmp slt i64 %%part, %%least
  %%at.least = select i1 %%is.small, i64 %%least, i64 %%part
  %%behind = sub i64 %%left, %%at.least
  %%is.rest = icmp slt i64 %%behind, %%least
  %%with.rest = select i1 %%is.rest, i64 %%left, i64 %%at.least
  %%is.large = icmp sgt i64 %%with.rest, %%most
  %%count = select i1 %%is.large, i64 %%most, i64 %%with.rest
  %%with.these = add i64 %%taken, %%count
  %%exchange = cmpxchg ptr %%taken.at, i64 %%taken, i64 %%with.these acq_rel monotonic
  %%found = extractvalue { i64, i1 } %%exchange, 0
  %%is.taken = extractvalue { i64, i1 } %%exchange, 1
  br i1 %%is.taken, label %%work, label %%take

work:
  %%lo = add i64 %%range.begin, %%taken
  %%hi = add i64 %%lo, %%count
  call void %%function(ptr %%args, i64 %%lo, i64 %%hi, ptr %%workspace)
  atomicrmw add ptr %%done.at, i64 %%count acq_rel
  atomicrmw sub ptr %%running.at, i64 1 seq_cst
  %%time.now = call i64 @now()
  %%is.late = icmp sgt i64 %%time.now, %%leave
  br i1 %%is.late, label %%out, label %%look

wait.begin:
  %%done.first = load atomic i64, ptr %%done.at acquire, align 8
  %%is.done.first = icmp sge i64 %%done.first, %%units
  br i1 %%is.done.first, label %%step.done, label %%wait.start

wait.start:
  %%waits = call i64 @now()
  br label %%wait

wait:
  %%done = load atomic i64, ptr %%done.at acquire, align 8
  %%is.done = icmp sge i64 %%done, %%units
  br i1 %%is.done, label %%step.done, label %%wait.halted

wait.halted:
  %%stopped = load atomic i64, ptr %%halted.at acquire, align 8
  %%is.stopped = icmp ne i64 %%stopped, 0
  br i1 %%is.stopped, label %%out, label %%wait.time

wait.time:
  %%time = call i64 @now()
  %%is.past = icmp sgt i64 %%time, %%leave
  br i1 %%is.past, label %%out, label %%wait.idle

wait.idle:
  %%waited = sub i64 %%time, %%waits
  call void @idle(i64 %%waited)
  br label %%wait

step.done:
  %%k.next = add i64 %%k, 1
  atomicrmw max ptr %%reached.at, i64 %%k.next release
  br label %%next.step

halt:
  store atomic i64 1, ptr %%halted.at seq_cst, align 8
  br label %%settle

settle:
  %%running = load atomic i64, ptr %%running.at seq_cst, align 8
  %%is.quiet = icmp eq i64 %%running, 0
  br i1 %%is.quiet, label %%out, label %%settle.idle

settle.idle:
  %%time.settling = call i64 @now()
  %%settling = sub i64 %%time.settling, %%came
  call void @idle(i64 %%settling)
  br label %%settle

out:
  ret void
}
"""

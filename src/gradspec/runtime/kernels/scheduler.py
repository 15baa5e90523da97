"""The scheduler of a job: a sequence of steps, whose units of work any thread may take.

A thread takes chunks of the first step that is not done, waits until the other threads have finished theirs, and goes
on with the next step. Threads may join late, leave, and rejoin; only those that hold a chunk are waited for. A thread
leaves between chunks when ``budget`` nanoseconds have passed. A waiting thread spins, then yields, then sleeps, so that
a long wait leaves the processor to others.

The caller enters by ``job(job, slot, budget, workspace)`` with slot 0. Workers run ``serve(worker, 0, budget)`` and
sleep until they are claimed. The caller claims free workers and wakes two of them, each of which wakes two more, since
waking a thread costs the waker a few µs. When the job is done the caller releases them: a worker that has not begun
never will, and the others are about to leave. The caller does not wait for one that has lost its processor: it remains
a helper, and the host keeps the job while there is one.

The units of a step are cut into as many ranges as there are slots, or fewer, larger ones. A thread begins with its own
range, which is in its cache after the step before, and then helps with the others. Chunks shrink with what is left of
a range, so that the threads end together.

A negative slot halts the job: after that call no chunk is running, and none will begin. A thread counts itself as
running before it reads whether the job is halted, and a halting thread sets that before it reads the count. These
accesses have a total order, so one of the two sees the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.codegen.intrinsics import (
    address_of,
    atomic_change,
    atomic_load,
    call,
    compare_exchange,
    give_way,
    local_words,
    pause,
    read_clock,
    sleep,
    thread_function,
)
from gradspec.codegen.language import i64, inlined, outlined, place_of, pointer
from gradspec.codegen.translation import kernel_code
from gradspec.runtime.job import CLAIMED, DONE, TAKEN, Job, WorkerSlot

SPIN, YIELD, SLEEP = 20_000, 100_000, 50_000
"""A waiting thread spins for ``SPIN`` nanoseconds, yields until ``YIELD``, and then sleeps ``SLEEP`` at a time."""

FANOUT = 2
"""How many workers the caller wakes, and each worker in turn."""

load_relaxed, load_acquire, load_ordered = map(atomic_load, ("monotonic", "acquire", "seq_cst"))
set_ordered, exchange = atomic_change("xchg", "seq_cst"), compare_exchange("acq_rel", "monotonic")
add_ordered, subtract_ordered = atomic_change("add", "seq_cst"), atomic_change("sub", "seq_cst")
add_to_done, raise_to = atomic_change("add", "acq_rel"), atomic_change("max", "release")
lock, unlock, signal, wait = map(thread_function, ("mutex_lock", "mutex_unlock", "cond_signal", "cond_wait"))

words_at, worker_at, job_at = pointer(i64), pointer(WorkerSlot), pointer(Job)


def build(name: str) -> str:
    """The code of the kernel ``"job"`` or ``"serve"``."""
    return kernel_code(work, Job) if name == "job" else kernel_code(serve, WorkerSlot)


# --- callers ----------------------------------------------------------------------------------------------------------


def work(job, slot, budget, workspace):
    start = now()
    if slot < 0:
        halt(job, start)
        return
    claim_workers(job)
    take_part(job, slot, start + budget, job.workspace)
    if load_acquire(place_of(job.reached)) >= len(job.steps):
        release_workers(job)


@inlined
def halt(job, start):
    set_ordered(place_of(job.halted), 1)
    while load_ordered(place_of(job.running)) != 0:
        idle(now() - start)
    release_workers(job)


@outlined
def claim_workers(job):
    """Claim free workers for free slots. They begin once all are claimed, since each of them wakes others."""
    addresses, before, count = words_at(job.worker_slots), job.helpers, job.helpers
    for i in range(job.workers):
        worker = worker_at(addresses[i])
        if count < len(job.claimed) and exchange(place_of(worker.job), 0, CLAIMED) == 0:
            set_ordered(place_of(job.claimed[count]), addresses[i])
            count += 1
            worker.slot = count
    job.helpers = count
    for i in range(before, count):
        set_ordered(place_of(worker_at(job.claimed[i]).job), address_of(job))
    wake(job, before, count if before > 0 else min(count, FANOUT))


@outlined
def wake(job, first, end):
    """Wake the helpers first … end−1, if they are asleep."""
    for i in range(first, end):
        worker = worker_at(job.claimed[i])
        if load_ordered(place_of(worker.is_asleep)) != 0:
            lock(place_of(worker.mutex[0]))
            signal(place_of(worker.wakeup[0]))
            unlock(place_of(worker.mutex[0]))


@outlined
def release_workers(job):
    start, left, begun = now(), 0, address_of(job) + 1
    for i in range(job.helpers):
        worker = job.claimed[i]
        place = place_of(worker_at(worker).job)
        if exchange(place, address_of(job), 0) == begun:
            while load_acquire(place) == begun and now() - start < SPIN:
                pause()
            if load_acquire(place) == begun:
                set_ordered(place_of(job.claimed[left]), worker)
                left += 1
    job.helpers = left


# --- workers ----------------------------------------------------------------------------------------------------------


def serve(worker, _, budget, workspace):
    """Work on one job after another, until the worker is stopped."""
    at = next_job(worker)
    while at != 0:
        if exchange(place_of(worker.job), at, at + 1) == at:  # else the caller has released the worker
            assist(job_at(at), worker, budget)
            set_ordered(place_of(worker.job), 0)
        at = next_job(worker)


@outlined
def next_job(worker):
    """Wait for a job and return its address, or 0 if the worker is stopped; its slot is then not free."""
    start, at = now(), load_acquire(place_of(worker.job))
    while at <= CLAIMED:
        if load_acquire(place_of(worker.is_stopped)) != 0 and exchange(place_of(worker.job), 0, CLAIMED) == 0:
            return 0
        if now() - start < SPIN:
            pause()
        else:
            park(worker)
        at = load_acquire(place_of(worker.job))
    return at


@inlined
def park(worker):
    """A caller either sees that the worker is asleep, or the worker sees the caller's job before it sleeps."""
    lock(place_of(worker.mutex[0]))
    set_ordered(place_of(worker.is_asleep), 1)
    while (load_ordered(place_of(worker.job)) == 0) & (load_acquire(place_of(worker.is_stopped)) == 0):
        wait(place_of(worker.wakeup[0]), place_of(worker.mutex[0]))
    set_ordered(place_of(worker.is_asleep), 0)
    unlock(place_of(worker.mutex[0]))


@inlined
def assist(job, worker, budget):
    wake(job, FANOUT * worker.slot, min(FANOUT * (worker.slot + 1), job.helpers))
    leave, workspace = now() + budget, job.workspace + worker.slot * job.stride
    take_part(job, worker.slot, leave, workspace)
    while (now() > leave) & (load_acquire(place_of(worker.is_stopped)) == 0):
        leave = now() + budget
        take_part(job, worker.slot, leave, workspace)


# --- all threads ------------------------------------------------------------------------------------------------------


@outlined
def take_part(job, slot, leave, workspace):
    """Carry out steps until all are done, or there is nothing more to do, or it is time to leave."""
    number = load_acquire(place_of(job.reached))
    while number < len(job.steps):
        if not carry_out(job, number, slot, leave, workspace):
            return
        number += 1
        raise_to(place_of(job.reached), number)


@inlined
def carry_out(job, number, slot, leave, workspace):
    """Take part in a step, wait until it is done, and return whether it is. Only the caller waits for the last step."""
    step, first = job.steps[number], number * job.counted
    ranges = max(1, min(step.units // step.least, job.slots))
    start = slot % ranges
    for i in range(ranges):
        r = start + i if start + i < ranges else start + i - ranges
        begin, end = step.units * r // ranges, step.units * (r + 1) // ranges
        part = Range(begin, end - begin, first + TAKEN + r)
        if not drain(job, step, part, first + DONE, leave, workspace):
            return False
    if slot > 0 and number == len(job.steps) - 1:
        return False
    return wait_for(job, first + DONE, step.units, leave)


class Range(NamedTuple):
    """A range of a step's units; ``taken`` is the place of its counter."""

    begin: Any
    length: Any
    taken: Any


@inlined
def drain(job, step, part, done, leave, workspace):
    """Carry out chunks of a range until none is left; return whether the thread may stay."""
    while load_relaxed(place_of(job.counters[part.taken])) < part.length:
        add_ordered(place_of(job.running), 1)
        if load_ordered(place_of(job.halted)) != 0:
            subtract_ordered(place_of(job.running), 1)
            return False
        first, count = take_chunk(job, step, part)
        if count > 0:
            start = part.begin + first
            call(step.function, step.arguments, start, start + count, workspace)
            add_to_done(place_of(job.counters[done]), count)
        subtract_ordered(place_of(job.running), 1)
        if count > 0 and now() > leave:
            return False
    return True


@inlined
def take_chunk(job, step, part):
    """Take a chunk: its offset in the range and its number of units, 0 if other threads took the rest."""
    seen = load_relaxed(place_of(job.counters[part.taken]))
    while seen < part.length:
        left = part.length - seen
        count = max(left // job.shares, step.least)
        if left - count < step.least:
            count = left
        count = min(count, step.most)
        current = exchange(place_of(job.counters[part.taken]), seen, seen + count)
        if current == seen:
            return seen, count
        seen = current
    return seen, 0


@inlined
def wait_for(job, done, units, leave):
    """Wait until all units of a step are done; return False if the thread must leave before."""
    if load_acquire(place_of(job.counters[done])) >= units:
        return True
    began = now()
    while load_acquire(place_of(job.counters[done])) < units:
        time = now()
        if load_acquire(place_of(job.halted)) != 0 or time > leave:
            return False
        idle(time - began)
    return True


@outlined
def idle(waited):
    if waited < SPIN:
        pause()
    elif waited < YIELD:
        give_way()
    else:
        time = local_words(2)
        time[0] = 0
        time[1] = SLEEP
        sleep(time)


@outlined
def now():
    """Nanoseconds."""
    time = local_words(2)
    read_clock(time)
    return time[0] * 1_000_000_000 + time[1]

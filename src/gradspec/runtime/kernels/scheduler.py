"""What threads do together in a call: a sequence of steps, each of them units of work that any thread may take.

Every thread that works on a job takes chunks of the first step that is not done, waits until the others have done
theirs, and goes on with the next. Threads may come late, leave, and come back; none is counted on but those that have
taken a chunk and not finished it. ``budget`` is the time in nanoseconds after which a thread leaves between chunks. A
thread that waits looks around for a while, then lets others run, then sleeps in between, so that one which waits long
for another leaves it the processor.

The caller enters by ``job(job, slot, budget, workspace)``, slot 0. Workers are in ``serve(desk, 0, budget)`` all the
time, asleep at their desks. The caller hires those that are free, and wakes two of them, of which each wakes two more:
a thread takes some µs to wake another, and no other thread's leave to be woken. When the job is done the caller
dismisses them: those that have not begun by then never will, and the others are on their way out. One that has lost its
processor on the way is not waited for: it is left a helper, and the host keeps the job as long as there is one.

The units of a step are cut into as many ranges as there are slots, fewer if that would make them tiny. A thread begins
with its own, so that it finds in its cache what it made of the same part in the step before, and then helps with the
others. Chunks shrink with what is left of a range, so that the threads end together.

A negative slot halts the job: after that call no chunk is running, and none will be begun. A thread counts itself as
running before it looks whether the job is halted, and whoever halts it does so before looking whether a thread is
running; these accesses have one order, so one of the two sees the other.
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
from gradspec.runtime.job import DONE, TAKEN, TAKEN_UP, Desk, Job

LOOKS, YIELDS, SLEEP = 20_000, 100_000, 50_000
"""Nanoseconds that a waiting thread looks around, until which it lets others run, and that it sleeps from then on."""

FIRST = 2
"""Workers that the caller wakes, and that each of them wakes."""

load_relaxed, load_acquire, load_ordered = map(atomic_load, ("monotonic", "acquire", "seq_cst"))
set_ordered, exchange = atomic_change("xchg", "seq_cst"), compare_exchange("acq_rel", "monotonic")
add_ordered, subtract_ordered = atomic_change("add", "seq_cst"), atomic_change("sub", "seq_cst")
add_to_done, raise_to = atomic_change("add", "acq_rel"), atomic_change("max", "release")
lock, unlock, signal, wait = map(thread_function, ("mutex_lock", "mutex_unlock", "cond_signal", "cond_wait"))

words_at, desk_at, job_at = pointer(i64), pointer(Desk), pointer(Job)


def build(name: str) -> str:
    """The code of the kernel called ``"job"`` or ``"serve"``."""
    return kernel_code(work, Job) if name == "job" else kernel_code(serve, Desk)


# --- callers ----------------------------------------------------------------------------------------------------------


def work(job, slot, budget, workspace):
    came = now()
    if slot < 0:
        halt(job, came)
        return
    hire(job)
    take_part(job, slot, came + budget, job.workspace)
    if load_acquire(place_of(job.reached)) >= len(job.steps):
        dismiss(job)


@inlined
def halt(job, came):
    set_ordered(place_of(job.halted), 1)
    while load_ordered(place_of(job.running)) != 0:
        idle(now() - came)
    dismiss(job)


@outlined
def hire(job):
    """Workers that are free, for slots that are. They begin when all are known, since each of them wakes others."""
    desks, before, found = words_at(job.desks), job.helpers, job.helpers
    for i in range(job.workers):
        desk = desk_at(desks[i])
        if found < len(job.hired) and exchange(place_of(desk.job), 0, TAKEN_UP) == 0:
            set_ordered(place_of(job.hired[found]), desks[i])
            found += 1
            desk.slot = found
    job.helpers = found
    for i in range(before, found):
        set_ordered(place_of(desk_at(job.hired[i]).job), address_of(job))
    wake(job, before, found if before > 0 else min(found, FIRST))


@outlined
def wake(job, first, end):
    """Wake the helpers first … end−1, if they are asleep."""
    for i in range(first, end):
        desk = desk_at(job.hired[i])
        if load_ordered(place_of(desk.is_asleep)) != 0:
            lock(place_of(desk.mutex[0]))
            signal(place_of(desk.called[0]))
            unlock(place_of(desk.mutex[0]))


@outlined
def dismiss(job):
    came, left, begun = now(), 0, address_of(job) + 1
    for i in range(job.helpers):
        desk = job.hired[i]
        place = place_of(desk_at(desk).job)
        if exchange(place, address_of(job), 0) == begun:
            while load_acquire(place) == begun and now() - came < LOOKS:
                pause()
            if load_acquire(place) == begun:
                set_ordered(place_of(job.hired[left]), desk)
                left += 1
    job.helpers = left


# --- workers ----------------------------------------------------------------------------------------------------------


def serve(desk, _, budget, workspace):
    """Work on one job after another, until it is time to go home."""
    at = next_job(desk)
    while at != 0:
        if exchange(place_of(desk.job), at, at + 1) == at:  # else the caller has taken it back
            assist(job_at(at), desk, budget)
            set_ordered(place_of(desk.job), 0)
        at = next_job(desk)


@outlined
def next_job(desk):
    """Wait for a job: its address, or 0 to go home. Whoever does leaves a desk that is not free."""
    came, at = now(), load_acquire(place_of(desk.job))
    while at <= TAKEN_UP:
        if load_acquire(place_of(desk.leaves)) != 0 and exchange(place_of(desk.job), 0, TAKEN_UP) == 0:
            return 0
        if now() - came < LOOKS:
            pause()
        else:
            sleep_at(desk)
        at = load_acquire(place_of(desk.job))
    return at


@inlined
def sleep_at(desk):
    """A caller either sees that the worker is asleep, or the worker sees the caller's job before it sleeps."""
    lock(place_of(desk.mutex[0]))
    set_ordered(place_of(desk.is_asleep), 1)
    while (load_ordered(place_of(desk.job)) == 0) & (load_acquire(place_of(desk.leaves)) == 0):
        wait(place_of(desk.called[0]), place_of(desk.mutex[0]))
    set_ordered(place_of(desk.is_asleep), 0)
    unlock(place_of(desk.mutex[0]))


@inlined
def assist(job, desk, budget):
    wake(job, FIRST * desk.slot, min(FIRST * (desk.slot + 1), job.helpers))
    leave, workspace = now() + budget, job.workspace + desk.slot * job.stride
    take_part(job, desk.slot, leave, workspace)
    while (now() > leave) & (load_acquire(place_of(desk.leaves)) == 0):
        leave = now() + budget
        take_part(job, desk.slot, leave, workspace)


# --- all of them ------------------------------------------------------------------------------------------------------


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
    """Take part in a step and wait for its end; whether that has come. The caller alone waits for that of the last."""
    step, first = job.steps[number], number * job.counted
    ranges = max(1, min(step.units // step.least, job.slots))
    own = slot % ranges
    for i in range(ranges):
        r = own + i if own + i < ranges else own + i - ranges
        begin, end = step.units * r // ranges, step.units * (r + 1) // ranges
        part = Range(begin, end - begin, first + TAKEN + r)
        if not drain(job, step, part, first + DONE, leave, workspace):
            return False
    if slot > 0 and number == len(job.steps) - 1:
        return False
    return wait_for(job, first + DONE, step.units, leave)


class Range(NamedTuple):
    """A range of a step's units: where it begins, its length, and the counter of those that are taken."""

    begin: Any
    length: Any
    taken: Any


@inlined
def drain(job, step, part, done, leave, workspace):
    """Chunks of a range until none is left; whether the thread may stay."""
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
    """The first unit of a chunk, counted from the range's, and how many there are; none if others took them."""
    seen = load_relaxed(place_of(job.counters[part.taken]))
    while seen < part.length:
        left = part.length - seen
        count = max(left // job.shares, step.least)
        if left - count < step.least:
            count = left
        count = min(count, step.most)
        found = exchange(place_of(job.counters[part.taken]), seen, seen + count)
        if found == seen:
            return seen, count
        seen = found
    return seen, 0


@inlined
def wait_for(job, done, units, leave):
    """Until all units of a step are done; whether they are, or the thread must leave before."""
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
    if waited < LOOKS:
        pause()
    elif waited < YIELDS:
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

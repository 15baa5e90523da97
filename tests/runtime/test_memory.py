"""Places in the arena, and the frames that calls work in."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradspec.codegen.records import address
from gradspec.runtime import memory
from gradspec.runtime.memory import Frames, Lifetime, aligned, aligned_bytes, offsets

spans = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 400))
intervals = st.lists(spans.map(lambda s: Lifetime(s[0], s[0] + s[1], s[2])), max_size=16)


@given(intervals)
def test_buffers_that_live_together_do_not_overlap(found):
    places = offsets(found)
    for (a, at), (b, bt) in combinations(zip(found, places, strict=True), 2):
        together = a.first <= b.last and b.first <= a.last
        assert not together or at + a.size <= bt or bt + b.size <= at
    assert all(place >= 0 and place % 64 == 0 for place in places)
    end = max((at + aligned(a.size) for a, at in zip(found, places, strict=True)), default=0)
    assert end <= sum(aligned(a.size) for a in found)


@given(intervals)
def test_each_buffer_has_the_lowest_place_among_those_of_larger_ones(found):
    places = offsets(found)
    order = sorted(range(len(found)), key=lambda i: (-found[i].size, found[i].first))
    for n, i in enumerate(order):
        a, size = found[i], aligned(found[i].size)
        busy = [
            (places[j], places[j] + aligned(found[j].size))
            for j in order[:n]
            if found[j].first <= a.last and a.first <= found[j].last
        ]
        free = [at for at in {0, *(end for _, end in busy)} if all(at + size <= b or e <= at for b, e in busy)]
        assert places[i] == min(free)


@pytest.mark.parametrize(
    ("found", "total"),
    [
        ([Lifetime(0, 0, 100)] * 2, 256),
        ([Lifetime(0, 0, 100), Lifetime(1, 1, 100)], 128),
        ([Lifetime(i, i + 1, 64) for i in range(9)], 128),
        ([Lifetime(0, 1, 64), Lifetime(1, 2, 640), Lifetime(2, 3, 640)], 1280),  # in order of time it would take 1344
        ([Lifetime(0, 9, 64), Lifetime(0, 1, 128), Lifetime(2, 9, 128)], 192),
    ],
)
def test_how_much_room_is_taken(found, total):
    assert max(at + aligned(a.size) for a, at in zip(found, offsets(found), strict=True)) == total


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_memory_begins_at_a_multiple_of_64(size):
    found = aligned_bytes(size)
    assert (found.nbytes, address(found) % 64) == (size, 0)


class Kept:
    def __init__(self, size):
        self.nbytes = size


def frames(size=256):
    return Frames(lambda: Kept(size))


def test_a_frame_is_used_again():
    pool = frames()
    first = pool.take()
    assert pool.take() is not first
    pool.give_back(first)
    assert pool.take() is first


def test_idle_frames_are_few():
    pool = frames()
    for frame in [pool.take() for _ in range(50)]:
        frame.nbytes += 64
        pool.give_back(frame)
    assert pool.idle_bytes == memory.KEPT_FRAMES * (256 + 64)


def test_idle_memory_of_all_plans_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", sum(f.idle_bytes for f in memory._all) + 5 * 2**20)
    pools = [frames(2 * 2**20) for _ in range(4)]
    for pool in pools:
        pool.give_back(pool.take())
    assert [pool.idle_bytes > 0 for pool in pools] == [True, True, False, False]
    pools[0].take()
    pools[3].give_back(pools[3].take())
    assert pools[3].idle_bytes > 0


def test_an_address_is_where_the_data_begin():
    x = np.zeros((4, 6), np.float32)
    for view in (x, x[1:], x[:, ::-1], x.T, x[2:2], np.broadcast_to(x[:1, :1], (9, 9)), x.view(np.memmap)):
        assert address(view) == view.ctypes.data

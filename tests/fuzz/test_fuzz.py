"""The fuzzer runs on a new seed each day, and finds what is wrong."""

from itertools import count, islice

import numpy as np
import pytest

from gradspec.backends.cpu.conv import blocking, gradient
from gradspec.backends.cpu.pool import layout
from gradspec.testing import fuzz

SECONDS, LEAST = 10, 40
"""Of trials in the default tests; on a machine that is busy there are fewer, but some."""


def test_todays_trials():
    tally = fuzz.fuzz(seconds=SECONDS, part=LEAST, jobs=2)  # in processes that another library may end
    print(tally)
    assert tally.failures == [], str(tally)
    assert tally.trials >= LEAST
    assert {"spec", "torch", "numpy"} <= set(tally.agreed)


CUTS = {
    "tiles of pooling": {layout: {"LONGEST_TILE": 8}},
    "slabs of pooling": {layout: {"LARGEST_SLAB": 64, "LARGEST_CHUNK": 64}},
    "blocks of pooling": {layout: {"INNER_BLOCK": 4, "WIDEST_BLOCK": 8, "CELLS_TRANSPOSED": 64}},
    "units of pooling": {layout: {"UNITS_WANTED": 1, "FEWEST_UNITS": 1}},
    "terms of convolution": {
        blocking: {"TERMS": 8, "COLUMNS": 16, "VECTORS": 4},
        gradient: {"TERMS": 16, "STRETCH": 64},
    },
    "bytes of convolution": {
        blocking: {"PANEL_BYTES": 256, "STAGED_BYTES": 1024, "SCRATCH_BYTES": 1024},
        gradient: {"SUMS_BYTES": 64, "MOST_STAGED_BYTES": 4096, "PIECES_BYTES": 1024},
    },
}


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.rows(len(CUTS))
@pytest.mark.parametrize("cut", CUTS)
def test_small_geometries_reach_beyond_the_first_tile(cut, monkeypatch):
    """However work is cut, results are right; cut small, what comes behind the first tile needs no large arrays."""
    for module, sizes in CUTS[cut].items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
    numbers = (n for n in count(list(CUTS).index(cut) << 32) if fuzz.draw(n).op.startswith("conv") == ("conv" in cut))
    for number in islice(numbers, 70):
        assert fuzz.attempt_trial(fuzz.draw(number), libraries=["spec"]).failure == ""


def test_a_wrong_result_is_found(monkeypatch):
    """Every cell but the last is right."""
    right = fuzz.run_compiled

    def wrong(*given):
        first, *others = right(*given)
        first = np.array(first)
        first.flat[-1] += 1
        return [first, *others]

    monkeypatch.setattr(fuzz, "run_compiled", wrong)
    tally = fuzz.fuzz(1, trials=8)
    assert len(tally.failures) >= 7  # a chain is compared without this function
    assert "differ" in tally.failures[0]


def test_trials_follow_from_their_numbers():
    trials = [fuzz.draw(n) for n in range(300)]
    assert trials == [fuzz.draw(n) for n in range(300)]
    assert {trial.op for trial in trials} == set(fuzz.OPERATORS)
    assert {trial.layout for trial in trials} == set(fuzz.LAYOUTS)
    assert {trial.rank for trial in trials} == {1, 2, 3, 4}
    steps = [(t.attributes["stride"], t.attributes["dilation"]) for t in trials if "stride" in t.attributes]
    assert any(np.gcd(stride, dilation).max() > 1 for stride, dilation in steps)


def test_the_layouts_hold_the_same_numbers():
    array = np.arange(48.0).reshape(2, 3, 2, 4)
    placed = {layout: fuzz.place(array, layout, 2) for layout in fuzz.LAYOUTS}
    assert all(np.array_equal(array, other) for other in placed.values())
    assert len({other.strides for other in placed.values()}) == len(fuzz.LAYOUTS)


@pytest.mark.parametrize("device", ["cpu", "tensors"])
def test_tensors_are_fuzzed_too(device):
    """On a GPU the kernels of `gs.to_torch` are compared; here the same code runs on tensors of the CPU."""
    tally = fuzz.fuzz(2, trials=10, part=10, device="cpu:0" if device == "tensors" else device)
    assert tally.failures == []
    assert tally.trials == 10


def test_the_command(capsys):
    assert fuzz.main(["--seed", "5", "--trials", "4", "--jobs", "1", "--libraries", "spec"]) == 0
    assert "0 wrong" in capsys.readouterr().out
    assert fuzz.main(["--trial", "17"]) == 0
    assert "Trial(number=17" in capsys.readouterr().out

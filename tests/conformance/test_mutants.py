"""Bugs planted in our own kernels are found by the default run (``mutants.py`` has many more, and tries all)."""

import pytest

from conformance.mutants import MUTANTS, SOURCE, tried

CHOSEN = ("padding_off_by_one", "bias_gradient_dropped", "excluded_padding_counts")


@pytest.mark.exhaustive  # other mistakes are found by default: test_references.py, test_algorithms.py
@pytest.mark.parametrize("name", CHOSEN)
def test_a_planted_bug_is_found(name):
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    trial = tried(mutant, (), "--jobs", "1", "--cases", "20000")
    assert trial.finding is not None, trial.output
    assert trial.code == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_is_replaced_is_still_there(mutant):
    assert mutant.before in (SOURCE / "gradspec" / mutant.file).read_text()


def test_there_are_enough():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert {mutant.name for mutant in MUTANTS} >= set(CHOSEN)

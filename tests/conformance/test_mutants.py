"""Bugs planted in our own kernels are found by the default run (``mutants.py`` has many more, and tries all)."""

import pytest

from conformance.mutants import MUTANTS, SOURCE, tried

CHOSEN = (
    "excluded_padding_counts",
    "groups_share_weights",
    "bias_gradient_dropped",
    "dilation_missing_in_weight_gradient",
    "padding_off_by_one",
)


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.name in CHOSEN], ids=lambda m: m.name)
def test_a_planted_bug_is_found(mutant):
    trial = tried(mutant, jobs=1)
    assert trial.finding is not None, trial.output
    assert trial.code == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_is_replaced_is_still_there(mutant):
    assert mutant.before in (SOURCE / "gradspec" / mutant.file).read_text()


def test_there_are_enough():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert {mutant.name for mutant in MUTANTS} >= set(CHOSEN)

"""Every law on every case it is about. One law: ``pytest tests/spec/test_laws.py -k adjoint``."""

import pytest
from hypothesis import given

import gradspec as gs
from cases import CASES
from laws import LAWS
from strategies import all_cases, few

MATCHES = [(law, case) for law, is_about in LAWS.items() for case in CASES if is_about(case)]


@pytest.mark.rows(100)
@pytest.mark.parametrize(("law", "case"), [pytest.param(*m, id=f"{m[0].__name__}: {m[1].id}") for m in MATCHES])
def test_law(law, case):
    law(case)


@few
@given(case=all_cases())
def test_every_law_on_random_geometry(case):
    for law, is_about in LAWS.items():
        if is_about(case):
            law(case)


@pytest.mark.parametrize("operator", gs.spec.OPERATORS)
def test_every_operator_has_cases_of_every_rank(operator):
    assert {case.rank for case in CASES if case.operator == operator} >= {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_law_is_about_some_case(law):
    assert any(law is matched for matched, _ in MATCHES)


def test_case_ids_are_unique():
    assert len({case.id for case in CASES}) == len(CASES)

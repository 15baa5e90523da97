"""The referee: kernels that may want to cheat, judged by problems in the formats that people have.

``gs.referee.score`` judges one kernel, and ``gs.referee.referee`` a folder of them. ``docs/referee.md`` says what is
defended, what is not, and what must be trusted.
"""

from gradspec.referee.campaign import SolutionScore, Submission, list_submissions, referee
from gradspec.referee.formats import ProblemSource, find_source
from gradspec.referee.own_work import OwnWork, Policy
from gradspec.referee.scoring import RefereeFinding, Score, ScoreSettings, score
from gradspec.referee.timing import MeasuredTime, Times

__all__ = [
    "MeasuredTime",
    "OwnWork",
    "Policy",
    "ProblemSource",
    "RefereeFinding",
    "Score",
    "ScoreSettings",
    "SolutionScore",
    "Submission",
    "Times",
    "find_source",
    "list_submissions",
    "referee",
    "score",
]

"""Number systems to run the specification on."""

from gradspec.domains.ball import Ball, ball
from gradspec.domains.domain import Domain
from gradspec.domains.dual import Dual, dual
from gradspec.domains.exact import exact, rational
from gradspec.domains.formats import FORMATS, Format
from gradspec.domains.ieee import Float, ieee
from gradspec.domains.interval import Interval, interval

__all__ = [
    "FORMATS",
    "Ball",
    "Domain",
    "Dual",
    "Float",
    "Format",
    "Interval",
    "ball",
    "dual",
    "exact",
    "ieee",
    "interval",
    "rational",
]

"""Judging one call: what its results must be, what else a target may have chosen, and the rule that is broken."""

"""Statements about networks that are proved: what is to be proved, and the files that say it."""

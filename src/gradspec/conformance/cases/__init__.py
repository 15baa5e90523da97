"""The cases a target is judged on: first so as to cover every three features together, then at random."""

"""From failures to findings: the smallest case of each cause."""

"""Colours by meaning."""

LABEL = "dim"
STRONG = "bold"
GOOD = "green"
WARM = "yellow"
HOT = "bold red"
HINT = "cyan"

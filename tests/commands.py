"""Tools that tests run, by the interpreter that runs the tests: no path has to name them."""

from __future__ import annotations

import sys

RUFF = (sys.executable, "-m", "ruff")
MYPY = (sys.executable, "-m", "mypy")

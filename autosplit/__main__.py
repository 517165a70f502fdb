"""``python -m autosplit``."""

from autosplit.cli.main import main

main()

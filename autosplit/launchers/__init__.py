"""Ways to start an export. A new one is a file here and its line below."""

from autosplit.launchers.base import LAUNCHERS, Launch, Launcher
from autosplit.launchers.torchrun import Torchrun

LAUNCHERS.register("torchrun")(Torchrun())

__all__ = ["LAUNCHERS", "Launch", "Launcher", "Torchrun"]

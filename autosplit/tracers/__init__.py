"""Tracers: a live model to a ``Trace``. One file each, filed in ``TRACERS``."""

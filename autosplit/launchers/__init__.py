"""Launchers: how an export is started. One file each."""

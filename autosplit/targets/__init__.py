"""Targets: stages to the files of an export. One file each."""

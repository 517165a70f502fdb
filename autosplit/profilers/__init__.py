"""Profilers: a trace to a profile. One file each."""

"""Readers: a file of this or another tool to a planning graph. One file each."""

"""Tests of the whole walk: profile, plan, export, run."""

"""Tests of the verification of exports."""

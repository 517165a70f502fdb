"""Tests of the sample models."""

"""Devices that need not be here: what vendors say of them, and how much of it is reached."""

from autosplit.hardware.factors import Factors, assumed, read_factors
from autosplit.hardware.fitting import Fit, fit
from autosplit.hardware.roofline import Roofline
from autosplit.hardware.table import DeviceSpec, devices, find

__all__ = [
    "DeviceSpec",
    "Factors",
    "Fit",
    "Roofline",
    "assumed",
    "devices",
    "find",
    "fit",
    "read_factors",
]

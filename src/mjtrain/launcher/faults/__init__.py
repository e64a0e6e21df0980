"""Faults on demand, with which users rehearse failures on their own machines (--inject-fault)."""

from mjtrain.launcher.faults.fault import Fault, parse_faults
from mjtrain.launcher.faults.injector import make_heartbeat, register_targets

__all__ = ["Fault", "make_heartbeat", "parse_faults", "register_targets"]

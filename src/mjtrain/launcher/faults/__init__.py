"""Faults on demand, with which users rehearse failures on their own machines (--inject-fault)."""

from mjtrain.launcher.faults.fault import Fault, parse_faults
from mjtrain.launcher.faults.injector import expose, make_heartbeat

__all__ = ["Fault", "expose", "make_heartbeat", "parse_faults"]

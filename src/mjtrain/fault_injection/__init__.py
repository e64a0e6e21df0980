"""Faults on demand, with which users rehearse failures on their own machines (--inject-fault)."""

from mjtrain.fault_injection.fault import Fault, parse_faults
from mjtrain.fault_injection.injector import expose, make_heartbeat

__all__ = ["Fault", "expose", "make_heartbeat", "parse_faults"]

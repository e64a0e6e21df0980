"""Faults on demand, with which users rehearse failures on their own machines (--inject-fault)."""

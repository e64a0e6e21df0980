"""Worlds as videos, drawn and encoded in a process of its own, beside the training."""

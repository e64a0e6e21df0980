"""Checks before a run is created."""

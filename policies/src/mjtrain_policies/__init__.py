"""Policies of built-in tasks: one bundle per task, in a folder of its name."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the bundles are."""

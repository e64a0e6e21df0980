"""Environments that someone else wrote, as a training sees environments."""

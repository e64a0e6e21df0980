"""Environments that someone else wrote, as the training sees environments."""

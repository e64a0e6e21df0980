"""Robots and tasks to train with mjtrain."""

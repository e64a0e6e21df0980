"""Metrics to files, services and the terminal; only the main rank has them."""

"""From an MJCF file to a compiled model and what is known about it."""

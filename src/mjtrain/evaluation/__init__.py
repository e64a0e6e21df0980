"""Measure a policy over whole episodes: `play` does, and a training now and then."""

"""A trained policy on a robot: observations, states, limits. Nothing here imports torch."""

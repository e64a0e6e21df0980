"""Learning libraries for mjtrain beside RSL-RL: each in a separate package, imported only if it is chosen."""

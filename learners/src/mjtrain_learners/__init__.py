"""Learning libraries for mjtrain beside RSL-RL: each in a package of its own, imported only if it is chosen."""

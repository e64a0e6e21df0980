"""The training loop of all learning libraries, and the registry that finds them. This package imports no torch."""

"""External environments, as a training sees environments."""

"""Videos and pictures of worlds, drawn in a separate process beside the training."""

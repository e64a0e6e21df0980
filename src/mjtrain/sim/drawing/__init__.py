"""Videos of worlds, rendered and encoded in a separate process beside the training."""

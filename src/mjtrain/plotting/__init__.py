"""Learning curves of runs, drawn."""

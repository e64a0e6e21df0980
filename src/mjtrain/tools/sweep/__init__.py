"""Many trainings in search of good settings: which ones, where they run, and what came of them."""

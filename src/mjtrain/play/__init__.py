"""What a policy does, watched: runs found again, episodes measured, viewers."""

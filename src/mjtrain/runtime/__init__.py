"""What every part of a process may use: errors, the rank, the heartbeat, lazy imports."""

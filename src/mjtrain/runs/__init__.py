"""Run directories: where a run lives, what it recorded, and which one a command resumes."""

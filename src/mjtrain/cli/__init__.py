"""Commands: parse, call, print; no logic."""

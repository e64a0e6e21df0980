"""Checkpoints in object storage: `{url}/latest.json` names a complete object beside it."""

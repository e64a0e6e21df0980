# mujoco's names come from compiled modules that ship no types.
from typing import Any

def __getattr__(name: str) -> Any: ...

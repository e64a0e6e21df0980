"""mjtrain's tasks as Gymnasium's vector environments.

Importing it registers every task as mjtrain/NAME, for `gymnasium.make_vec("mjtrain/NAME", num_envs=N)`.
"""

from mjtrain.runtime.errors import require

require("mjtrain.gymnasium:", "gymnasium", "gymnasium")

from mjtrain.gymnasium.vector_env import register_tasks  # noqa: E402  which imports gymnasium

__all__ = ["register_tasks"]

register_tasks()

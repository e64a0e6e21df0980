"""mjtrain's tasks as Gymnasium's vector environments.

Importing it registers every task as mjtrain/NAME, for `gymnasium.make_vec("mjtrain/NAME", num_envs=N)`.
"""

from mjtrain.runtime.errors import RequestError

try:
    import gymnasium  # noqa: F401
except ModuleNotFoundError as error:
    raise RequestError("mjtrain.gymnasium: needs gymnasium; pip install 'mjtrain[gymnasium]'") from error

from mjtrain.gymnasium.vector_env import register_tasks

__all__ = ["register_tasks"]

register_tasks()

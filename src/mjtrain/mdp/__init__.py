"""Terms: the functions of which tasks are made. Importing this package imports torch only with its modules."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjtrain.env.env import Env

    __all__ = ["Env"]

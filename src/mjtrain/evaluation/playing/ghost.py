"""What worlds follow, as viewers show it beside the robot."""

from typing import Any

import numpy as np

from mjtrain.evaluation.followed import Followed, find_followed


class Ghost:
    """The reference in the frame of a world, or, while time stands still, in a frame that the user has chosen."""

    def __init__(self, followed: Followed) -> None:
        """Show it."""
        self.is_shown = True
        self.chosen: int | None = None
        """Frame that the user has chosen; None for that of the world."""
        self.command = followed.command
        """Name of the command that follows it."""
        self.num_frames = len(followed.reference.qpos)
        """Frames of all its clips."""
        self._followed = followed

    def frame(self, world: int) -> int:
        """Return the frame that is shown beside a world."""
        return int(self._followed.frames[world]) if self.chosen is None else self.chosen

    def start(self, world: int) -> int:
        """Return the frame that is shown, or one before if so few are left that an episode would end at once."""
        return self._followed.start(self.frame(world))

    def qpos(self, world: int) -> np.ndarray | None:
        """Return positions in this frame, shape (nq,), or None while the ghost is switched off."""
        return self._followed.reference.qpos[self.frame(world)].cpu().double().numpy() if self.is_shown else None

    def describe(self, world: int) -> str:
        """Say which frame is shown."""
        frame = self.frame(world)
        clip, time_s = self._followed.place(frame)
        return f"reference {clip}: {time_s:.2f} s, frame {frame}, the last is {self.num_frames - 1}"


def find_ghost(env: Any) -> Ghost | None:
    """Return what the worlds of an environment follow; None if no command follows anything."""
    followed = find_followed(env)
    return None if followed is None else Ghost(followed)

"""Quadruped-Track: imitate a reference motion."""

from pathlib import Path

from mjtrain import EnvConfig, RobotConfig, TaskConfig
from mjtrain_tasks import imitation
from mjtrain_tasks.models import QUADRUPED
from mjtrain_tasks.quadruped_velocity import JOINTS, MIRROR

CLIPS = Path(__file__).parent / "clips"
"""Motions that come with the task: sit, bow, paw and trot."""

FEET = (".*_foot",)


def make_task() -> TaskConfig:
    """Imitate a reference motion: by default a recorded trot, else --motion FILE.

    Trains in: about 4.5 minutes beside other work, on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=imitation.make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=200)


def make_env(file: Path = CLIPS / "trot.npz") -> EnvConfig:
    """The MDP: 50 env steps per second, until the end of the clip or for 10 s."""
    return imitation.make_env(
        file,
        robot=RobotConfig(file=str(QUADRUPED), timestep=0.01, mirror=MIRROR),
        action="legs",
        joints=JOINTS,
        action_scale=0.3,
        anchor_body="trunk",
        bodies=("trunk", ".*_(hip|thigh|calf|foot)"),
        feet=FEET,
        soles=FEET,
        distance_m=0.05,
        height_m=0.1,
        tilt=0.4,
        end_height_m=0.12,
        far_m=0.3,
    )

"""Humanoid-Track: imitate a reference motion with 29 joints."""

from pathlib import Path

from mjtrain import EnvConfig, RobotConfig, TaskConfig
from mjtrain_tasks import imitation
from mjtrain_tasks.humanoid_velocity import JOINTS, MIRROR
from mjtrain_tasks.models import HUMANOID

CLIPS = Path(__file__).parent / "clips"
"""Motions that come with the task: squat, bow, wave, one_leg and kick."""


def make_task() -> TaskConfig:
    """Imitate a reference motion: by default a squat, else --motion FILE.

    Trains in: about 12 minutes beside other work, on two CPU cores.
    """
    agent = imitation.make_agent()
    return TaskConfig(env=make_env(), agent=agent, num_envs=256, num_envs_gpu=4096, max_iterations=300)


def make_env(file: Path = CLIPS / "squat.npz") -> EnvConfig:
    """The MDP: 50 env steps per second, until the end of the clip or for 10 s.

    Bodies and failures are mjlab's for the Unitree G1, whose episodes do not fail by distance (`far_m`).
    """
    return imitation.make_env(
        file,
        robot=RobotConfig(file=str(HUMANOID), timestep=0.01, mirror=MIRROR),
        action="joints",
        joints=JOINTS,
        action_scale=0.4,
        anchor_body="torso_link",
        bodies=("pelvis", ".*_(hip_roll|knee|ankle_roll|shoulder_roll|elbow|wrist_yaw)_link", "torso_link"),
        feet=(".*_ankle_roll_link",),
        hands=(".*_wrist_yaw_link",),
        soles=(".*_sole_.*",),
        distance_m=0.15,
        height_m=0.25,
        tilt=0.8,
        end_height_m=0.25,
        far_m=0.5,
        uniform_share=0.5,
    )

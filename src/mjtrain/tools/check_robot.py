"""Whether a robot's file can be trained, without a task."""

import tempfile
from pathlib import Path

import torch

from mjtrain.config import ActionTerm, EnvConfig, ObservationTerm, RobotConfig, TerminationTerm, TerrainConfig
from mjtrain.config.robot import ImportConfig
from mjtrain.env.env import Env
from mjtrain.mdp import terminations
from mjtrain.sim.engines import make_engine
from mjtrain.sim.robots.model import list_grounds, load_model, robot_only
from mjtrain.sim.robots.robot import summarise_model
from mjtrain.sim.robots.start import find_base, find_home
from mjtrain.sim.robots.urdf.convert import import_urdf
from mjtrain.sim.robots.urdf.read import is_urdf as is_urdf
from mjtrain.training.preflight.dry_step import check_task

_STEP_S, _HELD_S = 0.02, 2.0


def check_robot(file: Path, *, keyframe: str = "") -> list[str]:
    """Check an MJCF file as a training would, and hold the pose of a keyframe for two seconds.

    The keyframe is by default home, or else the reference pose. Returned are lines: what the robot has, how it held the
    pose, and what is probably not meant.
    """
    robot = RobotConfig(file=str(file), keyframe=keyframe)
    model = load_model(robot_only(robot))
    base = find_base(model)
    needs_ground = base >= 0 and not list_grounds(model)
    config = EnvConfig(
        robot=robot,
        decimation=max(1, round(_STEP_S / float(model.opt.timestep))),
        episode_length_s=2 * _HELD_S,
        actions={"all": ActionTerm(from_home=find_home(model) >= 0)} if model.nu else {},
        observations={"actor": {"state": ObservationTerm(func=_velocities)}},
        rewards={},
        terminations={"time_out": TerminationTerm(func=terminations.time_out, truncates=True)},
        terrain=TerrainConfig(kind="flat" if needs_ground else "robot"),
    )
    summary = summarise_model(model)
    if not model.nu:
        return [summary, "nothing drives its joints: add actuators to the file, or by --env.robot.actuators"]
    size = check_task(config)
    own = "--env.actions.all.scale"  # of the actions that are only for this check
    doubts = [f"probably not meant: {line}" for line in size.warnings if not line.startswith(own)]
    height_column = int(model.jnt_qposadr[base]) + 2 if base >= 0 else None
    return [summary, _hold(config, height_column), *(doubts or ["nothing doubtful was found"])]


def _velocities(env: Env) -> torch.Tensor:
    """Return what every robot has."""
    return env.state.qvel


def check_urdf(file: Path, *, keyframe: str = "") -> list[str]:
    """Check a URDF as `import-robot` would write it; takes, returns and raises as `check_robot` and `import_urdf`."""
    with tempfile.TemporaryDirectory() as folder:
        robot, notes = import_urdf(file, ImportConfig(out=folder))
        return [*notes, *check_robot(robot, keyframe=keyframe)]


def _hold(config: EnvConfig, height: int | None) -> str:
    """Hold the default pose; `height` is the column of the base's height in qpos, None where the base is fixed."""
    engine = make_engine("native", config, 1, "cpu", num_threads=1)
    env = Env(config, engine, seed=0)
    try:
        before = env.state.qpos[0].clone()
        fastest = 0.0
        for _ in range(round(_HELD_S / env.step_dt)):
            _, _, broken, _ = env.step(torch.zeros(1, env.num_actions))
            if broken.any():  # nothing else ends an episode here, and the world begins again in the same env step
                return f"with all actions at 0, the simulation diverged within {_HELD_S:g} s"
            fastest = max(fastest, float(env.state.qvel.abs().max()))
        after = env.state.qpos[0]
        what = f"with all actions at 0, for {_HELD_S:g} s"
        if height is None:
            moved = float((after - before).abs().max())
            return f"{what}: joints moved by up to {moved:.3g} rad (m of slides), with up to {fastest:.3g} per s"
        return f"{what}: the base went from a height of {before[height]:.3f} m to {after[height]:.3f} m"
    finally:
        env.close()

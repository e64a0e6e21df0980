"""A mirrored state is observed as the mirrored observation, and a mirrored action leads to the mirrored next state."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.config import ActionTerm, EnvConfig, MirrorConfig, ObservationTerm, RobotConfig, TerrainConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.mirror import find_mirror_problems
from mjtrain.mdp import observation, observations, root
from mjtrain.runtime.errors import RequestError
from support.envs import make_env

NUM_PAIRS = 16
HALF_STRIDE = {"Quadruped": 10, "Humanoid": 50}
"""Env steps by which the mirror image of a gait is ahead: half a stride of the trot, one and a half of the walk."""
HIPS = torch.tensor([-1.0, 1.0, 1.0])

LEGS = (".*_(hip|thigh|calf)",)
DECLARED = {
    "base_lin_vel": observation(root.base_lin_vel, joint="base"),
    "base_ang_vel": observation(root.base_ang_vel, joint="base"),
    "projected_gravity": observation(root.projected_gravity, joint="base"),
    "base_height": observation(root.base_height, joint="base"),
    "turn": observation(observations.joint_vel, joint="base"),
    "limits": observation(observations.joint_pos_limit_normalized, joints=LEGS),
    "places": observation(observations.joint_positions, joints=LEGS),
    "controls": observation(observations.ctrl_rel),
    "torques": observation(observations.sensors, sensors=(".*_torque",)),
    "foot_velocities": observation(observations.sensors, sensors=(".*_foot_velocity",)),
}
"""What the tasks themselves do not observe."""


def swap_legs(joints: torch.Tensor) -> torch.Tensor:
    """Mirror image of the legs FR, FL, RR, RL, as a person would write it down: hips turn the other way."""
    legs = joints.unflatten(1, (4, 3))
    return (legs[:, [1, 0, 3, 2]] * HIPS).flatten(1)


def mirror_quadruped(qpos: torch.Tensor, qvel: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    vector, quaternion, axial = (torch.tensor(signs) for signs in ([1.0, -1, 1], [1.0, -1, 1, -1], [-1.0, 1, -1]))
    positions = [qpos[:, :3] * vector, qpos[:, 3:7] * quaternion, swap_legs(qpos[:, 7:])]
    velocities = [qvel[:, :3] * vector, qvel[:, 3:6] * axial, swap_legs(qvel[:, 6:])]
    return torch.cat(positions, dim=1), torch.cat(velocities, dim=1), swap_legs(action)


def swap_two_legs(joints: torch.Tensor) -> torch.Tensor:
    """Mirror image of the humanoid's legs: pitch and knee turn the same way, roll and yaw the other way."""
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    return (joints.unflatten(1, (2, 6))[:, [1, 0]] * signs).flatten(1)


def mirror_humanoid(qpos: torch.Tensor, qvel: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    vector, quaternion, axial = (torch.tensor(signs) for signs in ([1.0, -1, 1], [1.0, -1, 1, -1], [-1.0, 1, -1]))
    positions = [qpos[:, :3] * vector, qpos[:, 3:7] * quaternion, swap_two_legs(qpos[:, 7:])]
    velocities = [qvel[:, :3] * vector, qvel[:, 3:6] * axial, swap_two_legs(qvel[:, 6:])]
    return torch.cat(positions, dim=1), torch.cat(velocities, dim=1), swap_two_legs(action)


def mirror_cartpole(qpos: torch.Tensor, qvel: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return -qpos, -qvel, -action


def make_even_quadruped(folder: Path) -> str:
    """Write the quadruped without what is a little to one side in the real one: masses of the trunk and the calves."""
    text = Path(load_task("Quadruped-Velocity-Flat").env.robot.file).read_text()
    for pattern, even, number in (
        (r'pos="0\.0223 0\.002 -0\.0005"', 'pos="0.0223 0 -0.0005"', 1),
        (r"0\.0004636141 0\.0002367952 0\.000036671", "0 0.0002367952 0", 1),
        (r'pos="0\.006286 0\.001307 -0\.122269"', 'pos="0.006286 0 -0.122269"', 4),
        (r"0\.000001440899 -0\.00010535955 -0\.000024397752", "0 -0.00010535955 0", 4),
    ):
        text, replaced = re.subn(pattern, even, text)
        assert replaced == number, pattern
    (folder / "even.xml").write_text(text)
    return str(folder / "even.xml")


def make_config(task: str, folder: Path) -> EnvConfig:
    """A task whose worlds differ in their states only: nothing is random, and episodes end by time."""
    env = load_task(task).env
    if task.startswith("Quadruped"):
        robot = replace(env.robot, file=make_even_quadruped(folder), mirror=replace(env.robot.mirror, tolerance=1e-6))
        command = env.commands["velocity"].replace(resampling_s=(90.0, 90.0))
        # A pit: where x is far from its middle and y is not, the ground is a plane.
        ground = TerrainConfig(kind="generated", kinds=("slope_up",), num_levels=1) if "Rough" in task else env.terrain
        groups = env.observations | {"declared": DECLARED}
        env = replace(env, robot=robot, commands={"velocity": command}, terrain=ground, observations=groups)
    if task.startswith("Humanoid"):
        term = env.commands["velocity"]
        steady = {name: value for name, value in term.params.items() if name != "curriculum"}
        term = term.replace(params=steady, resampling_s=(90.0, 90.0))
        robot = replace(env.robot, mirror=replace(env.robot.mirror, tolerance=1e-6))
        env = replace(env, robot=robot, commands={"velocity": term})
    ends = {name: term for name, term in env.terminations.items() if name == "time_out"}
    return replace(env, observation_noise=False, events={}, curriculum={}, terminations=ends)


def set_states(env: Env, task: str, mirror: Callable[..., tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """Bring pairs of worlds into states that are mirror images; return actions that are mirror images, too."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    home = env.engine.layout.default_qpos
    qpos, qvel = home + 0.2 * draw(NUM_PAIRS, len(home)), draw(NUM_PAIRS, env.state.qvel.shape[1])
    origin = torch.zeros(len(home))
    if task.startswith("Quadruped"):
        origin[:3] = env.ground.spawn(torch.zeros(1))[0]
        qpos[:, 3:7] = torch.nn.functional.normalize(
            torch.cat([draw(NUM_PAIRS, 1), 0.1 * draw(NUM_PAIRS, 2), draw(NUM_PAIRS, 1)], dim=1), dim=1
        )
        ahead = 2.0 if "Rough" in task else 0.0
        qpos[:, 0] = ahead + 0.2 * draw(NUM_PAIRS)
        qpos[:, 2] = draw(NUM_PAIRS, low=0.22, high=0.3) if not ahead else draw(NUM_PAIRS, low=1.0, high=1.1)
    if task.startswith("Humanoid"):
        qpos[:, 3:7] = torch.nn.functional.normalize(
            torch.cat([draw(NUM_PAIRS, 1), 0.1 * draw(NUM_PAIRS, 2), draw(NUM_PAIRS, 1)], dim=1), dim=1
        )
        qpos[:, 2] = draw(NUM_PAIRS, low=0.7, high=0.76)
    action = draw(NUM_PAIRS, env.num_actions)
    one, other = (qpos, qvel, action), mirror(qpos, qvel, action)
    everywhere = torch.ones(env.num_envs, dtype=torch.bool)
    env.engine.reset(everywhere, torch.cat([one[0], other[0]]) + origin, torch.cat([one[1], other[1]]))
    # Not where a foot begins or ends its swing: there rounding decides.
    env.episode_step.copy_(torch.randint(2, 8, (NUM_PAIRS,), generator=generator).repeat(2))
    actions = torch.cat([one[2], other[2]])
    env.action.copy_(actions / 2)
    if "velocity" in env.config.commands:
        env.episode_step[NUM_PAIRS:] += HALF_STRIDE[task.partition("-")[0]]
        drawn = draw(NUM_PAIRS, 5)
        drawn[:, 4] = (drawn[:, 4] > 0).float()
        image = drawn * torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0])
        env.drawn_command("velocity").copy_(torch.cat([drawn, image]))
        env.command("velocity").copy_(torch.cat([drawn[:, :3], image[:, :3]]))
    return actions


def compare(images: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str) -> None:
    error = (images - wanted).abs()
    assert error.max() < tolerance * max(1.0, float(wanted.abs().max())), (what, error.max(0).values)
    assert (images - images.mean(0)).abs().max() > 1e-3, f"{what} is the same in all worlds"


@pytest.mark.parametrize(
    ("task", "mirror"),
    [
        ("Quadruped-Velocity-Flat", mirror_quadruped),
        ("Quadruped-Velocity-Rough", mirror_quadruped),
        ("Humanoid-Velocity-Flat", mirror_humanoid),
        ("Cartpole-Balance", mirror_cartpole),
        ("Cartpole-Swingup", mirror_cartpole),
    ],
)
def test_a_mirrored_world_stays_the_mirror_image(
    task: str, mirror: Callable[..., tuple[torch.Tensor, ...]], tmp_path: Path
) -> None:
    config = make_config(task, tmp_path)
    env = make_env(config, num_envs=2 * NUM_PAIRS)
    images = env.make_mirror()
    actions = set_states(env, task, mirror)
    compare(actions[:NUM_PAIRS] @ images.actions().T.float(), actions[NUM_PAIRS:], 1e-6, "actions")
    for group, terms in config.observations.items():
        matrix = images.observations(group).float()
        widths = list(env.observation_widths(group).values())
        for index, (name, term) in enumerate(terms.items()):
            block = matrix.split(widths)[index].split(widths, dim=1)[index]
            read = term.func(env, **term.params)
            assert read.shape[1] == widths[index]
            if read.std(0).max() > 0:  # feet in the air feel nothing
                compare(read[:NUM_PAIRS] @ block.T, read[NUM_PAIRS:], 2e-4, name)
    for _ in range(2):
        observed, rewards, terminated, truncated = env.step(actions)
        assert not (terminated | truncated).any()
        state = mirror(env.state.qpos[:NUM_PAIRS], env.state.qvel[:NUM_PAIRS], actions[:NUM_PAIRS])
        if task.startswith("Quadruped"):
            state[0][:, 1] += 2 * env.ground.spawn(torch.zeros(1))[0, 1]  # the plane of the mirror
        compare(state[0], env.state.qpos[NUM_PAIRS:], 2e-3, "qpos")
        compare(state[1], env.state.qvel[NUM_PAIRS:], 2e-3, "qvel")
        for group, value in observed.items():
            matrix = images.observations(group).float()
            compare(value[:NUM_PAIRS] @ matrix.T, value[NUM_PAIRS:], 2e-3, group)
        compare(rewards[:NUM_PAIRS, None], rewards[NUM_PAIRS:, None], 2e-3, "reward")


def test_a_mirror_applied_twice_changes_nothing() -> None:
    env = make_env(load_task("Quadruped-Velocity-Rough").env, num_envs=2)
    images = env.make_mirror()
    for matrix in (images.actions(), *(images.observations(group) for group in env.config.observations)):
        assert torch.equal(matrix @ matrix, torch.eye(len(matrix), dtype=torch.float64))


def with_term(term: ObservationTerm) -> list[str]:
    """Return the problems of a quadruped that observes one term beside its own."""
    config = load_task("Quadruped-Velocity-Flat").env
    groups = {"actor": {"own": observation(observations.last_action), "more": term}}
    return find_mirror_problems(make_env(replace(config, observations=groups), num_envs=2), ("actor",))


def undeclared(env: Env) -> torch.Tensor:
    return env.qpos("base")[:, :2]


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (observation(undeclared), "undeclared() does not declare how it mirrors; see mjtrain.mdp.mirrors"),
        (observation(observations.joint_pos_rel, joints=("FL_.*",)), "has FL_hip and not its mirror image"),
        (observation(observations.sensor, sensor="FR_foot_contact"), "has FR_foot_contact and not its mirror image"),
        (
            observation(observations.joint_velocities, joints=(".*_hip",)).replace(clip=(0.0, 1.0)),
            "clip 0 1: a value that mirrors needs equal bounds",
        ),
        (
            observation(observations.height_scan, joint="base", x=(-0.5, 0.5, 3), y=(0.0, 0.5, 2), offset=0.0),
            "y is 0 0.5 2; a grid that mirrors has equal ends, as -0.5 0.5",
        ),
        (
            observation(observations.height_scan, joint="base", x=(-0.5, 0.5, 3), y=(-0.5, 0.5, 1), offset=0.0),
            "y is -0.5 0.5 1; a single row of a grid that mirrors is at 0, as 0 0 1",
        ),
    ],
)
def test_a_term_without_a_mirror_image_is_named(term: ObservationTerm, words: str) -> None:
    assert with_term(term) == [f"--env.observations.actor.more: {words}"]


def test_what_lies_in_the_history_of_a_term_mirrors_too() -> None:
    assert with_term(observation(root.base_ang_vel, joint="base").replace(history=3)) == []


def test_actuators_that_are_images_must_be_driven_alike() -> None:
    config = load_task("Quadruped-Velocity-Flat").env
    legs = config.actions["legs"]
    halves = {
        "right": legs.replace(actuators=(".R_.*",)),
        "left": legs.replace(actuators=(".L_.*",), scale=0.5),
    }
    env = make_env(replace(config, actions=halves), num_envs=2)
    with pytest.raises(
        RequestError, match="actuators FL_hip and FR_hip are images of each other and have another scale"
    ):
        env.make_mirror().actions()
    halves = {side: half.replace(scale=0.5, from_home=False) for side, half in halves.items()}
    halves["left"] = halves["left"].replace(base=lambda env: env.qpos((".L_.*",)))
    env = make_env(replace(config, actions=halves), num_envs=2)
    with pytest.raises(RequestError, match="FL_hip and FR_hip are images of each other and have another scale"):
        env.make_mirror().actions()
    lists: Any = {"legs": legs.replace(clip=[-1.0, 1.0])}
    assert torch.equal(
        make_env(replace(config, actions=lists), num_envs=2).make_mirror().actions(),
        make_env(config, num_envs=2).make_mirror().actions(),
    )
    one_sided = ActionTerm(actuators=("FR_.*",))
    env = make_env(replace(config, actions={"leg": one_sided}), num_envs=2)
    with pytest.raises(RequestError, match=r"--env\.actions: has FR_hip and not its mirror image"):
        env.make_mirror().actions()


def test_the_quadruped_has_no_image_along_x() -> None:
    config = load_task("Quadruped-Velocity-Flat").env
    robot = RobotConfig(file=config.robot.file, mirror=MirrorConfig(plane="x", names={"F(.*)": r"R\1"}))
    assert (
        "the range of joint RR_thigh is not the image"
        in find_mirror_problems(make_env(replace(config, robot=robot), num_envs=2), ("actor",))[0]
    )

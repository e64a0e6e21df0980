"""All that MuJoCo calls state: where an episode begins, and in what a run resumes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import ActionTerm, EnvConfig, EventTerm, ObservationTerm, RobotConfig, SuccessTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import reward, truncation
from mjtrain.mdp.observations import sensor
from mjtrain.mdp.rewards import is_alive
from mjtrain.mdp.terminations import time_out
from mjtrain.runtime.errors import RequestError
from support.envs import actions_for, make_env

ON_WARP = {
    '<pid name="servo" joint="foot" kp="5" kv="0.2" ki="2" slewmax="20" input="pos vel"/>': """
    <position name="servo" joint="foot" kp="5" timeconst="0.1"/><motor name="sole" joint="foot"/>""",
    'act="0.1 0.2 0.3"': 'act="0.1 0.3"',
}
DELAYS = {
    "<position": '<position delay="0.02" nsample="6" interp="linear"',
    "<jointpos": '<jointpos delay="0.03" nsample="8"',
}
ROBOT = """<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.005"/>
  <size nuserdata="2"/>
  <worldbody>
    <geom type="plane" size="3 3 .1"/>
    <body name="target" mocap="true" pos="0 1 .3"/>
    <body name="ball" pos="1 0 .1"><freejoint name="ball"/><geom size=".1" mass=".1"/></body>
    <body name="trunk" pos="0 0 .9"><freejoint name="base"/><geom type="box" size=".2 .1 .05" mass="3"/>
      <body pos="0 0 -.05"><joint name="knee" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03"/>
        <body pos="0 0 -.3"><joint name="foot" axis="0 1 0"/><geom type="box" size=".1 .05 .02" mass=".2"/></body>
      </body>
    </body>
    <body name="held" pos="0 1 .3"><joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" stiffness="30" springyield="0.01"/>
      <geom size=".05" mass=".1" contype="0" conaffinity="0"/></body>
  </worldbody>
  <equality><weld name="hold" body1="target" body2="held"/></equality>
  <actuator>
    <pid name="servo" joint="foot" kp="5" kv="0.2" ki="2" slewmax="20" input="pos vel"/>
    <intvelocity name="knee" joint="knee" kp="20" kv="1" actrange="-3 3"/>
    <position name="slide" joint="x" kp="20" kv="2"/>
  </actuator>
  <sensor><jointpos name="seen" joint="knee"/><framepos name="where" objtype="xbody" objname="target"/>
    <framepos name="held" objtype="body" objname="held"/></sensor>
  <keyframe><key name="home" time="3" act="0.1 0.2 0.3" ctrl="0.1 0 0 0.2" mpos="0.5 1 0.4" mquat="0.8 0 0 0.6"
    qpos="1 0 .1 1 0 0 0  0 0 .9 1 0 0 0  0.3 0.1  0.5 0"/></keyframe>
</mujoco>"""


def switch(env: Env, worlds: Worlds) -> None:
    """Change, in some worlds, what only a task changes: the weld, the mocap body, user data and applied forces."""
    rows: dict[str, Any] = env.engine._rows()  # pyright: ignore
    for name, change in (("eq_active", -1), ("mocap_pos", 0.1), ("userdata", 2), ("qfrc_applied", 0.2)):
        live = torch.as_tensor(rows[name])
        changed = ~live if live.dtype == torch.bool else 1 - live if change < 0 else live + change
        live.copy_(torch.where(worlds.mask.view(-1, *[1] * (live.ndim - 1)), changed, live))


def task(folder: Path, *, changes: dict[str, str] = {}) -> EnvConfig:  # noqa: B006
    text = ROBOT
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = folder / "robot.xml"
    path.write_text(text)
    return EnvConfig(
        robot=RobotConfig(file=str(path)),
        decimation=2,
        episode_length_s=0.6,
        actions={"all": ActionTerm(clip=(-2.0, 2.0))},
        observations={"actor": {"all": ObservationTerm(func=sensor, params={"sensor": "seen"}, noise=0.1)}},
        rewards={"alive": reward(is_alive, 1.0)},
        terminations={"time_out": truncation(time_out)},
        events={"switch": EventTerm(func=switch, mode="interval", interval_s=(0.1, 0.2))},
    )


def follow(env: Env, actions: torch.Tensor) -> list[torch.Tensor]:
    """Return everything of the worlds after each step."""
    seen = []
    for action in actions:
        seen += [*env.step(action)[0].values(), *(tensor.clone() for tensor in vars(env.state).values())]
        seen += [torch.as_tensor(row).clone() for row in env.engine._rows().values()]  # pyright: ignore
    return seen


@pytest.mark.parametrize(
    ("engine", "changes"), [("native", DELAYS), pytest.param("warp", ON_WARP, marks=pytest.mark.process)]
)
def test_a_restored_environment_continues_with_every_part_of_the_state(
    engine: str, changes: dict[str, str], tmp_path: Path
) -> None:
    config = task(tmp_path, changes=changes)
    env = make_env(config, engine=engine, seed=4, num_envs=3)
    actions = actions_for(env, 100)
    env.reset(torch.ones(3, dtype=torch.bool))
    begun = follow(env, actions[:1])
    follow(env, actions[1:50])
    state = env.state_dict()
    expected = follow(env, actions[50:])
    other = make_env(config, engine=engine, seed=99, num_envs=3)
    follow(other, actions[:7])
    other.load_state_dict(state)
    assert all(torch.equal(one, two) for one, two in zip(expected, follow(other, actions[50:]), strict=True))
    changed = [not torch.equal(one, two) for one, two in zip(begun, expected[-len(begun) :], strict=True)]
    assert sum(changed) > len(begun) - 4, "nothing of the state stays as it was"


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_an_episode_begins_as_the_keyframe_says(engine: str, tmp_path: Path) -> None:
    config = task(tmp_path, changes=ON_WARP if engine == "warp" else {})
    env = make_env(config, engine=engine, seed=4, num_envs=3)
    mask = torch.tensor([True, False, True])
    follow(env, actions_for(env, 40))
    env.reset(mask)
    model = env.engine.model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    rows = {name: torch.as_tensor(row) for name, row in env.engine._rows().items()}  # pyright: ignore
    for name in ("qpos", "qvel", "act", "mocap_pos", "mocap_quat", "eq_active", "userdata"):
        expected = torch.as_tensor(np.array(getattr(data, name))).to(rows[name].dtype).expand_as(rows[name][mask])
        assert torch.allclose(rows[name][mask].double(), expected.double(), atol=1e-6), name
    assert not torch.equal(rows["mocap_pos"][1], rows["mocap_pos"][0])
    assert env.sensor("where")[0].tolist() == pytest.approx([0.5, 1.0, 0.4])


def test_controls_without_an_action_stay_as_in_the_default_pose(tmp_path: Path) -> None:
    from dataclasses import replace

    config = replace(task(tmp_path), actions={"knee": ActionTerm(actuators=("knee",))})
    env = make_env(config, num_envs=1)
    env.step(torch.full((1, 1), 0.5))
    assert env.state.ctrl[0].tolist() == pytest.approx([0.1, 0.0, 0.5, 0.2])


def test_a_state_of_a_model_without_delays_is_refused(tmp_path: Path) -> None:
    delayed, other = tmp_path / "delayed", tmp_path / "other"
    delayed.mkdir()
    other.mkdir()
    state = make_env(task(other), num_envs=2).state_dict()
    with pytest.raises(ValueError, match="history has shape None in the state"):
        make_env(task(delayed, changes=DELAYS), num_envs=2).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (ON_WARP | DELAYS, "does not carry delays"),
        ({}, "MuJoCo Warp does not support this robot: .*mjDYN_PID.*; use --engine native"),
    ],
)
def test_warp_refuses_in_one_line_what_it_cannot_do(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"--engine warp: {words}") as caught:
        make_env(task(tmp_path, changes=changes), engine="warp", num_envs=1)
    assert "\n" not in str(caught.value)


def test_what_no_event_has_changed_is_left_out_of_a_state_and_restored(tmp_path: Path) -> None:
    from dataclasses import replace

    config = task(tmp_path)
    calm = make_env(replace(config, events={}), num_envs=2)
    state = calm.engine.state_dict()
    assert {"act", "qacc_warmstart"} <= set(state["rows"])
    assert not {"eq_active", "mocap_pos", "userdata", "xfrc_applied"} & set(state["rows"])
    other = make_env(config, num_envs=2)
    follow(other, actions_for(other, 40))
    other.engine.load_state_dict(state)
    assert all(
        torch.equal(torch.as_tensor(one), torch.as_tensor(two))
        for one, two in zip(calm.engine._rows().values(), other.engine._rows().values(), strict=True)  # pyright: ignore
    )


BALL = """<mujoco><option timestep="0.01"/><worldbody><geom type="plane" size="3 3 .1"/>
  <body name="ball" pos="0 0 .11"><joint name="x" type="slide" axis="1 0 0"/>
    <joint name="z" type="slide" axis="0 0 1" damping="10"/>
    <geom size=".1" mass="1"/><site name="skin" size=".11"/></body></worldbody>
  <actuator><motor name="drive" joint="x"/></actuator><sensor><touch name="foot" site="skin"/></sensor></mujoco>"""


def first_world_ends(env: Env) -> torch.Tensor:
    return (torch.arange(env.num_envs) == 0) & (env.episode_step >= 5)


def is_right(env: Env) -> torch.Tensor:
    return env.qpos("x")[:, 0] > 0


def speed(env: Env) -> torch.Tensor:
    return env.bodies.linear_velocities[:, 1, 0]


def move_by(env: Env, worlds: Worlds, *, what: str) -> None:
    """Add to the velocity what of the last env step can be read before the physics."""
    amounts = {
        "nothing": lambda: 0.0,
        "rewards": lambda: env.reward_terms.sum(dim=1),
        "causes": lambda: env.causes.float().sum(dim=1),
        "successes": lambda: env.success_measure("right"),
        "controls": lambda: env.ctrl_displacements()[:, 0],
        "contacts": lambda: env.contact_times(("foot",)).contact_s[:, 0],
        "bodies": lambda: speed(env),
    }
    worlds.qvel[:, 0] += 0.1 + 0.1 * amounts[what]()


def sometimes(env: Env, worlds: Worlds, *, what: str) -> None:
    """Do something where it is due; until then a resumed environment has not seen this function ask for anything."""
    if not worlds.mask.any():
        return
    if what == "push":
        wrench = torch.tensor([[5.0, 0, 0, 0, 0, 0]]).expand(env.num_envs, -1)
        env.push("ball", worlds.mask, wrench, 0.2)
    else:
        worlds.qvel[:, 0] += env.contact_times(("foot",)).contact_s[:, 0]


@pytest.mark.parametrize(
    ("func", "what"),
    [
        *((move_by, what) for what in ("rewards", "causes", "successes", "controls", "contacts", "bodies")),
        *((sometimes, what) for what in ("push", "contacts")),
    ],
)
def test_an_event_finds_what_the_last_env_step_left(func: Callable[..., None], what: str, tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(BALL)
    interval_s = (0.02, 0.02) if func is move_by else (0.5, 0.5)
    event = EventTerm(func=func, params={"what": what}, mode="interval", interval_s=interval_s)
    config = EnvConfig(
        robot=RobotConfig(file=str(tmp_path / "robot.xml")),
        decimation=2,
        episode_length_s=4.0,
        actions={"all": ActionTerm()},
        observations={"actor": {"speed": ObservationTerm(func=lambda env: speed(env)[:, None])}},
        rewards={"speed": reward(speed, 1.0)},
        terminations={"first": truncation(first_world_ends), "time_out": truncation(time_out)},
        successes={"right": SuccessTerm(func=is_right, measure="count")},
        events={"before": EventTerm(func=move_by, params={"what": "nothing"}, mode="interval", interval_s=(0.02, 0.02))}
        | {"tested": event},
    )
    env, other = (make_env(config, seed=seed, num_envs=3) for seed in (4, 99))
    actions = actions_for(env, 80)
    follow(env, actions[:30])
    state = env.state_dict()
    other.load_state_dict(state)
    expected, found = (follow(one, actions[30:]) for one in (env, other))
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    "changes", [{"seed": 3}, {"num_levels": 2}, {"kind": "flat"}], ids=lambda changes: str(changes)
)
def test_the_state_on_another_ground_is_refused(changes: dict[str, Any]) -> None:
    """Robots would continue inside it."""
    config = load_task("Quadruped-Velocity-Rough").env
    terrain = replace(config.terrain, kinds=("obstacles", "stairs_up"), num_levels=4, patch_m=4)
    first, second, other = (
        make_env(replace(config, terrain=replace(terrain, **change)), num_envs=2)
        for change in ({}, {"patch_m": 4.0, "friction": 0.5}, changes)
    )
    first.step(actions_for(first, 1)[0])
    second.load_state_dict(first.state_dict())
    assert second.episode_step.tolist() == [1, 1]
    with pytest.raises(ValueError, match="the generated ground is not that of the checkpoint"):
        other.load_state_dict(first.state_dict())
    assert other.episode_step.tolist() == [0, 0]
    with pytest.raises(ValueError, match="the generated ground is not that of the checkpoint"):
        first.load_state_dict(other.state_dict())

"""Every world has a robot of its own, on both engines, and moves as MuJoCo says such a robot does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import ActionTerm, EnvConfig, EventTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import observation, observations, randomization
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import MODEL_FIELDS
from mjtrain.sim.robots.model import load_model
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, NUM_ENVS, make_env

# func, its parameters, and the fields it changes with the bounds of value / nominal, or of value - nominal
TERMS: dict[str, tuple[Callable[..., None], dict[str, Any], dict[str, tuple[str, float, float]]]] = {
    "mass": (
        randomization.mass,
        {"bodies": ("trunk", ".*_calf"), "factor": (0.5, 1.5)},
        {"body_mass": ("ratio", 0.5, 1.5), "body_inertia": ("ratio", 0.5, 1.5)},
    ),
    "inertia": (
        randomization.inertia,
        {"bodies": ("trunk",), "factor": (0.5, 1.5)},
        {"body_inertia": ("ratio", 0.5, 1.5)},
    ),
    "center_of_mass": (
        randomization.center_of_mass,
        {"bodies": ("trunk",), "offset_m": (-0.05, 0.05)},
        {"body_ipos": ("offset", -0.05, 0.05)},
    ),
    "pseudo_inertia": (
        randomization.pseudo_inertia,
        {
            "bodies": ("trunk", ".*_calf"),
            "mass": (0.5, 1.5),
            "stretch": (0.8, 1.2),
            "shear": (-0.2, 0.2),
            "offset_m": (-0.05, 0.05),
        },
        {
            "body_mass": ("ratio", 0.5, 1.5),
            "body_inertia": ("ratio", 0.01, 100.0),  # which axis is first changes
            "body_ipos": ("offset", -0.09, 0.09),
            "body_iquat": ("offset", -2.0, 2.0),
        },
    ),
    "friction": (
        randomization.friction,
        {"geoms": (".*_foot",), "sliding": (0.3, 1.3)},
        {"geom_friction": ("ratio", 0.5, 2.17)},
    ),
    "armature": (
        randomization.armature,
        {"joints": (".*_hip",), "factor": (0.5, 2.0)},
        {"dof_armature": ("ratio", 0.5, 2.0)},
    ),
    "damping": (
        randomization.damping,
        {"joints": (".*_thigh",), "factor": (2.0, 20.0)},
        {"dof_damping": ("ratio", 2.0, 20.0)},
    ),
    "joint_friction": (
        randomization.joint_friction,
        {"joints": (".*_thigh",), "friction": (0.5, 2.0)},
        {"dof_frictionloss": ("offset", 0.5, 2.0)},
    ),
    "effort_limits": (
        randomization.effort_limits,
        {"actuators": (".*_calf",), "factor": (0.05, 0.2)},
        {"actuator_forcerange": ("ratio", 0.05, 0.2)},
    ),
    "actuator_gains": (
        randomization.actuator_gains,
        {"actuators": (".*_calf",), "factor": (0.7, 1.3)},
        {"actuator_gainprm": ("ratio", 0.7, 1.3), "actuator_biasprm": ("ratio", 0.7, 1.3)},
    ),
    "gravity": (randomization.gravity, {"offset": (-1.0, 1.0)}, {"gravity": ("offset", -1.0, 1.0)}),
}


def config_with(name: str, mode: str = "startup") -> EnvConfig:
    config = load_task("Quadruped-Velocity-Flat").env
    func, params, _ = TERMS[name]
    event = EventTerm(func=func, params=params, mode=mode)  # pyright: ignore[reportArgumentType]
    return replace(config, events={name: event, "pose": config.events["pose"]})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TERMS)
def test_every_world_gets_its_own_values_within_the_bounds(name: str, engine: str) -> None:
    env = make_env(config_with(name), engine=engine, seed=4)
    for field, (kind, low, high) in TERMS[name][2].items():
        values = env.engine.expand(field).double()
        nominal = env.engine.layout.nominal[field].expand_as(values)
        changed = values if kind == "offset" else values / torch.where(nominal == 0, 1.0, nominal)
        changed = changed - nominal if kind == "offset" else torch.where(nominal == 0, 1.0, changed)
        differs = (changed - (0.0 if kind == "offset" else 1.0)).abs() > 1e-6
        assert differs.any(), field
        assert (~differs).any() or field == "gravity", f"{field}: only what was named changes"
        assert (changed[differs] >= low - 1e-5).all(), field
        assert (changed[differs] <= high + 1e-5).all(), field
        assert values.flatten(1).unique(dim=0).shape[0] == NUM_ENVS, field


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TERMS)
def test_each_world_moves_as_its_own_model_does(name: str, engine: str) -> None:
    """One MjModel per world, with the same values and mj_setConst, stepped by mj_step."""
    config = config_with(name)
    env = make_env(config, engine=engine, seed=4)
    base = load_model(config)
    common = mujoco.MjData(base)
    mujoco.mj_forward(base, common)
    worlds = []
    for world in range(NUM_ENVS):
        model = load_model(config)
        for field in TERMS[name][2]:
            values = env.engine.expand(field)[world].double().numpy()
            if field == "gravity":
                model.opt.gravity[:] = values
            else:
                getattr(model, field)[:] = values
        data = mujoco.MjData(model)
        mujoco.mj_setConst(model, data)
        data.qpos[:] = env.state.qpos[world]
        data.qvel[:] = env.state.qvel[world]
        mujoco.mj_forward(model, data)
        worlds.append((model, data))
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    env.engine.reset(everywhere, env.state.qpos.clone(), env.state.qvel.clone())
    ctrl = env.engine.layout.default_ctrl.repeat(NUM_ENVS, 1) + 0.1
    for _ in range(10):
        env.engine.step(ctrl, 4)
        for model, data in worlds:
            data.ctrl[:] = ctrl[0]
            mujoco.mj_step(model, data, 4)
    expected = np.stack([data.qpos for _, data in worlds])
    # single precision, through contacts, on warp; rounding of the state to float32 on native
    assert np.abs(env.state.qpos.numpy() - expected).max() < (1e-5 if engine == "native" else 2e-3)
    if name not in ("friction", "damping"):  # too small an effect within 0.2 s
        assert np.ptp(expected[:, 7:], axis=0).max() > 1e-4


def moments(env: Env, name: str, world: int) -> np.ndarray:
    """Sums of m x x^T about the centre of mass, in the frame of the body."""
    row = env.engine.layout.bodies[name]
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, env.engine.expand("body_iquat")[world, row].double().numpy())
    inertia = env.engine.expand("body_inertia")[world, row].double().numpy()
    return turn.reshape(3, 3) @ np.diag(inertia.sum() / 2 - inertia) @ turn.reshape(3, 3).T


def test_a_pseudo_inertia_is_that_of_the_stretched_sheared_and_moved_body() -> None:
    config = config_with("pseudo_inertia")
    plain = make_env(replace(config, events={}), num_envs=1)
    params = {"mass": (1.5, 1.5), "stretch": (1.2, 1.2), "shear": (0.3, 0.3), "offset_m": (0.02, 0.02)}
    event = replace(config.events["pseudo_inertia"], params={"bodies": ("FL_calf",), **params})
    env = make_env(replace(config, events={"change": event}), num_envs=1)
    row = env.engine.layout.bodies["FL_calf"]
    frame = np.zeros(9)
    mujoco.mju_quat2Mat(frame, plain.engine.layout.nominal["body_iquat"][row].numpy())
    axes = frame.reshape(3, 3)
    deformation = axes @ np.array([[1.2, 0.3, 0.3], [0, 1.2, 0.3], [0, 0, 1.2]]) @ axes.T
    expected = 1.5 * deformation @ moments(plain, "FL_calf", 0) @ deformation.T
    assert moments(env, "FL_calf", 0) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert env.engine.expand("body_mass")[0, row] == pytest.approx(1.5 * env.engine.layout.nominal["body_mass"][row])
    moved = env.engine.expand("body_ipos")[0, row] - env.engine.layout.nominal["body_ipos"][row]
    assert moved.numpy() == pytest.approx(axes @ np.full(3, 0.02), abs=1e-7)


def test_every_pseudo_inertia_is_one_that_a_body_can_have() -> None:
    config = config_with("pseudo_inertia")
    params = {"bodies": (".*",), "mass": (0.2, 3.0), "stretch": (0.3, 2.0), "shear": (-1.0, 1.0)}
    event = replace(config.events["pseudo_inertia"], params=params)
    env = make_env(replace(config, events={"change": event}), num_envs=200)
    inertia = env.engine.expand("body_inertia")[:, 1:]
    assert (inertia > 0).all()
    assert (2 * inertia.amax(dim=-1) <= inertia.sum(dim=-1) * (1 + 1e-9)).all()
    assert torch.allclose(env.engine.expand("body_iquat").norm(dim=-1), torch.tensor(1.0, dtype=torch.float64))


def test_kp_and_kv_can_have_factors_of_their_own() -> None:
    config = config_with("actuator_gains")
    params = {"actuators": (".*",), "factor": (0.5, 1.0)}
    ratios = []
    for kv_factor in (None, (2.0, 3.0)):
        event = replace(config.events["actuator_gains"], params=params | {"kv_factor": kv_factor})
        env = make_env(replace(config, events={"change": event}))
        fields = ("actuator_gainprm", "actuator_biasprm")
        gain, bias = (env.engine.expand(field) / env.engine.layout.nominal[field] for field in fields)
        assert torch.allclose(gain[..., 0], bias[..., 1])
        assert (gain[..., 0] <= 1.0).all()
        ratios.append(bias[..., 2])
    assert torch.allclose(ratios[0], gain[..., 0]), "the first factors do not depend on the second ones"
    assert (ratios[1] >= 2.0).all()
    assert (ratios[1] <= 3.0).all()


def test_gains_of_muscles_are_their_force_and_kv_of_a_ball_joint_is_apart(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    file.write_text("""
    <mujoco>
      <worldbody>
        <body>
          <joint name="elbow" axis="0 1 0"/>
          <geom size="0.1" pos="0.2 0 0"/>
          <body><joint name="wrist" type="ball"/><geom size="0.1" pos="0.3 0 0"/></body>
        </body>
      </worldbody>
      <actuator>
        <orientation name="wrist" joint="wrist" kp="4" kv="0.5"/>
        <muscle name="strong" joint="elbow" lengthrange="-1 1" force="5"/>
        <muscle name="scaled" joint="elbow" lengthrange="-1 1"/>
      </actuator>
    </mujoco>""")
    params = {"actuators": (".*",), "factor": (0.5, 0.5), "kv_factor": (3.0, 3.0)}
    config = EnvConfig(
        robot=str(file),
        decimation=1,
        episode_length_s=1.0,
        actions={"all": ActionTerm()},
        observations={"actor": {"elbow": observation(observations.joint_pos, joint="elbow")}},
        rewards={},
        terminations={},
        events={"gains": EventTerm(func=randomization.actuator_gains, params=params, mode="startup")},
    )
    env = make_env(config, num_envs=1)
    for field in ("actuator_gainprm", "actuator_biasprm"):
        wanted = env.engine.layout.nominal[field].clone()
        wanted[0, :2] *= 0.5
        wanted[0, 2] *= 3.0
        wanted[1:, 2:4] *= 0.5
        assert torch.equal(env.engine.expand(field)[0], wanted)
    model, forces = env.engine.model, []
    for _ in range(2):
        data = mujoco.MjData(model)
        data.act[:], data.qpos[0] = 0.7, 0.4
        mujoco.mj_forward(model, data)
        forces.append(data.actuator_force[-2:].copy())
        for field in ("actuator_gainprm", "actuator_biasprm"):
            getattr(model, field)[:] = env.engine.expand(field)[0]
    assert forces[1] == pytest.approx(0.5 * forces[0], rel=1e-9)
    assert (np.abs(forces[0]) > 0.1).all()


def with_encoders(mode: str = "startup") -> EnvConfig:
    config = load_task("Quadruped-Velocity-Flat").env
    joints = (".*_(hip|thigh|calf)",)
    seen = {
        "read": observation(observations.joint_pos_rel, joints=joints, biased=True),
        "true": observation(observations.joint_pos_rel, joints=joints),
        "absolute": observation(observations.joint_positions, joints=joints, biased=True),
    }
    event = EventTerm(
        func=randomization.encoder_bias,
        params={"joints": (".*_calf",), "bias": (0.01, 0.02)},
        mode=mode,  # pyright: ignore[reportArgumentType]
    )
    return replace(config, observations={"actor": seen}, events={"pose": config.events["pose"], "encoders": event})


def read_bias(env: Env) -> torch.Tensor:
    """What the encoders add, as observed. Shape (num_envs, 12)."""
    read, true, absolute = env.observe()["actor"].split(12, dim=1)
    home = env.engine.layout.default_qpos[7:]
    assert torch.allclose(absolute - home, read, atol=1e-6)
    assert torch.allclose(true, env.state.qpos[:, 7:] - home, atol=1e-6)
    return read - true


def test_encoders_have_a_bias_that_only_biased_terms_see_and_that_stays() -> None:
    env, again, other = (make_env(with_encoders(), seed=seed) for seed in (3, 3, 5))
    bias = read_bias(env)
    is_calf = torch.arange(12) % 3 == 2
    assert (bias[:, ~is_calf] == 0).all()
    assert (bias[:, is_calf] > 0.01 - 1e-6).all()
    assert (bias[:, is_calf] < 0.02 + 1e-6).all()
    assert bias[:, is_calf].flatten().unique().numel() == 4 * NUM_ENVS
    assert torch.equal(read_bias(again), bias)
    assert not torch.allclose(read_bias(other), bias, atol=1e-4)
    actions = torch.zeros(NUM_ENVS, 12)
    env.step(actions)
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    assert torch.allclose(read_bias(env), bias, atol=1e-6)
    other.load_state_dict(env.state_dict())
    assert torch.allclose(read_bias(other), bias, atol=1e-6)
    assert torch.equal(other.step(actions)[0]["actor"], env.step(actions)[0]["actor"])
    none = make_env(replace(with_encoders(), events={}))
    assert (read_bias(none) == 0).all()


def test_a_bias_that_is_drawn_at_resets_changes_in_the_worlds_that_begin() -> None:
    env = make_env(with_encoders("reset"))
    before = read_bias(env)
    mask = torch.arange(NUM_ENVS) < 2
    env.reset(mask)
    after = read_bias(env)
    assert torch.allclose(after[~mask], before[~mask], atol=1e-6)
    assert not torch.allclose(after[mask], before[mask], atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_at_a_reset_only_the_masked_worlds_change_and_nothing_adds_up(engine: str) -> None:
    env = make_env(config_with("mass", "reset"), engine=engine)
    mask = torch.tensor([True, False, True, False, False, False])
    trunk = env.engine.layout.bodies["trunk"]
    nominal = env.engine.layout.nominal["body_mass"][trunk]
    for _ in range(30):
        before = env.engine.expand("body_mass").clone()
        env.reset(mask)
        after = env.engine.expand("body_mass")
        assert torch.equal(before[~mask], after[~mask])
        assert not torch.equal(before[mask], after[mask])
        assert (after[:, trunk] / nominal >= 0.5 - 1e-6).all()
        assert (after[:, trunk] / nominal <= 1.5 + 1e-6).all()


def test_what_can_differ_is_what_the_engines_know() -> None:
    assert {field for _, _, fields in TERMS.values() for field in fields} == set(MODEL_FIELDS)


def test_an_unknown_part_is_the_users_error() -> None:
    config = config_with("mass")
    event = replace(config.events["mass"], params={"bodies": ("tail",), "factor": (1.0, 1.0)})
    with pytest.raises(RequestError, match=r"body tail \(for events.mass\); it has trunk, "):
        make_env(replace(config, events={"mass": event}))


@pytest.mark.parametrize(
    ("term", "params", "message"),
    [
        (
            randomization.mass,
            {"bodies": (".*",), "factor": (-0.2, 1.0)},
            r"params\.factor -0.2 1: each must be more than 0",
        ),
        (
            randomization.inertia,
            {"bodies": (".*",), "factor": (0.0, 1.0)},
            r"params\.factor 0 1: each must be more than 0",
        ),
        (
            randomization.damping,
            {"joints": ("FL_hip",), "factor": (-1, 1)},
            r"params\.factor -1 1: each must be at least 0",
        ),
    ],
)
def test_bounds_that_are_not_physical_are_refused(term: Callable[..., None], params: dict, message: str) -> None:
    config = load_task("Quadruped-Velocity-Flat").env
    event = EventTerm(func=term, mode="reset", params=params)
    with pytest.raises(RequestError, match=rf"^--env\.events\.change\.{message}"):
        check_task(replace(config, events={"change": event}))


def lighten(env: Env, worlds: Worlds) -> None:
    env.engine.expand("body_mass")[0] = -1.0
    env.engine.refresh_model(worlds.mask)


def test_an_event_that_makes_a_mass_negative_is_named() -> None:
    config = load_task("Cartpole-Balance").env
    event = EventTerm(func=lighten, mode="reset")
    with pytest.raises(ValueError, match="body_mass is negative in some worlds") as caught:
        make_env(replace(config, events={"lighter": event}))
    assert caught.value.__notes__ == ["this happened in the term --env.events.lighter"]


def test_a_body_that_mujoco_does_not_move_is_named_with_the_reason(tmp_path: Path) -> None:
    robot = tmp_path / "cube.xml"
    robot.write_text(
        '<mujoco><worldbody><body name="cube"><freejoint/><geom type="box" size=".1 .1 .1"/></body>'
        '<body><joint name="j"/><geom size=".1"/></body></worldbody><actuator><motor joint="j"/></actuator></mujoco>'
    )
    moved = EventTerm(
        func=randomization.center_of_mass, mode="startup", params={"bodies": ("cube",), "offset_m": (-0.02, 0.02)}
    )
    config = EnvConfig(
        robot=robot,
        decimation=1,
        episode_length_s=1.0,
        actions={"all": ActionTerm()},
        observations={"actor": {"j": observation(observations.joint_pos, joint="j")}},
        rewards={},
        terminations={},
        events={"moved": moved},
    )
    says = (
        r"^--env\.events\.moved: MuJoCo refuses the changed model: .*: body cube is compiled as simple .*simple='false'"
    )
    with pytest.raises(RequestError, match=says):
        check_task(config)

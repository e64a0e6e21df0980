"""A policy with its motion in the file does for a controller of BeyondMimic's what it does in its environment."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import onnxruntime
import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.deployment.policy import DeployedPolicy, check
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.export import networks
from mjtrain.evaluation.export.field_keys import make_field_keys, view_with_motion
from mjtrain.evaluation.export.metadata import describe_policy
from mjtrain.evaluation.export.networks import read_reference, write_onnx_with_motion
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.mdp.reference import reference_of
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.model import load_model
from mjtrain_tasks.imitation import make_agent
from mjtrain_tasks.quadruped_track import CLIPS
from mjtrain_tasks.quadruped_track import make_env as make_task_env
from support.envs import actions_for, make_env

pytestmark = pytest.mark.xdist_group("onnx")  # a first export imports for seconds

NOISELESS = dict.fromkeys(("xy", "z", "tilt", "yaw", "linear_velocity", "angular_velocity", "position"), (0.0, 0.0))
SENSORS = {"base_lin_vel": "base_velocity", "base_ang_vel": "base_angular_velocity", "projected_gravity": "up"}
OUTPUTS = ["actions", "joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w"]


class Exported(NamedTuple):
    file: Path
    config: EnvConfig
    env: Env
    policy: ActorPolicy
    metadata: dict[str, Any]


def make_config(
    *, file: Path = CLIPS / "trot.npz", share: float = 0.0, bodies: tuple[str, ...] = (), **terms: Any
) -> EnvConfig:
    """The task without noise; `terms` are fields of all observations of the actor."""
    config = to_eval_config(make_task_env(file))
    start, motion, legs = config.events["start"], config.commands["motion"], config.actions["legs"]
    actor = {name: term.replace(**terms) for name, term in config.observations["actor"].items()}
    tracked = {"bodies": bodies} if bodies else {}
    return replace(
        config,
        events={"start": start.replace(params={**start.params, **NOISELESS})},
        commands={"motion": motion.replace(params={**motion.params, **tracked})},
        actions={"legs": replace(legs, base_params={**legs.base_params, "share": share})},
        observations={**config.observations, "actor": actor},
        rewards={},
        terminations={"time_out": config.terminations["time_out"]},
    )


def describe(config: EnvConfig) -> tuple[Env, ActorPolicy, dict[str, Any]]:
    """Return a world, an untrained policy, and its metadata."""
    env, agent = make_env(config, num_envs=1, seed=3), make_agent()
    torch.manual_seed(5)
    policy = ActorPolicy(agent, env.observe(), env.num_actions)
    return env, policy, describe_policy(TrainedRun(task="Quadruped-Track", env=config, agent=agent), env, policy)


def export(config: EnvConfig, file: Path) -> Exported:
    env, policy, metadata = describe(config)
    reference = read_reference(env, metadata["motion"])
    write_onnx_with_motion(policy, view_with_motion(metadata), reference, file, metadata)
    return Exported(file, config, env, policy, metadata)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Written once, because torch takes its time."""
    return export(make_config(), tmp_path_factory.mktemp("export") / "file.onnx")


class BeyondMimicController:
    """It knows the names of BeyondMimic's inputs, outputs, keys and observations, and nothing of mjtrain."""

    def __init__(self, file: Path) -> None:
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        assert [(entry.name, entry.type) for entry in self.session.get_inputs()] == [
            ("obs", "tensor(float)"),
            ("time_step", "tensor(float)"),
        ]
        assert [entry.name for entry in self.session.get_outputs()] == OUTPUTS
        self.size = self.session.get_inputs()[0].shape[1]
        keys = self.session.get_modelmeta().custom_metadata_map
        assert keys["command_names"] == "motion"
        self.names, self.joints, self.bodies = (
            keys[key].split(",") for key in ("observation_names", "joint_names", "body_names")
        )
        self.anchor = keys["anchor_body_name"]
        self.lengths = [max(1, int(item)) for item in keys["observation_terms_history_length"].split(",")]
        self.home, self.scale = (
            np.array([float(item) for item in keys[key].split(",")]) for key in ("default_joint_pos", "action_scale")
        )
        self.low, self.high = np.array(
            [[float(bound) for bound in item.split(";")] for item in keys["action_clip"].split(",")]
        ).T
        for key in ("joint_stiffness", "joint_damping"):
            assert len(keys[key].split(",")) == len(self.joints)
        self.actions = np.zeros(len(self.joints))
        self.past: dict[str, list[np.ndarray]] = {}

    def forward(self, observation: np.ndarray, time_step: float) -> dict[str, np.ndarray]:
        given = {"obs": observation[None].astype(np.float32), "time_step": np.array([[time_step]], dtype=np.float32)}
        self.reference = {
            name: np.asarray(value)[0] for name, value in zip(OUTPUTS, self.session.run(None, given), strict=True)
        }
        return self.reference

    def observe(self, data: mujoco.MjData, imu: dict[str, np.ndarray]) -> np.ndarray:
        """Compute the observation from the robot and the reference of the last call."""
        anchor, wanted = data.body(self.anchor), np.empty(9)
        robot = anchor.xmat.reshape(3, 3)
        row = self.bodies.index(self.anchor)
        mujoco.mju_quat2Mat(wanted, self.reference["body_quat_w"][row].astype(float))
        known = {
            "command": np.concatenate([self.reference["joint_pos"], self.reference["joint_vel"]]),
            "motion_anchor_pos_b": robot.T @ (self.reference["body_pos_w"][row] - anchor.xpos),
            "motion_anchor_ori_b": (robot.T @ wanted.reshape(3, 3))[:, :2].ravel(),
            **imu,
            "joint_pos": np.array([data.joint(name).qpos[0] for name in self.joints]) - self.home,
            "joint_vel": np.array([data.joint(name).qvel[0] for name in self.joints]),
            "actions": self.actions,
        }
        parts = []
        for name, length in zip(self.names, self.lengths, strict=True):
            past = self.past.get(name) or [known[name]] * length
            self.past[name] = [*past[1:], known[name]]
            parts += self.past[name]
        return np.concatenate(parts)

    def target(self) -> np.ndarray:
        """Return the positions that the joints should have."""
        self.actions = self.reference["actions"].astype(float)
        return self.home + self.scale * np.clip(self.actions, self.low, self.high)


def test_a_controller_of_beyondmimic_moves_the_robot_as_its_environment_does(exported: Exported) -> None:
    assert "trunk" in reference_of(exported.env, "motion").body_names
    follow(exported)


def test_it_does_with_history_clips_and_an_anchor_that_is_not_tracked(tmp_path: Path) -> None:
    exported = export(make_config(history=3, clip=(-1.2, 1.2), bodies=(".*_foot",)), tmp_path / "file.onnx")
    assert "trunk" not in reference_of(exported.env, "motion").body_names
    assert (exported.env.observe()["actor"].abs() == 1.2).any()
    follow(exported)


def follow(exported: Exported) -> None:
    """Compare what a controller and the environment send to the motors, for 20 env steps."""
    file, config, env, policy, metadata = exported
    assert metadata["motion"]["keys_left_out"] == {}
    controller = BeyondMimicController(file)
    assert controller.anchor == "trunk"
    assert controller.bodies == metadata["motion"]["bodies"]
    model = load_model(config)
    data = mujoco.MjData(model)
    frame = int(env.command("motion")[0, 0])
    controller.forward(np.zeros(controller.size), frame + 1)
    for step, noise in enumerate(actions_for(env, 20, seed=1)):
        data.qpos[:], data.qvel[:] = env.state.qpos[0].numpy(), env.state.qvel[0].numpy()
        mujoco.mj_forward(model, data)
        assert int(env.command("motion")[0, 0]) == frame + step
        action = policy(env.observe())
        imu = {name: env.sensor(sensor)[0].numpy().copy() for name, sensor in SENSORS.items()}
        imu["projected_gravity"] *= -1
        controller.forward(controller.observe(data, imu), frame + step + 2)
        # a policy that has learned nothing acts little: what it did is made larger for both
        controller.reference["actions"] += noise[0].numpy()
        env.step(action + noise)
        np.testing.assert_allclose(controller.target(), env.state.ctrl[0].numpy(), atol=2e-5, err_msg=f"step {step}")


def test_the_reference_is_that_of_the_environment_and_ends_with_the_last_frame(exported: Exported) -> None:
    file, config, env, _, metadata = exported
    controller = BeyondMimicController(file)
    reference, model = reference_of(env, "motion"), load_model(config)
    data, frames = mujoco.MjData(model), len(reference_of(env, "motion").qpos)
    assert metadata["motion"]["frames"] == frames
    assert metadata["motion"]["first_frames"] == [0]
    nothing = np.zeros(controller.size)
    for frame in (0, 1, frames // 2, frames - 1):
        given = controller.forward(nothing, frame)
        data.qpos[:], data.qvel[:] = reference.qpos[frame].numpy(), reference.qvel[frame].numpy()
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(given["joint_pos"], [data.joint(name).qpos[0] for name in controller.joints])
        np.testing.assert_allclose(given["joint_vel"], [data.joint(name).qvel[0] for name in controller.joints])
        for row, name in enumerate(controller.bodies):
            velocity, place = np.empty(6), data.body(name)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body(name).id, velocity, 0)
            np.testing.assert_allclose(given["body_pos_w"][row], place.xpos, atol=1e-5)
            assert abs(given["body_quat_w"][row] @ place.xquat) == pytest.approx(1, abs=1e-5)
            np.testing.assert_allclose(given["body_ang_vel_w"][row], velocity[:3], atol=1e-4)
            np.testing.assert_allclose(given["body_lin_vel_w"][row], velocity[3:], atol=1e-4)
    last = controller.forward(nothing, frames - 1)
    for beyond in (frames, frames + 1000, 1e9):
        for name, value in controller.forward(nothing, beyond).items():
            np.testing.assert_array_equal(value, last[name])
    first = controller.forward(nothing, 0)
    assert np.abs(first["body_pos_w"] - last["body_pos_w"]).max() > 0.1, "it walks"
    for name, value in controller.forward(nothing, -5).items():
        np.testing.assert_array_equal(value, first[name])


def test_a_file_with_other_frames_or_actions_is_noticed(exported: Exported) -> None:
    file, _, env, policy, metadata = exported
    observed = env.observe()
    inputs, actions = {"observations": observed["actor"]}, policy(observed)
    reference, view = read_reference(env, metadata["motion"]), view_with_motion(metadata)

    def compare(actions: torch.Tensor, reference: dict[str, torch.Tensor]) -> float:
        return networks.motion_difference(file, view, inputs, actions, reference)

    assert compare(actions, reference) < 1e-5
    assert compare(actions + 0.01, reference) > networks.TOLERANCE
    for name, value in reference.items():
        assert compare(actions, {**reference, name: value.roll(1, dims=0)}) > networks.TOLERANCE, name
        shorter = {key: frames[:-1] for key, frames in reference.items()}
        assert compare(actions, shorter) > networks.TOLERANCE, "it does not end with this frame"


def test_actions_that_are_added_to_the_reference_are_not_said_to_be_added_to_the_default_pose() -> None:
    _, _, residual = describe(make_config(share=0.5))
    assert "action_scale" not in make_field_keys(view_with_motion(residual).described)[0]
    assert "motion_controls" in residual["motion"]["keys_left_out"]["action_scale"]
    assert residual["actions"][0]["base_params"]["share"] == 0.5
    env, _, plain = describe(make_config())
    assert "base" not in plain["actions"][0]
    home = env.engine.layout.default_ctrl.tolist()
    assert [row["offset"] for row in plain["actions"]] == pytest.approx(home)
    assert "action_scale" in make_field_keys(view_with_motion(plain).described)[0]


def test_terms_that_would_share_a_name_keep_their_own() -> None:
    config = make_config()
    actor = config.observations["actor"]
    twice = ("turning", "up", "anchor_position")
    again = {f"{name}_again": actor[name] for name in twice}
    env, _, metadata = describe(replace(config, observations={**config.observations, "actor": actor | again}))
    view = view_with_motion(metadata)
    names = [term["name"] for term in view.described["observations"]]
    assert names[: len(actor)][list(actor).index("turning")] == "turning"
    assert len(set(names)) == len(names)
    assert set(twice) | set(again) < set(names)
    keys, _ = make_field_keys(view.described)
    assert keys["observation_names"] == ",".join(names)
    columns = {term["name"]: term["columns"] for term in metadata["observations"]}
    scales = {column: scale for column, scale, *_ in view.inputs}
    assert scales[columns["up"][0]] > 0, "its own name has its own sign"
    own = make_field_keys(metadata)[0]["observation_names"].split(",")
    assert {"turning", "turning_again", "up", "up_again"} < set(own)
    assert env.observe()["actor"].shape[1] == len(view.inputs)


def test_clips_of_a_folder_come_one_after_another() -> None:
    env, _, metadata = describe(make_config(file=CLIPS))
    trot, _, alone = describe(make_config())
    assert metadata["commands"]["motion"]["params"]["file"] == "clips", "without the folders of this machine"
    first = metadata["motion"]["first_frames"][-1]  # bow, paw, sit, trot
    assert len(metadata["motion"]["first_frames"]) == 4
    assert metadata["motion"]["frames"] == first + alone["motion"]["frames"]
    wanted = read_reference(trot, alone["motion"])
    for name, frames in read_reference(env, metadata["motion"]).items():
        torch.testing.assert_close(frames[first:], wanted[name], rtol=0, atol=0)


def test_deploy_says_which_file_it_takes(exported: Exported) -> None:
    _, _, residual = describe(make_config(share=0.5))
    with pytest.raises(RequestError, match="p: its actions are added to motion_controls, which deploy does not"):
        check(residual, "p")
    check(exported.metadata, "p")
    with pytest.raises(RequestError, match=r"file\.onnx: is for BeyondMimic's controllers; deploy policy\.onnx"):
        DeployedPolicy(exported.file)

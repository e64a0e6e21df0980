"""Exported files answer as the policy does, and say what their numbers mean."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tensordict import TensorDict

import mjtrain
from mjtrain.cli.export import main
from mjtrain.config import ImitationConfig, ObservationTerm, VecEnvConfig
from mjtrain.deployment.policy import KEY
from mjtrain.deployment.simulated_readings import SimulatedReadings
from mjtrain.env.catalog import list_tasks, load_task
from mjtrain.env.env import Env
from mjtrain.env.external.env import make_foreign_env
from mjtrain.evaluation.export import networks
from mjtrain.evaluation.export.metadata import _without_folder, describe_policy
from mjtrain.learning.rsl_rl.cnn_model import _normalise
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.mdp import root
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.model import load_model
from support.envs import make_env
from support.point_mass import PointMass
from support.vision import make_vision_env, make_vision_task, see, train_vision

LAUNCH = mjtrain.LaunchConfig(gpu_ids=None, seed=1)
TASKS = [entry.name for entry in list_tasks()]


def read_onnx_metadata(path: Path) -> dict[str, Any]:
    properties = {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
    return json.loads(properties[KEY])


def train(task: str, log_root: Path) -> Path:
    """Train so little that it costs little, and enough for normalisers to have seen something.

    Where a task learns from a teacher, it has one that has learned as little.
    """
    algorithm = load_task(task).agent.algorithm
    teacher = train(algorithm.teacher_task, log_root) if isinstance(algorithm, ImitationConfig) else None
    options: dict[str, Any] = {} if teacher is None else {"teacher": str(teacher)}
    result = mjtrain.train(
        task, num_envs=16, max_iterations=2, log_root=str(log_root), logger="none", launch=LAUNCH, **options
    )
    return result.run_dir


@pytest.mark.supports("training", task="{task}")
@pytest.mark.supports("export", task="{task}")
@pytest.mark.process
@pytest.mark.parametrize("task", TASKS)
def test_files_agree_with_the_policy_and_describe_it(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = train(task, tmp_path)
    recorded: dict[str, Any] = {}
    record = networks.record_observations

    def keep(*args: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        recorded["inputs"], recorded["actions"] = answer = record(*args)
        return answer

    monkeypatch.setattr(networks, "record_observations", keep)
    (run_dir / "export").mkdir()
    (run_dir / "export" / "policy_with_motion.onnx").write_text("of an earlier export")
    main([str(run_dir)])
    assert "verified on 1,000 observations" in capsys.readouterr().out
    out = run_dir / "export"
    names = ["model.mjb", "policy.json", "policy.onnx", "policy.pt"]
    tracks = ["policy_with_motion.onnx"] if task.endswith("-Track") else []
    assert sorted(path.name for path in out.iterdir()) == names + tracks

    model = onnx.load(out / "policy.onnx")
    for weights in model.graph.initializer:
        weights.ClearField("raw_data")
    assert not re.search(rb"/[\w.-]+/[\w.-]+/|\.py\b", model.SerializeToString()), "names of folders and files"

    inputs, actions = recorded["inputs"], recorded["actions"]
    config = load_task(task)
    sees = config.agent.actor.class_name == "CNNModel"
    count = 1000 + (networks.NUM_RANDOM if sees else 0)
    assert all(len(tensor) == count for tensor in (*inputs.values(), actions))
    assert actions.std(dim=0).gt(0).all()
    tolerance = networks.IMAGE_TOLERANCE if sees else networks.TOLERANCE
    session = onnxruntime.InferenceSession(out / "policy.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == list(inputs)
    (given,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    np.testing.assert_allclose(np.asarray(given), actions.numpy(), rtol=0, atol=tolerance)
    with torch.inference_mode():
        scripted = torch.jit.load(str(out / "policy.pt"))(*inputs.values())
    torch.testing.assert_close(scripted, actions, rtol=0, atol=tolerance)
    observations = inputs.get("observations", torch.zeros(count, 0))
    weights = load_checkpoint(run_dir / "model_2.pt", "cpu")["actor_state_dict"]
    if "observations" in inputs:
        assert observations.std(dim=0).gt(0).float().mean() > 0.5
    if "observations" in inputs and config.agent.actor.obs_normalization:
        assert weights["obs_normalizer._mean"].abs().max() > 0.01
        assert (weights["obs_normalizer._std"] - 1).abs().max() > 0.1
        plain = (observations - weights["obs_normalizer._mean"]) / (weights["obs_normalizer._std"] + 0.01)
        assert (plain - observations).abs().max() > 0.1

    metadata = json.loads((out / "policy.json").read_text())
    assert metadata == read_onnx_metadata(out / "policy.onnx")
    assert metadata == json.loads(session.get_modelmeta().custom_metadata_map["mjtrain"])
    assert (metadata["task"], metadata["run"], metadata["iteration"]) == (task, run_dir.name, 2)
    env, groups = config.env, [group for group in config.agent.obs_groups["actor"] if group not in inputs]
    terms = {name: term for group in groups for name, term in env.observations[group].items()}
    assert [term["name"] for term in metadata["observations"]] == list(terms)
    assert [term["scale"] for term in metadata["observations"]] == [term.scale for term in terms.values()]
    ends = [term["columns"][1] for term in metadata["observations"]]
    assert [term["columns"][0] for term in metadata["observations"]] == [0, *ends][: len(ends)]
    assert [0, *ends][-1] == observations.shape[1]
    assert [image["input"] for image in metadata.get("images", [])] == [
        name for name in inputs if name in env.observations
    ]
    assert len(metadata["actions"]) == actions.shape[1]
    assert metadata["control_period_s"] == pytest.approx(metadata["physics_step_s"] * env.decimation)


@pytest.mark.process
def test_the_quadruped_is_described_in_full(log_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "dog"
    main(["Quadruped-Velocity-Flat", "--log-root", str(log_root), "--out", str(out), "--observations", "10"])
    metadata = read_onnx_metadata(out / "policy.onnx")
    assert metadata["checkpoint"] == "model_1.pt"
    assert [metadata["run"]] == [run_dir.name for run_dir in (log_root / "quadruped_velocity_flat").iterdir()]
    assert {term["name"]: term["columns"][1] - term["columns"][0] for term in metadata["observations"]} == {
        "base_velocity": 3, "turning": 3, "up": 3, "command": 3, "clock": 2, "joint_positions": 12,
        "joint_velocities": 12, "last_action": 12,
    }  # fmt: skip
    knee = metadata["actions"][2]
    assert (knee["actuator"], knee["joint"], knee["scale"]) == ("FR_calf", "FR_calf", 0.3)
    assert knee["offset"] == pytest.approx(-1.8)
    assert (knee["kp"], knee["kd"], knee["clip"], knee["force_range"]) == (35, 1, [-4, 4], [-23.7, 23.7])
    assert metadata["default_pose"]["FR_calf"] == pytest.approx([-1.8])
    assert metadata["control_period_s"] == pytest.approx(0.02)


def test_the_velocity_of_a_planar_root_is_described() -> None:
    joints = {"x_joint": "slider", "z_joint": "slider", "pitch_joint": "hinge"}  # only the names matter here
    task = load_task("Cartpole-Balance")
    observed = {"actor": {"velocity": ObservationTerm(func=root.planar_lin_vel, params=joints)}}
    config = replace(task.env, observations=observed)
    env = make_env(config)
    policy = ActorPolicy(task.agent, env.observe(), env.num_actions)
    described = describe_policy(TrainedRun(task="Cartpole-Balance", env=config, agent=task.agent), env, policy)
    (term,) = described["observations"]
    assert (term["name"], term["measured_by"], set(term["joints"])) == ("velocity", "encoders", {"slider", "hinge"})


def positions(
    env: Env, *, joints: tuple[str, ...] | None = None, sensors: tuple[str, ...] | None = None
) -> torch.Tensor:
    assert joints is None
    assert sensors is None
    return env.qpos("slider")


def test_names_that_were_left_out_are_described() -> None:
    task = load_task("Cartpole-Balance")
    term = ObservationTerm(func=positions, params={"joints": None, "sensors": None})
    config = replace(task.env, observations={"actor": {"positions": term}})
    env = make_env(config)
    policy = ActorPolicy(task.agent, env.observe(), env.num_actions)
    described = describe_policy(TrainedRun(task="Cartpole-Balance", env=config, agent=task.agent), env, policy)
    assert [term.get("joints") for term in described["observations"]] == [None]
    data = mujoco.MjData(model := load_model(config))
    assert "positions" in SimulatedReadings(model, data, described, 1.0, np.random.default_rng(0)).measure()[0]


@pytest.mark.process
def test_history_and_delay_are_described(tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    terms = dict(task.env.observations["actor"])
    terms["pole_angle"] = replace(terms["pole_angle"], history=3, delay=(0, 2))
    env = replace(task.env, observations={"actor": terms})
    result = mjtrain.train(
        "Cartpole-Balance", env=env, num_envs=8, max_iterations=1, log_root=str(tmp_path), logger="none", launch=LAUNCH
    )
    main([str(result.run_dir), "--observations", "20"])
    metadata = read_onnx_metadata(result.run_dir / "export" / "policy.onnx")
    angle = metadata["observations"][1]
    assert (angle["columns"], angle["history"], angle["delay"]) == ([1, 4], 3, [0, 2])
    assert metadata["observations"][2]["columns"] == [4, 5]


@pytest.mark.process
def test_a_file_with_other_actions_is_not_written(
    cartpole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = shutil.copytree(cartpole_run, tmp_path / "run")
    monkeypatch.setattr(networks, "TOLERANCE", 1e-12)  # stricter than float32 can be
    with pytest.raises(SystemExit) as stop:
        main([str(run_dir)])
    assert stop.value.code == 1
    assert "gives other actions than the policy" in capsys.readouterr().err
    assert not (run_dir / "export").exists()
    assert not list(run_dir.glob(".export*"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Usage"),
        (["--out", "x"], "the run comes first"),
        (["Cartpole-Balnce"], "unknown task Cartpole-Balnce"),
        (["Cartpole-Balance", "--log-root", "{empty}"], "no run of Cartpole-Balance"),
        (["{empty}"], "is not a run directory"),
        (["Cartpole-Balance", "--observations", "0"], "--observations 0: must be a whole number, at least 1"),
    ],
)
def test_what_cannot_be_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([argument.format(empty=tmp_path) for argument in arguments])
    said = capsys.readouterr()
    assert line.lower() in (said.err + said.out).lower()
    assert stop.value.code == (2 if arguments else 0)


def _darker(env: Env, *, camera: str) -> torch.Tensor:
    return env.cameras.images(camera, "rgb") // 2


@pytest.mark.process
def test_images_are_inputs_of_their_own_and_described(tmp_path: Path) -> None:
    image = {"rgb": see(history=3, noise=20.0, shift=2), "depth": see("depth", delay=(0, 1))}
    image["own"] = ObservationTerm(func=_darker, params={"camera": "side"})
    task = make_vision_task(make_vision_env({"image": image}, size=16), reads=("actor", "image"))
    run_dir = train_vision(task, tmp_path)
    exported = mjtrain.export(run_dir, observations=20)
    session = onnxruntime.InferenceSession(exported.files["policy.onnx"], providers=["CPUExecutionProvider"])
    described = {entry.name: (entry.shape[1:], entry.type) for entry in session.get_inputs()}
    assert described == {"observations": ([4], "tensor(float)"), "image": ([13, 16, 16], "tensor(float)")}
    (group,) = read_onnx_metadata(exported.files["policy.onnx"])["images"]
    assert (group["input"], group["dtype"], group["shape"]) == ("image", "float32", [13, 16, 16])
    rgb, depth, own = group["terms"]
    assert (rgb["channels"], rgb["history"], depth["channels"], depth["delay"]) == ([0, 9], 3, [9, 10], [0, 1])
    assert {"noise", "shift"}.isdisjoint(rgb), "they are not part of the policy"
    assert rgb["frame"] == {
        "camera": "side", "streams": ["rgb"], "channels": ["red", "green", "blue"], "width": 16, "height": 16,
        "interval": 1, "near_m": 0.01, "far_m": 10.0, "shadows": False, "geom_groups": [0, 1, 2],
        "classes": {"cart": {"index": 1, "patterns": ["cart"]}, "pole": {"index": 2, "patterns": ["pole"]}},
    }  # fmt: skip
    assert depth["frame"]["channels"] == ["depth"]
    assert own["channels"] == [10, 13]
    assert "frame" not in own, "no picture of the camera is what this function returns"

    policy = mjtrain.load_policy(run_dir)
    given = {"actor": torch.zeros(2, 4), "image": torch.zeros(2, 13, 16, 16)}
    with pytest.raises(RequestError, match=r"group image are torch\.uint8; give float32, with colours in"):
        policy({**given, "image": given["image"].to(torch.uint8)})
    with pytest.raises(RequestError, match=r"and those of .*; give the same number of environments"):
        policy({**given, "actor": given["actor"][:1]})


@pytest.mark.process
def test_a_policy_that_only_sees_has_bytes_as_its_only_input(tmp_path: Path) -> None:
    run_dir = train_vision(make_vision_task(make_vision_env(size=16)), tmp_path)
    exported = mjtrain.export(run_dir, observations=20)
    session = onnxruntime.InferenceSession(exported.files["policy.onnx"], providers=["CPUExecutionProvider"])
    assert [(entry.name, entry.shape, entry.type) for entry in session.get_inputs()] == [
        ("image", ["batch", 9, 16, 16], "tensor(uint8)")
    ]
    metadata = read_onnx_metadata(exported.files["policy.onnx"])
    assert metadata["observations"] == []
    (term,) = metadata["images"][0]["terms"]
    assert term["frame"]["streams"] == ["rgb"]

    policy = mjtrain.load_policy(run_dir)
    assert policy.inputs == {"image": (9, 16, 16)}
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 16, 16), dtype=np.uint8)
    actions = policy({"image": images})
    assert actions.shape == (5, 1)
    np.testing.assert_allclose(np.asarray(session.run(None, {"image": images})[0]), actions, atol=1e-5)
    np.testing.assert_allclose(policy({"image": torch.from_numpy(images[2])}), actions[2], atol=1e-5)
    with pytest.raises(RequestError, match=r"group image are float32; the policy reads uint8, 0 to 255"):
        policy({"image": images.astype(np.float32)})
    with pytest.raises(RequestError, match=r"shape \(5, 8, 16, 16\); the policy reads \(num_envs, 9, 16, 16\)"):
        policy({"image": images[:, :8]})
    with pytest.raises(RequestError, match=r"reads images \(image\); give observations by group"):
        policy(images)


class SeenPointMass(PointMass):
    """The point, and pictures between its groups."""

    def get_observations(self) -> TensorDict:
        seen = super().get_observations()
        pictures = torch.zeros(self.num_envs, 3, 16, 16, dtype=torch.uint8)
        return TensorDict({"policy": seen["policy"], "image": pictures, "critic": seen["critic"]}, [self.num_envs])


def test_images_of_an_external_environment_are_described_as_inputs() -> None:
    config = VecEnvConfig(make=SeenPointMass)
    agent = make_vision_task(reads=("policy", "image", "critic")).agent
    env = make_foreign_env(config, 2, "cpu", 0)
    policy = ActorPolicy(agent, env.observe(), env.num_actions)
    described = describe_policy(TrainedRun(task="point", env=config, agent=agent), env, policy)
    assert described["observations"] == [{"name": "policy", "columns": [0, 2]}, {"name": "critic", "columns": [2, 6]}]
    assert described["images"] == [{"input": "image", "dtype": "uint8", "shape": [3, 16, 16]}]
    (flat, image) = networks._make_examples(policy).values()
    assert (flat.shape, image.shape) == ((2, 6), (2, 3, 16, 16))


@pytest.mark.parametrize("name", ["observations", "actions"])
def test_an_image_group_with_the_name_of_another_input_or_output_is_refused(name: str, tmp_path: Path) -> None:
    agent = make_vision_task(reads=("actor", name)).agent
    policy = ActorPolicy(agent, {"actor": torch.zeros(1, 4), name: torch.zeros(1, 3, 16, 16)}, 1)
    with pytest.raises(RequestError, match=f"^export: image group {name}: "):
        networks.write_onnx(policy, tmp_path / "policy.onnx", {})


@pytest.mark.xdist_group("onnx")
def test_runtimes_normalise_images_as_exactly_as_torch(tmp_path: Path) -> None:
    """Of images that are nearly flat, results are wrong by 1e-3 where an exported sum goes over all pixels at once."""

    class Normalise(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return _normalise(images, in_place=False)

    images = torch.full((8, 3, 128, 128), 0.7) + 0.011 * torch.arange(24).view(8, 3, 1, 1)
    images[..., :4, :4] = 0.2
    file = tmp_path / "normalise.onnx"
    torch.onnx.export(Normalise().eval(), (images,), file, input_names=["images"], dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {"images": images.numpy()})
    exact = images.double() - images.double().mean((-2, -1), keepdim=True)
    exact *= torch.rsqrt(exact.square().mean((-2, -1), keepdim=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(given), exact.numpy(), rtol=0, atol=2e-4)


def test_a_parameter_may_be_too_long_for_the_name_of_a_file(tmp_path: Path) -> None:
    expression = "|".join(f"joint_{number}" for number in range(100))
    assert [_without_folder(value) for value in (expression, str(tmp_path / "clips"), 3)] == [expression, "clips", 3]

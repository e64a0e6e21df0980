"""What MuJoCo warns of and raises, world by world, on the native engine."""

from dataclasses import replace
from pathlib import Path

import mujoco
import pytest
import torch

import mjtrain
from mjtrain.config import ActionTerm, EnvConfig, OptionConfig, RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.loop import JobMetrics
from mjtrain.mdp import observation, reset_event, reward
from mjtrain.mdp.observations import joint_positions
from mjtrain.mdp.rewards import is_alive
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.native_on_device import NativeOnDevice
from mjtrain.sim.robots.model import load_model, write_no_log

HEAP = """<mujoco><size memory="{memory}"/><worldbody><geom type="plane" size="3 3 .1"/>
{boxes}<body pos="2 0 1"><joint name="j"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor name="m" joint="j"/></actuator></mujoco>"""
BOXES = "".join(
    f'<body pos="{0.09 * (i % 5):.2f} {0.09 * (i // 5):.2f} .05"><freejoint/>'
    '<geom type="box" size=".05 .05 .05" mass=".1"/></body>'
    for i in range(20)
)
"""They stand on the ground and overlap: more than two hundred contacts."""


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_no_log()


def heap(memory: str) -> str:
    return HEAP.format(memory=memory, boxes=BOXES)


def warned(engine: NativeEngine | NativeOnDevice) -> dict[str, list[bool]]:
    return {name: worlds.tolist() for name, worlds in engine.warnings.items() if worlds.any()}


def lift(engine: NativeEngine | NativeOnDevice, worlds: list[bool]) -> None:
    """Put all boxes of these worlds where they touch nothing."""
    qpos = engine.layout.default_qpos.repeat(len(worlds), 1)
    qpos[:, 2:140:7] = 5.0 + torch.arange(20)
    engine.reset(torch.tensor(worlds), qpos, torch.zeros_like(engine.state.qvel))
    for noted in engine.warnings.values():
        noted.zero_()


@pytest.mark.parametrize("kind", [NativeEngine, lambda *a, **k: NativeOnDevice(*a, device="cpu", **k)])
def test_contacts_without_room_are_noted_by_world(kind: type[NativeEngine]) -> None:
    engine = kind(mujoco.MjModel.from_xml_string(heap("100K")), 3, num_threads=1)
    assert warned(engine) == {"contacts": [True] * 3, "constraints": [True] * 3}
    lift(engine, [False, True, False])
    engine.step(torch.zeros(3, 1), 2)
    assert warned(engine) == {"contacts": [True, False, True], "constraints": [True, False, True]}
    assert not engine.failed.any()


def test_a_world_in_which_mujoco_raises_fails_alone() -> None:
    engine = NativeEngine(mujoco.MjModel.from_xml_string(heap("60K")), 3, num_threads=1)
    lift(engine, [True, False, True])
    before = engine.state.qpos.clone()
    engine.step(torch.zeros(3, 1), 2)
    assert engine.failed.tolist() == [False, True, False]
    assert "increase <size memory" in engine.failures[-1]
    assert "\n" not in engine.failures[-1]
    assert (engine.state.qpos != before).any(dim=1).tolist() == [True, False, True]
    lift(engine, [True, True, True])
    engine.step(torch.zeros(3, 1), 2)
    assert not engine.failed.any()


def test_a_bad_acceleration_fails_a_world_before_its_state_is_bad() -> None:
    text = """<mujoco><option timestep="0.005"/><worldbody><body><joint name="a"/>
    <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/></body></worldbody>
    <actuator><position name="a" joint="a" kp="20" kv="16"/></actuator></mujoco>"""
    engine = NativeEngine(mujoco.MjModel.from_xml_string(text), 2, num_threads=1)
    ctrl = torch.tensor([[1.0], [0.0]])
    while not engine.failed.any():
        assert engine.state.time[0] < 1
        engine.step(ctrl, 1)
    assert engine.failed.tolist() == [True, False]
    assert 1e7 < engine.state.qvel[0].abs() < 1e9
    engine.step(torch.tensor([[0.0], [torch.nan]]), 1)
    assert warned(engine) == {"bad_qacc": [True, False], "bad_ctrl": [False, True]}


def write(folder: Path, text: str) -> EnvConfig:
    (folder / "robot.xml").write_text(text)
    return replace(load_task("Cartpole-Balance").env, robot=RobotConfig(file=str(folder / "robot.xml")))


@pytest.mark.parametrize("flag", ["sleep", "ipc"])
def test_flags_whose_memory_no_reset_covers_are_refused(flag: str, tmp_path: Path) -> None:
    text = f'<mujoco><option integrator="discrete"><flag {flag}="enable"/></option><worldbody><body>'
    config = write(tmp_path, f'{text}<joint/><geom size="1"/></body></worldbody></mujoco>')
    with pytest.raises(RequestError, match=rf"--env\.robot .*{flag}.*add --env\.robot\.options\.disable {flag}"):
        make_engine("native", config, 2, "cpu", 1)
    switched_off = replace(config, robot=replace(config.robot, options=OptionConfig(disable=(flag,))))
    make_engine("native", switched_off, 2, "cpu", 1).close()


def test_a_robot_that_mujoco_cannot_compute_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--env\.robot .*default pose: .*increase <size memory") as caught:
        make_engine("native", write(tmp_path, heap("60K")), 2, "cpu", 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timestep", ["0", "-0.01", "1e-300"])
def test_a_file_whose_physics_steps_take_no_time_is_refused(timestep: str, tmp_path: Path) -> None:
    config = write(tmp_path, f'<mujoco><option timestep="{timestep}"/></mujoco>')
    with pytest.raises(RequestError, match=rf"robot\.xml: its timestep is {timestep} s; give at least 1e-06"):
        load_model(config)
    load_model(replace(config, robot=replace(config.robot, timestep=0.01)))


def of_heap(folder: Path) -> EnvConfig:
    return EnvConfig(
        robot=write(folder, heap("100K")).robot,
        actions={"all": ActionTerm()},
        observations={"actor": {"joint": observation(joint_positions, joints=("j",))}},
        rewards={"alive": reward(is_alive, 1.0)},
        terminations={},
        decimation=2,
        episode_length_s=10.0,
    )


def test_a_warning_is_of_its_iteration_and_not_of_the_worlds_before_a_resume(tmp_path: Path) -> None:
    config = of_heap(tmp_path)
    env, resumed = (Env(config, make_engine("native", config, 2, "cpu", 1), seed) for seed in (0, 1))
    job = JobMetrics(RankContext(), env, Collectives(env.device))
    times = dict.fromkeys(("collect_time_s", "learn_time_s", "wait_time_s"), 1.0)
    first, second = (job.collect(means={"kl": 0.0}, num_env_steps=1, **times) for _ in range(2))
    assert first["warning/contacts"] == 2
    assert not [name for name in second if name.startswith("warning/")]
    assert any(worlds.any() for worlds in resumed.engine.warnings.values()), "it began with warnings"
    resumed.load_state_dict(env.state_dict())
    assert not any(worlds.any() for worlds in resumed.engine.warnings.values())


def lift_boxes(env: Env, worlds: Worlds) -> None:
    worlds.qpos[:, 2:140:7] = 5.0 + torch.arange(20)


@pytest.mark.parametrize("kind", [NativeEngine, lambda *a, **k: NativeOnDevice(*a, device="cpu", **k)])
def test_what_mujoco_raised_explains_only_the_worlds_that_broke_until_a_dump(
    kind: type[NativeEngine], tmp_path: Path
) -> None:
    engine = kind(mujoco.MjModel.from_xml_string(heap("60K")), 2, num_threads=1)
    env = Env(replace(of_heap(tmp_path), events={"lift": reset_event(lift_boxes)}), engine, 0)
    heaped = engine.layout.default_qpos.repeat(2, 1)
    for forget in (lambda: env.dump_broken_worlds(tmp_path, "heap"), env.forget_failures):
        engine.reset(torch.tensor([True, False]), heaped, torch.zeros_like(engine.state.qvel))
        assert env.step(torch.zeros(2, 1))[2].tolist() == [True, False]
        assert env.explain_broken_worlds().startswith("MuJoCo raised")
        forget()
        env.step(torch.full((2, 1), torch.nan))
        assert env.explain_broken_worlds().startswith("controls were not finite")
        env.forget_failures()


@pytest.mark.usefixtures("short_trial")
def test_a_training_warns_once_of_contacts_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task = load_task("Cartpole-Balance")
    agent = replace(task.agent, obs_groups={"actor": ("actor",), "critic": ("actor",)}, num_steps_per_env=4)
    run = mjtrain.train(
        replace(task, env=of_heap(tmp_path), agent=agent),
        num_envs=1,
        max_iterations=2,
        launch=mjtrain.LaunchConfig(gpu_ids=None),
        log_root=str(tmp_path / "logs"),
        logger="none",
    )
    assert run.metrics["warning/contacts"] == 1
    assert "warning/bad_qpos" not in run.metrics
    said = "".join(capfd.readouterr()).splitlines()
    assert [line for line in said if "no room for all contacts" in line] == [
        "warning: MuJoCo in 1 world of iteration 1: there was no room for all contacts, and the excess is dropped: "
        'raise memory in <size memory="…"/> of the robot\'s file, or remove it'
    ]
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()

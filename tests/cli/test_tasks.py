"""Tasks as users meet them: flags for every term, the same numbers twice, and a task from a package of one's own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import mjtrain
from support import commands


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return commands.run([commands.BIN / "train", *args, "--gpu-ids", "None", "--logger", "none"], environ=environ)


def test_every_kind_of_term_is_set_by_its_flag_and_saved(tmp_path: Path) -> None:
    flags = {
        "env.commands.velocity.params.speed": 0.5,
        "env.commands.velocity.resampling-s": [1.0, 2.0],
        "env.rewards.slip.weight": -0.3,
        "env.rewards.lift-feet.params.height-m": 0.1,
        "env.terminations.tilted.params.limit": 0.9,
        "env.terminations.fallen.params.threshold": 0.5,  # a default that the task leaves out
        "env.events.payload.params.factor": [0.8, 1.5],
        "env.events.push.interval-s": [1.0, 2.0],
        "env.curriculum.terrain.initial": [0.0, 1.0],
        "env.actions.legs.delay": [0, 1],
        "env.observations.actor.up.noise": 0.2,
        "env.observations.actor.command.history": 2,
        "env.terrain.num-levels": 2,
        "env.terrain.kinds": ["rough", "stairs_up"],
        "env.nan-guard.max-fraction": 0.2,
    }
    words = [
        word
        for flag, value in flags.items()
        for word in (f"--{flag}", *map(str, value if isinstance(value, list) else [value]))
    ]
    size = ["--num-envs", "8", "--max-iterations", "1", "--log-root", str(tmp_path)]
    without = ["--without", "observations.actor.base-velocity", "env.rewards.action-rate"]
    done = run("Quadruped-Velocity-Rough", *size, *words, *without)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("params/env.yaml")
    saved = yaml.safe_load(file.read_text())
    for flag, value in flags.items():
        found: Any = saved
        for key in flag.removeprefix("env.").replace("-", "_").split("."):
            found = found[key]
        assert found == value, flag
    assert "base_velocity" not in saved["observations"]["actor"]
    assert "base_velocity" in saved["observations"]["critic"]
    assert "action_rate" not in saved["rewards"]
    line, end = (file.parents[1] / "metrics.jsonl").read_text().splitlines()
    assert json.loads(end)["how"] == "done"
    metrics = json.loads(line)
    assert 0 <= metrics["curriculum/terrain"] <= 1
    assert metrics["nan_resets"] == 0


@pytest.mark.supports("training", task="{task}")
@pytest.mark.parametrize("task", ["Quadruped-Velocity-Rough", "Arm-Reach"])
def test_the_same_seed_gives_the_same_metrics(task: str, tmp_path: Path) -> None:
    def metrics(seed: int, iterations: int = 4) -> list[dict[str, Any]]:
        launch, log_root = mjtrain.LaunchConfig(gpu_ids=None, seed=seed), str(tmp_path)
        out = mjtrain.train(
            task, num_envs=16, max_iterations=iterations, launch=launch, logger="none", log_root=log_root
        )
        lines = (out.run_dir / "metrics.jsonl").read_text().splitlines()
        return [
            {key: value for key, value in json.loads(line).items() if not key.endswith(("_s", "_per_second"))}
            for line in lines
            if '"event"' not in line
        ]

    first, again, (other,) = metrics(1), metrics(1), metrics(2, iterations=1)
    assert first == again
    assert first[0] != other


@pytest.mark.parametrize("dry", [True, False])
def test_a_misspelt_parameter_is_one_line_and_leaves_nothing(dry: bool, tmp_path: Path) -> None:
    file = tmp_path / "misspelt.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from mjtrain import RewardTerm\n"
        "from mjtrain.mdp import gait\n"
        "from mjtrain_tasks.quadruped_velocity import FOOT_CONTACTS, make_flat\n\n\n"
        "def make_task():\n"
        "    task = make_flat()\n"
        "    params = {'contact_sensors': FOOT_CONTACTS, 'velocity_sensor': FOOT_CONTACTS}\n"
        "    slip = RewardTerm(func=gait.feet_slide, weight=-0.1, params=params)\n"
        "    return replace(task, env=replace(task.env, rewards={**task.env.rewards, 'slip': slip}))\n"
    )
    more = ["--dry-run"] if dry else []
    done = run(f"{file}:make_task", "--log-root", str(tmp_path / "logs"), *more)
    assert done.returncode == 2
    assert done.stderr == (
        "train: --env.rewards.slip: feet_slide() has no parameter velocity_sensor; it takes contact_sensors, "
        "velocity_sensors\n"
    )
    assert not (tmp_path / "logs").exists()


def test_a_new_task_is_a_folder_and_a_line(tmp_path: Path) -> None:
    package = tmp_path / "acme_tasks"
    package.mkdir()
    (package / "slider.xml").write_text(
        '<mujoco><worldbody><body name="cart"><joint name="rail" type="slide" axis="1 0 0"/>'
        '<geom size="0.1" mass="1"/></body></worldbody>'
        '<actuator><motor name="push" joint="rail" gear="5"/></actuator></mujoco>'
    )
    (package / "__init__.py").write_text(
        "from pathlib import Path\n"
        "from mjtrain import *\n"
        "from mjtrain.mdp import events, observation, observations, reset_event, reward, rewards\n"
        "from mjtrain.mdp import terminations, truncation\n\n\n"
        "def make_task():\n"
        "    see = {'place': observation(observations.joint_pos, joint='rail')}\n"
        "    start = reset_event(events.reset_joints_by_offset, joint='rail', position=(-1.0, 1.0))\n"
        "    return TaskConfig(\n"
        "        env=EnvConfig(\n"
        "            robot=str(Path(__file__).parent / 'slider.xml'), decimation=5, episode_length_s=1.0,\n"
        "            actions={'push': ActionTerm()}, observations={'actor': see},\n"
        "            rewards={'home': reward(rewards.is_alive, 1.0)},\n"
        "            terminations={'time_out': truncation(terminations.time_out)},\n"
        "            events={'start': start},\n"
        "        ),\n"
        "        agent=AgentConfig(obs_groups={'actor': ('actor',), 'critic': ('actor',)}),\n"
        "        num_envs=8,\n"
        "        max_iterations=2,\n"
        "    )\n"
    )
    metadata = tmp_path / "acme_tasks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tasks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mjtrain.tasks]\nAcme-Slider = acme_tasks:make_task\n")
    done = run("acme-slider", "--log-root", str(tmp_path / "logs"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Acme-Slider: 1 rank on cpu" in done.stderr
    (file,) = (tmp_path / "logs").rglob("metrics.jsonl")
    assert file.read_text().count('{"iteration"') == 2

"""A student of Cartpole-Balance that sees positions only, and the teacher that it learns from."""

from dataclasses import replace
from pathlib import Path

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import AgentConfig, LaunchConfig, TrainConfig
from mjtrain.mdp import observation
from mjtrain.mdp.observations import joint_pos

TASK = """
from dataclasses import replace
from pathlib import Path
from mjtrain import AgentConfig, DistillationConfig, ModelConfig, TaskConfig
from mjtrain.env.catalog import load_task

def make_teacher() -> TaskConfig:
    return replace(load_task("Cartpole-Balance"), num_envs=8, max_iterations=1)

def make_student() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    groups = task.agent.obs_groups["actor"]
    algorithm = DistillationConfig(gradient_length=8, teacher_run="auto", teacher_task=f"{Path(__file__)}:make_teacher")
    agent = AgentConfig(
        num_steps_per_env=8, actor=ModelConfig(hidden_dims=(16,)), algorithm=algorithm,
        obs_groups={"actor": groups, "teacher": groups},
    )
    return replace(task, agent=agent, num_envs=8, max_iterations=2)
"""


def write_student_task(folder: Path) -> tuple[str, str]:
    """Write the file of a student that finds its teacher; returns its task and that of its teacher."""
    (folder / "students.py").write_text(TASK)
    return f"{folder}/students.py:make_student", f"{folder}/students.py:make_teacher"


def make_student(agent: AgentConfig) -> TrainConfig:
    """Give the task a group `student` with the last two positions, which the agent's actor may see."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    positions = {
        "cart": observation(joint_pos, joint="slider").replace(history=2),
        "pole": observation(joint_pos, joint="hinge").replace(history=2),
    }
    env = replace(config.env, observations={**config.env.observations, "student": positions})
    return replace(config, env=env, agent=agent)


def train_teacher(folder: Path) -> None:
    """Train a teacher that sees positions and velocities, and is not good at anything."""
    launch = LaunchConfig(gpu_ids=None, num_threads=1)
    mjtrain.train("Cartpole-Balance", launch=launch, num_envs=8, max_iterations=1, log_root=str(folder), logger="none")

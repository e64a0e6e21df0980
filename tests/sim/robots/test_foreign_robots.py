"""The examples with robots of other packages: short, and accepted as they are."""

from pathlib import Path

import pytest

from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.sim.engines import make_engine
from mjtrain.training.request import resolve_training

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("ant", "cheetah", "hopper", "reacher")


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_robot_is_a_task_of_sixty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
    task = f"{EXAMPLES / name}.py:make_task"
    request = resolve_training(make_train_config(task, num_envs=2), LaunchConfig(gpu_ids=None))
    assert not [line for line in request.notices if line.startswith("warning: ")]
    assert Path(load_task(task).env.robot.file).is_relative_to(Path(pytest.__file__).parents[1]), "from its wheel"


def test_the_ant_stands_on_its_feet() -> None:
    """Its default pose is from the config; the file only has it as a list of numbers."""
    config = load_task(f"{EXAMPLES / 'ant'}.py:make_task").env
    env = Env(config, make_engine("native", config, 4, "cpu", 1), seed=0)
    assert env.engine.layout.default_qpos[2] == pytest.approx(0.55)
    assert env.engine.layout.default_qpos[7:].tolist() == [0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0]

"""Actors that imitate a controller of their task before they learn."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import ControllerTerm, EnvConfig, LaunchConfig, SymmetryConfig, TrainConfig, WarmStartConfig
from mjtrain.env.env import Env
from mjtrain.learning.rsl_rl.construct import Runner, imitate_controller
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.preflight.config_check import check_config
from mjtrain.training.preflight.dry_step import check_task
from support.resuming import assert_same, make_runner

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)
TASK = "Quadruped-Velocity-Flat"


def warm(controller: str, num_envs: int = 16) -> TrainConfig:
    config = make_train_config(TASK, num_envs=num_envs)
    start = WarmStartConfig(controller=controller, num_steps=48, num_batches=80)
    algorithm = replace(config.agent.algorithm, warm_start=start)  # pyright: ignore[reportCallIssue]
    return replace(config, agent=replace(config.agent, algorithm=algorithm))


def _imitate(runner: Runner, context: RankContext, config: TrainConfig) -> Env:
    assert isinstance(runner.env.env, Env)
    start: Any = config.agent.algorithm
    imitate_controller(runner.alg, runner.env.env, start.warm_start, context, runner._algorithm.collectives)  # pyright: ignore[reportArgumentType]
    return runner.env.env


def _distance(runner: Runner, env: Env) -> float:
    """Return how far the actor is from the controller over a rollout of it, as a fraction of its actions."""
    errors, sizes = [], []
    with torch.no_grad():
        for _ in range(20):
            wanted = env.controller("trot")
            actions = runner.networks["actor"](runner.env.get_observations())
            errors.append((actions - wanted).square().mean())
            sizes.append(wanted.square().mean())
            env.step(wanted)
    return float(sum(errors) / sum(sizes))


def _fit(context: RankContext, config: TrainConfig) -> tuple[float, float, Any, Any]:
    runner = make_runner(context, config)
    before = runner.env.env.state_dict()
    env = _imitate(runner, context, config)
    after = env.state_dict()
    fitted, untrained = _distance(runner, env), _distance(make_runner(context, config), env)
    return fitted, untrained, before, after


def test_an_actor_acts_as_the_controller_and_the_worlds_are_as_before() -> None:
    fitted, untrained, before, after = mjtrain.launch(_fit, warm("trot"), launch=ALONE)
    assert fitted < 0.2
    assert untrained > 0.9
    assert_same(before, after)


def _parameters(context: RankContext, config: TrainConfig) -> list[torch.Tensor]:
    runner = make_runner(context, config)
    _imitate(runner, context, config)
    runner.check_drift()
    return [weight.detach().clone() for weight in runner.networks["actor"].parameters()]


def test_ranks_keep_the_same_actor() -> None:
    where = LaunchConfig(gpu_ids=None, num_threads=1, num_workers=2)
    first = mjtrain.launch(_parameters, warm("trot", 8), launch=where)
    assert all(weight.isfinite().all() for weight in first)


def _count(runner: Runner) -> int:
    """Train one iteration, and return how often the controller was asked."""
    env: Any = runner.env.env
    ask, asked = env.controller, []

    def counted(name: str) -> torch.Tensor:
        asked.append(name)
        return ask(name)

    env.controller = counted
    next(runner.iterate(runner.iteration + 1))
    return len(asked)


def _start_in_three_ways(context: RankContext, config: TrainConfig, path: Path) -> list[int]:
    new, resumed, loaded = (make_runner(context, config) for _ in range(3))
    counts = [_count(new)]
    new.save(path, {"task": config.task})
    assert resumed.resume(path, config.task) is None
    loaded.load_weights(path)
    return [*counts, _count(resumed), _count(loaded)]


def test_only_random_weights_imitate(tmp_path: Path) -> None:
    counts = mjtrain.launch(_start_in_three_ways, warm("trot", 4), tmp_path / "model_1.pt", launch=ALONE)
    assert counts == [48, 0, 0]


def test_without_a_controller_nothing_is_imitated() -> None:
    assert mjtrain.launch(_count_of_new, warm(""), launch=ALONE) == 0


def _count_of_new(context: RankContext, config: TrainConfig) -> int:
    return _count(make_runner(context, config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"controller": "trott"}, "has no controller of this name; did you mean trot?"),
        ({"controller": "trot", "class_name": "RNNModel"}, "a recurrent actor cannot imitate a controller"),
    ],
)
def test_a_controller_that_cannot_be_imitated_is_refused(changes: dict[str, str], message: str) -> None:
    config = warm(changes["controller"])
    if "class_name" in changes:
        symmetry = replace(config.agent.algorithm, symmetry_cfg=SymmetryConfig())  # pyright: ignore[reportCallIssue]
        agent = replace(config.agent, algorithm=symmetry, actor=replace(config.agent.actor, class_name="RNNModel"))
        config = replace(config, agent=agent)
    with pytest.raises(RequestError, match=re.escape(message)):
        check_config(config, ALONE)


def _bend_too_few(env: Env) -> torch.Tensor:
    return torch.zeros(env.num_envs, 3)


def test_what_a_controller_returns_is_checked_before_a_training() -> None:
    config = warm("trot")
    assert isinstance(config.env, EnvConfig)
    env = replace(config.env, controllers={"trot": ControllerTerm(func=_bend_too_few)})
    with pytest.raises(RequestError, match=r"--env.controllers.trot: .* returned 3 columns; an action has 12"):
        check_task(env)

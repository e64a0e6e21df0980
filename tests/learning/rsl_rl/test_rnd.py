"""RSL-RL's random network distillation, by --learner-config: its counters and sums are part of a checkpoint."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.modules import EmpiricalNormalization

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, LearnerConfig, SymmetryConfig, TrainConfig, VecEnvConfig
from mjtrain.env.external.env import make_foreign_env
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.learning.rsl_rl.library import RslRl
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from support.point_mass import PointMass
from support.resuming import assert_same, make_runner, train_straight_and_resumed

ONE = LaunchConfig(gpu_ids=None, num_threads=1)
RND: dict[str, Any] = {
    "weight": 5.0,
    "weight_schedule": {"mode": "linear", "initial_step": 8, "final_step": 60, "final_value": 0.0},
    "num_outputs": 2,
    "predictor_hidden_dims": [16],
    "target_hidden_dims": [16],
    "state_normalization": True,
    "reward_normalization": True,
}


def curious(num_envs: int = 8, **changes: Any) -> TrainConfig:
    config = make_train_config("Cartpole-Balance", num_envs=num_envs)
    groups = {**config.agent.obs_groups, "rnd_state": ("actor",)}
    return replace(
        config,
        agent=replace(config.agent, obs_groups=groups, num_steps_per_env=12),
        learner=LearnerConfig(settings={"algorithm": {"rnd_cfg": {**RND, **changes}}}),
    )


def train_and_note_waits(context: RankContext, config: TrainConfig, path: Path) -> list[Any]:
    """Return what `train_straight_and_resumed` does, after whether each normaliser of RSL-RL was known to wait."""
    waits, update = [], EmpiricalNormalization.update

    def note(self: EmpiricalNormalization, x: torch.Tensor) -> None:
        waits.append(heartbeat.current.waiting)
        update(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmpiricalNormalization, "update", note)
        trained = train_straight_and_resumed(context, config, path)
    return [set(waits), *trained]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_resumed_training_is_bit_exact(num_workers: int, tmp_path: Path) -> None:
    path, launch = tmp_path / "model_2.pt", replace(ONE, num_workers=num_workers)
    waits, straight, resumed, *runs = mjtrain.launch(train_and_note_waits, curious(), path, launch=launch)
    assert waits == {num_workers > 1}
    assert straight == resumed
    assert straight[0]["loss/rnd"] > 0
    assert_same(*runs)
    content = load_checkpoint(path, "cpu")
    assert content["counters"] == {"rnd_env_steps": 24}
    assert all(rank["rnd_rewards"].shape == (8,) for rank in content["ranks"])


def _train_with_a_slow_rank_1(context: RankContext) -> dict[str, Any]:
    runner = make_runner(context, curious())
    runner.after_step = partial(time.sleep, 0.1 * context.rank)
    return [result.metrics for result in runner.iterate(2)][-1]


def test_waiting_in_a_rollout_is_not_collecting() -> None:
    """Each env step sums over ranks, so rank 0 waits for rank 1 twelve times, and then for the gradients."""
    row = mjtrain.launch(_train_with_a_slow_rank_1, launch=replace(ONE, num_workers=2))
    assert row["slowest_rank"] == 1
    assert row["wait_time_max_s"] > 0.3


def test_its_rewards_are_learned_from() -> None:
    def learn(context: RankContext, config: TrainConfig) -> float:
        runner = make_runner(context, config)
        return [result.metrics for result in runner.iterate(1)][-1]["loss/value"]

    with_rewards, without = (mjtrain.launch(learn, curious(weight=weight), launch=ONE) for weight in (5.0, 0.0))
    assert with_rewards != without


def test_they_count_where_the_time_of_an_env_step_is_not_known() -> None:
    config = curious()

    def build(context: RankContext) -> float:
        env = make_foreign_env(VecEnvConfig(make=PointMass), 8, context.device, seed=0)
        assert env.step_dt == 0.0
        groups = {"actor": ("policy",), "critic": ("critic",), "rnd_state": ("policy",)}
        algorithm: Any = Runner(context, env, replace(config.agent, obs_groups=groups), config.learner.settings).alg
        return algorithm.rnd.initial_weight

    assert mjtrain.launch(build, launch=ONE) == 5.0


def test_what_was_asked_for_is_not_changed() -> None:
    config = curious()

    def build(context: RankContext) -> list[float]:
        made: list[Any] = [make_runner(context, config).alg for _ in range(2)]
        return [algorithm.rnd.initial_weight for algorithm in made]

    first, second = mjtrain.launch(build, launch=ONE)
    assert 0 < first == second < 5.0, "per env step"
    assert config.learner.settings["algorithm"]["rnd_cfg"] == RND


def test_a_checkpoint_without_rnd_is_refused(tmp_path: Path) -> None:
    config = curious()

    def resume(context: RankContext) -> None:
        plain = make_runner(context, replace(config, learner=LearnerConfig()))
        plain.save(tmp_path / "model_0.pt", {"task": config.task})
        assert "counters" not in torch.load(tmp_path / "model_0.pt", weights_only=True)
        make_runner(context, config).resume(tmp_path / "model_0.pt", config.task)

    with pytest.raises(RequestError, match=r"was trained without --learner-config algorithm\.rnd_cfg; leave it out"):
        mjtrain.launch(resume, launch=ONE)


def test_its_settings_are_those_of_the_command_that_resumes(tmp_path: Path) -> None:
    def resume(context: RankContext, config: TrainConfig) -> float:
        path = tmp_path / "model_0.pt"
        make_runner(context, curious()).save(path, {"task": config.task})
        runner = make_runner(context, config)
        runner.resume(path, config.task)
        rnd: Any = runner.alg.rnd  # pyright: ignore[reportAttributeAccessIssue]
        return rnd.optimizer.param_groups[0]["lr"]

    assert mjtrain.launch(resume, curious(learning_rate=0.25), launch=ONE) == 0.25
    with pytest.raises(RequestError, match=r"run: rnd predictor.2.weight has shape \(2, 16\) .* and \(3, 16\) here$"):
        mjtrain.launch(resume, curious(num_outputs=3), launch=ONE)


def test_it_may_look_at_a_group_that_mirror_images_lack() -> None:
    config = curious()
    state = {"observations": {**config.env.observations, "state": config.env.observations["actor"]}}  # pyright: ignore
    algorithm = replace(config.agent.algorithm, symmetry_cfg=SymmetryConfig(use_data_augmentation=True))
    agent = replace(config.agent, algorithm=algorithm)

    def learn(context: RankContext, group: str) -> float:
        seen = replace(agent, obs_groups={**agent.obs_groups, "rnd_state": (group,)})
        runner = make_runner(context, replace(config, env=replace(config.env, **state), agent=seen))
        return next(runner.iterate(1)).metrics["loss/rnd"]

    assert mjtrain.launch(learn, "actor", launch=ONE) > 0
    assert mjtrain.launch(learn, "state", launch=ONE) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_learning_epochs": 0}, "algorithm.num_learning_epochs 0: give 1 or more"),
        ({"num_mini_batches": 97}, "algorithm.num_mini_batches 97: give 1 to 96, the samples of a rollout"),
    ],
)
def test_numbers_with_which_nothing_could_be_learned_are_refused(settings: dict[str, Any], message: str) -> None:
    config = replace(curious(), learner=LearnerConfig(settings={"algorithm": settings}))
    with pytest.raises(RequestError, match=f"^--learner-config {message}$"):
        RslRl().check(replace(config, run=replace(config.run, num_envs=8)), 1, "cpu")


def test_what_it_looks_at_must_be_said() -> None:
    config = replace(curious(), agent=make_train_config("Cartpole-Balance").agent)
    with pytest.raises(
        RequestError, match=r"--learner-config algorithm\.rnd_cfg: nothing says which observation groups"
    ):
        RslRl().check(config, 1, "cpu")

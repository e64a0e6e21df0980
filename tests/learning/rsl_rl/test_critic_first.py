"""A critic that learns alone for some iterations, and one that is taken from another run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, PpoConfig, TrainConfig
from mjtrain.runs.bundle import WEIGHTS, read_weights
from mjtrain.runs.bundle_places import open_bundle
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from support.resuming import check_resuming, make_runner

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)


def cartpole(**algorithm: Any) -> TrainConfig:
    config = make_train_config("Cartpole-Balance", num_envs=8)
    return replace(config, agent=replace(config.agent, algorithm=replace(config.agent.algorithm, **algorithm)))


def _watch(context: RankContext, config: TrainConfig, num_threads: int) -> list[tuple[bool, bool, bool, float]]:
    """Tell of three iterations whether they changed actor and critic and measured a KL, and the step size after."""
    torch.set_num_threads(num_threads)
    runner = make_runner(context, config)
    assert config.agent.algorithm.schedule == "adaptive"  # pyright: ignore[reportAttributeAccessIssue]
    found = []
    iterations = runner.iterate(3)
    for _ in range(3):
        before = _copy(runner)
        metrics = next(iterations).metrics
        after = _copy(runner)
        changed = (any(not torch.equal(before[name][key], after[name][key]) for key in after[name]) for name in after)
        found.append((*changed, metrics["kl"] is not None, metrics["learning_rate"]))
    return found


def _copy(runner: Any) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: {key: value.clone() for key, value in runner.networks[name].state_dict().items()}
        for name in ("actor", "critic")
    }


@pytest.mark.parametrize(("num_threads", "num_ranks"), [(1, 1), (2, 1), (1, 2)])
def test_the_actor_its_normaliser_and_the_step_size_wait_for_the_critic(num_threads: int, num_ranks: int) -> None:
    """With two threads, both networks learn at the same time; with two ranks, the step size is decided elsewhere."""
    config = cartpole(critic_iterations=2)
    where = LaunchConfig(gpu_ids=None, num_workers=num_ranks)
    first, second, third = mjtrain.launch(_watch, config, num_threads, launch=where)
    initial = config.agent.algorithm.learning_rate
    assert (first, second) == ((False, True, False, initial), (False, True, False, initial))
    assert third[:3] == (True, True, True), "the schedule is adaptive again"


def test_the_actors_convolutions_wait_too_where_both_share_them() -> None:
    config = make_train_config("Cartpole-Balance-Vision", num_envs=8)
    agent = config.agent
    algorithm = replace(agent.algorithm, share_cnn_encoders=True, critic_iterations=1, schedule="adaptive")  # pyright: ignore[reportCallIssue]
    agent = replace(
        agent,
        critic=replace(agent.critic, class_name="CNNModel"),
        obs_groups={"actor": ("image",), "critic": ("image", "state")},
        num_steps_per_env=4,
        algorithm=algorithm,
    )
    first, second, _ = mjtrain.launch(_watch, replace(config, agent=agent), 1, launch=ALONE)
    assert (first[:2], second[:2]) == ((False, True), (True, True))


@pytest.mark.parametrize("critic_iterations", [1, 3])
def test_a_resumed_training_is_bit_exact(critic_iterations: int, tmp_path: Path) -> None:
    """It is resumed after two iterations."""
    config = cartpole(critic_iterations=critic_iterations)
    path = tmp_path / "model_2.pt"
    check_resuming(config, path)
    left = max(0, critic_iterations - 2)
    assert load_checkpoint(path, "cpu").get("counters", {}) == ({"critic_updates_left": left} if left else {})


def go(tmp_path: Path, **options: Any) -> Any:
    where: dict[str, Any] = {"log_root": str(tmp_path), "logger": "none", "launch": ALONE}
    return mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=1, **where, **options)


def test_the_critic_comes_from_one_run_and_the_actor_from_another(tmp_path: Path) -> None:
    """With a step size of almost nothing, both are still the ones that were loaded after an iteration."""
    with_critic = go(tmp_path)
    agent = replace(make_train_config("Cartpole-Balance").agent, algorithm=PpoConfig(learning_rate=1e-12))
    done = go(tmp_path, load="pretrained", load_critic=str(with_critic.run_dir), agent=agent)
    loaded, theirs = (load_checkpoint(run.checkpoint, "cpu") for run in (done, with_critic))
    key = "mlp.0.weight"
    torch.testing.assert_close(loaded["critic_state_dict"][key], theirs["critic_state_dict"][key], rtol=0, atol=1e-6)
    assert (loaded["actor_state_dict"][key] - theirs["actor_state_dict"][key]).abs().max() > 0.1
    shared = go(tmp_path, load="pretrained", agent=agent)
    own = load_checkpoint(shared.checkpoint, "cpu")
    torch.testing.assert_close(loaded["actor_state_dict"][key], own["actor_state_dict"][key], rtol=0, atol=1e-6)


def _load_without_files_on_rank_1(context: RankContext, *files: Path) -> list[torch.Tensor]:
    runner = make_runner(context, cartpole())
    runner.load_weights(*(Path("on-another-host", file.name) if context.rank else file for file in files))
    runner.check_drift()
    return [runner.networks[name].state_dict()["mlp.0.weight"] for name in ("actor", "critic")]


def test_only_the_host_of_rank_0_needs_the_files(tmp_path: Path) -> None:
    """As with a shared policy that the launcher has fetched into the cache of its host."""
    policy, run = open_bundle("pretrained:Cartpole-Balance") / WEIGHTS, go(tmp_path).checkpoint
    where = replace(ALONE, num_workers=2)
    loaded = mjtrain.launch(_load_without_files_on_rank_1, policy, run, launch=where)
    theirs = read_weights(policy, "cpu")["actor_state_dict"], load_checkpoint(run, "cpu")["critic_state_dict"]
    assert all(torch.equal(ours, their["mlp.0.weight"]) for ours, their in zip(loaded, theirs, strict=True))
    with pytest.raises(RequestError, match=r"model_9\.pt: no such file"):
        mjtrain.launch(_load_without_files_on_rank_1, policy, run.with_name("model_9.pt"), launch=where)


def test_a_critic_that_would_not_be_used_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--load-critic pretrained: needs --load, which names the policy"):
        go(tmp_path, load_critic="pretrained")
    with pytest.raises(RequestError, match=r"--load-critic pretrained: a shared policy has no critic"):
        go(tmp_path, load="pretrained", load_critic="pretrained")
    with pytest.raises(RequestError, match=r"--load-critic nowhere\.pt: no such file"):
        go(tmp_path, load="pretrained", load_critic="nowhere.pt")
    agent = make_train_config("Cartpole-Balance").agent
    smaller = replace(agent, critic=replace(agent.critic, hidden_dims=(8,)))
    small = go(tmp_path, agent=smaller)
    with pytest.raises(RequestError, match=rf"{small.checkpoint}: does not fit .*: critic mlp\.0\.weight has shape"):
        go(tmp_path, load="pretrained", load_critic=str(small.run_dir))
    with pytest.raises(RequestError, match=r"--load-critic here: .* learns from a teacher, without a critic"):
        mjtrain.train("Arm-Lift-Cube-Vision", load="pretrained", load_critic="here", launch=ALONE)
    with pytest.raises(RequestError, match=r"--load-critic: is not supported by --learner skrl; use --learner rsl_"):
        go(tmp_path, load="pretrained", load_critic=str(small.run_dir), learner="skrl")

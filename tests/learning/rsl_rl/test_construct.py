"""The runner on real environments, in one process and in two."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import DistributionConfig, LaunchConfig, PpoConfig, TrainConfig
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.learning.rsl_rl.ppo import Ppo
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env

CPU = LaunchConfig(gpu_ids=None)


def small(task: str = "Cartpole-Balance", num_envs: int = 64) -> TrainConfig:
    return make_train_config(task, num_envs=num_envs)


def make_runner(context: RankContext, config: TrainConfig) -> Runner:
    return Runner(context, make_env(context, config), config.agent)


def fingerprint(runner: Runner) -> str:
    """Hash parameters, normalisers and the state of the optimiser, bit for bit."""
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                feed(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                feed(item)
        else:
            digest.update(repr(value).encode())

    feed(runner.alg.save())
    return digest.hexdigest()


def _look_at_two_ranks(context: RankContext, config: TrainConfig, num_iterations: int) -> list[dict[str, Any]]:
    env = make_env(context, config)
    start = env.state.qpos.clone()
    runner = Runner(context, env, config.agent)
    metrics = [result.metrics for result in runner.iterate(num_iterations)]
    normaliser = runner.networks["actor"].obs_normalizer
    mine = {
        "fingerprint": fingerprint(runner),
        "start": start,
        "seed": context.seed,
        "now": env.state.qpos.clone(),
        "metrics": metrics,
        "normaliser_count": int(normaliser.count),  # pyright: ignore[reportArgumentType]
    }
    everybody: list[Any] = [None] * context.world_size
    dist.all_gather_object(everybody, mine)
    return everybody


@pytest.mark.supports("training", task="Cartpole-Balance", start="several ranks on this host")
def test_two_ranks_stay_bit_identical_and_see_different_worlds() -> None:
    config = small()
    launch = LaunchConfig(gpu_ids=None, num_workers=2, seed=5)
    zero, one = mjtrain.launch(_look_at_two_ranks, config, 20, launch=launch)
    assert zero["fingerprint"] == one["fingerprint"]
    assert zero["metrics"] == one["metrics"]
    assert (zero["seed"], one["seed"]) == (5, 6)
    assert not torch.equal(zero["start"], one["start"])
    assert not torch.equal(zero["now"], one["now"])
    steps = 20 * config.agent.num_steps_per_env * 64 * 2
    assert zero["normaliser_count"] == steps
    last = zero["metrics"][-1]
    assert (last["iteration"], last["env_steps_total"]) == (20, steps)
    assert (last["world_size"], last["num_envs_total"]) == (2, 128)


def _train(context: RankContext, config: TrainConfig, num_iterations: int) -> tuple[str, list[dict[str, Any]]]:
    runner = make_runner(context, config)
    return fingerprint(runner), [result.metrics for result in runner.iterate(num_iterations)]


TIMES = {"env_steps_per_second", "collect_time_s", "learn_time_s"}


def test_a_seed_repeats_a_training() -> None:
    config = small()
    runs = [mjtrain.launch(_train, config, 4, launch=replace(CPU, seed=seed)) for seed in (1, 1, 2)]
    values = [[{key: row[key] for key in row if key not in TIMES} for row in metrics] for _, metrics in runs]
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert values[0] == values[1] != values[2]


def test_metrics_have_the_promised_keys() -> None:
    config = small()
    _, metrics = mjtrain.launch(_train, config, 3, launch=CPU)
    promised = {
        "iteration", "env_steps_total", "env_steps_per_second", "collect_time_s", "learn_time_s", "mean_reward",
        "mean_episode_length", "world_size", "num_envs_total", "learning_rate", "kl",
    }  # fmt: skip
    assert [row["iteration"] for row in metrics] == [1, 2, 3]
    assert promised <= set(metrics[-1])
    assert {f"reward/{name}" for name in config.env.rewards} <= set(metrics[-1])
    assert {f"termination/{name}" for name in config.env.terminations} <= set(metrics[-1])
    assert {"loss/value", "loss/surrogate", "loss/entropy"} <= set(metrics[-1])
    assert metrics[-1]["kl"] > 0


def test_the_fixed_schedule_keeps_the_learning_rate_and_measures_no_kl() -> None:
    config = small()
    algorithm = replace(config.agent.algorithm, schedule="fixed", learning_rate=3e-4)
    config = replace(config, agent=replace(config.agent, algorithm=algorithm))
    _, metrics = mjtrain.launch(_train, config, 2, launch=CPU)
    assert [row["learning_rate"] for row in metrics] == [3e-4, 3e-4]
    assert metrics[-1]["kl"] is None


def test_a_checkpoint_starts_another_run_with_its_weights(tmp_path: Path) -> None:
    config = small()

    def save(context: RankContext, path: Path) -> dict[str, torch.Tensor]:
        runner = make_runner(context, config)
        list(runner.iterate(2))
        runner.save(path, {"task": config.task})
        return runner.alg.get_policy().state_dict()

    def load(context: RankContext, path: Path) -> tuple[dict[str, torch.Tensor], int]:
        runner = make_runner(context, config)
        runner.load_weights(path)
        return runner.alg.get_policy().state_dict(), runner.iteration

    path = tmp_path / "model_2.pt"
    saved = mjtrain.launch(save, path, launch=CPU)
    loaded, iteration = mjtrain.launch(load, path, launch=replace(CPU, seed=9))
    assert iteration == 0
    assert all(torch.equal(loaded[key], saved[key]) for key in saved)
    content = load_checkpoint(path, "cpu")
    assert content["iter"] == 2
    assert content["infos"] == {"task": "Cartpole-Balance", "env_steps_total": 2 * 24 * 64}

    other = make_train_config("Cartpole-Swingup", num_envs=8)
    with pytest.raises(RequestError, match="does not fit the networks"):
        mjtrain.launch(lambda context: make_runner(context, other).load_weights(path), launch=CPU)


def _blow_up(env: Any) -> torch.Tensor:
    return torch.full((env.num_envs,), float("inf"))


def test_an_endless_reward_stops_the_run() -> None:
    config = small()
    rewards = {"endless": mjtrain.RewardTerm(func=_blow_up, weight=1.0)}
    config = replace(config, env=replace(config.env, rewards=rewards))
    words = r"rewards or values are not finite in iteration 1: --env\.rewards\.endless is not finite"
    with pytest.raises(FloatingPointError, match=words):
        mjtrain.launch(_train, config, 2, launch=CPU)


@pytest.mark.parametrize("kind", ["Gaussian", "HeteroscedasticGaussian"])
def test_a_mini_batch_after_which_the_policy_is_not_finite_stops_the_run(kind: str) -> None:
    """The next mini-batch draws actions from it, which torch may refuse."""
    config = small()
    rewards = {name: term.replace(weight=1e38) for name, term in config.env.rewards.items()}
    actor = replace(config.agent.actor, distribution_cfg=DistributionConfig(class_name=f"{kind}Distribution"))
    config = replace(config, env=replace(config.env, rewards=rewards), agent=replace(config.agent, actor=actor))
    with pytest.raises(FloatingPointError, match=r"iteration 1: (lower --agent|--env\.rewards)"):
        mjtrain.launch(_train, config, 1, launch=CPU)


def _sometimes_nothing(env: Any) -> torch.Tensor:
    return torch.where(env.episode_step == 3, torch.nan, 0.5)


def _sometimes_no_number(env: Any) -> torch.Tensor:
    return _sometimes_nothing(env)[:, None]


def test_terms_that_are_seldom_not_finite_are_named() -> None:
    config = small()
    env = config.env
    reward = mjtrain.RewardTerm(func=_sometimes_nothing, weight=1.0)
    observation = mjtrain.ObservationTerm(func=_sometimes_no_number)
    for changes, names in (
        ({"rewards": {**env.rewards, "rare": reward}}, r"--env\.rewards\.rare is not finite"),
        (
            {"observations": {"actor": {**env.observations["actor"], "dim": observation}}},
            r"--env\.observations\.actor\.dim ",
        ),
    ):
        changed = replace(config, env=replace(env, **changes))
        with pytest.raises(FloatingPointError, match=rf"iteration \d+: {names}"):
            mjtrain.launch(_train, changed, 8, launch=CPU)


class DivergingPpo(Ppo):
    """Ppo whose second update leaves a standard deviation that is not a number, while all losses are finite."""

    updates = 0

    def update(self) -> dict[str, float]:
        losses = super().update()
        self.updates += 1
        if self.updates == 2:
            with torch.no_grad():
                self.actor.distribution.std_param.fill_(float("nan"))  # pyright: ignore
        return losses


def test_a_policy_that_is_not_finite_stops_the_run_before_it_acts() -> None:
    config = small()
    algorithm = replace(config.agent.algorithm, class_name=f"{__name__}:DivergingPpo")
    config = replace(config, agent=replace(config.agent, algorithm=algorithm))
    words = r"the actor's distribution\.std_param is not finite after iteration 2: lower --agent\.algorithm\.learning-r"
    with pytest.raises(FloatingPointError, match=words):
        mjtrain.launch(_train, config, 4, launch=CPU)


class FullPpo(Ppo):
    """Ppo whose networks find no room on the device."""

    def load(self, *_: Any, **__: Any) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_full_device_is_not_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    config = small(num_envs=4)
    algorithm = replace(config.agent.algorithm, class_name=f"{__name__}:FullPpo")
    full = replace(config, agent=replace(config.agent, algorithm=algorithm))

    def resume(context: RankContext) -> None:
        make_runner(context, config).save(tmp_path / "model_0.pt", {"task": config.task})
        make_runner(context, full).resume(tmp_path / "model_0.pt", config.task)

    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        mjtrain.launch(resume, launch=CPU)


@pytest.mark.supports("training", task="Cartpole-Balance", engine="warp")
@pytest.mark.gpu
def test_a_resumed_optimiser_counts_its_steps_on_the_cpu(tmp_path: Path) -> None:
    """Else every step of Adam waits for the GPU twice per parameter; and ranks' states name no GPU."""
    config = replace(small(), run=replace(small().run, engine="warp"))

    def check(context: RankContext) -> set[str]:
        runner = make_runner(context, config)
        list(runner.iterate(2))
        runner.save(tmp_path / "model_2.pt", {"task": config.task})
        other = make_runner(context, config)
        other.resume(tmp_path / "model_2.pt", config.task)
        list(other.iterate(3))
        return {state["step"].device.type for state in other.alg.optimizer.state.values()}

    assert mjtrain.launch(check, launch=LaunchConfig(gpu_ids=(0,))) == {"cpu"}
    content = torch.load(tmp_path / "model_2.pt", weights_only=True)
    assert {value.device.type for value in content["ranks"][0]["env"]["buffers"].values()} == {"cpu"}


def test_a_missing_observation_group_is_the_users_error(tmp_path: Path) -> None:
    groups = {"actor": ("actor",), "critic": ("camera",)}
    agent = replace(small().agent, obs_groups=groups)
    with pytest.raises(RequestError, match=r"--agent\.obs-groups\.critic camera: the environment observes actor"):
        mjtrain.train("Cartpole-Balance", agent=agent, launch=CPU, log_root=str(tmp_path))


@pytest.mark.parametrize(("schedule", "continues"), [("fixed", False), ("adaptive", True)])
@pytest.mark.parametrize("class_name", [PpoConfig().class_name, "PPO"])
def test_a_resumed_run_has_the_learning_rate_that_is_asked_for(
    *, schedule: str, continues: bool, class_name: str
) -> None:
    """Unless it follows the KL divergence: then it is part of what was learned."""

    def move(context: RankContext) -> tuple[float, float]:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        rates = []
        state: dict[str, Any] = {}
        for rate in (1e-3, 2e-4):
            algorithm = PpoConfig(class_name=class_name, learning_rate=rate, schedule=schedule)  # pyright: ignore[reportArgumentType]
            runner: Any = Runner(context, make_env(context, config), replace(config.agent, algorithm=algorithm))
            if state:
                runner._algorithm.load_state_dict(state, Path("model_1.pt"))
            rates.append(runner._algorithm.learning_rate)
            assert {group["lr"] for group in runner._algorithm._alg.optimizer.param_groups} == {rates[-1]}
            state = runner._algorithm.state_dict()
            state["learning_rate"] = rate
        return rates[0], rates[1]

    assert mjtrain.launch(move, launch=CPU) == (1e-3, 1e-3 if continues else 2e-4)


def test_a_resumed_run_has_the_optimiser_that_is_asked_for() -> None:
    """With its own settings, and with the moments of a run only if they are of its kind."""

    def move(context: RankContext) -> dict[str, tuple[float, bool]]:
        config, found = small(), {}
        content: dict[str, Any] = {}
        for name in ("adam", "adamw", "sgd", "rmsprop", "adam"):
            algorithm = replace(config.agent.algorithm, optimizer=name)  # pyright: ignore[reportCallIssue]
            runner: Any = Runner(context, make_env(context, config), replace(config.agent, algorithm=algorithm))
            if content:
                runner._algorithm.load_state_dict({**content, "learning_rate": 1e-3}, Path("model_1.pt"))
            optimizer = runner.alg.optimizer
            found[name] = optimizer.param_groups[0]["weight_decay"], bool(optimizer.state)
            list(runner.iterate(1))
            content = runner._algorithm.state_dict()
        return found

    found = mjtrain.launch(move, launch=CPU)
    assert found == {"adam": (0, False), "adamw": (0.01, True), "sgd": (0, False), "rmsprop": (0, False)}


@pytest.mark.parametrize("class_name", ["BetaDistribution", "HeteroscedasticGaussianDistribution"])
def test_rsl_rls_other_distributions_are_trained_and_exported(class_name: str, tmp_path: Path) -> None:
    """A BetaDistribution has no standard deviation to begin with."""
    agent = small().agent
    distribution = DistributionConfig(class_name=class_name)
    agent = replace(agent, actor=replace(agent.actor, distribution_cfg=distribution))
    options: dict[str, Any] = {"logger": "none", "launch": CPU, "log_root": str(tmp_path)}
    done = mjtrain.train("Cartpole-Balance", agent=agent, num_envs=4, max_iterations=2, **options)
    assert done.metrics["kl"] > 0
    assert 0 < done.metrics["action_std"] < 2
    assert max(mjtrain.export(done, observations=8).differences.values()) < 1e-5

"""The runner on real environments, in one process and in two; and actors that imitate a controller at first."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import (
    ControllerTerm,
    DistributionConfig,
    EnvConfig,
    LaunchConfig,
    PpoConfig,
    SymmetryConfig,
    TrainConfig,
    WarmStartConfig,
)
from mjtrain.env.env import Env
from mjtrain.learning.rsl_rl.construct import Runner, imitate_controller
from mjtrain.learning.rsl_rl.ppo import Ppo
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.preflight.config_check import check_config
from mjtrain.training.preflight.dry_step import check_task
from mjtrain.training.train_rank import make_env
from support.resuming import assert_same, make_runner

CPU = LaunchConfig(gpu_ids=None)


def small(task: str = "Cartpole-Balance", num_envs: int = 64) -> TrainConfig:
    return make_train_config(task, num_envs=num_envs)


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

"""skrl on JAX under the training loop: it resumes bit for bit, ranks stay the same, torch gives the actions of flax."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from refusals import check_refused

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import DistributionConfig, LaunchConfig, LearnerConfig, ModelConfig, PpoConfig, TrainConfig
from mjtrain.evaluation.evaluator import SEED as EVALUATION_SEED
from mjtrain.learning.library import make_learner, make_policy
from mjtrain.learning.persistence import as_tensors
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import TrainResult, make_env
from mjtrain_learners.mlp_library import ACTIVATIONS
from mjtrain_learners.skrl_on_jax import LIBRARY, has_cuda, start_skrl
from support.resuming import assert_same, read_rows

CPU = LaunchConfig(gpu_ids=None)
SKRL = LearnerConfig(name="skrl_jax")

pytestmark = pytest.mark.usefixtures("no_gpu")


def small_config() -> TrainConfig:
    """Few steps, as XLA compiles each of them."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    assert isinstance(config.agent.algorithm, PpoConfig)
    algorithm = replace(config.agent.algorithm, num_learning_epochs=2)
    return replace(config, agent=replace(config.agent, num_steps_per_env=4, algorithm=algorithm))


@pytest.fixture
def _no_compiled_kernels() -> Iterator[None]:
    """Have XLA compile whatever it runs, and not find it in the folder that the tests share."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    reset_cache()


@pytest.mark.usefixtures("_no_compiled_kernels")
@pytest.mark.supports("training", task="Cartpole-Balance", learner="skrl_jax")
@pytest.mark.supports("resume", task="Cartpole-Balance", learner="skrl_jax")
@pytest.mark.supports("export", learner="skrl_jax")
def test_a_resumed_run_is_the_uninterrupted_one_and_is_exported(tmp_path: Path) -> None:
    """Bit for bit, noise of the actions included, though XLA compiles again in between."""

    def go(name: str, iterations: int, **more: Any) -> TrainResult:
        return mjtrain.train(
            "Cartpole-Balance", num_envs=8, agent=small_config().agent, logger="none", learner="skrl_jax",
            log_root=str(tmp_path / name), max_iterations=iterations, launch=CPU, **more,
        )  # fmt: skip

    straight, stopped = go("straight", 3, eval_interval=3, eval_episodes=2), go("stopped", 1)
    go("stopped", 3, resume=str(stopped.run_dir))
    evaluated = read_rows(straight.run_dir)
    trained = [{key: row[key] for key in row if not key.startswith("eval")} for row in evaluated]
    assert trained == read_rows(stopped.run_dir)
    ends = [load_checkpoint(done.run_dir / "model_3.pt", "cpu") for done in (straight, stopped)]
    assert_same(*({key: end[key] for key in end if key != "infos"} for end in ends))
    last = evaluated[-1]
    assert last["kl"] > 0
    assert {"action_std", "loss/value", "loss/surrogate", "loss/entropy"} <= set(last)
    played = mjtrain.play(straight, episodes=2, gpu_ids=None, seed=EVALUATION_SEED)
    assert (played["iteration"], played["length"]["mean"]) == (3, straight.metrics["eval/length"])
    assert max(mjtrain.export(straight, observations=20).differences.values()) < 1e-5


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_torch_gives_the_actions_of_flax(activation: str) -> None:
    config = small_config()
    actor = ModelConfig(
        hidden_dims=(8, 8), activation=cast("Any", activation), distribution_cfg=DistributionConfig(std_type="log")
    )
    agent = replace(config.agent, actor=actor)

    def compare(context: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
        from mjtrain_learners.skrl_on_jax.ppo import to_jax, to_torch

        env = make_env(context, config)
        learner: Any = make_learner(context, env, agent, SKRL)
        algorithm = learner._algorithm
        observations = {group: torch.randn_like(value) for group, value in env.observe().items()}
        _, outputs = algorithm._ppo.act(*algorithm._split(observations), timestep=0, timesteps=0)
        policy = make_policy(agent, SKRL, observations, env.num_actions)
        named = algorithm.state_dict()
        content = {"policy": {name: to_torch(to_jax(torch.tensor(leaf))) for name, leaf in named["policy"].items()}}
        normaliser = {name: torch.tensor(leaf) for name, leaf in named["observation_preprocessor"].items()}
        content |= {name: named[name] for name in named if name.endswith("_options")}
        policy.load({**content, "observation_preprocessor": normaliser}, Path("here"))
        return policy(observations), to_torch(outputs["mean_actions"])

    actions, expected = mjtrain.launch(compare, launch=CPU)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(actions, expected, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_with_a_normaliser_needs_one() -> None:
    def move(context: RankContext) -> str:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        plain = replace(config.agent, actor=replace(config.agent.actor, obs_normalization=False))
        env = make_env(context, config)
        saved: Any = make_learner(context, env, config.agent, LearnerConfig(name="skrl_jax"))
        other: Any = make_learner(context, env, plain, LearnerConfig(name="skrl_jax"))
        with pytest.raises(RequestError) as error:
            other._algorithm.load_weights(saved._algorithm.state_dict(), Path("model_1.pt"))
        return str(error.value)

    words = "has the part observation_preprocessor, which this run does not have"
    assert words in mjtrain.launch(move, launch=CPU)


def test_a_run_is_resumed_with_another_schedule_and_clip_of_gradients() -> None:
    """Optax's chains of both have the same moments in other places."""

    def resume(context: RankContext) -> list[tuple[float, set[float]]]:
        found = []
        content: dict[str, Any] = {}
        config = small_config()
        for schedule, clip in (("adaptive", 1.0), ("fixed", 1.0), ("adaptive", 0.0)):
            algorithm = PpoConfig(learning_rate=2e-3, schedule=cast("Any", schedule))
            own = replace(SKRL, settings={"grad_norm_clip": clip})
            learner: Any = make_learner(
                context, make_env(context, config), replace(config.agent, algorithm=algorithm), own
            )
            if content:
                learner._algorithm.load_state_dict({**content, "learning_rate": 1e-3}, Path("model_1.pt"))
            state = as_tensors(learner._algorithm.state_dict())
            moments = [value for name in ("policy_optimizer", "value_optimizer") for value in state[name].values()]
            found.append((learner._algorithm.learning_rate, {float(value.float().mean()) for value in moments}))
            content = state | {
                name: {key: torch.ones_like(value) for key, value in state[name].items()}
                for name in ("policy_optimizer", "value_optimizer")
            }
        return found

    seen = mjtrain.launch(resume, launch=CPU)
    assert seen == [(2e-3, {0.0}), (2e-3, {1.0}), (1e-3, {1.0})]


def test_what_follows_a_truncation_is_the_value_before_it() -> None:
    """And to skrl the episode is over, so that no return runs on into the next one."""
    config = small_config()

    def step(context: RankContext) -> dict[str, torch.Tensor]:
        from mjtrain_learners.skrl_on_jax.ppo import to_torch

        env = make_env(context, config)
        learner: Any = make_learner(context, env, config.agent, SKRL)
        algorithm = learner._algorithm
        with torch.inference_mode():
            algorithm.act(env.observe())
            masks = (torch.tensor(mask, dtype=torch.bool) for mask in ([0, 1, 0, 0] * 2, [0, 0, 1, 1] * 2))
            algorithm.process_env_step(env.observe(), torch.ones(8), *masks)
        stored = algorithm._ppo.memory.tensors
        return {name: to_torch(stored[name])[0, :, 0] for name in ("rewards", "values", "terminated")}

    stored = mjtrain.launch(step, launch=CPU)
    assert isinstance(config.agent.algorithm, PpoConfig)
    is_cut_off = torch.tensor([0, 0, 1, 1] * 2)
    torch.testing.assert_close(stored["rewards"], 1 + config.agent.algorithm.gamma * stored["values"] * is_cut_off)
    assert stored["terminated"].tolist() == [0, 1, 1, 1] * 2
    assert stored["values"].abs().min() > 0


def _look_at_two_ranks(context: RankContext) -> dict[str, Any]:
    config = small_config()
    own = replace(SKRL, settings={"kl_threshold": 1e-5})  # which ends the epochs early, on all ranks at once
    learner: Any = make_learner(context, make_env(context, config), config.agent, own)
    ppo = learner._algorithm._ppo
    divergences: list[float] = []
    for _ in learner.iterate(1):
        learner.check_drift()
    for _ in range(3):
        with torch.inference_mode():
            learner._collect()
        learner._algorithm.update()
        divergences += ppo.divergences
    learner.check_drift()

    import jax
    from skrl.resources.preprocessors.jax import RunningStandardScaler

    from mjtrain_learners.skrl_on_jax.ppo import JobScaler, to_jax, to_torch

    mine = torch.cat([to_torch(ppo.memory.tensors["advantages"]).flatten(), torch.tensor(divergences)])
    of_both = [torch.empty_like(mine) for _ in range(2)]
    torch.distributed.all_gather(of_both, mine)
    samples = 3.0 + 2.0 * torch.randn(4, 40, 2, generator=torch.Generator().manual_seed(1))
    whole: Any = RunningStandardScaler(2)
    shared: Any = JobScaler(2, collectives=learner._algorithm.collectives, summed_on="cpu")
    for batch in samples:
        whole(to_jax(batch), train=True)
        shared(to_jax(batch[context.rank :: 2]), train=True)
    scalers = [{name: to_torch(value) for name, value in each.state_dict.params.items()} for each in (whole, shared)]
    return {"of_both": of_both, "num": len(divergences), "scalers": scalers, "processes": jax.process_count()}


@pytest.mark.supports("training", learner="skrl_jax", start="several ranks on this host")
def test_two_ranks_learn_from_all_samples() -> None:
    """Parameters stay the same bit for bit, normalisers and advantages are those of one rank with all samples."""
    seen = mjtrain.launch(_look_at_two_ranks, launch=replace(CPU, num_workers=2, torchrunx_log_dir=""))
    whole, shared = seen["scalers"]
    for name, value in whole.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-5, atol=1e-5)
    ours, theirs = (values[: -seen["num"]] for values in seen["of_both"])
    both = torch.cat([ours, theirs])
    assert abs(both.mean().item()) < 1e-5
    assert abs(both.std(correction=0).item() - 1.0) < 1e-5  # as JAX has it
    assert abs(ours.mean().item()) > 1e-3
    assert torch.equal(*(values[-seen["num"] :] for values in seen["of_both"]))
    assert seen["num"] < 3 * 2 * 4
    assert seen["processes"] == 1


def test_advantages_are_normalised_as_skrl_does() -> None:
    config = small_config()

    def look(context: RankContext) -> list[torch.Tensor]:
        import jax
        from skrl.agents.jax.ppo import ppo

        from mjtrain_learners.skrl_on_jax.ppo import to_torch

        learner: Any = make_learner(context, make_env(context, config), config.agent, SKRL)
        rewards, values, last = (
            jax.random.normal(jax.random.key(seed), (steps, 2, 1)) for seed, steps in enumerate((4, 4, 1))
        )
        ends = jax.numpy.zeros((4, 2, 1), bool)
        given = {"rewards": rewards, "values": values, "last_values": last[0], "terminated": ends, "truncated": ends}
        given |= {"discount_factor": 0.99, "lambda_coefficient": 0.95}
        job = learner._algorithm._ppo._compute_gae(ppo._compute_gae, **given)
        return [to_torch(advantages) for _, advantages in (job, ppo._compute_gae(**given))]

    ours, skrls = mjtrain.launch(look, launch=CPU)
    torch.testing.assert_close(ours, skrls, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        ("--agent.actor.class-name CNNModel", "", "--agent.actor.class-name CNNModel: skrl has MLPModel here"),
        ("--agent.algorithm.use-mixed-precision", "", "--agent.algorithm.use-mixed-precision: skrl on JAX has single"),
        ("", "mixed_precision: true", "--learner-config mixed_precision: skrl on JAX takes learning_epochs, "),
        ("", "learning_epochs: 0", "--learner-config learning_epochs 0: must be at least 1"),
        ("", "mini_batches: 1000", "--learner-config mini_batches 1000: a rollout of 8 environments has 192 samples"),
        ("", "mini_batches: many", "--learner-config mini_batches many: give a whole number"),
        ("", "mini_batches: 100", "--learner-config mini_batches 100: some have one sample, "),
    ],
)
def test_what_has_no_counterpart_is_one_line(
    words: str, settings: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused("skrl_jax", words, settings, says, tmp_path, capsys)


@pytest.mark.skipif(has_cuda(), reason="JAX has its CUDA plugin here")
def test_a_gpu_that_jax_cannot_use_is_refused() -> None:
    with pytest.raises(RequestError, match=r'--learner skrl_jax: JAX has no CUDA here; pip install "jax\[cuda13\]"'):
        LIBRARY.check(small_config(), 1, "cuda:0")


def test_a_large_seed_makes_a_key_of_its_own() -> None:
    import skrl

    keys = []
    for seed in (2**32, 2**32 + 1, 0):
        start_skrl(RankContext(seed=seed))
        keys.append(skrl.config.jax.key.tolist())
    assert len({tuple(key) for key in keys}) == 3
    assert keys[-1] == [0, 0]

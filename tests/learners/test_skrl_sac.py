"""skrl's SAC under the training loop: ranks stay the same, it resumes with its memory, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import check_refused

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import AgentConfig, LaunchConfig, LearnerConfig, PpoConfig
from mjtrain.learning.library import make_learner
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.request import resolve_training
from mjtrain.training.train_rank import make_env
from mjtrain_learners.skrl_sac import translate
from support.resuming import assert_same_runs, read_rows

CPU = LaunchConfig(gpu_ids=None)
SETTINGS = {"gradient_steps": 4, "batch_size": 32, "memory_size": 40}
"""With a memory of 40 env steps, so that rollouts of 24 begin to replace the oldest transitions."""

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def settings(tmp_path: Path) -> str:
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(SETTINGS))
    return str(file)


@pytest.mark.supports("training", task="Cartpole-Balance", learner="skrl_sac")
@pytest.mark.supports("training", learner="skrl_sac", start="several ranks on this host")
@pytest.mark.supports("resume", task="Cartpole-Balance", learner="skrl_sac")
@pytest.mark.supports("export", learner="skrl_sac")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, settings: str, num_workers: int) -> None:
    """Bit for bit, with what it remembers of earlier rollouts; the ranks are compared after each iteration."""
    launch = LaunchConfig(gpu_ids=None, num_workers=num_workers, torchrunx_log_dir="")

    def go(name: str, iterations: int, **more: Any) -> Path:
        return mjtrain.train(
            "Cartpole-Balance", num_envs=8, logger="none", learner="skrl_sac", learner_config=settings,
            drift_check_interval=1, log_root=str(tmp_path / name), max_iterations=iterations, launch=launch, **more,
        ).run_dir  # fmt: skip

    straight, stopped = go("straight", 4), go("stopped", 2)
    go("stopped", 4, resume=str(stopped))
    end = assert_same_runs(straight, stopped, 4)
    memory = end["ranks"][-1]["memory"]
    assert (memory["index"], memory["is_filled"]) == (4 * 24 % 40, True)
    assert {"action_std", "loss/policy", "loss/critic", "loss/entropy"} <= set(read_rows(straight)[-1])
    played = mjtrain.play(straight, episodes=2, gpu_ids=None)
    assert played["iteration"] == 4
    assert max(mjtrain.export(straight, observations=20).differences.values()) < 1e-5
    config = make_train_config(
        "Cartpole-Balance", load=str(straight), learner="skrl_sac", learner_config=settings, max_iterations=1
    )
    smaller = replace(config.agent, actor=replace(config.agent.actor, hidden_dims=(8,)))
    assert resolve_training(config, launch).config.run.load == str(straight / "model_4.pt")
    with pytest.raises(RequestError, match=r"^--load: .*\(64, 4\) in the checkpoint and \(8, 4\) here; give --agent\."):
        resolve_training(replace(config, agent=smaller), launch)


def make(
    context: RankContext, settings: dict[str, Any] = SETTINGS, rate: float | None = None, num_envs: int = 4
) -> tuple[Any, Any]:
    config = make_train_config("Cartpole-Balance", num_envs=num_envs)
    env = make_env(context, config)
    agent = config.agent
    if rate is not None:
        agent = replace(agent, algorithm=replace(agent.algorithm, learning_rate=rate))
    learner: Any = make_learner(context, env, agent, LearnerConfig(name="skrl_sac", settings=settings))
    return env, learner


def test_a_memory_of_another_size_begins_empty() -> None:
    """Whether it is larger or smaller: its transitions are not where they would be replaced in order."""

    def move(context: RankContext) -> list[int]:
        _, learner = make(context)
        list(learner.iterate(2))
        state = learner._algorithm.rank_state()
        sizes = []
        for memory_size in (30, 40, 50):
            _, other = make(context, {**SETTINGS, "memory_size": memory_size})
            other._algorithm.load_rank_state(state)
            sizes.append(len(other._algorithm._sac.memory))
        return sizes

    assert mjtrain.launch(move, launch=CPU) == [0, 4 * 40, 0]


def test_a_checkpoint_has_only_the_filled_part_of_the_memory(tmp_path: Path) -> None:
    def save(context: RankContext) -> list[int]:
        sizes = []
        for memory_size in (100, 20_000):
            _, learner = make(context, {**SETTINGS, "memory_size": memory_size})
            list(learner.iterate(1))
            learner.save(tmp_path / "model_1.pt", {"task": "Cartpole-Balance"})
            sizes.append((tmp_path / "model_1.pt").stat().st_size)
        return sizes

    small, large = mjtrain.launch(save, launch=CPU)
    assert large < small + 1000


def test_a_memory_that_is_lost_with_its_environments_is_said(tmp_path: Path) -> None:
    def move(context: RankContext) -> str | None:
        (_, learner), (_, other) = (make(context, num_envs=num_envs) for num_envs in (4, 2))
        learner.save(tmp_path / "model_0.pt", {"task": "Cartpole-Balance"})
        return other.resume(tmp_path / "model_0.pt", "Cartpole-Balance")

    assert mjtrain.launch(move, launch=CPU) == (
        "environments, random numbers and the learner's memory start again: the checkpoint has 4 environments per "
        "rank, and this run has 2"
    )


def test_the_step_size_is_that_of_the_command_that_resumes() -> None:
    def move(context: RankContext) -> set[float]:
        (_, learner), (_, other) = (make(context, rate=rate) for rate in (1e-3, 3e-3))
        other._algorithm.load_state_dict(learner._algorithm.state_dict(), Path("model_1.pt"))
        state = other._algorithm.state_dict()
        return {state[f"{name}_optimizer"]["param_groups"][0]["lr"] for name in ("policy", "critic", "entropy")}

    assert mjtrain.launch(move, launch=CPU) == {3e-3}


@pytest.mark.parametrize("learned", [True, False])
def test_the_entropy_of_a_checkpoint_must_be_learned_as_before(*, learned: bool) -> None:
    def move(context: RankContext) -> str:
        (_, learner), (_, other) = (
            make(context, {**SETTINGS, "learn_entropy": is_so}) for is_so in (learned, not learned)
        )
        with pytest.raises(RequestError) as error:
            other._algorithm.load_state_dict(learner._algorithm.state_dict(), Path("model_1.pt"))
        return str(error.value)

    words = f"was trained with learn_entropy {str(learned).lower()}, and this run has {str(not learned).lower()}"
    assert words in mjtrain.launch(move, launch=CPU)


def test_the_deviation_of_actions_is_the_one_that_is_used() -> None:
    def report(context: RankContext) -> float:
        _, learner = make(context, {**SETTINGS, "policy": {"max_log_std": -1.0}})
        (result,) = learner.iterate(1)
        return float(result.metrics["action_std"])

    assert mjtrain.launch(report, launch=CPU) <= math.exp(-1.0) + 1e-6


def test_what_follows_a_truncation_is_valued_before_it() -> None:
    """A terminated episode is not, and one that continues is valued by what it comes to."""

    def step(context: RankContext) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        env, learner = make(context)
        before, algorithm = env.observe()["actor"].clone(), learner._algorithm
        with torch.inference_mode():
            after, *_ = env.step(algorithm.act(env.observe()))
            masks = (torch.tensor(mask, dtype=torch.bool) for mask in ([0, 1, 0, 0], [0, 0, 1, 1]))
            algorithm.process_env_step(after, torch.ones(4), *masks)
        stored = algorithm._sac.memory.tensors
        return before, after["actor"].clone(), {name: value[0].clone() for name, value in stored.items()}

    before, after, stored = mjtrain.launch(step, launch=CPU)
    assert not torch.equal(before, after)
    assert torch.equal(stored["next_observations"], torch.cat([after[:2], before[2:]]))
    assert stored["terminated"].flatten().tolist() == [False, True, False, False]
    assert stored["rewards"].flatten().tolist() == [1.0] * 4


def test_the_policy_that_is_played_is_the_one_that_was_trained(tmp_path: Path, settings: str) -> None:
    """The mean action of skrl's own agent, between -1 and 1, with its normaliser."""
    done = mjtrain.train(
        "Cartpole-Balance", num_envs=8, learner="skrl_sac", learner_config=settings, log_root=str(tmp_path),
        max_iterations=2, launch=CPU, logger="none",
    )  # fmt: skip

    def mean_actions(context: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
        env, learner = make(context)
        learner.load_weights(done.checkpoint)
        sac, observations = learner._algorithm._sac, 30 * env.observe()["actor"]
        _, outputs = sac.policy.act({"observations": sac._observation_preprocessor(observations)}, role="policy")
        return observations, outputs["mean_actions"].detach()

    observations, expected = mjtrain.launch(mean_actions, launch=CPU)
    assert torch.equal(mjtrain.load_policy(done)({"actor": observations}), expected)
    assert 0.0 < expected.abs().max() <= 1.0


def _learn_apart(context: RankContext) -> tuple[float, float, int]:
    _, learner = make(context)
    sac = learner._algorithm._sac
    mine = torch.tensor([float(context.rank)])
    (sac.log_entropy_coefficient * mine).sum().backward()
    gradient = sac.log_entropy_coefficient.grad.item()
    list(learner.iterate(2))
    rewards = sac.memory.tensors["rewards"].sum().item()
    return gradient, rewards, len(sac.memory)


def test_each_rank_remembers_its_own_and_all_learn_the_same() -> None:
    """The gradient of the entropy's coefficient is averaged as well, which skrl leaves to each rank."""
    gradient, _, remembered = mjtrain.launch(_learn_apart, launch=replace(CPU, num_workers=2, torchrunx_log_dir=""))
    assert gradient == 0.5
    assert remembered == 4 * 40


def test_what_follows_from_the_agents_config() -> None:
    agent = AgentConfig(
        num_steps_per_env=10,
        algorithm=PpoConfig(num_learning_epochs=3, learning_rate=0.1, gamma=0.4, max_grad_norm=0.9),
    )
    translated = translate(agent, {"polyak": 0.1, "policy": {"max_log_std": 1.0}}, 512)
    expected = {
        "batch_size": 512, "gradient_steps": 30, "memory_size": 256, "discount_factor": 0.4, "polyak": 0.1,
        "learning_rate": 0.1, "grad_norm_clip": 0.9, "policy": {"max_log_std": 1.0},
    }  # fmt: skip
    assert {name: translated[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "given", "says"),
    [
        ("--agent.actor.class-name RNNModel", "", "--agent.actor.class-name RNNModel: skrl's SAC has MLPModel here"),
        ("", "mini_batches: 4", "--learner-config mini_batches: skrl's SAC takes gradient_steps, batch_size, "),
        ("", "batch_size: 0", "--learner-config batch_size 0: must be at least 1"),
        ("", "initial_entropy_value: 0.0", "--learner-config initial_entropy_value 0.0: has no logarithm to learn"),
        ("", "batch_size: 1", "--learner-config batch_size 1: one sample has no variance"),
        ("", "batch_size: 100000000", "--learner-config batch_size 100000000: must be at most the "),
        ("", "memory_size: 23", "--learner-config memory_size 23: must be at least the env steps of a rollout, 24"),
        (
            "--agent.actor.no-obs-normalization",
            "observation_preprocessor_kwargs: {epsilon: 0.1}",
            "--learner-config observation_preprocessor_kwargs: has no effect",
        ),
    ],
)
def test_what_has_no_counterpart_is_one_line(
    words: str, given: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused("skrl_sac", words, given, says, tmp_path, capsys)

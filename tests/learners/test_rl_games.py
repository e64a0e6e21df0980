"""rl_games under the training loop: what it trains, that ranks learn as one, that it resumes, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import check_refused

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.train import main as train
from mjtrain.config import AgentConfig, DistributionConfig, LaunchConfig, LearnerConfig, ModelConfig, PpoConfig
from mjtrain.evaluation.evaluator import SEED as EVALUATION_SEED
from mjtrain.learning.library import make_learner
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env
from mjtrain_learners.rl_games_agent.translation import has_central_value, translate
from support.resuming import assert_same_runs, read_rows

CPU = LaunchConfig(gpu_ids=None)
SMALL = ("Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8", "--logger", "none")
RL_GAMES = LearnerConfig(name="rl_games")
CENTRAL = {"config": {"normalize_value": True, "bounds_loss_coef": 0.1, "central_value_config": {"mini_epochs": 2}}}

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.mark.supports("resume", task="Cartpole-Balance", learner="rl_games")
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Bit for bit; with two ranks and a central value that is tested in test_learner_faults.py."""

    def go(name: str, iterations: int, **more: Any) -> Path:
        return mjtrain.train(
            "Cartpole-Balance", num_envs=8, logger="none", learner="rl_games", log_root=str(tmp_path / name),
            max_iterations=iterations, launch=CPU, **more,
        ).run_dir  # fmt: skip

    straight, stopped = go("straight", 4), go("stopped", 2)
    go("stopped", 4, resume=str(stopped))
    end = assert_same_runs(straight, stopped, 4)
    assert {"kl", "action_std", "loss/value", "loss/surrogate", "loss/entropy"} <= set(read_rows(straight)[-1])
    assert read_rows(straight)[-1]["kl"] > 0
    assert "central_value" not in end


@pytest.mark.supports("training", task="Cartpole-Balance", learner="rl_games")
@pytest.mark.supports("export", learner="rl_games")
def test_what_was_trained_is_played_exported_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the policy is the agent's own mean action, with its normaliser. What rl_games prints is not shown."""
    done = mjtrain.train(
        "Cartpole-Balance", num_envs=8, learner="rl_games", logger="none", log_root=str(tmp_path), max_iterations=2,
        eval_interval=2, eval_episodes=2, launch=CPU,
    )  # fmt: skip
    printed = "".join(capsys.readouterr())
    assert "std-type scalar does not count" in printed
    assert not [word for word in ("seq_length", "RunningMeanStd", "build mlp", "Warning") if word in printed]
    assert not Path("runs").exists()
    played = mjtrain.play(done, episodes=2, gpu_ids=None, seed=EVALUATION_SEED)
    assert (played["iteration"], played["length"]["mean"]) == (2, done.metrics["eval/length"])
    assert max(mjtrain.export(done, observations=20).differences.values()) < 1e-5
    train([*SMALL, "--learner", "rl_games", "--max-iterations", "1", "--load", str(done.checkpoint), "--log-root",
           str(tmp_path / "loaded")])  # fmt: skip
    (loaded,) = tmp_path.glob("loaded/*/*")
    before, after = (load_checkpoint(path, "cpu")["model"] for path in (done.checkpoint, loaded / "model_1.pt"))
    name, samples = "running_mean_std.count", 5 * 8 * 24  # rl_games counts them in every epoch
    assert after[name] == before[name] + samples == 1 + 3 * samples

    def mean_actions(context: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
        config = make_train_config("Cartpole-Balance", num_envs=8)
        env = make_env(context, config)
        learner: Any = make_learner(context, env, config.agent, RL_GAMES)
        learner.load_weights(done.checkpoint)
        observations = env.observe()["actor"]
        return observations, learner._algorithm._agent.get_action_values({"obs": observations})["mus"]

    observations, expected = mjtrain.launch(mean_actions, launch=CPU)
    assert torch.equal(mjtrain.load_policy(done)({"actor": observations}), expected)


def test_what_follows_a_truncation_is_the_value_before_it() -> None:
    """And no return runs on into the next episode."""
    config = make_train_config("Cartpole-Balance", num_envs=4)
    config = replace(config, agent=replace(config.agent, num_steps_per_env=2))

    def step(context: RankContext) -> dict[str, torch.Tensor]:
        env = make_env(context, config)
        learner: Any = make_learner(context, env, config.agent, RL_GAMES)
        algorithm = learner._algorithm
        none = torch.zeros(4, dtype=torch.bool)
        terminated, truncated = (torch.tensor(mask, dtype=torch.bool) for mask in ([0, 1, 0, 0], [0, 0, 1, 1]))
        with torch.inference_mode():
            for masks in ((terminated, truncated), (none, none)):
                algorithm.act(env.observe())
                algorithm.process_env_step(env.observe(), torch.ones(4), *masks)
            algorithm.finish_rollout(env.observe())
        agent = algorithm._agent
        return {"returns": agent._returns[0, :, 0].clone(), "values": agent.get_values({"obs": env.observe()["actor"]})}

    seen = mjtrain.launch(step, launch=CPU)
    assert isinstance(config.agent.algorithm, PpoConfig)
    expected = torch.ones(4)
    expected[2:] += config.agent.algorithm.gamma * seen["values"][2:, 0]
    torch.testing.assert_close(seen["returns"][1:], expected[1:])
    assert seen["values"].abs().min() > 0
    assert seen["returns"][0] > 1.5  # this episode continues


def test_two_ranks_learn_what_one_learns_from_all_samples() -> None:
    """Normalisers, advantages, gradients, divergence and learning rate, with a central value beside."""

    def learn(context: RankContext) -> list[dict[str, Any]]:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        algorithm = PpoConfig(num_mini_batches=1, num_learning_epochs=3, desired_kl=1e-4)
        agent = replace(config.agent, num_steps_per_env=8, algorithm=algorithm)
        half: Any = make_learner(context, make_env(context, config), agent, replace(RL_GAMES, settings=CENTRAL))
        alone, config = replace(context, rank=0, world_size=1), make_train_config("Cartpole-Balance", num_envs=8)
        whole: Any = make_learner(alone, make_env(alone, config), agent, replace(RL_GAMES, settings=CENTRAL))
        begin = {**half._algorithm.state_dict(), "learning_rate": 1e-3, "iter": 0}
        whole._algorithm.load_state_dict(begin, Path())
        random = torch.Generator().manual_seed(1)
        kept = {name: torch.randn(8, 8, 4, generator=random) for name in ("obses", "states")}
        kept |= {name: torch.randn(8, 8, 1, generator=random) for name in ("values", "returns", "actions")}
        kept |= {"mus": torch.zeros(8, 8, 1), "sigmas": torch.ones(8, 8, 1)}
        kept["neglogpacs"] = -torch.distributions.Normal(0.0, 1.0).log_prob(kept["actions"])[..., 0]
        found = []
        for learner, worlds in ((half, slice(context.rank, None, 2)), (whole, slice(None))):
            theirs = learner._algorithm._agent
            for name, value in kept.items():
                (theirs._returns if name == "returns" else learner._algorithm._kept[name]).copy_(value[:, worlds])
            learner._algorithm.update()
            found.append({**learner._algorithm.state_dict(), "kl": learner._algorithm.pop_means()["kl"]})
            found[-1]["learning_rate"] = learner._algorithm.learning_rate
        return found

    half, whole = mjtrain.launch(learn, launch=replace(CPU, num_workers=2, torchrunx_log_dir=""))
    for part in ("model", "central_value"):
        for name, value in whole[part].items():
            torch.testing.assert_close(half[part][name], value, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: n + text)
    assert half["learning_rate"] == whole["learning_rate"] != 1e-3
    torch.testing.assert_close(half["kl"], whole["kl"], rtol=1e-4, atol=1e-6)


def test_a_resumed_run_has_the_weight_decay_that_is_asked_for() -> None:
    def resume(context: RankContext) -> list[float]:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        agent = replace(config.agent, num_steps_per_env=8)
        made: list[Any] = []
        for decay in (0.0, 0.1):
            central = {**CENTRAL["config"]["central_value_config"], "weight_decay": decay}
            own = {"config": {"weight_decay": decay, "central_value_config": central}}
            made.append(make_learner(context, make_env(context, config), agent, replace(RL_GAMES, settings=own)))
        before, after = (learner._algorithm for learner in made)
        after.load_state_dict({**before.state_dict(), "learning_rate": 1e-3, "iter": 0}, Path())
        names = ("optimizer", "central_value_optimizer")
        return [after.state_dict()[name]["param_groups"][0]["weight_decay"] for name in names]

    assert mjtrain.launch(resume, launch=CPU) == [0.1, 0.1]


def test_a_run_without_mixed_precision_is_resumed_with_it() -> None:
    def resume(context: RankContext) -> float:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        learners: list[Any] = [
            make_learner(context, make_env(context, config), config.agent, RL_GAMES) for _ in range(2)
        ]
        before, after = (learner._algorithm for learner in learners)
        after._agent.scaler = torch.amp.GradScaler("cpu")  # that of rl_games is for GPUs, and does nothing without one
        after.load_state_dict({**before.state_dict(), "learning_rate": 1e-3, "iter": 0}, Path("model_1.pt"))
        return after.state_dict()["scaler"]["scale"]

    assert mjtrain.launch(resume, launch=CPU) == 65536.0


def test_what_follows_from_the_agents_config() -> None:
    agent = AgentConfig(
        num_steps_per_env=6,
        actor=ModelConfig(
            hidden_dims=(7, 8), activation="swish", distribution_cfg=DistributionConfig(), obs_normalization=False
        ),
        critic=ModelConfig(hidden_dims=(9,), activation="identity"),
        algorithm=PpoConfig(
            num_learning_epochs=2, num_mini_batches=3, learning_rate=0.1, schedule="fixed", gamma=0.4, lam=0.5,
            clip_param=0.6, use_clipped_value_loss=False, value_loss_coef=0.7, entropy_coef=0.8, max_grad_norm=0.9,
        ),
    )  # fmt: skip
    params = translate(agent, {"config": {"tau": 0.55, "central_value_config": {"mini_epochs": 4}}}, 10)
    config, central = params["config"], params["config"]["central_value_config"]
    shared = {
        "mini_epochs": 2, "minibatch_size": 20, "learning_rate": 0.1, "e_clip": 0.6, "clip_value": False,
        "grad_norm": 0.9, "truncate_grads": True, "lr_schedule": "constant",
    }  # fmt: skip
    expected = {**shared, "gamma": 0.4, "tau": 0.55, "critic_coef": 1.4, "entropy_coef": 0.8, "horizon_length": 6}
    assert {name: config[name] for name in expected} == expected
    assert {name: central[name] for name in shared} == {**shared, "mini_epochs": 4}
    assert (config["normalize_input"], central["normalize_input"]) == (False, True)
    layers = [network["mlp"] for network in (params["network"], central["network"])]
    assert [(mlp["units"], mlp["activation"]) for mlp in layers] == [([7, 8], "swish"), ([9], "None")]
    alike = AgentConfig(algorithm=PpoConfig(desired_kl=0.03), obs_groups={"actor": ("a",), "critic": ("a",)})
    adaptive = translate(alike, {}, 10)
    assert (adaptive["config"]["lr_schedule"], adaptive["config"]["kl_threshold"]) == ("adaptive", 0.03)
    assert adaptive["network"]["separate"]
    assert not has_central_value(alike, {})
    assert has_central_value(replace(alike, obs_groups={"actor": ("a",), "critic": ("a", "b")}), {})


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        ("--agent.actor.class-name RNNModel", "", "--agent.actor.class-name RNNModel: rl_games has MLPModel here"),
        ("--agent.critic.activation mish", "", "--agent.critic.activation mish: rl_games has elu, "),
        ("--agent.algorithm.num-mini-batches 5", "", "mini-batches of one size, and a rollout has 192 samples (8 env"),
        (
            "--num-envs 1 --agent.num-steps-per-env 1 --agent.algorithm.num-mini-batches 1",
            "",
            "--agent.num-steps-per-env 1: a rollout of 1 env has one sample, ",
        ),
        ("--agent.algorithm.use-mixed-precision", "", "--agent.algorithm.use-mixed-precision: rl_games has it on GPUs"),
        ("", "gamma: 0.9", "--learner-config gamma: rl_games takes network, config; the rest"),
        ("", "config: {multi_gpu: true}", "--learner-config config.multi_gpu: rl_games takes learning_rate, "),
        ("", "config: {minibatch_size: 7}", "--learner-config config.minibatch_size 7: must divide the 192 samples"),
        ("", "config: {mini_epochs: 0}", "--learner-config config.mini_epochs 0: must be at least 1"),
        (
            "",
            "config: {central_value_config: {mini_epochs: 0}}",
            "--learner-config config.central_value_config.mini_epochs 0: must be at least 1",
        ),
        ("", "config: {schedule_type: new}", "config.schedule_type new: choose from legacy, standard"),
        (
            "",
            "config: {max_epochs: 9}",
            "--learner-config config.max_epochs: has no effect, as no lr_schedule is linear",
        ),
        (
            "--agent.critic.hidden-dims 9",
            "network: {separate: true}",
            "network.separate: has no effect, as the critic is",
        ),
        ("", "config: {lr_schedule: linear}", "config.lr_schedule linear: needs config.max_epochs"),
    ],
)
def test_what_has_no_counterpart_is_one_line(
    words: str, settings: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused("rl_games", words, settings, says, tmp_path, capsys)

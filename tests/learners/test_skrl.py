"""skrl under the training loop: what it trains, that ranks learn as one, that it resumes, and what is refused."""

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import check_refused

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.plot import main as plot
from mjtrain.cli.train import main as train
from mjtrain.config import AgentConfig, DistributionConfig, LaunchConfig, LearnerConfig, ModelConfig, PpoConfig
from mjtrain.evaluation.evaluator import SEED as EVALUATION_SEED
from mjtrain.learning.library import make_learner, make_policy
from mjtrain.runs.checkpoint import load_checkpoint, save_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env
from mjtrain_learners.mlp_library import check_agent
from mjtrain_learners.skrl_settings import translate
from support.resuming import assert_same_runs, read_rows

CPU = LaunchConfig(gpu_ids=None)
SMALL = ("Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8", "--logger", "none")
SKRL = LearnerConfig(name="skrl")

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.mark.supports("resume", task="Cartpole-Balance", learner="skrl")
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Bit for bit; with two ranks that is tested in test_learner_faults.py."""

    def go(name: str, iterations: int, **more: Any) -> Path:
        return mjtrain.train(
            "Cartpole-Balance", num_envs=8, logger="none", learner="skrl", log_root=str(tmp_path / name),
            max_iterations=iterations, launch=CPU, **more,
        ).run_dir  # fmt: skip

    straight, stopped = go("straight", 4), go("stopped", 2)
    go("stopped", 4, resume=str(stopped))
    assert_same_runs(straight, stopped, 4)
    assert {"kl", "action_std", "loss/value", "loss/surrogate", "loss/entropy"} <= set(read_rows(straight)[-1])
    assert read_rows(straight)[-1]["kl"] > 0


@pytest.mark.supports("training", task="Cartpole-Balance", learner="skrl")
@pytest.mark.supports("export", learner="skrl")
def test_what_was_trained_is_played_exported_loaded_recorded_and_plotted(tmp_path: Path) -> None:
    task = mjtrain.train(
        "Cartpole-Balance", num_envs=8, learner="skrl", log_root=str(tmp_path), max_iterations=2, launch=CPU,
        video=True, video_interval=1, video_length_s=0.2, eval_interval=2, eval_episodes=2,
    )  # fmt: skip
    played = mjtrain.play(task, episodes=2, gpu_ids=None, seed=EVALUATION_SEED)
    assert (played["iteration"], played["length"]["mean"]) == (2, task.metrics["eval/length"])
    assert max(mjtrain.export(task, observations=20).differences.values()) < 1e-5
    assert list((task.run_dir / "videos").glob("*.mp4"))
    plot([str(tmp_path), "--out", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").stat().st_size > 0
    train([*SMALL, "--learner", "skrl", "--max-iterations", "1", "--load", str(task.checkpoint), "--log-root",
           str(tmp_path / "loaded")])  # fmt: skip
    (loaded,) = tmp_path.glob("loaded/*/*")
    before, after = (load_checkpoint(path, "cpu") for path in (task.checkpoint, loaded / "model_1.pt"))
    count = "current_count"
    assert after["observation_preprocessor"][count] == before["observation_preprocessor"][count] + 8 * 24
    with pytest.raises(SystemExit):
        train([*SMALL, "--load", str(task.checkpoint), "--log-root", str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()


def test_the_policy_that_is_played_is_the_one_that_was_trained(tmp_path: Path) -> None:
    """The mean action of skrl's own agent, with its normaliser."""
    done = mjtrain.train(
        "Cartpole-Balance", num_envs=8, learner="skrl", log_root=str(tmp_path), max_iterations=2, launch=CPU
    )
    config = make_train_config("Cartpole-Balance", num_envs=8)

    def mean_actions(context: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
        env = make_env(context, config)
        learner: Any = make_learner(context, env, config.agent, SKRL)
        learner.load_weights(done.checkpoint)
        ppo = learner._algorithm._ppo
        observations = env.observe()["actor"]
        _, outputs = ppo.policy.act({"observations": ppo._observation_preprocessor(observations)}, role="policy")
        return observations, outputs["mean_actions"].detach()

    observations, expected = mjtrain.launch(mean_actions, launch=CPU)
    policy = mjtrain.load_policy(done)
    assert torch.equal(policy({"actor": observations}), expected)


def test_parts_of_another_type_are_named(tmp_path: Path) -> None:
    run_dir = mjtrain.train(
        "Cartpole-Balance", num_envs=8, logger="none", learner="skrl", log_root=str(tmp_path), max_iterations=1,
        launch=CPU,
    ).run_dir  # fmt: skip
    path = run_dir / "model_1.pt"
    content = load_checkpoint(path, "cpu")
    again: dict[str, Any] = {"num_envs": 8, "learner": "skrl", "log_root": str(tmp_path), "launch": CPU}

    def junk(name: str, value: Any) -> dict[str, Any]:
        changed = copy.deepcopy(content["optimizer"])
        changed["state"][1][name] = value
        return {"optimizer": changed}

    for change, at_play, at_resume in (
        ({"policy": []}, r"policy is not as a training saves it \(Attr", "policy is of type list, not arrays by name"),
        (
            {"policy": content["policy"] | {"layers.0.weight": "x"}},
            "actor 0.weight is of type str, not an array",
            "policy layers.0.weight is of type str, not an array",
        ),
        ({"optimizer": 3}, "", r"optimizer is not as a training saves it \("),
        (
            junk("exp_avg", torch.zeros(3)),
            "",
            r"optimizer .* exp_avg of parameter 1 has shape \(3,\) in the",
        ),
        (junk("exp_avg_sq", "x"), "", r"optimizer .* exp_avg_sq of parameter 1 is the string 'x', not a tensor"),
    ):
        save_checkpoint(path, content | change)
        if at_play:
            with pytest.raises(RequestError, match=f"checkpoint {path}: is damaged: {at_play}"):
                mjtrain.train("Cartpole-Balance", load=str(path), **again)
        with pytest.raises(RequestError, match=f"checkpoint {path}: is damaged: {at_resume}"):
            mjtrain.train("Cartpole-Balance", resume=str(run_dir), max_iterations=2, **again)


@pytest.mark.parametrize("learner", ["skrl", "skrl_sac"])
def test_a_run_without_mixed_precision_is_resumed_with_it(learner: str) -> None:
    def resume(context: RankContext) -> float:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        made: list[Any] = []
        for is_mixed in (False, True):
            own = LearnerConfig(name=learner, settings={"mixed_precision": is_mixed})
            made.append(make_learner(context, make_env(context, config), config.agent, own))
        before, after = (each._algorithm for each in made)
        after.load_state_dict({**before.state_dict(), "learning_rate": 1e-3, "iter": 0}, Path("model_1.pt"))
        return after.state_dict()["scaler"]["scale"]

    assert mjtrain.launch(resume, launch=CPU) == 65536.0


def test_groups_that_are_missing_are_named() -> None:
    agent = AgentConfig(obs_groups={"critic": ("actor",)})
    with pytest.raises(RequestError, match=r"^--agent\.obs-groups\.actor: is missing; name the groups"):
        check_agent(agent, "skrl")
    with pytest.raises(RequestError, match=r"^--agent\.obs-groups\.actor: is missing; name the groups"):
        make_policy(agent, SKRL, {"actor": torch.zeros(2, 4)}, 1)


def test_a_checkpoint_of_another_actor_is_refused() -> None:
    def move(context: RankContext) -> list[str]:
        config = make_train_config("Cartpole-Balance", num_envs=4)
        actor, env = config.agent.actor, make_env(context, config)
        saved: Any = make_learner(context, env, config.agent, LearnerConfig(name="skrl"))
        refused = []
        for change in ({"obs_normalization": False}, {"distribution_cfg": DistributionConfig(std_type="log")}):
            agent = replace(config.agent, actor=replace(actor, **change))
            other: Any = make_learner(context, env, agent, LearnerConfig(name="skrl"))
            with pytest.raises(RequestError) as error:
                other._algorithm.load_weights(saved._algorithm.state_dict(), Path("model_1.pt"))
            refused.append(str(error.value))
        return refused

    with_normaliser, with_deviation = mjtrain.launch(move, launch=CPU)
    assert "has the part observation_preprocessor, which this run does not have" in with_normaliser
    assert with_deviation == (
        "--agent.actor.distribution-cfg.std-type log: checkpoint model_1.pt was trained with scalar; give the same"
    )


def test_what_follows_a_truncation_is_the_value_before_it(tmp_path: Path) -> None:
    """And to skrl the episode is over, so that no return runs on into the next one."""
    config = make_train_config("Cartpole-Balance", num_envs=4)

    def step(context: RankContext) -> dict[str, torch.Tensor]:
        env = make_env(context, config)
        learner: Any = make_learner(context, env, config.agent, SKRL)
        algorithm = learner._algorithm
        with torch.inference_mode():
            algorithm.act(env.observe())
            masks = (torch.tensor(mask, dtype=torch.bool) for mask in ([0, 1, 0, 0], [0, 0, 1, 1]))
            algorithm.process_env_step(env.observe(), torch.ones(4), *masks)
        stored = algorithm._ppo.memory.tensors
        return {name: stored[name][0, :, 0].clone() for name in ("rewards", "values", "terminated")}

    stored = mjtrain.launch(step, launch=CPU)
    expected = torch.ones(4)
    assert isinstance(config.agent.algorithm, PpoConfig)
    expected[2:] += config.agent.algorithm.gamma * stored["values"][2:]
    assert torch.equal(stored["rewards"], expected)
    assert stored["terminated"].tolist() == [False, True, True, True]
    assert stored["values"].abs().min() > 0


def _look_at_two_ranks(context: RankContext) -> dict[str, Any]:
    config = make_train_config("Cartpole-Balance", num_envs=8)
    learner: Any = make_learner(context, make_env(context, config), config.agent, SKRL)
    list(learner.iterate(1))
    advantages = learner._algorithm._ppo.memory.tensors["advantages"].flatten().clone()
    of_both = [torch.empty_like(advantages) for _ in range(2)]
    torch.distributed.all_gather(of_both, advantages)

    import skrl
    from skrl.resources.preprocessors.torch import RunningStandardScaler

    from mjtrain_learners.skrl_on_torch.base import JobScaler

    samples = 3.0 + 2.0 * torch.randn(4, 40, 2, generator=torch.Generator().manual_seed(1))
    whole = RunningStandardScaler(2, device="cpu")
    shared = JobScaler(2, collectives=learner._algorithm.collectives, device="cpu")
    for batch in (*samples, samples[0][:2]):  # the last has one sample for each rank
        whole(batch, train=True)
        shared(batch[context.rank :: 2], train=True)
    return {
        "whole": whole.state_dict(),
        "shared": shared.state_dict(),
        "advantages": of_both,
        "backend": torch.distributed.get_backend(),
        "size": (skrl.config.torch.world_size, skrl.config.torch.is_distributed),
        "environment": os.environ["WORLD_SIZE"],
    }


def test_normalisers_and_advantages_are_those_of_all_samples() -> None:
    """Two ranks with half of the samples each find what one finds with all; skrl hears of the ranks from mjtrain."""
    seen = mjtrain.launch(_look_at_two_ranks, launch=replace(CPU, num_workers=2, torchrunx_log_dir=""))
    for name, value in seen["whole"].items():  # skrl takes the means of a batch in single precision
        torch.testing.assert_close(seen["shared"][name], value, rtol=1e-6, atol=1e-6)
    advantages = torch.cat(seen["advantages"])
    assert abs(advantages.mean().item()) < 1e-5
    assert abs(advantages.std().item() - 1.0) < 1e-5
    assert abs(seen["advantages"][0].mean().item()) > 1e-3
    assert (seen["backend"], seen["size"], seen["environment"]) == ("gloo", (2, True), "2")


def test_what_follows_from_the_agents_config() -> None:
    agent = AgentConfig(
        num_steps_per_env=7,
        actor=ModelConfig(obs_normalization=False, distribution_cfg=DistributionConfig()),
        algorithm=PpoConfig(
            num_learning_epochs=2, num_mini_batches=3, learning_rate=0.1, schedule="fixed", gamma=0.4, lam=0.5,
            clip_param=0.6, use_clipped_value_loss=False, value_loss_coef=0.7, entropy_coef=0.8, max_grad_norm=0.9,
        ),
    )  # fmt: skip
    translated = translate(agent, {"gae_lambda": 0.55, "policy": {"max_log_std": 1.0}})
    expected = {
        "rollouts": 7, "learning_epochs": 2, "mini_batches": 3, "learning_rate": 0.1, "learning_rate_scheduler": None,
        "discount_factor": 0.4, "gae_lambda": 0.55, "ratio_clip": 0.6, "value_clip": 0.0, "value_loss_scale": 0.7,
        "entropy_loss_scale": 0.8, "grad_norm_clip": 0.9, "observation_preprocessor": None,
        "state_preprocessor": "RunningStandardScaler", "policy": {"max_log_std": 1.0},
    }  # fmt: skip
    assert {name: translated[name] for name in expected} == expected
    adaptive = translate(AgentConfig(algorithm=PpoConfig(desired_kl=0.03)), {})
    assert adaptive["learning_rate_scheduler"] == "KLAdaptiveLR"
    assert adaptive["learning_rate_scheduler_kwargs"]["kl_threshold"] == 0.03


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        ("--agent.actor.class-name RNNModel", "", "--agent.actor.class-name RNNModel: skrl has MLPModel here"),
        ("--agent.algorithm.optimizer sgd", "", "--agent.algorithm.optimizer sgd: skrl has adam"),
        ("--agent.critic.activation step", "", "--agent.critic.activation step: choose from elu, "),
        ("--agent.torch-compile-mode default", "", "--agent.torch-compile-mode default: is not used with skrl"),
        ("", "gamma: 0.9", "--learner-config gamma: skrl takes learning_epochs, "),
        ("", "mini_batches: many", "--learner-config mini_batches many: give a whole number"),
        ("", "learning_rate: fast", "--learner-config learning_rate fast: give a number"),
        (
            "--load pretrained:Quadruped-Velocity-Flat",
            "",
            "is a shared policy, which has no critic, and --learner",
        ),
        ("", "learning_epochs: 0", "--learner-config learning_epochs 0: must be at least 1"),
        ("", "mini_batches: 0", "--learner-config mini_batches 0: must be at least 1"),
        ("", "mini_batches: 1000", "--learner-config mini_batches 1000: a rollout of 8 environments has 192 samples"),
        ("", "policy: {clip: 1}", "--learner-config policy.clip: skrl takes clip_log_std, "),
        ("", "value_preprocessor: eval", "--learner-config value_preprocessor eval: give RunningStandardScaler"),
        (
            "--agent.algorithm.schedule fixed",
            "learning_rate_scheduler_kwargs: {min_lr: 0.1}",
            "--learner-config learning_rate_scheduler_kwargs: has no effect",
        ),
        ("--num-workers 2", "kl_threshold: 0.1", "--learner-config kl_threshold 0.1: would end the epochs of 2 ranks"),
        ("--agent.algorithm.num-mini-batches 97", "", "num-mini-batches 97: some have one sample, "),
        ("--agent.num-steps-per-env 1", "mini_batches: 5", "--learner-config mini_batches 5: some have one sample, "),
        (
            "--num-envs 1 --agent.num-steps-per-env 1 --agent.algorithm.num-mini-batches 1 "
            "--agent.actor.no-obs-normalization --agent.critic.no-obs-normalization",
            "",
            "--agent.num-steps-per-env 1: a rollout of 1 env has one sample, ",
        ),
    ],
)
def test_what_has_no_counterpart_is_one_line(
    words: str, settings: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused("skrl", words, settings, says, tmp_path, capsys)

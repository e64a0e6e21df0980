"""Learning from mirror images of real environments, and networks that are symmetric by construction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, LearnerConfig, SymmetryConfig, TrainConfig
from mjtrain.learning.library import make_policy
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from support.resuming import check_resuming, make_runner

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)


def symmetric(task: str, num_envs: int, **symmetry: bool | float) -> TrainConfig:
    config = make_train_config(task, num_envs=num_envs)
    algorithm = replace(config.agent.algorithm, symmetry_cfg=SymmetryConfig(**symmetry))  # pyright: ignore
    return replace(config, agent=replace(config.agent, algorithm=algorithm))


def tied(task: str, num_envs: int, *, equivariant: bool = True, normalised: bool = False) -> TrainConfig:
    config = symmetric(task, num_envs, use_equivariant_networks=equivariant)
    agent = config.agent
    networks = {name: replace(getattr(agent, name), obs_normalization=normalised) for name in ("actor", "critic")}
    return replace(config, agent=replace(agent, **networks))


@pytest.mark.parametrize("ties", [False, True])
def test_a_resumed_training_is_bit_exact(ties: bool, tmp_path: Path) -> None:
    learned = {"use_data_augmentation": True, "use_mirror_loss": True}
    config = tied("Quadruped-Velocity-Flat", 8) if ties else symmetric("Quadruped-Velocity-Flat", 8, **learned)
    metrics, _ = check_resuming(config, tmp_path / "model_2.pt")
    assert ties or "loss/symmetry" in metrics[0]


def _train(context: RankContext, config: TrainConfig) -> tuple[list[float], float]:
    """Return the losses of the symmetry, and how far the policy is from its mirror image."""
    runner = make_runner(context, config)
    losses = [result.metrics["loss/symmetry"] for result in runner.iterate(20)]
    observed = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    actor = runner.networks["actor"]
    with torch.no_grad():
        one, other = (actor({"actor": sign * observed}) for sign in (1, -1))  # pyright: ignore[reportArgumentType]
    return losses, float((one + other).square().mean() / one.square().mean())


@pytest.mark.parametrize("use_data_augmentation", [False, True])
def test_a_mirror_loss_makes_a_policy_symmetric(use_data_augmentation: bool) -> None:
    """A cart that is pushed to the right by what it sees is pushed to the left by the mirror image."""
    mirror = symmetric(
        "Cartpole-Balance",
        64,
        use_mirror_loss=True,
        mirror_loss_coeff=20.0,
        use_data_augmentation=use_data_augmentation,
    )
    losses, apart = mjtrain.launch(_train, mirror, launch=ALONE)
    assert losses[-1] < 0.4 * losses[0]
    assert apart < 0.05


def test_augmentation_alone_measures_the_loss_and_does_not_learn_from_it() -> None:
    losses, _ = mjtrain.launch(
        _train, symmetric("Cartpole-Balance", 64, use_data_augmentation=True, mirror_loss_coeff=1e9), launch=ALONE
    )
    assert all(0 < loss < 1e3 for loss in losses)


def _reflect_in_bfloat16(context: RankContext, config: TrainConfig) -> bool:
    """Tell whether mirror images do not depend on the precision in which losses are computed."""
    alg: Any = make_runner(context, config).alg
    images = alg.symmetry.data_augmentation_func
    seen, actions = alg.storage.observations[0].clone(), torch.randn(8, 12)
    seen["actor"].normal_()
    exact = images.mirror_observations(seen)["actor"], images.mirror_actions(actions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = images.mirror_observations(seen)["actor"], images.mirror_actions(actions)
    return all(torch.equal(one, other) for one, other in zip(exact, found, strict=True))


def test_mixed_precision_leaves_mirror_images_exact() -> None:
    """They are normalised as the observations are: the precision of bfloat16 is coarser than some deviations."""
    assert mjtrain.launch(
        _reflect_in_bfloat16, symmetric("Quadruped-Velocity-Flat", 8, use_mirror_loss=True), launch=ALONE
    )


def _compare_with_images(context: RankContext, config: TrainConfig) -> dict[str, float]:
    """Train; return how far each network's answers are from the mirror images of its answers to mirror images."""
    runner = make_runner(context, config)
    list(runner.iterate(4))
    mirror, actor, critic = runner.env.env.make_mirror(), runner.networks["actor"], runner.networks["critic"]  # pyright: ignore
    observed = {group: torch.randn(64, *values.shape[1:]) for group, values in runner.env.env.observe().items()}
    images = {group: values @ mirror.observations(group).T.float() for group, values in observed.items()}
    with torch.no_grad():
        actions, values = actor(observed), critic(observed)  # pyright: ignore[reportArgumentType]
        others, same = actor(images), critic(images)  # pyright: ignore[reportArgumentType]
        actor(observed, stochastic_output=True)  # pyright: ignore[reportArgumentType]
    image = mirror.actions().float()
    deviations = actor.output_std[0]
    return {
        "actions": float((others - actions @ image.T).abs().max() / actions.abs().max()),
        "values": float((same - values).abs().max() / values.abs().max()),
        "deviations": float((deviations - image.abs() @ deviations).abs().max()),
        "spread of deviations": float(deviations.max() - deviations.min()),
    }


@pytest.mark.parametrize(
    ("task", "normalised"),
    [("Quadruped-Velocity-Flat", False), ("Quadruped-Velocity-Flat", True), ("Cartpole-Swingup", True)],
)
def test_the_answer_to_a_mirror_image_is_the_mirror_image_of_the_answer(task: str, normalised: bool) -> None:
    apart = mjtrain.launch(_compare_with_images, tied(task, 16, normalised=normalised), launch=ALONE)
    assert apart["actions"] < 1e-4
    assert apart["values"] < 1e-4
    assert apart["deviations"] < 1e-6
    assert apart["spread of deviations"] > 0.0 or task == "Cartpole-Swingup"  # they are learned


def test_deviations_that_are_not_learned_may_be_tied() -> None:
    fixed = LearnerConfig(settings={"actor": {"distribution_cfg": {"learn_std": False}}})
    apart = mjtrain.launch(_compare_with_images, replace(tied("Cartpole-Swingup", 16), learner=fixed), launch=ALONE)
    assert apart["actions"] < 1e-4
    assert apart["spread of deviations"] == 0.0


def test_without_ties_the_answers_are_no_mirror_images() -> None:
    apart = mjtrain.launch(_compare_with_images, tied("Quadruped-Velocity-Flat", 16, equivariant=False), launch=ALONE)
    assert apart["actions"] > 0.1
    assert apart["values"] > 0.1


def _train_and_reload(context: RankContext, config: TrainConfig, path: Path) -> tuple[float, int, int]:
    """Return how far a plain MLP with the saved weights is from what was trained, and what both learn."""
    runner = make_runner(context, config)
    list(runner.iterate(2))
    runner.save(path, {"task": config.task})
    plain = make_policy(config.agent, config.learner, runner.env.env.observe(), runner.env.env.num_actions)
    plain.load(load_checkpoint(path, context.device), path)
    actor = runner.networks["actor"]
    observed = {"actor": torch.randn(64, runner.env.env.observe()["actor"].shape[1])}
    with torch.no_grad():
        difference = (plain(observed) - actor(observed)).abs().max()  # pyright: ignore[reportArgumentType]
    counts = [sum(weights.numel() for weights in network.parameters()) for network in (actor, plain.network)]  # pyright: ignore
    return float(difference), counts[0], counts[1]


def test_what_is_saved_is_a_plain_network_and_half_of_it_is_learned(tmp_path: Path) -> None:
    config = tied("Quadruped-Velocity-Flat", 8, normalised=True)
    difference, learned, saved = mjtrain.launch(_train_and_reload, config, tmp_path / "model_2.pt", launch=ALONE)
    assert difference < 1e-6
    assert 0.49 < learned / saved < 0.51


def _continue_with_ties(context: RankContext, config: TrainConfig, plain: TrainConfig, path: Path) -> None:
    make_runner(context, plain).save(path, {"task": config.task})
    make_runner(context, config).resume(path, config.task)


def test_weights_without_ties_are_refused(tmp_path: Path) -> None:
    config, plain = (tied("Quadruped-Velocity-Flat", 8, equivariant=equivariant) for equivariant in (True, False))
    with pytest.raises(
        RequestError, match=r"run \(mlp.0.weight is not its own mirror image[^\n]*use-equivariant-networks\)$"
    ):
        mjtrain.launch(_continue_with_ties, config, plain, tmp_path / "model_0.pt", launch=ALONE)


def test_ranks_learn_the_same_ties(tmp_path: Path) -> None:
    """Their networks begin as those of rank 0, although each makes its own; a drift is an error."""
    run = mjtrain.train(
        "Cartpole-Swingup",
        num_envs=4,
        max_iterations=2,
        drift_check_interval=1,
        logger="none",
        log_root=str(tmp_path),
        launch=LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1),
    )
    assert run.metrics["world_size"] == 2

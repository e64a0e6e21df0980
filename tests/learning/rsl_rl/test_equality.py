"""N ranks compute what one rank with N times the environments would."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.config import (
    AgentConfig,
    AuxiliaryConfig,
    CnnConfig,
    DistillationConfig,
    DistributionConfig,
    LaunchConfig,
    ModelConfig,
    PpoConfig,
    SymmetryConfig,
)
from mjtrain.env.core import SharedSums
from mjtrain.env.env import Env
from mjtrain.env.statistics import EpisodeStatistics
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.runtime.rank import RankContext

NUM_ENVS_TOTAL, NUM_ITERATIONS, NUM_STEPS, OBS_SIZE = 64, 5, 16, 7


class RecordedEnv(Env):
    """This rank's part of observations, rewards and episode ends that were drawn for all worlds beforehand."""

    def __init__(self, context: RankContext) -> None:
        self.num_envs = NUM_ENVS_TOTAL // context.world_size
        self.device = torch.device("cpu")
        self.max_episode_steps, self.step_dt = 100, 0.02
        self.config = SimpleNamespace(observations={"actor": {}})  # pyright: ignore[reportAttributeAccessIssue]
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.long)
        self.statistics = EpisodeStatistics(("recorded",), ("end",), self.num_envs, self.device)
        self._shared = SharedSums(self.device)
        first = context.rank * self.num_envs
        mine = slice(first, first + self.num_envs)
        generator = torch.Generator().manual_seed(123)
        images = torch.Generator().manual_seed(124)
        shape = (NUM_ITERATIONS * NUM_STEPS + 1, NUM_ENVS_TOTAL)
        # Worlds differ in scale and level, so that a rank's own statistics are not those of all.
        level = torch.linspace(-3, 3, NUM_ENVS_TOTAL)[:, None]
        self._observations = (torch.randn(*shape, OBS_SIZE, generator=generator) * (1 + level.abs()) + level)[:, mine]
        self._images = torch.randint(0, 256, (*shape, 2, 8, 8), dtype=torch.uint8, generator=images)[:, mine]
        self._rewards = (torch.randn(shape, generator=generator) + level[:, 0])[:, mine]
        self._ends = (torch.rand(shape, generator=generator) < 0.05)[:, mine]
        self._time_outs = (torch.rand(shape, generator=generator) < 0.05)[:, mine] & ~self._ends
        self._now = 0

    num_actions = 3  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def observe(self) -> dict[str, torch.Tensor]:
        return {"actor": self._observations[self._now], "image": self._images[self._now]}

    def step(self, action: torch.Tensor) -> Any:
        rewards, ends, time_outs = self._rewards[self._now], self._ends[self._now], self._time_outs[self._now]
        self._now += 1
        self.statistics.add(rewards[:, None], ends[:, None], ends | time_outs)
        self.statistics.drop_running(ends | time_outs)
        by_sign = torch.stack([ends & (rewards > 0), ends & (rewards <= 0)])
        self.shared_sum("ends", 2, keep=0.9).add(by_sign.double().sum(dim=1))
        if (high := rewards > 4).any():  # in worlds of the last rank alone
            self.shared_sum("high", 1, keep=0.9).add(high.sum().double().reshape(1))
        return self.observe(), rewards, ends, time_outs

    def stagger(self) -> None:
        pass

    def make_mirror(self) -> Any:
        """Columns in another order and with other signs."""
        columns, signs = torch.tensor([1, 0, 2, 4, 3, 5, 6]), torch.tensor([1.0, 1, -1, -1, -1, 1, -1])
        matrix = (torch.eye(OBS_SIZE) * signs)[columns].double()
        actions = torch.tensor([[0.0, -1, 0], [-1, 0, 0], [0, 0, 1]]).double()
        return SimpleNamespace(observations=lambda _: matrix, actions=lambda: actions)


def _train(context: RankContext, agent: AgentConfig, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], list[dict]]:
    from support.shared_noise import SharedNoise

    torch.set_default_dtype(dtype)
    try:
        env = RecordedEnv(context)
        SharedNoise.first, SharedNoise.num_envs = context.rank * env.num_envs, env.num_envs
        SharedNoise.num_envs_total = NUM_ENVS_TOTAL
        SharedNoise.generator = torch.Generator().manual_seed(7)
        torch.manual_seed(11)  # the same initial parameters, whatever the rank
        runner = Runner(context, env, agent)
        if isinstance(runner.alg, Distillation):
            runner.alg.teacher_loaded = True  # with its first weights, which are the same on all ranks
        metrics = [result.metrics for result in runner.iterate(NUM_ITERATIONS)]
        learned = {
            f"{name}.{key}": value.clone()
            for name, model in runner.networks.items()
            for key, value in model.state_dict().items()
        }
        return learned | env.shared_totals(), metrics
    finally:
        torch.set_default_dtype(torch.float32)


def make_agent(**algorithm: Any) -> AgentConfig:
    distribution = DistributionConfig(class_name="support.shared_noise:SharedNoise")
    return AgentConfig(
        num_steps_per_env=NUM_STEPS,
        actor=ModelConfig(hidden_dims=(32, 32), distribution_cfg=distribution),
        critic=ModelConfig(hidden_dims=(32, 32)),
        algorithm=replace(PpoConfig(num_mini_batches=1), **algorithm),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )


def make_vision_agent(**algorithm: Any) -> AgentConfig:
    """An actor that sees images only, and a critic that sees them beside the state."""
    agent = make_agent(**algorithm)
    convolutions = CnnConfig(output_channels=(4, 8))
    return replace(
        agent,
        actor=replace(agent.actor, class_name="CNNModel", cnn_cfg=convolutions),
        critic=replace(agent.critic, class_name="CNNModel", cnn_cfg=convolutions),
        obs_groups={"actor": ("image",), "critic": ("image", "actor")},
    )


def make_recurrent_agent(**networks: str) -> AgentConfig:
    """Actor and critic of the classes that are given."""
    agent = make_agent()
    models = {
        name: replace(getattr(agent, name), class_name=class_name, rnn_hidden_dim=16, rnn_type=kind)
        for (name, class_name), kind in zip(networks.items(), ("lstm", "gru"), strict=True)
    }
    critic = "image" if networks["critic"] == "CNNModel" else "actor"
    return replace(agent, **models, obs_groups={"actor": ("actor",), "critic": (critic,)})


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of any tensor, relative to the tensor's norm."""
    assert one.keys() == other.keys()
    return max(
        float((one[key].double() - other[key].double()).norm() / one[key].double().norm().clamp(min=1e-12))
        for key in one
    )


def train(world_size: int, *runs: tuple[torch.dtype, AgentConfig]) -> list[tuple[dict[str, torch.Tensor], list[dict]]]:
    """Train each of the runs, all of them in one launch."""
    launch = LaunchConfig(gpu_ids=None, num_workers=world_size, num_threads=1)
    return mjtrain.launch(_train_each, runs, launch=launch)


def _train_each(context: RankContext, runs: Any) -> list[tuple[dict[str, torch.Tensor], list[dict]]]:
    return [_train(context, agent, dtype) for dtype, agent in runs]


def test_ranks_compute_what_one_large_rank_would() -> None:
    agent, bounds = make_agent(), {torch.float32: 1e-5, torch.float64: 1e-10}
    runs = [(dtype, agent) for dtype in bounds]
    alone_each = train(1, *runs)
    for together_each in (train(2, *runs), train(4, *runs)):
        for (alone, alone_metrics), (together, metrics), bound in zip(
            alone_each, together_each, bounds.values(), strict=True
        ):
            assert int(alone["actor.obs_normalizer.count"]) == NUM_ENVS_TOTAL * NUM_STEPS * NUM_ITERATIONS
            assert relative_difference(alone, together) < bound
            for one, other in zip(alone_metrics, metrics, strict=True):
                for key in ("mean_reward", "mean_episode_length", "learning_rate", "kl", "loss/value", "loss/entropy"):
                    assert other[key] == pytest.approx(one[key], rel=1e-4), key
                assert other["env_steps_total"] == one["env_steps_total"]


def test_ranks_teach_a_student_what_one_would() -> None:
    agent = make_agent()
    groups = {"actor": ("image", "actor"), "teacher": ("actor",)}
    student = replace(agent.actor, class_name="CNNModel")
    algorithm = DistillationConfig(teacher=agent.critic, num_learning_epochs=2)
    runs = [(torch.float64, replace(agent, actor=student, algorithm=algorithm, obs_groups=groups))]
    assert_equal(train(1, *runs), train(2, *runs), keys=("loss/behavior", "mean_reward"))


def assert_equal(
    alone: list[Any],
    together: list[Any],
    keys: tuple[str, ...] = ("learning_rate", "kl", "loss/value", "loss/surrogate"),
) -> None:
    for (weights, alone_metrics), (weights_together, metrics) in zip(alone, together, strict=True):
        assert relative_difference(weights, weights_together) < 1e-10
        for one, other in zip(alone_metrics, metrics, strict=True):
            for key in keys:
                assert other[key] == pytest.approx(one[key], rel=1e-4), key


def test_ranks_that_learn_from_images_compute_what_one_would() -> None:
    runs = [
        (torch.float64, make_vision_agent(auxiliary_cfg=AuxiliaryConfig(group="actor"))),
        (torch.float64, make_vision_agent(share_cnn_encoders=True)),
    ]
    alone = train(1, *runs)
    assert_equal(alone, train(2, *runs))
    (apart, _), (shared, _) = alone
    assert {"actor.cnns.image.0.weight", "critic.cnns.image.0.weight"} <= set(apart)
    assert "critic.cnns.image.0.weight" not in shared
    assert int(apart["actor.auxiliary_head.obs_normalizer.count"]) == NUM_ENVS_TOTAL * NUM_STEPS * NUM_ITERATIONS


def test_ranks_whose_critic_learns_first_compute_what_one_would() -> None:
    supervised = AuxiliaryConfig(group="actor")
    agents = make_agent(critic_iterations=2), make_vision_agent(critic_iterations=2, auxiliary_cfg=supervised)
    runs = [(torch.float64, agent) for agent in agents]
    assert_equal(train(1, *runs), train(2, *runs), ("learning_rate", "loss/value", "loss/surrogate"))


def test_ranks_that_learn_from_mirror_images_compute_what_one_would_and_one_what_rsl_rls_own_symmetry_does() -> None:
    settings = [
        SymmetryConfig(use_data_augmentation=augment, use_mirror_loss=loss, mirror_loss_coeff=0.3)
        for augment, loss in ((True, False), (False, True), (True, True))
    ]
    runs = [(torch.float64, make_agent(symmetry_cfg=setting)) for setting in settings]
    rsl_rls_own = [(torch.float64, make_agent(symmetry_cfg=setting, class_name="PPO")) for setting in settings]
    plain = [(torch.float64, make_agent())]
    keys = ("learning_rate", "kl", "loss/value", "loss/surrogate", "loss/symmetry")
    *found, (without, _) = train(1, *runs, *rsl_rls_own, *plain)
    alone, theirs = found[:3], found[3:]
    assert_equal(alone, train(2, *runs), keys)
    assert_equal(alone, theirs, ("learning_rate", "loss/value", "loss/surrogate", "loss/symmetry"))
    assert all(relative_difference(weights, without) > 1e-3 for weights, _ in alone)


def test_ranks_with_equivariant_networks_compute_what_one_would() -> None:
    runs = [(torch.float64, make_agent(symmetry_cfg=SymmetryConfig(use_equivariant_networks=True)))]
    assert_equal(train(1, *runs), train(2, *runs))


def test_ranks_with_recurrent_networks_compute_what_one_would() -> None:
    critics = ("RNNModel", "MLPModel", "CNNModel")
    runs = [(torch.float64, make_recurrent_agent(actor="RNNModel", critic=critic)) for critic in critics]
    assert_equal(train(1, *runs), train(2, *runs))


def test_normalisation_of_advantages_is_over_all_ranks_and_with_rsl_rls_own_the_parameters_part() -> None:
    agent = make_agent()
    per_mini_batch = make_agent(normalize_advantage_per_mini_batch=True)
    rsl_rls_own = replace(agent, algorithm=replace(agent.algorithm, class_name="PPO"))
    runs = [(torch.float64, config) for config in (agent, per_mini_batch, rsl_rls_own)]
    (ours, _), (mini_batch, _), (theirs, _) = train(1, *runs)
    _, (mini_batch_of_two, _), (theirs_of_two, _) = train(2, *runs)
    assert relative_difference(mini_batch, mini_batch_of_two) < 1e-10
    assert relative_difference(theirs, ours) < 1e-14  # in double precision: up to rounding
    assert relative_difference(theirs, theirs_of_two) > 1e-3

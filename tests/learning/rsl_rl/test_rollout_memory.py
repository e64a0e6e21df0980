"""The memory that a request is told is the memory that RSL-RL's storage takes."""

from dataclasses import replace

import pytest
import torch
from rsl_rl.storage import RolloutStorage

from mjtrain.api import make_train_config
from mjtrain.config import DistillationConfig, DistributionConfig, ModelConfig
from mjtrain.learning.rsl_rl.construct import Runner, VecEnvAdapter
from mjtrain.runtime.rank import RankContext
from mjtrain.training.preflight.dry_step import measure_task
from mjtrain.training.preflight.run_size import find_memory_need
from support.envs import make_env
from support.vision import make_vision_env

LSTM = ModelConfig(class_name="RNNModel", rnn_hidden_dim=12, rnn_num_layers=2)
GRU = replace(LSTM, rnn_type="gru", distribution_cfg=DistributionConfig())


@pytest.mark.parametrize("networks", [{}, {"actor": GRU, "critic": LSTM}])
def test_a_rollout_takes_what_was_announced(networks: dict[str, ModelConfig]) -> None:
    config = make_train_config("Cartpole-Balance", num_envs=6)
    config = replace(config, agent=replace(config.agent, num_steps_per_env=8, **networks))
    env = make_env(make_vision_env(), num_envs=6)
    runner = Runner(RankContext(), env, config.agent)
    next(runner.iterate(1))
    storage = vars(runner.alg.storage)
    kept = [value for value in storage.values() if isinstance(value, torch.Tensor)]
    kept += [*storage["observations"].values(), *storage["distribution_params"]]
    kept += [*(storage["saved_hidden_state_a"] or ()), *(storage["saved_hidden_state_c"] or ())]
    need = find_memory_need(config, measure_task(env), None)
    assert sum(tensor.nbytes for tensor in kept) == need.rollout_bytes
    assert need.image_bytes == env.cameras.renderer.num_bytes


def test_a_rollout_of_a_distillation_has_no_values() -> None:
    config = make_train_config("Cartpole-Balance", num_envs=6)
    config = replace(config, agent=replace(config.agent, num_steps_per_env=8, algorithm=DistillationConfig()))
    env = make_env(make_vision_env(), num_envs=6)
    storage = RolloutStorage("distillation", 6, 8, VecEnvAdapter(env).get_observations(), [env.num_actions])
    kept = [*storage.observations.values(), *(value for value in vars(storage).values() if torch.is_tensor(value))]
    assert sum(tensor.nbytes for tensor in kept) == find_memory_need(config, measure_task(env), None).rollout_bytes

"""A learner of somebody else: a linear policy and a policy gradient, in numpy alone."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjtrain.env.env import Env
from mjtrain.learning import (
    AgentConfig,
    CheckpointError,
    Collectives,
    Observations,
    RankContext,
    RequestError,
    TrainConfig,
    TrainingLoop,
)

STD = 0.5


class Gradient:
    """`learning.algorithm.Algorithm` whose state is an array of numpy."""

    learning_rate = 0.01

    def __init__(self, context: RankContext, env: Env) -> None:
        self.collectives = Collectives(context.device)
        self.weights = np.zeros((env.observe()["actor"].shape[1], env.num_actions), np.float32)
        self._world_size = context.world_size
        self._generator = np.random.default_rng(context.seed)
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []
        self._rewards: list[np.ndarray] = []
        self._seen: list[torch.Tensor] = []

    def begin(self) -> None:
        pass

    def broadcast(self) -> None:
        """Nothing is random at the start, and files are the same for all."""

    def act(self, observations: Observations) -> torch.Tensor:
        seen = observations["actor"].numpy()
        noise = STD * self._generator.standard_normal((len(seen), self.weights.shape[1]), np.float32)
        self._rows.append((seen.copy(), noise))
        self._seen.append(observations["actor"].clone())
        return torch.from_numpy(seen @ self.weights + noise)

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        self._rewards.append(rewards.numpy().copy())

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:
        return {"rewards": torch.from_numpy(np.stack(self._rewards))}

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        return {"actor": torch.stack(self._seen)}

    def update(self) -> dict[str, float]:
        rewards = np.stack(self._rewards)
        gradients = [
            seen.T @ (noise * (reward - rewards.mean())[:, None] / STD**2) / len(seen)
            for (seen, noise), reward in zip(self._rows, rewards, strict=True)
        ]
        summed = self.collectives.sum(torch.from_numpy(np.mean(gradients, axis=0)))
        self.weights = self.weights + self.learning_rate * summed.numpy() / self._world_size
        self._rows, self._rewards, self._seen = [], [], []
        return {"surrogate": float(-rewards.mean())}

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        return {"kl": None, "action_std": STD}

    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        return [("the policy's weights", torch.from_numpy(self.weights))]

    def state_dict(self) -> dict[str, Any]:
        return {"linear": {"weights": self.weights, "scale": np.float32(1.0)}}

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        self.load_weights(content, path)

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        self.weights = content["linear"]["weights"].numpy()

    def rank_state(self) -> dict[str, Any]:
        return {"generator": json.dumps(self._generator.bit_generator.state), "memory": torch.ones(2)}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = json.loads(state["generator"])


class LinearPolicy:
    """`learner.Policy`."""

    estimated_group = None
    iteration = 0

    def __init__(self, observations: Mapping[str, torch.Tensor], num_actions: int) -> None:
        self.inputs = {"actor": tuple(observations["actor"].shape[1:])}
        self.dtypes = {"actor": torch.float32}
        self._linear = torch.nn.Linear(self.inputs["actor"][0], num_actions, bias=False)

    def load(self, content: dict[str, Any], path: Path) -> None:
        weights = content["linear"]["weights"].T
        if weights.shape != self._linear.weight.shape:
            raise CheckpointError(f"checkpoint {path}: is of another size")
        self._linear.load_state_dict({"weight": weights})
        self.iteration = content["iter"]

    @torch.inference_mode()
    def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._linear(observations["actor"])

    def estimate(self) -> torch.Tensor:
        raise NotImplementedError

    def reset(self, done: torch.Tensor | None) -> None:
        """It remembers nothing."""

    def to_onnx_module(self) -> torch.nn.Module:
        return self._linear

    def to_script_module(self) -> torch.nn.Module:
        return self._linear


class Library:
    """`learners.library.Library`."""

    modules = ("numpy",)
    install = "third-party"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:
        if config.agent.actor.class_name != "MLPModel":
            raise RequestError(f"--agent.actor.class-name {config.agent.actor.class_name}: this learner is linear")
        return ("this learner is linear: --agent.actor.hidden-dims do not count",)

    def make_learner(
        self, context: RankContext, env: Env, agent: AgentConfig, settings: Mapping[str, Any]
    ) -> TrainingLoop:
        algorithm = Gradient(context, env)
        algorithm.learning_rate = settings.get("rate", algorithm.learning_rate)
        return TrainingLoop(context, env, algorithm, agent.num_steps_per_env, "linear")

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],
        observations: Mapping[str, torch.Tensor],
        num_actions: int,
    ) -> LinearPolicy:
        return LinearPolicy(observations, num_actions)


class Missing(Library):
    """One whose library nobody has."""

    modules = ("mjtrain_no_such_library",)
    install = "third-party[library]"


LIBRARY, MISSING = Library(), Missing()

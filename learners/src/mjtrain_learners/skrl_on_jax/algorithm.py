"""skrl's PPO on JAX, as the training loop calls it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist

from mjtrain.learning import Collectives, Observations, RequestError
from mjtrain_learners.skrl_on_jax.arrays import from_named, to_jax, to_named, to_torch
from mjtrain_learners.skrl_on_jax.ppo import JobPpo

_NOW: Any = {"timestep": 0, "timesteps": 0}
"""Of no consequence: skrl's schedules by time are not used."""

_MODELS = {"policy": "actor", "value": "critic"}
_NORMALISERS = ("observation_preprocessor", "state_preprocessor", "value_preprocessor")
_OPTIMISERS = ("policy_optimizer", "value_optimizer")


class SkrlJaxAlgorithm:
    """`learning.algorithm.Algorithm` with skrl's PPO on JAX."""

    def __init__(
        self,
        ppo: JobPpo,
        collectives: Collectives,
        groups: Mapping[str, tuple[str, ...]],
        widths: Mapping[str, int],
    ) -> None:
        """Take an agent.

        Args:
            ppo: skrl's agent, before its `init`.
            collectives: What the ranks sum while they learn.
            groups: Observation groups of actor and critic.
            widths: Size of each flat group.
        """
        self.collectives = collectives
        """What the ranks sum while they learn."""
        self._ppo = ppo
        self._policy: Any = ppo.policy
        self._memory: Any = ppo.memory
        self._groups = groups
        self._widths = widths
        self._num_draws = 0
        self._action_std = 0.0
        self._seen: tuple[jax.Array, jax.Array] | None = None
        self._actions: jax.Array | None = None
        ppo.init()
        ppo.enable_training_mode(True)

    @property
    def learning_rate(self) -> float:
        """Step size of the optimisers now."""
        return float(self._ppo.policy_learning_rate)

    def begin(self) -> None:
        """Do nothing: an agent is ready."""

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        for name, tree in self._learned().items():
            leaves, structure = jax.tree.flatten(tree)
            tensors = [to_torch(leaf) for leaf in leaves]
            with self.collectives.waiting():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)
            self._set(name, jax.tree.unflatten(structure, [to_jax(tensor) for tensor in tensors]))

    def _learned(self) -> dict[str, Any]:
        """Return the parameters of models and the statistics of normalisers, as nested arrays by part."""
        modules = self._ppo.checkpoint_modules
        return {name: modules[name].state_dict.params for name in (*_MODELS, *_NORMALISERS) if name in modules}

    def _set(self, name: str, tree: Any) -> None:
        """Replace what `_learned` returns of a part."""
        module = self._ppo.checkpoint_modules[name]
        module.state_dict = module.state_dict.replace(params=tree)  # of a normaliser that is the tree itself

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._split(observations)
        self._policy._g_i = self._num_draws  # skrl counts draws, and each time that XLA compiles an update as one
        self._num_draws += 1
        self._actions, _ = self._ppo.act(*self._seen, **_NOW)
        return to_torch(self._actions)

    def _split(self, observations: Observations) -> tuple[jax.Array, jax.Array]:
        """Return what skrl calls observations and states: what actor and critic read."""
        actor, critic = ([observations[group] for group in self._groups[name]] for name in ("actor", "critic"))
        return to_jax(torch.cat(actor, dim=1)), to_jax(torch.cat(critic, dim=1))

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        What would have followed after a truncation is estimated by the value before the step and added to the reward,
        and to skrl every end of an episode is a termination: its advantages would otherwise run on into the next one.
        """
        ppo: Any = self._ppo
        assert self._seen is not None
        after = self._split(observations)
        cut_off = to_jax(truncated.unsqueeze(1))
        ppo.record_transition(
            observations=self._seen[0],
            states=self._seen[1],
            actions=self._actions,
            rewards=to_jax(rewards.unsqueeze(1)) + ppo.cfg.discount_factor * ppo._current_values * cut_off,
            next_observations=after[0],
            next_states=after[1],
            terminated=to_jax((terminated | truncated).unsqueeze(1)),
            truncated=cut_off & False,
            infos={},
            **_NOW,
        )

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the returns."""
        return {name: to_torch(self._memory.tensors[name]) for name in ("rewards", "values", "actions")}

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, size)."""
        found = {}
        for name, stored in (("actor", "observations"), ("critic", "states")):
            groups = self._groups[name]
            rows = to_torch(self._memory.tensors[stored])
            found |= zip(groups, rows.split([self._widths[group] for group in groups], dim=-1), strict=True)
        return found

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses, without their weights in the sum."""
        ppo = self._ppo
        ppo.enable_models_training_mode(True)
        ppo.update(**_NOW)
        ppo.enable_models_training_mode(False)
        tracked = {name: values[-1] for name, values in ppo.tracking_data.items()}
        ppo.tracking_data.clear()
        self._action_std = tracked["Policy / Standard deviation"]
        losses = {"surrogate": tracked["Loss / Policy loss"]}
        if ppo.cfg.value_loss_scale:
            losses["value"] = tracked["Loss / Value loss"] / ppo.cfg.value_loss_scale
        if ppo.cfg.entropy_loss_scale:
            losses["entropy"] = -tracked["Loss / Entropy loss"] / ppo.cfg.entropy_loss_scale
        return losses

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the KL divergence over the mini-batches since the last call, and the standard deviation of actions."""
        kl = float(np.mean(self._ppo.divergences))
        self._ppo.divergences.clear()
        return {"kl": kl, "action_std": self._action_std}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        learned = self._learned()
        for part, name in _MODELS.items():
            for where, leaf in to_named(learned[part]["params"]).items():
                yield f"the {name}'s {where}", torch.from_numpy(np.array(leaf))

    def state_dict(self) -> dict[str, Any]:
        """Return models, normalisers and optimisers."""
        state: dict[str, Any] = {name: to_named(tree) for name, tree in self._learned().items()}
        state |= {name: to_named(getattr(self._ppo, name).state) for name in _OPTIMISERS}
        scaler = self._ppo.checkpoint_modules.get("observation_preprocessor")
        if scaler is not None:
            options = {"epsilon": scaler.epsilon, "clip_threshold": scaler.clip_threshold}
            state["observation_preprocessor_options"] = options
        return state

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        ppo = self._ppo
        self.load_weights(content, path)
        for name in _OPTIMISERS:
            optimiser = getattr(ppo, name)
            _check_shapes(to_named(optimiser.state), content, name, path)
            setattr(ppo, name, optimiser.replace(state=from_named(optimiser.state, content[name])))
        ppo.policy_learning_rate = ppo.value_learning_rate = content["learning_rate"]

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        learned = self._learned()
        for name, tree in learned.items():
            _check_shapes(to_named(tree), content, name, path)
        for name, tree in learned.items():
            self._set(name, from_named(tree, content[name]))

    def rank_state(self) -> dict[str, Any]:
        """Return how often this rank has drawn actions, and the key that it draws them with."""
        return {"jax": {"num_draws": self._num_draws, "key": np.asarray(self._policy._g_key).astype(np.int64)}}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Continue to draw where `rank_state` was called."""
        self._num_draws = int(state["jax"]["num_draws"])
        self._policy._g_key = jnp.asarray(state["jax"]["key"].numpy().astype(np.uint32))


def _check_shapes(ours: Mapping[str, np.ndarray], content: Mapping[str, Any], part: str, path: Path) -> None:
    """Raise a RequestError unless a part of a checkpoint has arrays of these names and shapes."""
    if part not in content:
        raise RequestError(f"checkpoint {path}: has no {part}, which this run has")
    for name in [*ours, *content[part]]:
        shapes = [tuple(side[name].shape) if name in side else None for side in (content[part], ours)]
        if shapes[0] != shapes[1]:
            raise RequestError(
                f"checkpoint {path}: does not fit the networks of this run: {part} {name} has shape {shapes[0]} in the "
                f"checkpoint and {shapes[1]} here"
            )

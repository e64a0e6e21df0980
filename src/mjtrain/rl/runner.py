"""The training loop over RSL-RL's algorithm, on any device and backend."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rsl_rl.algorithms import PPO

from mjtrain import heartbeat
from mjtrain.catalog import is_same_task
from mjtrain.checkpoint import load_checkpoint, parse_checkpoint, read_checkpoint, save_checkpoint
from mjtrain.checkpoint_formats import FORMAT
from mjtrain.config import AgentConfig
from mjtrain.env.env import Env
from mjtrain.errors import RequestError
from mjtrain.learner import IterationResult
from mjtrain.rank import RankContext
from mjtrain.rl.collectives import Collectives
from mjtrain.rl.construct import make_algorithm
from mjtrain.rl.distillation import Distillation
from mjtrain.rl.divergence import check_losses, check_parameters, check_rollout, find_broken_terms
from mjtrain.rl.drift import check_drift
from mjtrain.rl.memory import set_memory
from mjtrain.rl.metrics import JobMetrics
from mjtrain.rl.networks import list_networks
from mjtrain.rl.normalization import synchronise_normalisers
from mjtrain.rl.persistence import gather_rank_states, load_networks, weights_of
from mjtrain.rl.ppo import Ppo
from mjtrain.rl.rng import set_rng_state
from mjtrain.rl.vec_env import VecEnvAdapter


class Runner:
    """Collects rollouts and learns from them: `learner.Learner` with RSL-RL's networks, storage and algorithm.

    The loop is not RSL-RL's: metrics are those of the whole job instead of rank 0's, an env step does not wait for the
    device, and the caller decides after each iteration what to write.
    """

    def __init__(self, context: RankContext, env: Env, config: AgentConfig) -> None:
        """Build networks and algorithm.

        Args:
            context: This rank. With several ranks, the process group must be up.
            env: This rank's environments.
            config: Networks, algorithm and rollout.
        """
        self.device = context.device
        self.iteration = 0
        """Iterations done."""
        self.env_steps_total = 0
        """Env steps done, summed over ranks."""
        self.after_step: Callable[[], None] | None = None
        """Called after each env step; it must not wait for the device, nor draw random numbers."""
        self.env = VecEnvAdapter(env)
        """The environments as RSL-RL sees them."""
        self.alg = make_algorithm(context, self.env, config)
        """RSL-RL's algorithm."""
        self.networks = list_networks(self.alg)
        """Its networks by name, not compiled: actor, and critic or teacher."""
        self._context = context
        self._num_steps = config.num_steps_per_env
        self._rng_state: dict[str, Any] | None = None
        own = Collectives(context.device)  # for an algorithm that brings none
        collectives = self._collectives = self.alg.collectives if isinstance(self.alg, Ppo | Distillation) else own
        self._metrics = JobMetrics(context, env.statistics, collectives)
        if context.is_distributed:
            self.alg.broadcast_parameters()
            if isinstance(self.alg, Ppo | Distillation):
                learning = [network for name, network in self.networks.items() if name != "teacher"]
                synchronise_normalisers(learning, collectives)
        env.stagger()

    def iterate(self, last_iteration: int) -> Iterator[IterationResult]:
        """Learn until the run has last_iteration iterations or a rank is asked to stop; yield after each iteration.

        Raises:
            FloatingPointError: Rewards, values, losses or parameters are not finite, so the networks are or would be
                lost.
        """
        if self._context.is_main and isinstance(self.alg, Distillation) and not self.alg.teacher_loaded:
            raise RequestError("--agent.algorithm.teacher-run: the teacher is not there any more, nor in a checkpoint")
        heartbeat.stop_requested()  # from here on a signal waits for the end of the iteration
        if self._rng_state is not None:  # only now: whatever was built meanwhile may have drawn numbers
            set_rng_state(self._rng_state, self.device)
        observations = self.env.get_observations()
        self.alg.train_mode()
        is_last = self.iteration >= last_iteration
        warming_up = True  # the first iteration compiles kernels
        while not is_last:
            heartbeat.beat("rollout", warming_up=warming_up)
            begin = self._now()
            with torch.inference_mode(), _single_torch_thread():
                for _ in range(self._num_steps):
                    observations, rewards, dones, extras = self.env.step(self.alg.act(observations))
                    if self.after_step is not None:
                        self.after_step()
                    self.alg.process_env_step(observations, rewards, dones, extras)
                    heartbeat.beat()
            collected = self._now()
            heartbeat.beat("update", warming_up=warming_up)
            warming_up = False
            self._collectives.pop_waited_s()  # what came before belongs to no iteration's learning
            with torch.inference_mode():
                self.alg.compute_returns(observations)
            check_rollout(self._rollout_results(), self.iteration + 1, self._find_broken_terms)
            losses = self.alg.update()
            wait_time_s = self._collectives.pop_waited_s()
            learn_time_s = self._now() - collected - wait_time_s
            self.iteration += 1
            self.env_steps_total += self.env_steps_per_iteration
            check_losses(losses, self.iteration, self._find_broken_terms)
            check_parameters(self._parameters(), self.iteration)
            metrics = {
                "iteration": self.iteration,
                "env_steps_total": self.env_steps_total,
                **self._metrics.collect(
                    means=self._means(losses),
                    collect_time_s=collected - begin,
                    learn_time_s=learn_time_s,
                    wait_time_s=wait_time_s,
                    num_env_steps=self._num_steps * self.env.num_envs,
                ),
                "world_size": self._context.world_size,
                "num_envs_total": self.env.num_envs * self._context.world_size,
                "learning_rate": self.alg.learning_rate,
            }
            is_last = self.iteration >= last_iteration or self._metrics.stop_requested
            yield IterationResult(iteration=self.iteration, is_last=is_last, metrics=metrics)

    def _means(self, losses: dict[str, float]) -> dict[str, torch.Tensor | float | None]:
        """Return what metrics average over ranks."""
        policy = self.alg.get_policy()
        return {
            **{f"loss/{name}": loss for name, loss in losses.items()},
            "kl": self.alg.pop_kl() if isinstance(self.alg, Ppo) else None,
            "action_std": None if policy.distribution is None else policy.output_std.mean(),
        }

    def _rollout_results(self) -> dict[str, torch.Tensor]:
        """Return what is not finite if the rollout was not."""
        storage = self.alg.storage
        if isinstance(self.alg, PPO):
            return {"rewards or values": storage.returns, "actions": storage.actions}
        return {"the teacher's actions": storage.privileged_actions, "actions": storage.actions}

    def _find_broken_terms(self) -> list[str]:
        return find_broken_terms(self.env.env, self.alg.storage.observations)  # pyright: ignore[reportArgumentType]

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, network in self.networks.items():
            for part, parameter in network.named_parameters():
                yield f"the {name}'s {part}", parameter

    @property
    def env_steps_per_iteration(self) -> int:
        """Env steps that all ranks together do in an iteration."""
        return self._num_steps * self.env.num_envs * self._context.world_size

    def check_drift(self) -> None:
        """Compare parameters, normalisers, optimiser state and counters over ranks; every rank must call it.

        Raises:
            RanksDriftedError: Something differs; the message names the first tensor and the ranks.
        """
        if self._context.is_distributed:
            state = {**self.alg.save(), "learning_rate": self.alg.learning_rate, "iteration": self.iteration}
            check_drift(state, self._context.world_size, self.device)

    def save(self, path: Path, infos: dict[str, Any] | None = None) -> None:
        """Write all that the future of the run depends on, atomically. Every rank must call it; rank 0 writes.

        Args:
            path: Where it goes.
            infos: Plain values to keep with it.

        Raises:
            OSError: Rank 0 could not write it.
        """
        ranks = gather_rank_states(self.env.env, self.networks, self.device, self._collectives, self._context)
        if not self._context.is_main:
            return
        save_checkpoint(
            path,
            {
                "format": FORMAT,
                **self.alg.save(),
                "iter": self.iteration,
                "learning_rate": self.alg.learning_rate,
                "last_episodes": self._metrics.last_episodes,
                "ranks": ranks,
                "infos": {**(infos or {}), "env_steps_total": self.env_steps_total},
            },
        )

    def resume(self, path: Path | None, task: str) -> str | None:
        """Continue from a checkpoint. Every rank must call it; all continue from the bytes that rank 0 reads.

        Args:
            path: The file; only that of rank 0 counts, and None there changes nothing.
            task: What is trained here.

        Returns:
            A line about what could not be restored, or None.

        Raises:
            RequestError: It is no valid checkpoint, or one of another task or other networks.
        """
        mine = read_checkpoint(path) if path is not None and self._context.is_main else b""
        data = self._collectives.broadcast_bytes(mine, self._context)
        if not data:
            return None
        path = path or Path("(of rank 0)")
        content = parse_checkpoint(data, path, "cpu")
        theirs = content.get("infos", {}).get("task")
        if not is_same_task(theirs, task):
            raise RequestError(f"checkpoint {path}: is of task {theirs}, and this is {task}")
        load_networks(self.alg, content, path, self.networks, optimizer=True)
        self.iteration = content["iter"]
        self.env_steps_total = content["infos"]["env_steps_total"]
        self.alg.learning_rate = content["learning_rate"]
        self._metrics.last_episodes = content["last_episodes"]
        ranks = content["ranks"]
        if len(ranks) != self._context.world_size:
            return (
                f"the checkpoint is of {len(ranks)} ranks and there are {self._context.world_size} now: "
                "environments and random numbers start again"
            )
        try:
            self.env.env.load_state_dict(ranks[self._context.rank]["env"])
        except (ValueError, KeyError, RuntimeError) as error:
            return f"environments and random numbers start again: {error}"
        self._rng_state = ranks[self._context.rank]["rng"]
        set_memory(self.networks, ranks[self._context.rank].get("memory", {}), self.device)
        if isinstance(self.alg, Distillation):
            self.alg.begin_from_memory()
        return None

    def load_weights(self, path: Path) -> None:
        """Start from the networks and normalisers of a checkpoint; optimiser and counters stay as they are.

        Every rank must call it; rank 0's file counts.

        Raises:
            RequestError: It is no valid checkpoint, or one of other networks.
        """
        content = load_checkpoint(path, "cpu")
        load_networks(self.alg, content, path, weights_of(self.alg, content), optimizer=False)
        if self._context.is_distributed:
            self.alg.broadcast_parameters()

    def _now(self) -> float:
        if self.env.env.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


@contextlib.contextmanager
def _single_torch_thread() -> Iterator[None]:
    """Leave the cores to the physics while collecting.

    After each parallel operation torch's idle threads spin for milliseconds, just when the physics wants their
    cores: on two cores that costs the native engine a third of its speed, far more than one thread costs the
    small networks.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)

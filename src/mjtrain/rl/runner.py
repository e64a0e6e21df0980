"""RSL-RL's runner on any device and backend, one iteration at a time."""

import contextlib
import io
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from mjtrain import heartbeat
from mjtrain.checkpoint import load_checkpoint, parse_checkpoint, read_checkpoint, save_checkpoint
from mjtrain.config import AgentConfig, to_plain
from mjtrain.env.env import Env
from mjtrain.errors import RequestError
from mjtrain.rank import RankContext
from mjtrain.rl.collectives import Collectives
from mjtrain.rl.drift import check_drift
from mjtrain.rl.metrics import JobMetrics
from mjtrain.rl.normalization import synchronise_normalisers
from mjtrain.rl.ppo import Ppo
from mjtrain.rl.rng import get_rng_state, set_rng_state
from mjtrain.rl.vec_env import VecEnvAdapter


class Runner(OnPolicyRunner):
    """Collects rollouts and learns from them.

    Takes RSL-RL's networks, storage and algorithm, and brings its own loop: the numbers of the whole job instead of
    rank 0's, no host sync per env step, and the caller decides after each iteration what to write and when to stop.
    """

    def __init__(self, context: RankContext, env: Env, config: AgentConfig) -> None:
        """Build networks and algorithm.

        Args:
            context: This rank. With several ranks, the process group must be up.
            env: This rank's environments.
            config: Networks, algorithm and rollout.

        Raises:
            RequestError: The networks ask for an observation group that the environment does not have.
        """
        self._context = context
        self.iteration = 0
        """Iterations done."""
        self.env_steps_total = 0
        """Env steps done, summed over ranks."""
        self.after_step: Callable[[], None] | None = None
        """Called after each env step; it must not wait for the device, nor draw random numbers."""
        self._rng_state: dict[str, Any] | None = None
        for name, groups in config.obs_groups.items():
            for group in groups:
                if group not in env.config.observations:
                    there = ", ".join(env.config.observations)
                    raise RequestError(f"--agent.obs-groups.{name} {group}: the environment observes {there}")
        with contextlib.redirect_stdout(io.StringIO()):  # RSL-RL prints its networks
            super().__init__(VecEnvAdapter(env), _to_rsl_rl(config), log_dir=None, device=context.device)
        self._env = env
        own = Collectives(context.device)  # for an algorithm that brings none
        collectives = self._collectives = self.alg.collectives if isinstance(self.alg, Ppo) else own
        self._metrics = JobMetrics(context, env.statistics, collectives)
        if context.is_distributed:
            self.alg.broadcast_parameters()
            if isinstance(self.alg, Ppo):
                synchronise_normalisers(self.alg, collectives)
        env.stagger()

    def iterate(self, max_iterations: int) -> Iterator[dict[str, Any]]:
        """Do iterations until the run has so many, yielding the metrics of the whole job after each.

        Raises:
            FloatingPointError: Rewards, values or losses are not finite, so the networks are or would be lost.
        """
        heartbeat.stop_requested()  # from here on a signal waits for the end of the iteration
        if self._rng_state is not None:  # only now: whatever was built meanwhile may have drawn numbers
            set_rng_state(self._rng_state, self.device)
        observations = self.env.get_observations()
        self.alg.train_mode()
        num_steps = self.cfg["num_steps_per_env"]
        warming_up = True  # the first iteration compiles kernels
        while self.iteration < max_iterations:
            heartbeat.beat("rollout", warming_up=warming_up)
            begin = self._now()
            with torch.inference_mode(), _single_torch_thread():
                for _ in range(num_steps):
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
            if not self.alg.storage.returns.isfinite().all():
                raise FloatingPointError(
                    f"rewards or values are not finite in iteration {self.iteration + 1}: look for a reward or an "
                    "observation without bounds"
                )
            losses = self.alg.update()
            wait_time_s = self._collectives.pop_waited_s()
            learn_time_s = self._now() - collected - wait_time_s
            self.iteration += 1
            self.env_steps_total += self.env_steps_per_iteration
            for name, loss in losses.items():
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the {name} loss is {loss} in iteration {self.iteration}: lower "
                        "--agent.algorithm.learning-rate"
                    )
            yield {
                "iteration": self.iteration,
                "env_steps_total": self.env_steps_total,
                **self._metrics.collect(
                    means={
                        **{f"loss/{name}": loss for name, loss in losses.items()},
                        "kl": self.alg.pop_kl() if isinstance(self.alg, Ppo) else None,
                        "action_std": self.alg.get_policy().output_std.mean(),
                    },
                    collect_time_s=collected - begin,
                    learn_time_s=learn_time_s,
                    wait_time_s=wait_time_s,
                    num_env_steps=num_steps * self.env.num_envs,
                ),
                "world_size": self._context.world_size,
                "num_envs_total": self.env.num_envs * self._context.world_size,
                "learning_rate": self.alg.learning_rate,
            }

    @property
    def env_steps_per_iteration(self) -> int:
        """Env steps that all ranks together do in an iteration."""
        return self.cfg["num_steps_per_env"] * self.env.num_envs * self._context.world_size

    @property
    def stop_requested(self) -> bool:
        """Whether any rank had been asked to stop when the last iteration ended; the same answer on all ranks."""
        return self._metrics.stop_requested

    def check_drift(self) -> None:
        """Compare parameters, normalisers, optimiser state and counters over ranks; every rank must call it.

        Raises:
            RanksDriftedError: Something differs; the message names the first tensor and the ranks.
        """
        if self._context.is_distributed:
            state = {**self.alg.save(), "learning_rate": self.alg.learning_rate, "iteration": self.iteration}
            check_drift(state, self._context.world_size, self.device)

    def save(self, path: Path, infos: dict | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write all that the future of the run depends on, atomically. Every rank must call it; rank 0 writes.

        Args:
            path: Where it goes.
            infos: Plain values to keep with it.

        Raises:
            OSError: Rank 0 could not write it.
        """
        mine = io.BytesIO()
        torch.save({"rng": get_rng_state(self.device), "env": self._env.state_dict()}, mine)
        ranks = self._collectives.gather_bytes(mine.getvalue(), self._context)
        if not self._context.is_main:
            return
        save_checkpoint(
            path,
            {
                **self.alg.save(),
                "iter": self.iteration,
                "learning_rate": self.alg.learning_rate,
                "last_episodes": self._metrics.last_episodes,
                "ranks": [torch.load(io.BytesIO(rank), weights_only=True) for rank in ranks],
                "infos": {**(infos or {}), "env_steps_total": self.env_steps_total},
            },
        )

    def resume(self, path: Path | None, task: str) -> str | None:
        """Go on where a checkpoint was saved. Every rank must call it; all go on from the bytes that rank 0 reads.

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
        content = parse_checkpoint(data, path, self.device)
        theirs = content.get("infos", {}).get("task")
        if theirs != task:
            raise RequestError(f"checkpoint {path}: is of task {theirs}, and this is {task}")
        self._load(content, path, {"actor": True, "critic": True, "optimizer": True, "rnd": True})
        self.iteration = content["iter"]
        self.env_steps_total = content["infos"]["env_steps_total"]
        self.alg.learning_rate = content["learning_rate"]
        self._metrics.last_episodes = content["last_episodes"]
        ranks = content["ranks"]
        if len(ranks) != self._context.world_size:
            return (
                f"the checkpoint is of {len(ranks)} ranks and there are {self._context.world_size} now: "
                "environments and random numbers start anew"
            )
        try:
            self._env.load_state_dict(ranks[self._context.rank]["env"])
        except (ValueError, KeyError, RuntimeError) as error:
            return f"environments and random numbers start anew: {error}"
        self._rng_state = ranks[self._context.rank]["rng"]
        return None

    def load_weights(self, path: Path) -> None:
        """Start from the networks and normalisers of a checkpoint; optimiser and counters stay as they are.

        Every rank must call it; rank 0's file counts.

        Raises:
            RequestError: There is no valid checkpoint, or it is of other networks.
        """
        self._load(load_checkpoint(path, self.device), path, {"actor": True, "critic": True})
        if self._context.is_distributed:
            self.alg.broadcast_parameters()

    def _load(self, content: dict[str, Any], path: Path, parts: dict[str, bool]) -> None:
        """Load parts of a checkpoint, and name what does not fit."""
        mine = self.alg.save()
        for part in ("actor", "critic"):
            key = f"{part}_state_dict"
            if key not in content:
                raise RequestError(f"checkpoint {path}: has no {part}; it is no checkpoint of a training")
            theirs = {name: tuple(value.shape) for name, value in content[key].items()}
            ours = {name: tuple(value.shape) for name, value in mine[key].items()}
            for name in [*ours, *theirs]:
                if theirs.get(name) != ours.get(name):
                    raise RequestError(
                        f"checkpoint {path}: does not fit the networks of this run: {part} {name} has shape "
                        f"{theirs.get(name)} in the checkpoint and {ours.get(name)} here"
                    )
        try:
            self.alg.load(content, parts, strict=True)
        except (RuntimeError, KeyError, ValueError) as error:
            raise RequestError(f"checkpoint {path}: does not fit the networks of this run ({error})") from error

    def _configure_multi_gpu(self) -> None:
        """Tell RSL-RL about the ranks. Its own version insists on CUDA, NCCL and making the process group itself."""
        context = self._context
        self.is_distributed = context.is_distributed
        self.gpu_world_size, self.gpu_global_rank, self.gpu_local_rank = (
            context.world_size,
            context.rank,
            context.local_rank,
        )
        self.cfg["multi_gpu"] = (
            {"global_rank": context.rank, "local_rank": context.local_rank, "world_size": context.world_size}
            if context.is_distributed
            else None
        )

    def _now(self) -> float:
        if self._env.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _to_rsl_rl(config: AgentConfig) -> dict[str, Any]:
    """Turn the typed config into the dictionary that RSL-RL reads."""
    plain = to_plain(config)
    return {
        key: plain[key]
        for key in ("num_steps_per_env", "actor", "critic", "algorithm", "obs_groups", "torch_compile_mode")
    }


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

"""The training loop: rollouts, updates, metrics and checkpoints, for any learning library, device and backend."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from mjtrain.env.base import TaskEnv
from mjtrain.env.catalog import is_same_task
from mjtrain.learning.algorithm import Algorithm
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.divergence import check_drift, check_losses, check_parameters, check_rollout
from mjtrain.learning.learner import IterationResult
from mjtrain.learning.persistence import as_tensors, gather_rank_states, set_rng_state
from mjtrain.runs.bundle import read_networks
from mjtrain.runs.checkpoint import (
    FORMAT,
    CheckpointError,
    check_recorded_learner,
    parse_checkpoint,
    read_checkpoint,
    save_checkpoint,
    taking_apart,
)
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError, count
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import same_random_numbers, torch_threads

TIMES = ("collect_time_s", "learn_time_s", "wait_time_s")


class TrainingLoop:
    """Collects rollouts in this rank's environments and lets an algorithm learn from them, for all learning libraries.

    Metrics are those of the whole job, an env step does not wait for the device, and the caller decides after each
    iteration what to write. Every rank calls the same methods in the same order, as most of them communicate.
    """

    def __init__(self, context: RankContext, env: TaskEnv, algorithm: Algorithm, num_steps: int, learner: str) -> None:
        """Begin with the parameters of rank 0; with several ranks, the process group must be up."""
        self.device = context.device
        self.iteration = 0
        """Iterations done."""
        self.env_steps_total = 0
        """Env steps done, summed over ranks."""
        self.after_step: Callable[[], None] | None = None
        """Called after each env step; it must not wait for the device, nor draw random numbers."""
        self._env = env
        self._algorithm = algorithm
        self._context = context
        self._num_steps = int(num_steps)  # of a config in Python it may be a number of numpy
        self.learner = learner
        self._rng_state: dict[str, Any] | None = None
        self._metrics = JobMetrics(context, env, algorithm.collectives)
        if context.is_distributed:
            algorithm.broadcast()
        env.stagger()

    @property
    def env_steps_per_iteration(self) -> int:
        """Env steps that all ranks together do in an iteration."""
        return self._num_steps * self._env.num_envs * self._context.world_size

    def iterate(self, last_iteration: int) -> Iterator[IterationResult]:
        """Learn until the run has last_iteration iterations or a rank is asked to stop; yield after each iteration.

        Raises:
            FloatingPointError: The training diverged; the message says what to look at.
        """
        env, algorithm, collectives = self._env, self._algorithm, self._algorithm.collectives
        algorithm.begin()
        heartbeat.stop_requested()  # from here on a signal waits for the end of the iteration
        if self._rng_state is not None:  # only now: whatever was built meanwhile may have drawn numbers
            set_rng_state(self._rng_state, self.device)
        is_last = self.iteration >= last_iteration
        warming_up = True  # the first iteration compiles kernels
        while not is_last:
            collectives.pop_waited_s()  # what came before belongs to no iteration
            begin = self._now()
            heartbeat.beat("rollout", warming_up=warming_up, iteration=self.iteration + 1)
            # After each parallel operation torch's idle threads spin for milliseconds, just when the physics wants
            # their cores: on two cores that costs the native engine a third of its speed, far more than one thread
            # costs the small networks.
            with torch.inference_mode(), torch_threads(1):
                self._collect()
            collected = self._now()
            heartbeat.beat("update", warming_up=warming_up)
            collect_wait_s = collectives.pop_waited_s()
            with torch.inference_mode():
                results = algorithm.finish_rollout(env.observe())
            check_rollout(results, self.iteration + 1, env, algorithm.rollout_observations)
            try:
                losses = algorithm.update()
            except RuntimeError:  # such as torch's where it draws from a distribution that is not finite
                with contextlib.suppress(RuntimeError):
                    check_parameters(algorithm.parameters(), self.iteration + 1)
                raise
            learn_wait_s = collectives.pop_waited_s()
            learn_time_s = self._now() - collected - learn_wait_s
            self.iteration += 1
            self.env_steps_total += self.env_steps_per_iteration
            check_losses(losses, self.iteration, env, algorithm.rollout_observations)
            check_parameters(algorithm.parameters(), self.iteration)
            metrics = {
                "iteration": self.iteration,
                "env_steps_total": self.env_steps_total,
                **self._metrics.collect(
                    means={**{f"loss/{name}": loss for name, loss in losses.items()}, **algorithm.pop_means()},
                    collect_time_s=collected - begin - collect_wait_s,
                    learn_time_s=learn_time_s,
                    wait_time_s=collect_wait_s + learn_wait_s,
                    num_env_steps=self._num_steps * env.num_envs,
                ),
                "world_size": self._context.world_size,
                "num_envs_total": env.num_envs * self._context.world_size,
                "learning_rate": algorithm.learning_rate,
            }
            new = collectives.union(env.new_shared(), self._context) if self._metrics.has_new_shared else ()
            env.merge_shared(collectives.sum, new)
            heartbeat.current.stop_agreed = self._metrics.stop_requested
            is_last = self.iteration >= last_iteration or self._metrics.stop_requested
            heartbeat.beat("report", warming_up=warming_up)
            warming_up = False
            pauses = self._metrics.pause_requested
            yield IterationResult(iteration=self.iteration, is_last=is_last, metrics=metrics, pause_requested=pauses)

    def phases(self) -> list[tuple[str, Any, str]]:
        """Return the parts of an iteration for a profile: a name, an object, and its method that is the part."""
        return [
            ("collect", self, "_collect"),
            ("policy", self._algorithm, "act"),
            ("environment", self._env, "step"),
            ("storage", self._algorithm, "process_env_step"),
            ("learn: returns", self._algorithm, "finish_rollout"),
            ("learn: update", self._algorithm, "update"),
        ]

    def _collect(self) -> None:
        observations = self._env.observe()
        for _ in range(self._num_steps):
            observations, rewards, terminated, truncated = self._env.step(self._algorithm.act(observations))
            if self.after_step is not None:
                self.after_step()
            self._algorithm.process_env_step(observations, rewards, terminated, truncated)
            heartbeat.beat()

    def agree(self, yes: bool) -> bool:
        """Tell whether all ranks say yes; every rank must call it."""
        return self._algorithm.collectives.sum(torch.tensor([int(not yes)], device=self.device)).item() == 0

    def check_drift(self) -> None:
        """Compare parameters, normalisers, optimiser state and counters over ranks, bit for bit.

        Raises:
            RanksDriftedError: The ranks differ; the message says where.
        """
        if self._context.is_distributed:
            learned, rate = as_tensors(self._algorithm.state_dict(), "state_dict()"), self._algorithm.learning_rate
            shared = {f"shared/{name}": total for name, total in self._env.shared_totals().items()}
            state = {**learned, **shared, "learning_rate": rate, "iteration": self.iteration}
            check_drift(state, self._context.world_size, self.device)

    def save(self, path: Path, infos: dict[str, Any] | None = None) -> None:
        """Write all that the future of the run depends on, atomically; the main rank writes.

        Raises:
            OSError: The main rank could not write it.
        """
        algorithm = self._algorithm
        ranks = gather_rank_states(self._env, algorithm.rank_state(), self.device, algorithm.collectives, self._context)
        if not self._context.is_main:
            return
        state = as_tensors(algorithm.state_dict(), "state_dict()")
        own = {
            "format": FORMAT,
            "learner": self.learner,
            "iter": self.iteration,
            "learning_rate": algorithm.learning_rate,
            "last_episodes": self._metrics.last_episodes,
            "ranks": ranks,
            "infos": {**(infos or {}), "env_steps_total": self.env_steps_total},
        }
        if taken := own.keys() & state.keys():
            raise ValueError(f"state_dict() has the keys {', '.join(sorted(taken))}, which the loop uses; rename them")
        save_checkpoint(path, {**own, **state})

    def resume(self, path: Path | None, task: str) -> str | None:
        """Continue from a checkpoint as if the training had never stopped, from the bytes that rank 0 reads.

        Args:
            path: File of the checkpoint. Only the main rank's counts; None there changes nothing.
            task: Name of the task that is trained.

        Returns:
            A line about what could not be restored, or None.

        Raises:
            RequestError: It is not a valid checkpoint, or one of another task or other networks.
        """
        mine = read_checkpoint(path) if path is not None and self._context.is_main else b""
        data = self._algorithm.collectives.broadcast_bytes(mine, self._context)
        if not data:
            return None
        path = path or Path("(of rank 0)")
        content = parse_checkpoint(data, path, "cpu")
        for key in ("iter", "infos", "last_episodes", "ranks"):
            if key not in content:
                raise CheckpointError(
                    f"checkpoint {path}: has no {key}, so no training can be resumed from it; --load takes its networks"
                )
        with taking_apart(content, path) as parts:
            theirs = parts["infos"].get("task")
            if not is_same_task(theirs, task):
                raise RequestError(f"checkpoint {path}: is of task {theirs}, and this is {task}")
            check_recorded_learner(parts, path, self.learner)
            self._algorithm.load_state_dict(parts, path)
            self.iteration = parts["iter"]
            self.env_steps_total = int(parts["infos"]["env_steps_total"])
            known = self._env.statistics.keys()  # not those of terms that the run had before and has not now
            self._metrics.last_episodes = {key: mean for key, mean in parts["last_episodes"].items() if key in known}
            return self._resume_rank(parts["ranks"])

    def _resume_rank(self, ranks: list[dict[str, Any]]) -> str | None:
        """Continue with what a checkpoint has of the rank with this number; say what could not be restored."""
        # It belongs to the number, wherever it now runs: what a job of some size makes of a checkpoint does not depend
        # on which ranks the job before it has lost.
        kept = " and ".join(name for name in ("memory", "buffer") if any(_has(state, name) for state in ranks))
        what = f"environments, random numbers and the learner's {kept}" if kept else "environments and random numbers"
        change = _describe_other_size(len(ranks), self._context.world_size, what)
        if ranks:
            self._env.load_shared(ranks[0]["env"])  # the same on all ranks, those that start again too
        if self._context.rank >= len(ranks):
            return change
        state = ranks[self._context.rank]
        try:
            self._env.load_state_dict(state["env"])
        except (ValueError, KeyError, RuntimeError) as error:
            return f"{what} start again: {error}"
        with same_random_numbers(self.device):
            set_rng_state(state["rng"], self.device)  # whether it can be: it counts only when the iterations begin
        self._rng_state = state["rng"]
        self._algorithm.load_rank_state(state)
        return change

    def policy_weights(self) -> dict[str, Any]:
        """Return what `Policy.load` takes: the networks as they are now, not a copy. No rank waits for others."""
        return {**as_tensors(self._algorithm.state_dict(), "state_dict()"), "iter": self.iteration}

    def load_weights(self, path: Path, critic: Path | None = None) -> None:
        """Start from the networks and normalisers of a checkpoint, or of a shared policy, which has no critic.

        Optimiser and counters stay as they are. Only rank 0 reads files.

        Args:
            critic: Checkpoint of which the critic is taken instead; only for `--learner rsl_rl`.

        Raises:
            RequestError: It is not a valid checkpoint, or one of other networks.
        """
        content = self._read_networks(path)
        if critic is not None:
            content.pop("critic_state_dict", None)
        with taking_apart(content, path) as parts:
            self._algorithm.load_weights(parts, path)
        if critic is not None:
            content = self._read_networks(critic)
            if "critic_state_dict" not in content:
                raise RequestError(f"--load-critic {critic}: has no critic; give a run that learned by PPO")
            with taking_apart({"critic_state_dict": content["critic_state_dict"]}, critic) as parts:
                self._algorithm.load_weights(parts, critic)
        if self._context.is_distributed:
            self._algorithm.broadcast()

    def _read_networks(self, path: Path) -> dict[str, Any]:
        """Return the content of a file of which only rank 0's host may have a copy; every rank must call it."""
        content = read_networks(path, "cpu") if self._context.is_main else {}
        if self._context.is_distributed:
            content.pop("ranks", None)  # memories of an earlier training, which may be large
            torch.save(content, mine := io.BytesIO())
            data = self._algorithm.collectives.broadcast_bytes(mine.getvalue(), self._context)
            content = parse_checkpoint(data, path, "cpu")
        check_recorded_learner(content, path, self.learner)
        return content

    def _now(self) -> float:
        if self._env.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


Learner = TrainingLoop
"""What a `Library` makes."""


def _has(state: dict[str, Any], name: str) -> bool:
    value = state.get(name)  # of another library also a tensor, which may have no truth value
    return value is not None and (isinstance(value, torch.Tensor) or bool(value))


def _describe_other_size(before: int, now: int, what: str) -> str | None:
    """Say what becomes of the environments of a checkpoint that is of another number of ranks; None if it is not."""
    if before == now:
        return None
    fewer, more = sorted((before, now))
    others = f"rank {fewer}" if more - fewer == 1 else f"ranks {fewer} to {more - 1}"
    fate = "are left out" if now < before else "start again"
    words = count(before, "rank")
    return (
        f"the checkpoint is of {words} and there {'is' if now == 1 else 'are'} {now} now: {what} of {others} {fate}, "
        "those of the other ranks continue"
    )


class JobMetrics:
    """Adds up what the ranks saw in an iteration: one collective, one host sync.

    With environments that tell something of themselves it is one more, as ranks may have heard of other names.
    """

    def __init__(self, context: RankContext, env: TaskEnv, collectives: Collectives) -> None:
        self._context = context
        self._env = env
        self._statistics = env.statistics
        self._log = env.log
        self._collectives = collectives
        self.last_episodes: dict[str, Any] = {"mean_reward": None, "mean_episode_length": None}
        """Means over episodes of the last iteration in which one finished."""
        self.stop_requested = False
        """Whether any rank had been asked to stop by the last `collect`; the same answer on all."""
        self.pause_requested = False
        """Whether any rank had heard by then that hosts wait to be taken in; the same answer on all."""
        self.has_new_shared = False
        """Whether the environments of any rank have something new to share; the same answer on all."""

    def collect(
        self,
        *,
        means: dict[str, torch.Tensor | float | None],
        collect_time_s: float,
        learn_time_s: float,
        wait_time_s: float,
        num_env_steps: int,
    ) -> dict[str, Any]:
        """Reduce one iteration over ranks. Every rank must call it; all get the same answer.

        Args:
            means: This rank's means over its samples, the same number on all ranks; None is left None.
            collect_time_s: Time of the rollout, without waiting for other ranks.
            learn_time_s: Time from there to the end of the update, without waiting for other ranks.
            wait_time_s: Time this rank waited for the others meanwhile, in either.

        Returns:
            Means over finished episodes (the last known ones where none finished), the means over all ranks, what the
            environments tell of themselves, throughput of all ranks together, and each time as mean, min and max over
            ranks with the rank that was slowest.
        """
        context = self._context
        episodes = self._statistics.pop()
        times = episodes.new_zeros(context.world_size, len(TIMES))
        times[context.rank] = times.new_tensor([collect_time_s, learn_time_s, wait_time_s])
        known = {name: mean for name, mean in means.items() if mean is not None}
        numbers = [torch.as_tensor(mean, dtype=times.dtype, device=times.device) for mean in known.values()]
        mine = torch.stack(numbers) if numbers else times.new_zeros(0)
        flags = (heartbeat.stop_requested(), heartbeat.current.pause_requested, bool(self._env.new_shared()))
        asked = episodes.new_tensor([float(flag) for flag in flags])
        told = self._pop_log(episodes)
        sums = torch.cat([told, episodes, mine, times.flatten(), asked])
        if context.is_distributed:
            self._collectives.sum(sums)
        *values, num_stops, num_pauses, num_new = sums.tolist()
        self.stop_requested, self.pause_requested, self.has_new_shared = num_stops > 0, num_pauses > 0, num_new > 0
        told_means = {} if self._log is None else self._log.summarise(values[: len(told)])
        values = values[len(told) :]
        # Warnings are of this iteration only, and are not given where there are none.
        kept = {name: mean for name, mean in self.last_episodes.items() if not name.startswith("warning/")}
        self.last_episodes = kept | self._statistics.summarise(values[: len(episodes)])
        job_means = dict.fromkeys(means) | {
            name: total / context.world_size for name, total in zip(known, values[len(episodes) :], strict=False)
        }
        slots = range(len(episodes) + len(known), len(values), len(TIMES))
        by_rank = [values[slot : slot + len(TIMES)] for slot in slots]
        return {**_speed(by_rank, num_env_steps), **self.last_episodes, **told_means, **job_means}

    def _pop_log(self, like: torch.Tensor) -> torch.Tensor:
        """Return the totals of what this rank's environments told, of the same names on all ranks."""
        if self._log is None:
            return like.new_zeros(0)
        self._log.agree_on(self._collectives.union(self._log.new_names(), self._context))
        return self._log.pop()


def _speed(by_rank: list[list[float]], num_env_steps: int) -> dict[str, Any]:
    world_size = len(by_rank)
    busy_s = [collect_s + learn_s for collect_s, learn_s, _ in by_rank]
    iteration_s = sum(map(sum, by_rank)) / world_size
    summary: dict[str, Any] = {"env_steps_per_second": world_size * num_env_steps / iteration_s}
    for name, times in zip(TIMES, zip(*by_rank, strict=True), strict=True):
        summary[name] = sum(times) / world_size
        if world_size > 1:
            stem = name.removesuffix("_s")
            summary |= {f"{stem}_min_s": min(times), f"{stem}_max_s": max(times)}
    if world_size > 1:
        summary |= {"slowest_rank": busy_s.index(max(busy_s)), "busy_time_by_rank_s": busy_s}
    return summary

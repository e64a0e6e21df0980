"""A run's environment and the policy that acts in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mjtrain.config import UNTRAINED, EngineName, EnvConfig, PolicyName
from mjtrain.config.limits import FINITE
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.env.term_check import find_term_problems
from mjtrain.evaluation.episodes import PolicyPlayer
from mjtrain.learning.registry import make_policy
from mjtrain.runs.bundle import read_networks
from mjtrain.runs.checkpoint import recorded_learner, taking_apart
from mjtrain.runs.trained_run import TrainedRun, may_be_played_as
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import Stream, derive_seed
from mjtrain.sim.engines import make_engine


class Player(PolicyPlayer):
    """Steps the environment of a run with its policy, whose weights can be replaced between two steps."""

    def __init__(
        self,
        context: RankContext,
        run: TrainedRun,
        *,
        num_envs: int = 1,
        engine: EngineName = "auto",
        policy: PolicyName | str = "trained",
        held: tuple[str, tuple[float, ...]] | None = None,
    ) -> None:
        """Build the environment and load the policy.

        Args:
            run: What to play; its env is used unchanged, see `eval_config.to_eval_config`.
            policy: What acts: zero for zeros, random for random actions (uniform in [-1, 1]), else the network of the
                run.
            held: A command term, and the values of its controls; None leaves all commands to chance.
        """
        super().__init__(_make_env(context, run, num_envs, engine), None)
        if held is not None:
            _hold(self.env, *held)
        self.run = run
        self._policy_name = policy
        self._random = torch.Generator(self.env.device).manual_seed(derive_seed(context.seed, Stream.RANDOM_ACTIONS))
        self.checkpoint: Path | None = None
        """File of the current weights; None without a trained policy."""
        if policy not in UNTRAINED:
            assert run.checkpoint is not None
            content = self._read(run.checkpoint)
            learner = replace(run.learner, name=recorded_learner(content))
            self.policy = make_policy(run.agent, learner, self.env.observe(), self.env.num_actions)
            self._take(content, run.checkpoint)

    def load(self, checkpoint: Path) -> None:
        """Load other weights into the same networks.

        Where they do not fit, or are of another task, it raises a RequestError and changes nothing.
        """
        self._take(self._read(checkpoint), checkpoint)

    def _read(self, checkpoint: Path) -> dict[str, Any]:
        content = read_networks(checkpoint, str(self.env.device))
        with taking_apart(content, checkpoint) as parts:
            theirs = parts.get("infos", {}).get("task")
            if theirs is not None and not may_be_played_as(theirs, self.run.task):
                raise RequestError(f"checkpoint {checkpoint}: is of task {theirs}, and this is {self.run.task}")
        return content

    def _take(self, content: dict[str, Any], checkpoint: Path) -> None:
        assert self.policy is not None
        with taking_apart(content, checkpoint) as parts:
            self.policy.load(parts, checkpoint)
        self.checkpoint = checkpoint

    @property
    def iteration(self) -> int | None:
        """Iteration of the training at which the current weights were saved; None without a trained policy."""
        return None if self.policy is None else self.policy.iteration

    @property
    def policy_name(self) -> str:
        """What acts: zero, random, the place of a shared policy, or else trained."""
        return self._policy_name if self._policy_name in UNTRAINED else self.run.place or "trained"

    def act(self) -> torch.Tensor:
        """Return the actions of the policy for the current observations. Shape (num_envs, num_actions)."""
        if self.policy is not None:
            return super().act()
        shape = (self.env.num_envs, self.env.num_actions)
        if self._policy_name == "zero":
            return torch.zeros(shape, device=self.env.device)
        return 2 * torch.rand(shape, generator=self._random, device=self.env.device) - 1


def _make_env(context: RankContext, run: TrainedRun, num_envs: int, engine: EngineName) -> TaskEnv:
    if isinstance(run.env, EnvConfig):
        try:
            worlds = make_engine(engine, run.env, num_envs, context.device, context.num_threads)
            return Env(run.env, worlds, context.seed, is_recorded=run.run_dir is not None)
        except Exception as error:
            if not isinstance(error, RequestError) and (problems := find_term_problems(run.env)):
                raise RequestError.of(problems) from error
            raise
    from mjtrain.env.external.env import make_foreign_env

    return make_foreign_env(run.env, num_envs, context.device, context.seed, tries_step=False)


def _hold(env: TaskEnv, command: str, values: tuple[float, ...]) -> None:
    commands = env.config.commands if isinstance(env, Env) else {}
    controls = {name: term.controls for name, term in commands.items() if term.steer is not None}
    if command not in controls:
        raise RequestError(f"--command {command}: cannot be held by hand; available: {', '.join(controls) or 'none'}")
    if len(values) != len(controls[command]):
        given = " ".join(["--values", *map("{:g}".format, values)]) if values else f"--command {command}"
        raise RequestError(f"{given}: give --values for {', '.join(controls[command])}")
    if problem := FINITE.find_problem(values):
        raise RequestError(f"--values {problem}")
    assert isinstance(env, Env)
    env.steer(command, list(values))
    env.reset(torch.ones(env.num_envs, dtype=torch.bool, device=env.device))

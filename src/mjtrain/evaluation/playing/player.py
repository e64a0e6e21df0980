"""A run's environment and the policy that acts in it, and the policy alone as a function."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjtrain.config import UNTRAINED, EngineName, EnvConfig, PolicyName
from mjtrain.config.limits import FINITE, show
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.env.term_check import find_term_problems
from mjtrain.evaluation.episodes import Estimates, PolicyPlayer
from mjtrain.learning.library import make_policy
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
        """Build the environment of a run, unchanged (see `eval_config.to_eval_config`), and load the policy.

        Args:
            policy: What acts: zero, random (uniform in [-1, 1]), else the network of the run.
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
        """Load other weights into the same networks; a RequestError changes nothing."""
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
        given = " ".join(["--values", *map("{:.15g}".format, values)]) if values else f"--command {command}"
        raise RequestError(f"{given}: give --values for {', '.join(controls[command])}")
    if problem := FINITE.find_problem(values):
        raise RequestError(f"--values {problem}")
    assert isinstance(env, Env)
    env.steer(command, list(values))
    env.reset(torch.ones(env.num_envs, dtype=torch.bool, device=env.device))


class TrainedPolicy:
    """Maps observations to actions as `play` does: the mean action, without exploration noise.

    Observations are those of the environment, in the units of their terms; the policy normalises them itself, if it
    was trained with `obs_normalization`. Actions are normalised too, nominally in [-1, 1]: the environment's action
    terms clip and scale them.
    """

    def __init__(self, run: TrainedRun, device: str = "cpu") -> None:
        player = Player(RankContext(device=device), run)
        assert player.policy is not None
        self._policy, self._device = player.policy, torch.device(device)
        self.task = run.task
        """What it was trained on."""
        self.checkpoint = player.checkpoint
        """File of its weights."""
        self.iteration = self._policy.iteration
        """Iteration of the training at which they were saved."""
        self.inputs = self._policy.inputs
        """Shape of one environment's observation in each group that it reads, by name: (size,), or (channels, height,
        width) of images."""
        self.num_actions = player.env.num_actions
        """Size of an action."""
        self._estimates = None if self._policy.estimated_group is None else Estimates(player.env, self._policy)
        player.close()

    @property
    def input_size(self) -> int:
        """Size of the observations of all flat groups side by side."""
        return sum(shape[0] for shape in self.inputs.values() if len(shape) == 1)

    def __call__(self, observations: Any) -> Any:
        """Return the actions for observations.

        Args:
            observations: For each of `inputs` by name an array of shape (num_envs, *shape), as `Env.step` returns them;
                further groups are not read. Or, if it sees no images, one array of all groups side by side, shape
                (num_envs, input_size). Tensors of torch or arrays of numpy. Without the axis of worlds, the actions
                have none either.

        Returns:
            Actions of shape (num_envs, num_actions), float32: a tensor on the device of the observations, or an array.

        Raises:
            RequestError: A group is missing, or has another shape or number of environments; or an image of 0..255 is
                not uint8, or one of float32 is; or a recurrent policy remembers another number of environments.
        """
        given = observations if isinstance(observations, Mapping) else self._split(observations)
        for name in self.inputs:
            if name not in given:
                raise RequestError(f"observations have no group {name}; the policy reads {', '.join(self.inputs)}")
            self._check(name, given[name])
        all_axes = {name: tuple(given[name].shape[: -len(shape)]) for name, shape in self.inputs.items()}
        first, axes = next(iter(all_axes.items()))
        if other := next((name for name in all_axes if all_axes[name] != axes), None):
            raise RequestError(
                f"observations of group {other} have the shape {tuple(given[other].shape)}, and those of {first} "
                f"{tuple(given[first].shape)}; give the same number of environments"
            )
        batch = {}
        for name, shape in self.inputs.items():  # torch takes no arrays with negative strides, as of image[::-1]
            values = np.ascontiguousarray(given[name]) if isinstance(given[name], np.ndarray) else given[name]
            values = torch.as_tensor(values, dtype=self._policy.dtypes[name], device=self._device)
            batch[name] = values.reshape(-1, *shape)
        actions = self._policy(batch).reshape(*axes, self.num_actions)
        like = given[first]
        # The copy, unlike a tensor of inference mode, takes writes and gradients.
        return actions.to(like.device).clone() if isinstance(like, torch.Tensor) else actions.cpu().numpy()

    def estimate(self) -> dict[str, torch.Tensor]:
        """Return what the images of the last call tell of the group that was supervised, see `AuxiliaryConfig`.

        Returns:
            By observation term, in its unit: shape (num_envs, size), on the policy's device.

        Raises:
            RequestError: The policy was trained without such a group, or has not been called yet.
        """
        if self._estimates is None:
            flag = "--agent.algorithm.auxiliary-cfg.group"
            raise RequestError(f"the policy estimates nothing: it was trained without {flag}")
        return self._estimates.read()

    def _check(self, name: str, given: Any) -> None:
        shape, is_uint8 = self.inputs[name], self._policy.dtypes[name] == torch.uint8
        _check_array(f"observations of group {name}", given)
        if tuple(given.shape[-len(shape) :]) != shape:
            expected = ", ".join(map(str, shape))
            raise RequestError(
                f"observations of group {name} have the shape {tuple(given.shape)}; the policy reads "
                f"(num_envs, {expected})"
            )
        if is_uint8 and "uint8" not in str(given.dtype):
            raise RequestError(f"observations of group {name} are {given.dtype}; the policy reads uint8, 0 to 255")
        if not is_uint8 and len(shape) > 1 and "uint8" in str(given.dtype):
            raise RequestError(f"observations of group {name} are {given.dtype}; give float32, with colours in 0 to 1")

    def reset(self, done: Any = None) -> None:
        """Forget what a recurrent policy remembers; others remember nothing.

        Args:
            done: Worlds whose episode ended, boolean, shape (num_envs,). None: all, and the next call may be for
                another number of them.
        """
        self._policy.reset(None if done is None else torch.as_tensor(done, dtype=torch.bool, device=self._device))

    def _split(self, observations: Any) -> dict[str, Any]:
        images = [name for name, shape in self.inputs.items() if len(shape) > 1]
        if images:
            raise RequestError(f"the policy reads images ({', '.join(images)}); give observations by group")
        _check_array("observations", observations)
        if observations.shape[-1:] != (self.input_size,):
            parts = " + ".join(f"{name} {shape[0]}" for name, shape in self.inputs.items())
            raise RequestError(
                f"observations have the shape {tuple(observations.shape)}; the policy reads (num_envs, "
                f"{self.input_size}), which is {parts}"
            )
        ends = np.cumsum([shape[0] for shape in self.inputs.values()]).tolist()
        starts = [0, *ends[:-1]]
        return {name: observations[..., a:b] for name, a, b in zip(self.inputs, starts, ends, strict=True)}


def _check_array(what: str, given: Any) -> None:
    if not hasattr(given, "shape"):
        raise RequestError(f"{what}: is {show(given)}; give a tensor or an array of numpy")

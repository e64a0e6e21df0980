"""A task as Gymnasium's vector environment, its spaces, and the registration of all tasks."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mjtrain.config.limits import is_whole
from mjtrain.env.base import check_action, check_mask
from mjtrain.env.catalog import list_tasks
from mjtrain.env.env import Env
from mjtrain.env.observations import choose_by_world
from mjtrain.runtime.errors import RequestError, first_line_of
from mjtrain.runtime.rank import check_seed
from mjtrain.sim.drawing.renderer import FrameRenderer

Output = Literal["numpy", "torch"]
Autoreset = AutoresetMode | str

NAMESPACE = "mjtrain"
"""What ids begin with: mjtrain/Cartpole-Balance."""


def observation_space(observations: Mapping[str, torch.Tensor]) -> Dict:
    """Return the space of one environment's observations by group, from those of all worlds; see `Env.observe`."""
    return Dict({name: _box(values) for name, values in observations.items()})


def _box(values: torch.Tensor) -> Box:
    shape = tuple(values.shape[1:])
    if values.dtype == torch.uint8:
        return Box(0, 255, shape, np.uint8)
    return Box(-np.inf, np.inf, shape, np.float32)


def action_space(env: Env) -> Space:
    """Return the space of one environment's actions: each within the bounds to which its action term clips it."""
    low, high = np.array([column["clip"] for column in env.action_table], dtype=np.float32).reshape(-1, 2).T
    return Box(low, high, dtype=np.float32)


class TaskVectorEnv(VectorEnv):
    """Steps all worlds of an `Env` at once, in one of two of Gymnasium's autoreset modes.

    SAME_STEP: a step that ends an episode returns the first observation of the next one, and infos["final_obs"] has the
    last one of the episode that ended. NEXT_STEP: it returns the last observation, and the following step begins the
    next episode: in that world it has reward 0 and reads no action.
    """

    def __init__(
        self,
        make: Callable[[int], Env],
        seed: int,
        *,
        groups: str | Sequence[str],
        output: Output = "numpy",
        autoreset_mode: Autoreset = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
    ) -> None:
        """Build the worlds with a seed; the options are those of `mjtrain.make_vec`.

        Raises:
            RequestError: The group, the output or the mode does not exist.
        """
        for name, value, known in (
            ("output", output, ("numpy", "torch")),
            ("render_mode", render_mode, (None, "rgb_array")),
        ):
            if value not in known:
                raise RequestError(f"{name}={value!r}: give one of {', '.join(map(repr, known))}")
        named = (groups,) if isinstance(groups, str) else tuple(groups) if isinstance(groups, Iterable) else ()
        if not named or not all(isinstance(name, str) and name for name in named):
            raise RequestError(f"groups={groups!r}: give an observation group by its name, or several")
        self._next_step = _read_mode(autoreset_mode) is AutoresetMode.NEXT_STEP
        self._make, self._seed, self._fresh = make, seed, True
        self._alone = groups if isinstance(groups, str) else None
        self._groups = named
        self._output = output
        self.env = self._build()
        """The worlds; another object after a reset with a seed."""
        space = observation_space(self._choose(self.env.observe()))
        self.num_envs = self.env.num_envs
        self.single_observation_space = space if self._alone is None else space[self._alone]
        self.single_action_space = action_space(self.env)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = render_mode
        self.metadata = {
            "autoreset_mode": _read_mode(autoreset_mode),
            "render_modes": ["rgb_array"],
            "render_fps": 1 / self.env.step_dt,
        }
        self._renderer: FrameRenderer | None = None
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.env.device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes; return observations, and infos, which are empty.

        Args:
            seed: Builds the worlds again with this seed, so that all that follows is as in a new environment. None:
                the random numbers continue.
            options: reset_mask, a boolean array of shape (num_envs,): only these worlds begin a new episode.

        Raises:
            RequestError: A seed and a mask are given, the mask has another shape, the seed is not a seed, or there are
                other options.
        """
        self._check_open("reset")
        if seed is not None:
            if not is_whole(seed):
                raise RequestError(f"reset: seed {seed!r}: must be a whole number, at least 0")
            seed = index(seed)  # also of a number of numpy, which `make_vec` takes too
            check_seed("reset: seed", seed)  # before anything changes
        if not isinstance(options, Mapping | None):
            raise RequestError(f"reset: options are {options!r}; give a dictionary, such as {{'reset_mask': …}}")
        if unknown := [repr(name) for name in options or {} if name != "reset_mask"]:
            raise RequestError(f"reset: options has {', '.join(unknown)}; the only option is 'reset_mask'")
        super().reset(seed=seed)
        everywhere = torch.ones_like(self._ended)
        mask = (options or {}).get("reset_mask")
        if seed is not None:
            if mask is not None:
                raise RequestError("reset(seed=…, options={'reset_mask': …}): a seed is for all worlds; give either")
            if not (self._fresh and seed == self._seed):
                self._seed = seed
                self.env.close()
                self.env = self._build()
            begun = everywhere
        else:
            begun = everywhere if mask is None else self._read("reset_mask", mask)
            check_mask("reset_mask", begun, self.num_envs)
            self.env.reset(begun)
        self._fresh = seed is not None
        self._ended = self._ended & ~begun
        return self._show(self.env.observe()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance every world by one env step with actions, an array or tensor of shape (num_envs, num_actions).

        Returns:
            Observations, rewards, terminations, truncations and infos. Where episodes ended, infos has the result of
            each termination term as termination/NAME and of each success term as success/NAME, with masks. With
            SAME_STEP they are in final_info, and final_obs has what these worlds observed last: an array of objects, as
            other vector environments of Gymnasium have, or with torch a tensor (a dictionary of tensors) of all worlds.

        Raises:
            RequestError: The actions are not numbers, or have another shape.
        """
        self._check_open("step")
        action = self._read("actions", actions, torch.float32)
        check_action(action, self.num_envs, self.env.num_actions)
        self._fresh = False
        observations, rewards, terminated, truncated = self.env.step(action)
        final, ended = self.env.final_observations, terminated | truncated
        if self._next_step:
            begin, self._ended = self._ended, ended & ~self._ended
            if final is not None:
                observations = choose_by_world(self._ended, final, observations)
            if begin.any():  # these worlds have made a step of which nothing is told
                self.env.reset(begin)
                observations = choose_by_world(begin, self.env.observe(), observations)
            rewards, terminated, truncated = rewards.masked_fill(begin, 0.0), terminated & ~begin, truncated & ~begin
            infos = self._describe_ends(self._ended) if self._ended.any() else {}
        elif final is None:
            infos = {}
        else:
            infos = self._describe_final(final, ended)
        return self._show(observations), *map(self._give, (rewards, terminated, truncated)), infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Return a picture of each world, uint8 of shape (height, width, 3).

        Raises:
            RequestError: The environment was made without render_mode="rgb_array", or MuJoCo cannot render here.
        """
        if self.render_mode is None:
            raise RequestError("render(): the environment has no render mode; make it with render_mode='rgb_array'")
        self._check_open("render")
        if self._renderer is None:
            self._renderer = FrameRenderer(self.env.config)
        return self._renderer.render(self.env.state.qpos)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 (VectorEnv.close passes on what it is given)
        """Give the threads and buffers of the worlds back."""
        self.env.close()
        if self._renderer is not None:
            self._renderer.close()

    def _check_open(self, call: str) -> None:
        """Refuse what would need worlds after `close`: a reset with a seed would make some that nothing releases."""
        if self.closed:
            raise RequestError(f"{call}(): the environment is closed; make another one")

    def _build(self) -> Env:
        env = self._make(self._seed)
        env.keeps_final_observations = True
        return env

    def _read(self, name: str, value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        if isinstance(value, np.ndarray):  # torch takes no negative strides, as of values[::-1]
            value = np.ascontiguousarray(value)
        try:
            tensor = torch.as_tensor(value, device=self.env.device)
            return tensor if dtype is None or tensor.is_complex() else tensor.to(dtype)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RequestError(f"{name}: cannot be read as a tensor ({first_line_of(error)})") from error

    def _choose(self, observations: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        missing = [name for name in self._groups if name not in observations]
        if missing:
            raise RequestError(f"groups={missing[0]!r}: the environment observes {', '.join(observations)}")
        return {name: observations[name] for name in self._groups}

    def _show(self, observations: Mapping[str, torch.Tensor]) -> Any:
        """Return observations of all worlds as the observation space has them."""
        shown = {name: self._give(values) for name, values in self._choose(observations).items()}
        return shown if self._alone is None else shown[self._alone]

    def _give(self, values: torch.Tensor) -> Any:
        return values.clone() if self._output == "torch" else values.cpu().numpy().copy()

    def _describe_final(self, final: Mapping[str, torch.Tensor], ended: torch.Tensor) -> dict[str, Any]:
        """Return the infos of a step that ended episodes and began others. `ended` is boolean, shape (num_envs,)."""
        observed, mask = self._show(final), self._give(ended)
        if self._output == "numpy":
            observed = self._separate(observed, np.flatnonzero(mask))
        described = self._describe_ends(ended)
        return {"final_obs": observed, "_final_obs": mask, "final_info": described, "_final_info": self._give(ended)}

    def _describe_ends(self, ended: torch.Tensor) -> dict[str, Any]:
        """Return why the episodes of the masked worlds ended. Boolean, shape (num_envs,)."""
        config, infos = self.env.config, {}
        facts = dict(zip((f"termination/{name}" for name in config.terminations), self.env.causes.T, strict=True))
        facts |= zip((f"success/{name}" for name in config.successes), self.env.successes.T, strict=True)
        for name, values in facts.items():
            infos |= {name: self._give(values), f"_{name}": self._give(ended)}
        return infos

    def _separate(self, observed: Any, worlds: np.ndarray) -> np.ndarray:
        """Return the observation of each of these worlds by itself, in an array of objects of shape (num_envs,)."""
        separate = np.full(self.num_envs, None, dtype=object)
        for world in worlds:
            separate[world] = (
                {name: values[world] for name, values in observed.items()} if self._alone is None else observed[world]
            )
        return separate


def _read_mode(mode: Autoreset) -> AutoresetMode:
    known = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    found = next((one for one in known if mode in (one, one.value)), None)
    if found is None:
        raise RequestError(f"autoreset_mode={mode!r}: give {' or '.join(repr(one.value) for one in known)}")
    return found


def register_tasks() -> None:
    """Register every task whose name Gymnasium takes under that name; none is imported."""
    for entry in list_tasks():
        with contextlib.suppress(gymnasium.error.Error):  # such as of a space; `make_vec` of mjtrain takes any name
            gymnasium.register(
                f"{NAMESPACE}/{entry.name}", vector_entry_point="mjtrain.api:make_vec", kwargs={"task": entry.name}
            )

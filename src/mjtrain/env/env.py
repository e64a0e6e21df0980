"""The batched MDP."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from mjtrain.config import EnvConfig, to_plain
from mjtrain.env.actions import Actions
from mjtrain.env.base import check_action, check_mask
from mjtrain.env.cameras import Cameras
from mjtrain.env.core import EnvCore, ReadOnly, SharedSum, SharedSums
from mjtrain.env.events import Commands, Events, Pushes
from mjtrain.env.ground import ContactReading, ContactTimes, Ground, find_contact_readings
from mjtrain.env.mirror import Mirror
from mjtrain.env.nan_guard import NanGuard
from mjtrain.env.observations import Observations, choose_by_world
from mjtrain.env.statistics import EpisodeStatistics
from mjtrain.env.term_check import check_robot_names, check_terms
from mjtrain.env.term_result import call_term, check_results
from mjtrain.env.terminations import Curriculum, Rewards, Successes, Terminations
from mjtrain.env.undisturbed import preserving_state
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.worker import torch_defaults
from mjtrain.sim.engines.base import Engine, State
from mjtrain.sim.robots.kinematics import BodyStates, ForwardKinematics

_Found = TypeVar("_Found")

_NEW_BUFFERS = ("reward_terms", "causes", "successes", "actions.target")
"""What states of older checkpoints may lack; it stays as it is then."""


class Env:
    """Steps `num_envs` copies of a task at once. Worlds whose episode ends are reset within the same step.

    Terms read it: `state`, `qpos(joint)`, `qvel(joint)`, `sensor(name)`, `command(name)`, `level(name)`,
    `success(name)`, `bodies`, `ground`, `action`, `last_action`, `episode_step`. Every function on the step path works
    on whole batches. Nothing waits for the device, except cameras with an interval.
    """

    log = None
    """No separate log: everything is in the statistics."""

    def __init__(
        self, config: EnvConfig, engine: Engine, seed: int, *, first_world: int = 0, is_recorded: bool = False
    ) -> None:
        """Build the terms and start every world.

        Args:
            first_world: How many worlds the ranks before this one have.
            is_recorded: Whether a run has recorded the config, in which case it was trained with it.

        Raises:
            RequestError: The parameters of a term do not fit its function, or a term names a joint, sensor, actuator,
                body or geom that the robot does not have.
        """
        check_terms(config, limits=not is_recorded)
        check_robot_names(config, engine.layout)
        core = EnvCore(config, engine, seed)
        self.config = config
        self.is_recorded = is_recorded
        """Whether a run has recorded the config. Its numbers and names are not refused where training worked."""
        self.engine = engine
        self.num_envs = core.num_envs
        self.device = core.device
        self.step_dt = core.step_dt
        """Env step, in seconds."""
        self.max_episode_steps = core.max_episode_steps
        """Longest episode, in env steps."""
        self.rng = core.rng
        """Source of all randomness of the environment."""
        self.episode_step = core.episode_step
        """Env steps since the episode began. Shape (num_envs,)."""
        self.terminated = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        """Worlds whose episode this step ended, by failing. Boolean, shape (num_envs,)."""
        self.reward_terms = torch.zeros(self.num_envs, len(config.rewards), device=self.device)
        """Reward of each term in this step, in the order of the config. Shape (num_envs, num_rewards)."""
        self.causes = torch.zeros(self.num_envs, len(config.terminations), dtype=torch.bool, device=self.device)
        """Result of each termination term in this step, false in worlds that are not finite. Boolean, shape (num_envs,
        num_terminations)."""
        self.successes = torch.zeros(self.num_envs, len(config.successes), device=self.device)
        """What each success term measures of the episode up to this step, in the order of the config; see
        `SuccessTerm.measure`. Where this step ended an episode, of that episode. Shape (num_envs, num_successes)."""
        self.start_qpos = engine.state.qpos.clone()
        """Positions in which the running episode began. Shape (num_envs, nq)."""
        self.keeps_final_observations = False
        """Whether `step` sets `final_observations`, for which it waits for the device."""
        self.final_observations: dict[str, torch.Tensor] | None = None
        """Observations by group of the state in which episodes ended with the last step, before those worlds were
        reset; meaningful in these worlds only. Their commands are those of the step. Worlds that broke have the
        observations before the step. None where no episode ended. Shapes as those of `observe`."""
        self._is_closed = False
        self._core = core
        self._memory = core.memory
        self._pushes = Pushes(core)
        self._shared = SharedSums(self.device)
        self._kinematics: ForwardKinematics | None = None
        self._body_states: BodyStates | None = None
        self._contacts_counted = False
        """Whether this is the part of a step after the update of the contact times."""
        self._contact_readings: dict[tuple[str, ...], list[ContactReading] | None] = {}
        self._contact_times: dict[tuple[tuple[str, ...], float], ContactTimes] = {}
        self._watched: dict[str, torch.Tensor] = {}
        self.ground = Ground(config.terrain, self.device, first_world)
        """Heights of the ground."""
        self.cameras = Cameras(config.cameras, core)
        """What the cameras of all worlds see."""
        self._actions = Actions(config.actions, core, noise=config.observation_noise)
        self._rewards = Rewards(config.rewards, core)
        self._terminations = Terminations(config.terminations, core)
        self._successes = Successes(config.successes, core)
        self._events = Events(config.events, core)
        self._curriculum = Curriculum(config.curriculum, core)
        self._commands = Commands(config.commands, core)
        self._observations = Observations(config.observations, core, noise=config.observation_noise)
        self._nan_guard = NanGuard(config.nan_guard, core, config.robot.file_name)
        self.statistics = EpisodeStatistics(
            tuple(config.rewards),
            tuple(config.terminations),
            self.num_envs,
            self.device,
            levels=self._curriculum.levels,
            successes=tuple(config.successes),
            missed={name: buffer.missed for name, buffer in engine.buffers.items()},
            warned=engine.warnings,
        )
        """Sums over finished episodes, and returns of the running ones."""
        core.read_only.add(self._find_read_only())
        self._seen = self._start()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: MuJoCo's objects cannot be."""
        raise TypeError("an Env cannot be pickled or copied; make another one with mjtrain.make_env")

    @torch_defaults()
    @torch.no_grad()  # a term may read a network of its author, and graphs would grow from step to step
    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Advance every world by one env step.

        Args:
            action: Output of the policy, nominally in [-1, 1]. Shape (num_envs, num_actions).

        Returns:
            Observations by group, as `observe` returns them, of the new episode where one ended; rewards, shape
            (num_envs,); terminated and truncated, boolean, shape (num_envs,).

        Raises:
            RequestError: The action is not a tensor, or has another shape, or the environment is closed.
        """
        self._check_open()
        check_action(action, self.num_envs, self.num_actions)
        self._events.apply_interval(self, self._forget_bodies)
        self._pushes.apply()
        self.engine.step(self._actions.apply(action, self), self.config.decimation)
        self._forget_bodies()
        self.episode_step += 1
        self._contacts_counted = True
        self._update_contact_times()
        broken = self._nan_guard.check(self.state, self.engine.failed)
        terminated, truncated, causes = self._terminations.compute(self)
        terminated, truncated, causes = terminated | broken, truncated & ~broken, causes & ~broken[:, None]
        done = terminated | truncated
        self.terminated.copy_(terminated)
        self.successes.copy_(self._successes.update(self, broken))
        rewards = self._rewards.compute(self).masked_fill(broken[:, None], 0.0)
        self.reward_terms.copy_(rewards)
        self.causes.copy_(causes)
        if self.keeps_final_observations:
            self.final_observations = self._observe_ends(broken) if done.any() else None
        self.statistics.add(rewards, causes, done, broken, self.successes)
        self._curriculum.update(self, done & ~broken)  # after the statistics, which it may read
        self._begin_episodes(done)
        self._commands.update(self, done)
        self._seen = self._observe(done)
        self._contacts_counted = False
        return self._seen, rewards.sum(dim=1), terminated, truncated

    @torch_defaults()
    @torch.no_grad()
    def reset(self, mask: torch.Tensor, draws: dict[str, torch.Tensor] | None = None) -> None:
        """Start a new episode in the masked worlds.

        Args:
            mask: Boolean, shape (num_envs,).
            draws: What these episodes begin with, in the place of draws of command terms. Shape (num_envs, size) each.

        Raises:
            RequestError: The mask has another shape or type, a name is not that of a command term, or the environment
                is closed.
        """
        self._check_open()
        check_mask("mask", mask, self.num_envs)
        for name in draws or ():
            _find("command", name, self.config.commands)
        held = self._commands.held
        self._commands.held = held | (draws or {})
        try:
            self._begin_episodes(mask)
            self._commands.reset(self, mask)
        finally:
            self._commands.held = held
        self._seen = choose_by_world(mask, self._observe(mask, advance=False), self._seen)

    def observe(self) -> dict[str, torch.Tensor]:
        """Return the observations by group, as the last step or reset left them.

        Shape (num_envs, size) each, or (num_envs, channels, height, width) of images.
        """
        return self._seen

    def stagger(self) -> None:
        """Let the running episodes end at different times, as if they had begun at random moments.

        These first, shortened episodes do not count in the statistics.
        """
        self.episode_step.random_(self.max_episode_steps, generator=self.rng)
        self.statistics.skip_running()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the future of the environment depends on; tensors and plain values."""
        return {
            "engine": self.engine.state_dict(),
            "rng": self.rng.get_state(),
            "buffers": {name: tensor.clone() for name, tensor in self._buffers().items()},
            "seen": {name: tensor.clone() for name, tensor in self._seen.items()},
            "memory": self._memory.state_dict(),
            "contact_times": [json.dumps(key) for key in self._contact_times],
            "shared": self._shared.state_dict(),
            "cameras": self.cameras.state_dict(),
            "followed": dict(self._followed),
            "ground": self._describe_ground(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that an environment of the same config, engine, device and num_envs gave.

        Raises:
            ValueError: It is of another environment, engine or kind of device; then nothing has changed.
        """
        buffers, ground = self._buffers(), self._describe_ground()
        if any(ground.get(name) != value for name, value in state.get("ground", {}).items()):  # older states lack it
            raise ValueError("the generated ground is not that of the checkpoint")
        if (num_envs := len(state["buffers"]["episode_step"])) != self.num_envs:
            raise ValueError(f"the checkpoint has {num_envs} environments per rank, and this run has {self.num_envs}")
        saved = {name: buffers[name] for name in _NEW_BUFFERS if name in buffers} | state["buffers"]
        followed, before = self._followed, state.get("followed", {})  # older states lack it
        for name in followed.keys() & before.keys():
            ours, theirs = followed[name], before[name]
            if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=0.0, atol=1e-4):
                raise ValueError(f"the state is of another environment: command {name} followed another motion")
        for theirs, ours in ((saved, buffers), (state["seen"], self._seen)):
            differing = [
                name
                for name in sorted(ours.keys() | theirs.keys())
                if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
            ]
            if differing:
                raise ValueError(f"the state is of another environment: {', '.join(differing)} differ")
        self.cameras.check_state(state.get("cameras", {}))
        rng_state = state["rng"].cpu()
        try:
            torch.Generator(self.device).set_state(rng_state)
        except (RuntimeError, TypeError) as error:  # the generator of a CPU has another state than that of a GPU
            raise ValueError(f"the state of the random generator is not one of a {self.device.type} device") from error
        self.engine.load_state_dict(state["engine"])  # the last that can fail; it checks all before it changes any
        self.rng.set_state(rng_state)
        for name, tensor in buffers.items():
            tensor.copy_(saved[name])
        self._forget_bodies()
        self._memory.load_state_dict(state.get("memory", {}))
        self._pushes.resume(state.get("memory", {}))
        for key in state.get("contact_times", ()):  # they must be counted before they are next read
            with suppress(RequestError):  # a sensor has another name now
                self.contact_times(*json.loads(key))
        self._shared.load_state_dict(state.get("shared", {}))
        self.cameras.load_state_dict(state.get("cameras", {}))
        self._seen = {name: state["seen"][name].to(self.device, copy=True) for name in self._seen}
        self.forget_failures()  # of the worlds that these were before

    def _describe_ground(self) -> dict[str, Any]:
        """Return what the shape of generated ground depends on, as plain values."""
        if self.config.terrain.kind != "generated":
            return {"kind": "plane"}
        return {name: value for name, value in to_plain(self.config.terrain).items() if name != "friction"}

    def load_shared(self, state: dict[str, Any]) -> None:
        """Continue with what worlds share, from a state of any rank and of any number of worlds."""
        self._shared.load_state_dict(state.get("shared", {}))

    def new_shared(self) -> list[str]:
        """Return what other ranks must know of each `shared_sum` that they may not have yet."""
        return self._shared.new()

    def merge_shared(self, add_over_ranks: Callable[[torch.Tensor], torch.Tensor], new: Iterable[str]) -> None:
        """Bring together what the worlds of all ranks have added to each `shared_sum`; see `TaskEnv.merge_shared`."""
        self._shared.merge(add_over_ranks, new)

    def shared_totals(self) -> dict[str, torch.Tensor]:
        """Return the total of each `shared_sum` by name, which is the same on all ranks."""
        return self._shared.totals()

    def explain_broken_worlds(self) -> str:
        """Say what most likely broke the worlds that broke since the last dump, to follow a colon; empty for none."""
        cause = self._nan_guard.explain()
        if cause and self.engine.failures:
            return f"MuJoCo raised {self.engine.failures[-1]}"
        fastest = self.describe_fastest()
        return f"{cause} ({fastest})" if fastest else cause

    def dump_broken_worlds(self, folder: Path, name: str) -> list[Path]:
        """Write the last seconds of worlds that broke since the last call; see `NanGuard.dump`."""
        self.engine.failures.clear()
        return self._nan_guard.dump(folder, name)

    def forget_failures(self) -> None:
        """Forget broken worlds, warnings and full buffers so far, which the state does not contain."""
        self._nan_guard.forget()
        self.engine.failures.clear()
        for noted in (*self.engine.warnings.values(), *(buffer.missed for buffer in self.engine.buffers.values())):
            noted.zero_()

    def describe_fastest(self) -> str:
        """Say how fast which joint of a world that broke was; see `NanGuard.describe_fastest`."""
        return self._nan_guard.describe_fastest(self.engine.layout.velocities)

    def close(self) -> None:
        """Give the threads and buffers of the cameras and the engine back; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.cameras.close()
        self.engine.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("the environment is closed; make another one")

    def make_mirror(self) -> Mirror:
        """Return what a left-right mirror makes of observations and actions.

        Raises:
            RequestError: The robot is not its own mirror image.
        """
        return Mirror(self)

    def phases(self) -> list[tuple[str, Any, str]]:
        """Return the parts of `step` for a profile: a name, an object, and its method that is the part."""
        return [
            ("physics", self.engine, "step"),
            ("actions", self._actions, "apply"),
            ("events", self._events, "apply_interval"),
            ("contact times", self, "_update_contact_times"),
            ("NaN guard", self._nan_guard, "check"),
            ("terminations", self._terminations, "compute"),
            ("successes", self._successes, "update"),
            ("rewards", self._rewards, "compute"),
            ("statistics", self.statistics, "add"),
            ("curriculum", self._curriculum, "update"),
            ("resets", self, "_begin_episodes"),
            ("commands", self._commands, "update"),
            ("cameras", self.cameras, "update"),
            ("observations", self._observations, "compute"),
        ]

    @property
    def num_actions(self) -> int:
        """Size of an action."""
        return self._actions.size

    @property
    def action_table(self) -> list[dict[str, Any]]:
        """Meaning of each column of an action: its actuator, and scale, offset, clip and delay as in `ActionTerm`."""
        return self._actions.table

    @property
    def action_bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Lower and upper bound of each column of an action, beyond which it changes nothing. Shape (num_actions,)."""
        return self._actions.bounds

    def observation_widths(self, group: str) -> dict[str, int]:
        """Return how many columns each term of an observation group has, by name in their order."""
        _find("observation", group, self.config.observations, part="group")
        return self._observations.widths(group)

    @property
    def state(self) -> State:
        """The worlds."""
        return self.engine.state

    @property
    def read_only(self) -> ReadOnly:
        """What terms may read and must not write."""
        return self._core.read_only

    @property
    def action(self) -> torch.Tensor:
        """Action of this step, as the policy gave it. Shape (num_envs, num_actions)."""
        return self._actions.current

    @property
    def last_action(self) -> torch.Tensor:
        """Action of the step before, zero at the start. Shape (num_envs, num_actions)."""
        return self._actions.previous

    def ctrl_displacements(self) -> torch.Tensor:
        """Return the controls that the actions ask for, without noise, minus what an episode begins with.

        In the actuators' units and the order of the action. Shape (num_envs, num_actions).
        """
        return self._actions.displacements()

    @property
    def action_before_last(self) -> torch.Tensor:
        """Action two steps before, zero at the start. Shape (num_envs, num_actions)."""
        return self._actions.before_previous

    def qpos(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Positions of one joint by its name, or of hinges and slides by regular expressions, matched whole.

        In m or rad. Expressions leave free and ball joints out, and the columns come in the order of the model. A free
        joint by its name has 7 columns: position and quaternion (w, x, y, z). Shape (num_envs, size).
        """
        return self.state.qpos[:, self.engine.layout.qpos.select(joints)]

    def qvel(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Velocities of joints, named and ordered as for `qpos`, in m/s or rad/s.

        A free joint has 6 columns: linear velocity in the world's frame, angular velocity in the body's. Shape
        (num_envs, size).
        """
        return self.state.qvel[:, self.engine.layout.qvel.select(joints)]

    def qacc(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Accelerations of joints, named and ordered as for `qvel`, in m/s^2 or rad/s^2.

        Like sensors, they describe the state before the last physics step's integration. Shape (num_envs, size).
        """
        return self._follow("qacc")[:, self.engine.layout.qvel.select(joints)]

    def qfrc_actuator(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Forces and torques of the actuators on joints, named and ordered as for `qvel`, in N or N m; needs no sensor.

        Like sensors, they describe the state before the last physics step's integration. Shape (num_envs, size).
        """
        return self._follow("qfrc_actuator")[:, self.engine.layout.qvel.select(joints)]

    def sensor(self, names: str | Sequence[str]) -> torch.Tensor:
        """Readings of one sensor by its name, or of several by regular expressions, in their own units and frames.

        Columns come in the order of the expressions, and within one in that of the model. Shape (num_envs, size).
        """
        return self.state.sensordata[:, self.engine.layout.sensors.select(names)]

    def sensor_history(self, names: str | Sequence[str]) -> torch.Tensor:
        """Readings of sensors, named and ordered as for `sensor`, in every physics step of the last env step.

        The first physics step comes first. Where an episode begins, and before the first env step after the first call,
        all have the present readings. Shape (num_envs, decimation, size).
        """
        return self._follow_sensors()[:, :, self.engine.layout.sensors.select(names)]

    @property
    def encoder_bias(self) -> torch.Tensor:
        """What encoders add to positions, by the columns of `qpos`; zero unless an event writes it.

        Only observation terms that ask for it see it, such as `joint_pos_rel(biased=True)`. It lasts over episodes, and
        is part of a checkpoint. In m or rad, shape (num_envs, nq).
        """
        return self._memory.tensor("encoder_bias", self.state.qpos.shape[1], kept=True)

    @property
    def bodies(self) -> BodyStates:
        """Poses and velocities of all bodies in the world's frame, in the current state; rows as `Layout.bodies`.

        Computed from `qpos` and `qvel` when it is first read after a step, with no sensor. Shapes (num_envs, nbody, …).
        """
        if self._body_states is None:
            if self._kinematics is None:
                self._kinematics = ForwardKinematics(self.engine.model, self.device, self.state.qpos.dtype)
            self._body_states = self._kinematics.compute(self.state.qpos, self.state.qvel)
            self._core.read_only.add({f"env.bodies.{name}": value for name, value in vars(self._body_states).items()})
        return self._body_states

    def shared_sum(self, name: str, size: int, keep: float = 1.0) -> SharedSum:
        """Numbers that all worlds of all ranks add to, such as how often each part of a motion failed.

        They are part of a checkpoint.

        Args:
            keep: Factor of the total at the end of each iteration, before that iteration is added.

        Returns:
            Read `total`, shape (size,), which is the same on all ranks; call `add(amounts)`.
        """
        return self._shared.get(name, size, keep)

    def touches(self, sensors: Sequence[str], threshold: float = 1.0, *, in_any_substep: bool = False) -> torch.Tensor:
        """Whether touch and contact sensors feel a contact.

        A touch sensor does where it reads more than the threshold. So does a contact sensor that reports force, by the
        sum of the magnitudes over its contacts. One that reports found and no force does where it has found any.

        Args:
            sensors: Regular expressions over sensors of these types.
            threshold: Force in N.
            in_any_substep: Whether a contact in any physics step of the env step counts, and not only in the last.

        Returns:
            One column for each sensor, in the order of the expressions. Boolean, shape (num_envs, num_sensors).

        Raises:
            RequestError: A sensor is of another type, or reports neither found nor force.
        """
        key = tuple(sensors)
        if key not in self._contact_readings:
            self._contact_readings[key] = find_contact_readings(key, self.engine.layout)
        readings = self._contact_readings[key]
        if in_any_substep:
            substeps = self._follow_sensors().unbind(dim=1)
            touches = [self._touch(key, readings, values, threshold) for values in substeps]
            return torch.stack(touches).any(dim=0)
        return self._touch(key, readings, self.state.sensordata, threshold)

    def _touch(
        self, key: tuple[str, ...], readings: list[ContactReading] | None, sensordata: torch.Tensor, threshold: float
    ) -> torch.Tensor:
        if readings is None:
            return sensordata[:, self.engine.layout.sensors.select(key)] > threshold
        return torch.stack([reading.touches(sensordata, threshold) for reading in readings], dim=1)

    def contact_times(self, sensors: Sequence[str], threshold: float = 1.0) -> ContactTimes:
        """For how long touch and contact sensors have felt a contact, or not, in the running episode; see `touches`."""
        key = (tuple(sensors), threshold)
        if key not in self._contact_times:
            name = f"contact_times.{' '.join(key[0])}.{threshold}"
            touches = self.touches(key[0], threshold)
            self._contact_times[key] = ContactTimes(name, touches.shape[1], self.step_dt, self._memory)
            if self._contacts_counted:  # this step's update is over, and must not be missed
                self._contact_times[key].update(touches)
            fields = ("contact_s", "air_s", "last_air_s")
            times = self._contact_times[key]
            self._core.read_only.add({f"env.contact_times(...).{name}": getattr(times, name) for name in fields})
        return self._contact_times[key]

    def command(self, name: str) -> torch.Tensor:
        """Current command of a term. Shape (num_envs, size)."""
        self._check_drawn(name)
        return _find("command", name, self._commands.values)

    def controller(self, name: str) -> torch.Tensor:
        """Return the actions of a controller in the current state, within their bounds. Shape (num_envs, num_actions).

        Raises:
            RequestError: The task has no controller of this name.
            TypeError: What it returned is not actions; the message names the term.
        """
        if name not in self.config.controllers:
            raise RequestError(f"controller {name}: the task has {', '.join(self.config.controllers) or 'none'}")
        term = self.config.controllers[name]
        actions = call_term(f"controllers.{name}", term.func, self, term.params, self._core)
        check_results("controller", [f"controllers.{name}"], [actions], self._core)
        if actions.shape[1] != self.num_actions:
            raise TypeError(
                f"--env.controllers.{name}: returned {actions.shape[1]} columns; an action has {self.num_actions}"
            )
        return actions.clamp(*self.action_bounds)

    def push(self, body: str, mask: torch.Tensor, wrench: torch.Tensor, duration_s: torch.Tensor | float) -> None:
        """Push a body with a constant force and torque, from an event of mode interval.

        It begins with this env step, and ends after the duration, with the episode, or when the body is pushed again.

        Args:
            mask: Worlds in which it is pushed. Boolean, shape (num_envs,).
            wrench: Force in N at its centre of mass, then torque in N m, in the world's frame. Shape (num_envs, 6).
            duration_s: In s, rounded to env steps, at least one. One for all worlds, or shape (num_envs,).

        Raises:
            RequestError: An event of another mode calls it.
        """
        event = self._events.running
        if event is not None and event.mode != "interval":
            raise RequestError(f"pushes in mode {event.mode}, and an episode begins without pushes; use interval_event")
        durations = torch.as_tensor(duration_s, dtype=torch.float32, device=self.device)
        self._pushes.begin(body, mask, wrench, durations.expand(self.num_envs))

    def steer(self, name: str, values: Sequence[float] | None) -> None:
        """Command all worlds by hand, or stop doing so.

        Args:
            name: A command term that has controls.
            values: One for each of its controls; None returns to draws, starting with the next one that is due.
        """
        if values is None:
            self._commands.held.pop(name, None)
            return
        term = _find("command", name, self.config.commands)
        if term.steer is None or len(values) != len(term.controls):
            known = ", ".join(term.controls) if term.steer is not None else "none, so that it cannot be steered"
            raise RequestError(f"command {name}: give one value for each of its controls; it has {known}")
        controls = torch.tensor(values, dtype=torch.float32, device=self.device)
        drawn = call_term(f"commands.{name}.steer", term.steer, self, {}, self._core, controls)
        self._commands.held[name] = drawn
        self._commands.drawn[name].copy_(drawn)

    def is_steered(self, name: str) -> bool:
        """Whether a command is given by hand, see `steer`."""
        return name in self._commands.held

    def command_error(self, name: str, error: str) -> torch.Tensor:
        """Distance of the worlds from a command, by one of the errors of its term. Shape (num_envs,)."""
        term = _find(f"commands.{name}.errors", error, _find("command", name, self.config.commands).errors)
        return call_term(f"commands.{name}.errors.{error}", term.func, self, term.params, self._core)

    def drawn_command(self, name: str) -> torch.Tensor:
        """Last draw of a command term, before it was refined. Shape (num_envs, size of the draw)."""
        if name not in self._commands.drawn:
            self._check_drawn(name)
        return _find("command", name, self._commands.drawn)

    def level(self, name: str) -> torch.Tensor:
        """Level of a curriculum term. Shape (num_envs,)."""
        return _find("curriculum", name, self._curriculum.levels)

    def success(self, name: str) -> torch.Tensor:
        """Whether a success term is true in this env step; not yet where an episode begins. Boolean, shape (num_envs,).

        It is computed after the terminations, which therefore read that of the env step before.
        """
        return self._successes.now[:, self._success_column(name)]

    def success_count(self, name: str) -> torch.Tensor:
        """In how many env steps of the running episode a success term was true, this one included.

        float32, shape (num_envs,).
        """
        return self._successes.counts[:, self._success_column(name)]

    def time_since_success(self, name: str) -> torch.Tensor:
        """Time since a success term was last true in the running episode, or since that began, in s.

        Terminations read that of the env step before, as of `success`. Shape (num_envs,).
        """
        return self._successes.steps_since[:, self._success_column(name)] * self.step_dt

    def success_measure(self, name: str) -> torch.Tensor:
        """What a success term measures of the episode up to this step, as `successes`. Shape (num_envs,)."""
        return self.successes[:, self._success_column(name)]

    def _success_column(self, name: str) -> int:
        return _find("success", name, {term: column for column, term in enumerate(self.config.successes)})

    @torch.no_grad()
    def _start(self) -> dict[str, torch.Tensor]:
        """Randomise and start every world, and return the first observations; all evaluators exist by then."""
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._events.start(self)
        self._begin_episodes(everywhere)
        self._commands.start(self)
        self.cameras.update(everywhere, advance=False)
        self._observations.start(self)
        return self._observations.compute(self, everywhere)

    def _follow(self, field: str) -> torch.Tensor:
        return self._watch(f"env.{field}(...)", self.engine.follow(field))

    def _follow_sensors(self) -> torch.Tensor:
        return self._watch("env.sensor_history(...)", self.engine.follow_sensors(self.config.decimation))

    def _watch(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that terms must not write, watched from its first use."""
        if self._watched.get(name) is not tensor:
            self._watched[name] = tensor
            self._core.read_only.add({name: tensor})
        return tensor

    def _check_drawn(self, command: str) -> None:
        """Raise a RequestError if a term reads a command before the first draw of all commands."""
        if command in self.config.commands and command not in self._commands.values:
            raise RequestError(
                f"command {command} is not drawn yet: in each env step, commands are drawn after the startup and reset "
                "events, so those cannot read them, unless its term has before_reset"
            )

    def _find_read_only(self) -> dict[str, torch.Tensor]:
        """Return what terms may read and must not write, by how they read it; commands come when they are drawn."""
        layout = self.engine.layout
        actions = (self._actions.current, self._actions.previous, self._actions.before_previous)
        names = ("env.action", "env.last_action", "env.action_before_last")
        return {
            "env.state.qpos, as env.qpos(...) returns it,": self.state.qpos,
            "env.state.qvel, as env.qvel(...) returns it,": self.state.qvel,
            "env.state.sensordata, as env.sensor(...) returns it,": self.state.sensordata,
            **{f"env.state.{name}": getattr(self.state, name) for name in ("act", "ctrl", "time")},
            **dict(zip(names, actions, strict=True)),
            **{f"env.level({name!r})": level for name, level in self._curriculum.levels.items()},
            "env.episode_step": self.episode_step,
            "env.start_qpos": self.start_qpos,
            **{f"env.{name}": getattr(self, name) for name in ("terminated", "reward_terms", "causes", "successes")},
            "env.statistics": self.statistics.buffers()["running"],
            **{f"the {name} of success terms": tensor for name, tensor in self._successes.buffers().items()},
            **{f"default_{name}": getattr(layout, f"default_{name}") for name in ("qpos", "qvel", "ctrl")},
            **{
                f"the camera image {name}.{stream}": self.cameras.images(name, stream)
                for name, camera in self.config.cameras.items()
                for stream in camera.streams
            },
        }

    def _begin_episodes(self, mask: torch.Tensor) -> None:
        self.statistics.drop_running(mask)
        self._commands.draw_before_reset(self, mask)
        qpos, qvel = self._events.sample_start(self, mask)
        self.engine.reset(mask, qpos, qvel)
        self._forget_bodies()
        self.start_qpos.copy_(torch.where(mask[:, None], qpos, self.start_qpos))
        self._actions.reset(mask)
        self._successes.reset(mask)
        self._memory.reset(mask)
        self.episode_step.masked_fill_(mask, 0)

    def _observe(self, begun: torch.Tensor, advance: bool = True) -> dict[str, torch.Tensor]:
        """Let the cameras take the frames that are due, and return the observations by group."""
        self.cameras.update(begun, advance)
        return self._observations.compute(self, begun, advance)

    def _observe_ends(self, broken: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the observations by group of a step that ends episodes, before the next ones begin.

        Broken worlds keep those of the step before, because nothing may learn from what they would observe.
        """
        with preserving_state(self._core, self._observations, self.cameras):
            return choose_by_world(broken, self._seen, self._observe(torch.zeros_like(broken)))

    @cached_property  # once: a motion may have millions of frames, and does not change
    def _followed(self) -> dict[str, torch.Tensor]:
        """Of what each command follows, the last frames of its clips and a sum over its poses."""
        found = {}
        for name, term in self.config.commands.items():
            if (find := getattr(term.func, "follows", None)) is not None:
                ends, qpos = (reference := find(self, name)).last.unique(), reference.qpos.cpu().double()
                weights = torch.linspace(1, 2, len(qpos), dtype=qpos.dtype) / len(qpos)  # the order of frames counts
                found[name] = torch.cat([ends.cpu(), weights @ qpos])
        return found

    def _forget_bodies(self) -> None:
        self._body_states = None

    def _update_contact_times(self) -> None:
        for (sensors, threshold), times in self._contact_times.items():
            times.update(self.touches(sensors, threshold))

    def _buffers(self) -> dict[str, torch.Tensor]:
        names = ("episode_step", "start_qpos", "terminated", "reward_terms", "causes")
        names += ("successes",) if self.config.successes else ()
        parts = {
            "actions": self._actions,
            "cameras": self.cameras,
            "commands": self._commands,
            "curriculum": self._curriculum,
            "events": self._events,
            "observations": self._observations,
            "statistics": self.statistics,
            "successes": self._successes,
        }
        own = {name: getattr(self, name) for name in names}
        return own | {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.buffers().items()}


def _find(kind: str, name: str, found: dict[str, _Found], part: str = "term") -> _Found:
    if name not in found:
        raise RequestError(f"unknown {kind} {part} {name}; available: {', '.join(found) or 'none'}")
    return found[name]

"""A policy in its environment, as a viewer shows and steers it."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mjtrain.deployment.steering import Steering, has_finite_bounds
from mjtrain.evaluation.followed import Ghost, find_followed
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.viewer_session import StateField, ViewerSession, to_poses
from mjtrain.runs.checkpoint import checkpoint_iteration, list_checkpoints
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.video import CameraStream, list_streams
from mjtrain.sim.robots.kinematics import Kinematics

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Playback speeds that viewers offer, in simulated seconds per second."""

HISTORY_S = 10.0
"""Time span of the plots, in seconds of simulated time."""


class PolicySession(ViewerSession):
    """A policy in its environment: pause, step, reset, manual commands, other checkpoints."""

    def __init__(self, player: Player) -> None:
        super().__init__(Kinematics(player.env.config), player.env.step_dt)
        self.player = player
        self.follows = False
        """Whether new checkpoints of the run are loaded as they appear."""
        self.problem = ""
        """The last problem, as a line for the user."""
        self.num_steps = 0
        """Env steps since the session started."""
        env = player.env
        followed = find_followed(env)
        self.ghost = None if followed is None else Ghost(followed)
        length = round(HISTORY_S / env.step_dt)
        self.history: deque[tuple[float, np.ndarray, np.ndarray, np.ndarray]] = deque(maxlen=length)
        """Time in s, reward terms per second, contact forces in N, and commands with their errors, for the last env
        steps of the selected world."""
        self._errors = [(name, error) for name, term in env.config.commands.items() for error in term.errors]
        self.settable = {
            name: term.controls
            for name, term in env.config.commands.items()
            if term.steer is not None and term.controls and has_finite_bounds(term.controls)
        }
        """Bounds of the controls of each command that can be set by hand."""
        self.steered = next(iter(self.settable), "")
        self.steering = Steering(self.settable[self.steered]) if self.settable else None
        """The command that keys and gamepads steer, and the values that they have set; "" and None without one."""
        self._steering_lock = threading.Lock()
        self._returns = torch.zeros(env.num_envs, device=env.device)
        self._last_end = ""
        self._touch = list(self.kinematics.touch_sensors.values())
        self._last_look = 0.0
        self._newest: Path | None = None
        self._refused: Path | None = None

    def step(self) -> None:
        """Advance by one env step."""
        self._choose(None)
        env = self.player.env
        done = self.player.step()
        self.num_steps += 1
        self._returns += env.reward_terms.sum(dim=1)
        world = self.selected
        if done[world]:
            names = [name for name, said in zip(env.config.terminations, env.causes[world], strict=True) if said]
            self._last_end = f"{', '.join(names) or 'not finite'}, return {self._returns[world]:.2f}"
        self._returns.masked_fill_(done, 0.0)
        rewards = (env.reward_terms[world] / env.step_dt).cpu().numpy()
        forces = env.state.sensordata[world, self._touch].cpu().numpy()
        commands = [value for name in env.config.commands for value in env.command(name)[world].tolist()]
        errors = [env.command_error(name, error)[world].item() for name, error in self._errors]
        self.history.append((self.num_steps * env.step_dt, rewards, forces, np.array([*commands, *errors])))

    def tracked(self) -> list[str]:
        """Return what the last column of `history` has: the values of commands, and the distances from them."""
        names = []
        for name, term in self.player.env.config.commands.items():
            size = self.player.env.command(name).shape[1]
            parts = list(term.controls) if len(term.controls) == size else list(map(str, range(size)))
            names += [f"{name} {part}" for part in parts]
        units = {error: self.player.env.config.commands[name].errors[error].unit for name, error in self._errors}
        return [*names, *(f"error of {name}, {error}, {units[error]}" for name, error in self._errors)]

    def reset(self) -> None:
        """Start new episodes in all worlds."""
        self._start(torch.ones_like(self.player.env.terminated), {})
        self._last_end = ""

    def go_to(self, frame: int) -> None:
        """Show a frame of the reference, and pause."""
        self._choose(frame)
        self.paused = True

    def start_here(self) -> None:
        """Start a new episode of the selected world in the frame of the reference that is shown, and pause."""
        assert self.ghost is not None
        env, command = self.player.env, self.ghost.command
        frame = torch.full_like(env.drawn_command(command), self.ghost.start(self.selected))
        worlds = torch.zeros_like(env.terminated)
        worlds[self.selected] = self.paused = True
        self._start(worlds, {command: frame})

    def _start(self, worlds: torch.Tensor, draws: dict[str, torch.Tensor]) -> None:
        self._choose(None)
        self.player.env.reset(worlds, draws)
        self.player.forget(worlds)
        self._returns.masked_fill_(worlds, 0.0)

    def _choose(self, frame: int | None) -> None:
        if self.ghost is not None:
            self.ghost.chosen = frame

    def select(self, world: int) -> None:
        """Select another world."""
        self.selected = world
        self.history.clear()
        self._last_end = ""  # of the other world

    def press(self, key: str) -> None:
        """Steer the command by a key, see `deployment.steering`; any thread may call this."""
        with self._steering_lock:
            if self.steering is not None and self.steering.press(key):
                self._post_command(self.steered, self.steering.values)

    def push(self, sticks: Sequence[float]) -> None:
        """Steer the command by the sticks of a gamepad, see `Steering.push`; any thread may call this."""
        with self._steering_lock:
            if self.steering is not None:
                self.steering.push(sticks)
                self._post_command(self.steered, self.steering.values)

    def steer(self, name: str, values: Sequence[float] | None) -> None:
        """Give a command, or have it drawn again, see `Env.steer`; any thread may call this."""
        with self._steering_lock:
            if values is not None and name == self.steered and self.steering is not None:
                self.steering.values = list(values)
            self._post_command(name, values)

    def _post_command(self, name: str, values: Sequence[float] | None) -> None:
        """Queue a command as it is now; commands take effect in the order in which they were given."""
        self.post(partial(self.player.env.steer, name, None if values is None else list(values)))

    def load(self, checkpoint: Path) -> None:
        """Load other weights; if that fails, set `problem` and keep the current ones."""
        try:
            self.player.load(checkpoint)
        except RequestError as error:
            self.problem, self._refused = str(error), checkpoint
        else:
            self.problem = ""

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of the run that is played, the newest first."""
        run_dir = self.player.run.run_dir
        return [] if run_dir is None or self.player.checkpoint is None else list_checkpoints(run_dir)

    def state(self, field: StateField) -> np.ndarray:
        """Return positions, velocities or controls. Shape (num_worlds, nq, nv or nu)."""
        return _to_numpy(getattr(self.player.env.state, field))

    def images(self) -> dict[CameraStream, np.ndarray]:
        """Return copies of what the cameras of the selected world see. Shape (channels, height, width) each."""
        env = self.player.env
        return {
            stream: env.cameras.images(stream.camera, stream.stream)[self.selected].cpu().numpy().copy()
            for stream in list_streams(env.config.cameras)
        }

    def commanded_poses(self) -> dict[str, np.ndarray]:
        """Return the commanded poses of the selected world, by command term. Shape (7,) each."""
        env, world = self.player.env, slice(self.selected, self.selected + 1)
        poses = {}
        for name, term in env.config.commands.items():
            if term.is_pose:
                command, qpos = env.command(name)[world], env.state.qpos[world]
                (poses[name],) = to_poses(_to_numpy(command), term.object, _to_numpy(qpos), self.kinematics)
        return poses

    def status(self) -> list[str]:
        """Describe in a few lines what is shown."""
        player, env, world = self.player, self.player.env, self.selected
        who = "no policy"
        if player.checkpoint is not None:
            who = f"{player.run.place or player.checkpoint.name} (iteration {player.iteration})"
        lines = [
            f"{player.run.task}: {who}",
            f"episode: {env.episode_step[world] * env.step_dt:.1f} s, return {self._returns[world]:.2f}",
        ]
        for name in env.config.commands:
            values = " ".join(f"{value:+.2f}" for value in env.command(name)[world].tolist())
            lines.append(f"command {name}: {values}")
        lines += [self.ghost.describe(world)] if self.ghost is not None else []
        lines += [f"last episode: {self._last_end}"] if self._last_end else []
        lines += [f"problem: {self.problem}"] if self.problem else []
        return lines

    def _before_steps(self) -> None:
        """Load a newer checkpoint of the run, if it is followed and there is one; looks at most once a second."""
        if not self.follows:
            self._newest = None
        if not self.follows or time.monotonic() - self._last_look < 1.0:
            return
        self._last_look = time.monotonic()
        current = self.player.checkpoint
        seen, newest = self._newest, next(iter(self.checkpoints()), None)
        self._newest = newest
        if newest is None or current is None or newest in (current, self._refused):
            return
        if newest == seen:  # it acted, and somebody has chosen another one since
            return
        if checkpoint_iteration(newest) > (self.player.iteration or 0):
            self.load(newest)


def _to_numpy(values: torch.Tensor) -> np.ndarray:
    return values.cpu().double().numpy()

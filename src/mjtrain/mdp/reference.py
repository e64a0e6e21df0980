"""What a motion command follows: clips on the robot of an environment, at one frame per env step."""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from mjtrain.config.plain import default_params
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError, spaced

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.motion.motion import Motion
    from mjtrain.sim.robots.kinematics import BodyStates

Function = TypeVar("Function", bound=Callable[..., Any])

_FOUND: WeakKeyDictionary[Env, dict[tuple[object, ...], Reference]] = WeakKeyDictionary()
_DEFAULTS: WeakKeyDictionary[Env, dict[str, dict[str, Any]]] = WeakKeyDictionary()
"""Defaults of the function of each command, which take long to find."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Clips one after another, at one frame per env step, on the device of the environment. float32."""

    qpos: torch.Tensor
    """Shape (num_frames, nq)."""

    qvel: torch.Tensor
    """Shape (num_frames, nv)."""

    root: str
    """Free joint of the robot."""

    failures: str
    """Name of the failures that worlds count together. It depends on the content of the files, the tracked bodies and
    the bins, and not on where the files are."""

    joint_positions: torch.Tensor
    """Hinges and slides of the robot, in the order of the model. Shape (num_frames, num_joints)."""

    joint_velocities: torch.Tensor
    """Shape (num_frames, num_joints)."""

    bodies: BodyStates
    """Tracked bodies. Shapes (num_frames, num_bodies, …)."""

    anchor: BodyStates
    """The anchor body. Shapes (num_frames, …)."""

    rows: slice | torch.Tensor
    """Rows of the tracked bodies in `Env.bodies`: a slice where they are adjacent, so that indexing copies nothing."""

    row_list: list[int]
    """The same, one by one."""

    anchor_row: int
    """Row of the anchor body."""

    body_names: tuple[str, ...]
    """Names of the tracked bodies."""

    last: torch.Tensor
    """Last frame of the clip of each frame. Shape (num_frames,)."""

    limits: torch.Tensor
    """Range of each joint, infinite where it has none. Shape (2, num_joints)."""

    firsts: torch.Tensor
    """First frame of each clip. Shape (num_clips,)."""

    clips: tuple[str, ...]
    """Name of each clip."""

    starts: torch.Tensor
    """Frames in which an episode may start: all except the last of each clip. Shape (num_starts,)."""

    bins: torch.Tensor
    """Bin of each frame. Shape (num_frames,)."""

    bin_starts: torch.Tensor
    """Where the frames of each bin begin in `starts`. Shape (num_bins,)."""

    bin_sizes: torch.Tensor
    """How many of `starts` each bin has. Shape (num_bins,)."""

    bin_clips: torch.Tensor
    """Clip of each bin. Shape (num_bins,)."""

    found: dict[tuple[str, ...], torch.Tensor] = field(default_factory=dict)
    """Cache of indices and weights by what they are and what selects them."""

    def weigh_clips(self, given: tuple[float, ...]) -> torch.Tensor:
        """Return the probability of each clip: in proportion to its weight, or alike without weights. float64.

        Raises:
            RequestError: There are more or fewer weights than clips, one is not a number of at least 0, or all are 0.
        """
        key = ("clips", repr(given))
        if key not in self.found:
            if given and len(given) != len(self.clips):
                clips = f"the {len(self.clips)} clips {', '.join(self.clips)}"
                raise RequestError(f"clip_weights {spaced(given)}: must be one for each of {clips}")
            if not all(0 <= weight < math.inf for weight in given) or (given and not any(given)):
                raise RequestError(f"clip_weights {spaced(given)}: must be numbers of at least 0, and one of them more")
            weights = torch.tensor(given or [1.0] * len(self.clips), dtype=torch.float64)
            self.found[key] = (weights / weights.sum()).to(self.firsts.device)
        return self.found[key]

    def places(self, env: Env, bodies: tuple[str, ...]) -> torch.Tensor:
        """Return which of the tracked bodies regular expressions match. Shape (number,).

        Raises:
            RequestError: One of them is not tracked.
        """
        key = ("bodies", *bodies)
        if key not in self.found:
            rows = env.engine.layout.rows("body", bodies).tolist()
            if set(rows) - set(self.row_list):
                tracked = ", ".join(self.body_names)
                raise RequestError(f"bodies {' '.join(bodies)}: has one that the command does not track: {tracked}")
            self.found[key] = torch.tensor([self.row_list.index(row) for row in rows], device=env.device)
        return self.found[key]

    def driven_columns(self, env: Env, actuators: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the columns in qpos and in ctrl, and the gears, of actuators of one joint each, in the model's order.

        Raises:
            RequestError: One of them drives something else than a hinge or a slide.
        """
        keys = ("qpos", *actuators), ("ctrl", *actuators), ("gear", *actuators)
        if keys[0] not in self.found:
            from mjtrain.sim.robots.measured import find_driven_joint  # imports MuJoCo, which a help page does not need

            layout, model = env.engine.layout, env.engine.model
            names = {row: name for name, row in layout.actuators.items()}
            chosen = [names[row] for row in sorted(layout.rows("actuator", actuators).tolist())]
            joints = [int(model.jnt_qposadr[find_driven_joint(model, name)]) for name in chosen]
            controls = [layout.controls[name].start for name in chosen]
            gears = [float(model.actuator(name).gear[0]) for name in chosen]
            for key, values in zip(keys, (joints, controls, gears), strict=True):
                self.found[key] = torch.tensor(values, device=env.device)
        return self.found[keys[0]], self.found[keys[1]], self.found[keys[2]]


def follows(find: Callable[[Env, str], Reference]) -> Callable[[Function], Function]:
    """Declare that a command follows a reference, which viewers and videos then show.

    Its draw is the frame in which an episode starts, and the first column of the command is the present frame.

    Args:
        find: find(env, name of the command) -> what it follows.
    """

    def declare(function: Function) -> Function:
        function.__dict__["follows"] = find
        return function

    return declare


def reference_of(env: Env, command: str) -> Reference:
    """Return what a motion command follows."""
    known = _FOUND.setdefault(env, {})
    if (command,) not in known:
        if command not in env.config.commands:
            there = ", ".join(env.config.commands) or "none"
            raise RequestError(f"unknown command term {command}; available: {there}")
        params = command_params(env, command)
        keys = ("file", "anchor_body", "bodies", "loop_s", "bin_s")
        if missing := [key for key in keys if key not in params]:
            raise RequestError(
                f"command {command} does not follow a motion: it has no parameter {', '.join(missing)}; give one that "
                "is drawn by tracking.motion_command"
            )
        known[(command,)] = load_reference(env, **{key: params[key] for key in keys})
    return known[(command,)]


def command_params(env: Env, command: str) -> dict[str, Any]:
    """Return the present parameters of a command, with the defaults of its function."""
    term, known = env.config.commands[command], _DEFAULTS.setdefault(env, {})
    if command not in known:
        known[command] = default_params(term.func)
    return {**known[command], **term.params}


def load_reference(
    env: Env, *, file: str, anchor_body: str, bodies: tuple[str, ...], loop_s: float, bin_s: float
) -> Reference:
    """Read clips, once for an environment; see `tracking.motion_command`.

    Raises:
        RequestError: The file does not exist, or it is not a motion of this robot.
    """
    key = (file, anchor_body, tuple(bodies), loop_s, bin_s)
    known = _FOUND.setdefault(env, {})
    if key not in known:
        with torch.inference_mode(mode=False):
            known[key] = _load(env, *key)
    return known[key]


def list_clips(file: str) -> list[Path]:
    """Return the file, or the NPZ files of a folder in alphabetical order; hidden ones are left out.

    Raises:
        RequestError: The folder has none.
    """
    path = Path(file)
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises if the name is too long
        return [path]
    found = sorted(path.glob("[!.]*.npz"))
    if not found:
        raise RequestError(f"{file}: has no .npz file")
    return found


def _load(env: Env, file: str, anchor_body: str, patterns: tuple[str, ...], loop_s: float, bin_s: float) -> Reference:
    from mjtrain.motion.edit import loop, resample
    from mjtrain.motion.files import read_motion
    from mjtrain.motion.skeleton import Skeleton

    skeleton, fps = Skeleton(env.engine.model, env.config.robot), 1 / env.step_dt
    files = list_clips(file)

    def read(path: Path) -> Motion:
        clip = read_motion(path, skeleton)
        try:
            clip = loop(clip, max(1, -int(-loop_s // clip.length_s)))
            return clip if abs(clip.fps - fps) < 1e-6 * fps else resample(clip, fps)
        except RequestError as error:
            raise RequestError(f"{path}: with loop_s {loop_s:g}, at one frame per env step: {error}") from error

    clips = [read(path) for path in files]
    rows = env.engine.layout.rows("body", patterns)
    row_list = rows.tolist()
    first = row_list[0]
    names = {row: name for name, row in env.engine.layout.bodies.items()}
    states = [skeleton.body_states(clip) for clip in clips]

    def joined(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(values).to(dtype=torch.float32, device=env.device)

    qpos, qvel = joined([skeleton.qpos(clip) for clip in clips]), joined([skeleton.qvel(clip) for clip in clips])
    fields = ("positions", "quaternions", "linear_velocities", "angular_velocities")
    everything = type(states[0])(**{field: joined([getattr(state, field) for state in states]) for field in fields})
    layout = env.engine.layout
    columns = [layout.qpos[name].start for name in skeleton.joints]
    dofs = [layout.qvel[name].start for name in skeleton.joints]
    return Reference(
        qpos=qpos,
        qvel=qvel,
        root=skeleton.root,
        failures=f"failures of motion {_checksum(files, anchor_body, patterns, float(loop_s), float(bin_s)):08x}",
        joint_positions=qpos[:, columns].contiguous(),
        joint_velocities=qvel[:, dofs].contiguous(),
        bodies=everything.select(rows - 1),
        anchor=everything.select(layout.bodies[anchor_body] - 1),
        rows=slice(first, first + len(rows)) if row_list == list(range(first, first + len(rows))) else rows,
        row_list=row_list,
        anchor_row=layout.bodies[anchor_body],
        limits=torch.tensor(
            [layout.joint_range.get(name, (-torch.inf, torch.inf)) for name in skeleton.joints], device=env.device
        ).T.contiguous(),
        body_names=tuple(names[row] for row in row_list),
        clips=tuple(path.stem for path in files),
        **_divide([clip.num_frames for clip in clips], max(1, round(bin_s * fps)), env.device),
    )


def _checksum(files: list[Path], *settings: object) -> int:
    found = zlib.crc32(repr(settings).encode())
    for file in files:
        found = zlib.crc32(file.read_bytes(), found)
    return found


def _divide(lengths: list[int], frames_per_bin: int, device: torch.device) -> dict[str, Any]:
    """Return the fields of `Reference` about starts and bins, from the number of frames of each clip."""
    last, starts, bins, sizes, firsts, clips = [], [], [], [], [], []
    begin = 0
    for clip, length in enumerate(lengths):
        firsts.append(begin)
        last += [begin + length - 1] * length
        starts += range(begin, begin + length - 1)
        count = max(1, (length - 1) // frames_per_bin)  # a remainder belongs to the last bin
        places = [min(frame // frames_per_bin, count - 1) for frame in range(length)]
        bins += [len(sizes) + place for place in places]
        frames = Counter(places[:-1])
        sizes += [frames[place] for place in range(count)]
        clips += [clip] * count
        begin += length
    offsets = [0, *accumulate(sizes)][:-1]
    found = {"last": last, "firsts": firsts, "starts": starts, "bins": bins, "bin_starts": offsets, "bin_sizes": sizes}
    found["bin_clips"] = clips
    return {name: torch.tensor(values, dtype=torch.long, device=device) for name, values in found.items()}

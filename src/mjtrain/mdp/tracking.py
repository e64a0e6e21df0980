"""Following a reference motion: the command, observations of it, rewards, terminations, resets and errors.

Names and formulas are those of mjlab's tracking task, which is that of Liao et al., "BeyondMimic: From Motion Tracking
to Versatile Humanoid Control via Guided Diffusion", 2025 (arXiv:2508.08241); starts anywhere in a clip are those of
Peng et al., "DeepMimic", 2018 (arXiv:1804.02717).

The command has two columns: the frame in which the reference is now, which belongs to the present state of the robot,
and how many frames the episode has seen. Frames are env steps apart. Rewards and terminations come after the physics of
an env step and before the next command; they compare the robot with the frame that it should have reached: one ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from weakref import WeakKeyDictionary

from mjtrain.config.limits import AT_LEAST_0, AtLeast0, Bounds, Fraction, Positive
from mjtrain.env.sampling import uniform
from mjtrain.mdp import mirrors
from mjtrain.mdp.reference import Reference, command_params, follows, load_reference, reference_of
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.core import SharedSum
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds
    from mjtrain.sim.robots.kinematics import BodyStates

_MOVED: WeakKeyDictionary[BodyStates, dict[tuple[str, int], dict[str, torch.Tensor]]] = WeakKeyDictionary()
"""References as they are moved to the robot, by the state of its bodies, command and frames ahead."""


@follows(reference_of)
def motion_command(
    env: Env,
    *,
    file: str,
    anchor_body: str,
    bodies: tuple[str, ...],
    sampling: Literal["adaptive", "uniform", "start"] = "adaptive",
    uniform_share: Fraction = 0.1,
    bin_s: Positive = 1.0,
    loop_s: AtLeast0 = 0.0,
    clip_weights: tuple[float, ...] = (),
) -> torch.Tensor:
    """Draw the frames in which episodes start; use `before_reset`, and refine by `follow_motion`. Shape (num_envs, 1).

    Args:
        file: The motion, as `mjtrain motion` reads it, except CSV, which has no frame rate: a path, a URL, or an
            artifact of W&B; or a folder whose NPZ files are all tracked.
        anchor_body: Body to which the others are relative, such as the trunk.
        bodies: Regular expressions over the tracked bodies.
        sampling: start: the first frame of a clip; uniform: any but the last; adaptive: more often in bins of time in
            which more episodes failed, as the curriculum `adaptive_sampling` counts them.
        uniform_share: Fraction of adaptive draws that are uniform.
        bin_s: Length of a bin, in s.
        loop_s: Repeat each clip, from where it has ended, until it is this long, in s; for cyclic clips.
        clip_weights: How often the clips of a folder are drawn relative to each other, in alphabetical order; 0 leaves
            one out. Without weights all frames are drawn alike. With them, adaptive draws follow the failures within a
            clip.
    """
    reference = load_reference(
        env, file=file, anchor_body=anchor_body, bodies=tuple(bodies), loop_s=loop_s, bin_s=bin_s
    )
    shares = uniform(env, (0.0, 1.0), 2)
    if sampling == "start":
        return reference.firsts[_draw(reference.weigh_clips(clip_weights), shares[:, 0])][:, None].float()
    weights = _weigh_bins(reference, clip_weights)
    if sampling == "adaptive":
        failures = _failures(env, reference).total
        weights = _adapt(reference, weights, failures, uniform_share, clip_weights)
    chosen = _draw(weights, shares[:, 0])
    inside = (shares[:, 1] * reference.bin_sizes[chosen]).long()
    inside = torch.minimum(inside, reference.bin_sizes[chosen] - 1)
    return reference.starts[reference.bin_starts[chosen] + inside][:, None].float()


def _draw(weights: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return indices of weights that sum to 1, by uniform numbers. Shape (num_envs,)."""
    ends = weights.cumsum(0)
    ends = (ends / ends[-1]).to(shares.dtype)  # exactly 1 from the last weight on, so that no 0 behind it is drawn
    return torch.searchsorted(ends, shares.contiguous(), right=True).clamp(max=len(ends) - 1)


def _weigh_bins(reference: Reference, clip_weights: tuple[float, ...]) -> torch.Tensor:
    """Return the probability of each bin: the weight of its clip, spread over its frames."""
    weights = reference.bin_sizes.double()
    if clip_weights:
        frames = torch.zeros(len(reference.clips), dtype=torch.float64, device=weights.device)
        frames.index_add_(0, reference.bin_clips, weights)
        weights = weights / frames[reference.bin_clips] * reference.weigh_clips(clip_weights)[reference.bin_clips]
    return weights / weights.sum()


def _adapt(
    reference: Reference,
    weights: torch.Tensor,
    failures: torch.Tensor,
    uniform_share: float,
    clip_weights: tuple[float, ...],
) -> torch.Tensor:
    """Return probabilities of bins: in proportion to failures, of all or of a weighted clip; as before without any."""
    if clip_weights:
        totals = torch.zeros(len(reference.clips), dtype=failures.dtype, device=failures.device)
        totals = totals.index_add(0, reference.bin_clips, failures)[reference.bin_clips]
        failures = failures * reference.weigh_clips(clip_weights)[reference.bin_clips]
    else:
        totals = failures.sum()
    rates = torch.where(totals > 0, failures / totals.clamp_min(1e-9), weights)
    return uniform_share * weights + (1 - uniform_share) * rates


def _failures(env: Env, reference: Reference) -> SharedSum:
    """Return how many episodes failed in each bin, the last few hundred iterations more than those before."""
    return env.shared_sum(reference.failures, len(reference.bin_sizes), keep=0.98)


def follow_motion(env: Env, drawn: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """Advance the reference by a frame in each env step, from the frame that was drawn.

    Args:
        drawn: Frame in which the episode has started. Shape (num_envs, 1).
        before: The command of the env step before.

    Returns:
        The frame that belongs to the present state, and how many the episode has seen. Shape (num_envs, 2).
    """
    if before is None:
        before = torch.zeros(env.num_envs, 2, device=env.device)
    frame = torch.where(before[:, 1] == 0, drawn[:, 0], before[:, 0] + 1)
    return torch.stack([frame, before[:, 1] + 1], dim=1)


def adaptive_sampling(env: Env, level: torch.Tensor, *, command: str) -> torch.Tensor:
    """Count in which bin of the motion episodes fail, for a `motion_command` with adaptive sampling.

    Counts are summed over all worlds and ranks after each iteration.

    Args:
        level: Not used.

    Returns:
        The entropy of the bins' probabilities as a fraction of the largest one: 1 while all are equal. Shape
        (num_envs,).
    """
    reference, params = reference_of(env, command), command_params(env, command)
    failures = _failures(env, reference)
    bins = reference.bins[_frames(env, command, reference, 0)]
    failures.add(torch.zeros_like(failures.total).index_add(0, bins, env.terminated.double()))
    clip_weights = params.get("clip_weights", ())
    alike = _weigh_bins(reference, clip_weights)
    weights = _adapt(reference, alike, failures.total, params["uniform_share"], clip_weights)
    entropy = -(weights * weights.clamp_min(1e-12).log()).sum()
    most = (alike > 0).sum().log()
    return torch.where(most > 0, entropy / most.clamp_min(1e-12), 1.0).to(level.dtype).expand_as(level)


def reset_to_motion(
    env: Env,
    worlds: Worlds,
    *,
    command: str,
    xy: Bounds = (0.0, 0.0),
    z: Bounds = (0.0, 0.0),
    tilt: Bounds = (0.0, 0.0),
    yaw: Bounds = (0.0, 0.0),
    linear_velocity: Bounds = (0.0, 0.0),
    angular_velocity: Bounds = (0.0, 0.0),
    position: Bounds = (0.0, 0.0),
) -> None:
    """Start in the drawn frame of the motion, with noise: reference state initialisation.

    Args:
        command: Name of the motion command, which must have `before_reset`.
        xy: Bounds of the offset of the root along x and y, in m.
        z: Bounds of the offset along z, in m.
        tilt: Bounds of rotations about x and y, in rad.
        yaw: Bounds of the rotation about z, in rad.
        linear_velocity: Bounds of each component that is added, in m/s.
        angular_velocity: Bounds of each component that is added, in rad/s, in the body's frame.
        position: Bounds of the offset of each joint, in rad or m; it stays within the range of the joint.
    """
    reference, layout = reference_of(env, command), env.engine.layout
    frames = env.drawn_command(command)[:, 0].long()
    qpos, qvel = _at(reference.qpos, frames), _at(reference.qvel, frames)
    root, rates = layout.qpos[reference.root], layout.qvel[reference.root]
    pose, motion = qpos[:, root], qvel[:, rates]
    pose[:, :2] += uniform(env, xy, 2)
    pose[:, 2] += uniform(env, z)
    roll, pitch = uniform(env, tilt, 2).unbind(dim=1)
    turn = rotations.from_euler(roll, pitch, uniform(env, yaw))
    pose[:, 3:] = rotations.multiply(turn, pose[:, 3:])
    motion[:, :3] += uniform(env, linear_velocity, 3)
    motion[:, 3:] += uniform(env, angular_velocity, 3)
    joints, dofs = layout.qpos.select((".*",)), layout.qvel.select((".*",))
    moved = qpos[:, joints] + uniform(env, position, qpos[:, joints].shape[1])
    low, high = reference.limits
    # Other bodies of the model, such as objects, are left to other events.
    worlds.qpos[:, root], worlds.qvel[:, rates] = pose, motion
    worlds.qpos[:, joints], worlds.qvel[:, dofs] = torch.minimum(torch.maximum(moved, low), high), qvel[:, dofs]


def motion_controls(env: Env, *, command: str, actuators: tuple[str, ...], share: Fraction = 1.0) -> torch.Tensor:
    """Positions of the reference, for position servos that a policy corrects: a base of actions.

    Args:
        actuators: Regular expressions over actuators of one hinge or slide each, whose controls are positions of
            these, times the gear.
        share: Fraction of the way from the default pose to the reference; 0 is the default pose, as mjlab has it.

    Returns:
        Shape (num_envs, num_actuators), in the order of the model.
    """
    reference = reference_of(env, command)
    joints, controls, gears = reference.driven_columns(env, actuators)
    home = env.engine.layout.default_ctrl.index_select(0, controls)
    wanted = gears * _at(reference.qpos, _frames(env, command, reference, 1)).index_select(1, joints)
    return home + share * (wanted - home)


@mirrors.mirrored(mirrors.motion_joints)
def motion_joint_targets(
    env: Env, *, command: str, ahead: Annotated[tuple[int, ...], AT_LEAST_0] = (1,)
) -> torch.Tensor:
    """Joint positions, relative to the default pose, and velocities of the reference, for each of some frames.

    In rad and rad/s. Shape (num_envs, 2 * num_joints * num_frames).

    Args:
        ahead: How many env steps ahead the frames are; 1 is what the next state should be.
    """
    reference, layout = reference_of(env, command), env.engine.layout
    home = layout.default_qpos[layout.qpos.select((".*",))]
    parts = []
    for steps in ahead:
        frames = _frames(env, command, reference, steps)
        parts += [_at(reference.joint_positions, frames) - home, _at(reference.joint_velocities, frames)]
    return torch.cat(parts, dim=1)


@mirrors.mirrored(mirrors.anchor_position)
def motion_anchor_pos_b(env: Env, *, command: str, ahead: Annotated[int, AT_LEAST_0] = 1) -> torch.Tensor:
    """Position of the anchor body of the reference in the frame of the robot's, in m. Shape (num_envs, 3)."""
    reference = reference_of(env, command)
    anchor = env.bodies.select(reference.anchor_row)
    wanted = _at(reference.anchor.positions, _frames(env, command, reference, ahead))
    return rotations.rotate_inverse(anchor.quaternions, wanted - anchor.positions)


@mirrors.mirrored(mirrors.anchor_axes)
def motion_anchor_ori_b(env: Env, *, command: str, ahead: Annotated[int, AT_LEAST_0] = 1) -> torch.Tensor:
    """Axes x and y of the anchor body of the reference in the frame of the robot's. Shape (num_envs, 6)."""
    robot, wanted = _anchors(env, command, "quaternions", ahead)
    return rotations.first_axes(rotations.multiply(rotations.conjugate(robot), wanted))


@mirrors.mirrored(mirrors.tracked_positions)
def robot_body_pos_b(env: Env, *, command: str) -> torch.Tensor:
    """Positions of the tracked bodies in the frame of the anchor body, in m. Shape (num_envs, 3 * num_bodies)."""
    reference = reference_of(env, command)
    anchor = env.bodies.select(reference.anchor_row)
    offsets = env.bodies.positions[:, reference.rows] - anchor.positions[:, None]
    return rotations.rotate_inverse(anchor.quaternions[:, None].expand(-1, offsets.shape[1], -1), offsets).flatten(1)


@mirrors.mirrored(mirrors.tracked_axes)
def robot_body_ori_b(env: Env, *, command: str) -> torch.Tensor:
    """Axes x and y of the tracked bodies in the frame of the anchor body. Shape (num_envs, 6 * num_bodies)."""
    reference = reference_of(env, command)
    quaternions = env.bodies.quaternions[:, reference.rows]
    inverse = rotations.conjugate(env.bodies.quaternions[:, reference.anchor_row])[:, None].expand_as(quaternions)
    return rotations.first_axes(rotations.multiply(inverse, quaternions)).flatten(1)


def motion_global_anchor_position_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """exp(-e^2 / std^2) of the distance e of the anchor body from the reference, in m. Shape (num_envs,)."""
    robot, wanted = _anchors(env, command, "positions", 1)
    return torch.exp(-(robot - wanted).square().sum(dim=1) / std**2)


def motion_global_anchor_orientation_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """exp(-e^2 / std^2) of the angle e between the anchor body and the reference, in rad. Shape (num_envs,)."""
    return torch.exp(-_angle(*_anchors(env, command, "quaternions", 1)).square() / std**2)


def motion_relative_body_position_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """exp(-e^2 / std^2) of the distances of the tracked bodies from the reference, in m; e^2 is their mean square.

    The reference is moved to the robot: to the place of its anchor body in the plane, and to its heading.
    Shape (num_envs,).
    """
    robot, wanted = _tracked(env, command, "positions", 1, moved=True)
    return torch.exp(-_mean_square(robot - wanted) / std**2)


def motion_relative_body_orientation_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """The same of the angles between the tracked bodies and the reference, in rad. Shape (num_envs,)."""
    angles = _angle(*_tracked(env, command, "quaternions", 1, moved=True))
    return torch.exp(-angles.square().mean(dim=1) / std**2)


def motion_global_body_linear_velocity_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """The same of the velocities of the tracked bodies, in m/s, in the world's frame. Shape (num_envs,)."""
    robot, wanted = _tracked(env, command, "linear_velocities", 1)
    return torch.exp(-_mean_square(robot - wanted) / std**2)


def motion_global_body_angular_velocity_error_exp(env: Env, *, command: str, std: Positive) -> torch.Tensor:
    """The same of the angular velocities of the tracked bodies, in rad/s, in the world's frame. Shape (num_envs,)."""
    robot, wanted = _tracked(env, command, "angular_velocities", 1)
    return torch.exp(-_mean_square(robot - wanted) / std**2)


def bad_anchor_pos(env: Env, *, command: str, threshold: Positive) -> torch.Tensor:
    """The anchor body is further than a threshold, in m, from the reference. Boolean, shape (num_envs,)."""
    robot, wanted = _anchors(env, command, "positions", 1)
    return (robot - wanted).norm(dim=1) > threshold


def bad_anchor_pos_z_only(env: Env, *, command: str, threshold: Positive) -> torch.Tensor:
    """The height of the anchor body differs by more than a threshold, in m. Boolean, shape (num_envs,)."""
    robot, wanted = _anchors(env, command, "positions", 1)
    return (robot - wanted)[:, 2].abs() > threshold


def bad_anchor_ori(env: Env, *, command: str, threshold: Positive) -> torch.Tensor:
    """The vertical, in the frame of the anchor body, differs in z by more than a threshold, from 0 to 2.

    Boolean, shape (num_envs,).
    """
    robot, wanted = _anchors(env, command, "quaternions", 1)
    return (_uprightness(robot) - _uprightness(wanted)).abs() > threshold


def bad_motion_body_pos_z_only(env: Env, *, command: str, bodies: tuple[str, ...], threshold: Positive) -> torch.Tensor:
    """The height of a tracked body differs from the reference by more than a threshold. Boolean, shape (num_envs,).

    Args:
        bodies: Regular expressions over tracked bodies, such as the feet.
        threshold: In m.
    """
    robot, wanted = _tracked(env, command, "positions", 1)
    errors = (robot - wanted)[..., 2].index_select(1, reference_of(env, command).places(env, bodies))
    return (errors.abs() > threshold).any(dim=1)


def motion_ended(env: Env, *, command: str) -> torch.Tensor:
    """The robot has reached the last frame of its clip; use `truncation`. Boolean, shape (num_envs,)."""
    reference = reference_of(env, command)
    frames = _frames(env, command, reference, 0)
    return frames + 1 >= reference.last[frames]


def motion_completed(env: Env) -> torch.Tensor:
    """The episode has not failed in this env step; at its end, that it has come to the end of the clip.

    Use `success`, measured at the end of episodes. Boolean, shape (num_envs,).
    """
    return ~env.terminated


def mpkpe(env: Env, *, command: str) -> torch.Tensor:
    """Mean distance of the tracked bodies from the reference in the world's frame, in m. Shape (num_envs,)."""
    robot, wanted = _tracked(env, command, "positions", 0)
    return (robot - wanted).norm(dim=-1).mean(dim=1)


def r_mpkpe(env: Env, *, command: str) -> torch.Tensor:
    """The same after the reference is moved to the place and heading of the robot. Shape (num_envs,)."""
    robot, wanted = _tracked(env, command, "positions", 0, moved=True)
    return (robot - wanted).norm(dim=-1).mean(dim=1)


def joint_vel_error(env: Env, *, command: str) -> torch.Tensor:
    """Root mean square over joints of the difference in velocity, in rad/s. Shape (num_envs,)."""
    reference = reference_of(env, command)
    wanted = _at(reference.joint_velocities, _frames(env, command, reference, 0))
    return (env.qvel((".*",)) - wanted).square().mean(dim=1).sqrt()


def ee_pos_error(env: Env, *, command: str, bodies: tuple[str, ...]) -> torch.Tensor:
    """Mean distance of some tracked bodies from the reference, moved as in `r_mpkpe`, in m. Shape (num_envs,)."""
    robot, wanted = _tracked(env, command, "positions", 0, moved=True)
    distances = (robot - wanted).norm(dim=-1)
    return distances.index_select(1, reference_of(env, command).places(env, bodies)).mean(dim=1)


def ee_ori_error(env: Env, *, command: str, bodies: tuple[str, ...]) -> torch.Tensor:
    """Mean angle between some tracked bodies and the reference, moved as in `r_mpkpe`, in rad. Shape (num_envs,)."""
    angles = _angle(*_tracked(env, command, "quaternions", 0, moved=True))
    return angles.index_select(1, reference_of(env, command).places(env, bodies)).mean(dim=1)


def _frames(env: Env, command: str, reference: Reference, ahead: int) -> torch.Tensor:
    """Return the frame of each world, some env steps ahead but not beyond the end of its clip. Shape (num_envs,)."""
    values = env.command(command)
    if values.shape[1] != 2:
        raise RequestError(
            f"command {command} is not refined by tracking.follow_motion, so its frame does not advance; give it "
            "refine=tracking.follow_motion"
        )
    now, num_seen = values.long().unbind(dim=1)
    begun = now - num_seen.clamp(min=1) + 1  # what follows the last frame of a clip belongs to another one
    return torch.minimum(now + ahead, reference.last[begun])


def _at(values: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Return the values of some frames; faster than indexing. Shape (num_frames, …) to (num_envs, …)."""
    return values.index_select(0, frames)


def _anchors(env: Env, command: str, field: str, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a field of `BodyStates` of the robot's anchor body, and of the reference's some env steps ahead."""
    reference = reference_of(env, command)
    wanted = _at(getattr(reference.anchor, field), _frames(env, command, reference, ahead))
    return getattr(env.bodies, field)[:, reference.anchor_row], wanted


def _tracked(
    env: Env, command: str, field: str, ahead: int, *, moved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same of the tracked bodies; the reference may be moved to the robot, see `_move`."""
    reference = reference_of(env, command)
    robot = getattr(env.bodies, field)[:, reference.rows]
    if moved:
        return robot, _move(env, command, ahead)[field]
    return robot, _at(getattr(reference.bodies, field), _frames(env, command, reference, ahead))


def _move(env: Env, command: str, ahead: int) -> dict[str, torch.Tensor]:
    """Move the tracked bodies of the reference to the robot's anchor in the plane, and to its heading; heights stay."""
    states = env.bodies
    known = _MOVED.setdefault(states, {})
    if (command, ahead) in known:
        return known[command, ahead]
    reference = reference_of(env, command)
    frames = _frames(env, command, reference, ahead)
    at, turned = _at(reference.anchor.positions, frames), _at(reference.anchor.quaternions, frames)
    robot = states.select(reference.anchor_row)
    by = rotations.from_yaw(rotations.yaw(rotations.multiply(robot.quaternions, rotations.conjugate(turned))))
    by = by[:, None].expand(-1, len(reference.row_list), -1)
    place = torch.cat([robot.positions[:, :2], at[:, 2:]], dim=1)[:, None]
    positions = place + rotations.rotate(by, _at(reference.bodies.positions, frames) - at[:, None])
    quaternions = rotations.multiply(by, _at(reference.bodies.quaternions, frames))
    known[command, ahead] = {"positions": positions, "quaternions": quaternions}
    return known[command, ahead]


def _mean_square(errors: torch.Tensor) -> torch.Tensor:
    """Return the mean over bodies of the squared length. Shape (num_envs, num_bodies, 3) to (num_envs,)."""
    return errors.square().sum(dim=-1).mean(dim=-1)


def _angle(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the angle between rotations, in rad. Shape (..., 4) to (...,)."""
    return 2 * (one * other).sum(dim=-1).abs().clamp(max=1.0).acos()


def _uprightness(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the z component of the vertical in the frame of a body. Shape (..., 4) to (...,)."""
    return 1 - 2 * (quaternion[..., 1].square() + quaternion[..., 2].square())

"""What a mirror makes of observations and actions: a matrix for each observation group, put together from its terms."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mjtrain.config import ObservationTerm
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import Columns, match_names
from mjtrain.sim.robots.mirror import find_mirror

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Mirror:
    """Matrices A by which a column vector x of an environment becomes its mirror image A x. float64.

    What a term function returns is mirrored as the function declares (`mjtrain.mdp.mirrors`).
    """

    def __init__(self, env: "Env") -> None:
        """Look at the robot; raises a RequestError if it is not its own mirror image."""
        self._env = env
        self._layout = env.engine.layout
        self._robot = find_mirror(env.engine.model, self._layout, env.config.robot.mirror)

    def observations(self, group: str) -> torch.Tensor:
        """Return the matrix of an observation group, (size, size): its terms side by side, each with its history."""
        return torch.block_diag(*[self.term(group, name) for name in self._env.observation_widths(group)])

    def term(self, group: str, name: str) -> torch.Tensor:
        """Return the matrix of a term of an observation group, with its history. Shape (size, size).

        Raises:
            RequestError: Its function declares no mirror, or it is not its own image.
        """
        term = self._env.config.observations[group][name]
        width = self._env.observation_widths(group)[name] // term.history
        try:
            return torch.block_diag(*[self._now(term, width)] * term.history)
        except RequestError as error:
            raise RequestError(f"--env.observations.{group}.{name}: {error}") from error

    def actions(self) -> torch.Tensor:
        """Return the matrix of the policy's output. Shape (num_actions, num_actions).

        Raises:
            RequestError: An action term treats an actuator and its image differently.
        """
        table = self._env.action_table
        place = {key: column for column, key in enumerate(self._layout.inputs)}
        columns = [place[row["actuator"], row.get("input")] for row in table]
        matrix = self._select(self._robot.ctrl, columns, [row["actuator"] for row in table], "--env.actions: ")
        for one, image in zip(*matrix.nonzero(as_tuple=True), strict=True):
            sign, row, other = float(matrix[one, image]), table[int(image)], table[int(one)]
            clip = row["clip"] if sign > 0 else (-row["clip"][1], -row["clip"][0])
            same = tuple(other["clip"]) == tuple(clip) and abs(other["offset"] - sign * row["offset"]) < 1e-3
            if not same or any(row.get(key) != other.get(key) for key in ("scale", "relative", "delay", "base")):
                raise RequestError(
                    f"--env.actions: actuators {row['actuator']} and {other['actuator']} are images of each other and "
                    "have another scale, offset, clip, delay or base"
                )
        return matrix

    def positions(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Return the matrix of `Env.qpos(joints)`. Shape (size, size)."""
        return self._part(self._robot.qpos, self._layout.qpos, joints)

    def velocities(self, joints: str | Sequence[str]) -> torch.Tensor:
        """Return the matrix of `Env.qvel(joints)`. Shape (size, size)."""
        return self._part(self._robot.qvel, self._layout.qvel, joints)

    def sensors(self, names: str | Sequence[str]) -> torch.Tensor:
        """Return the matrix of `Env.sensor(names)`. Shape (size, size).

        Raises:
            RequestError: The mirror image of a sensor is not known, or not among them.
        """
        for name in _names(names, self._layout.sensors):
            if name in self._robot.unknown:
                raise RequestError(f"sensor {name} has no mirror image: {self._robot.unknown[name]}")
        return self._part(self._robot.sensordata, self._layout.sensors, names)

    def sensor_order(self, names: str | Sequence[str]) -> torch.Tensor:
        """Return the matrix of one column for each sensor, which goes to the sensor's image. Shape (number, number)."""
        matrix = self.sensors(names)
        widths = [self._layout.sensors.width(name) for name in _names(names, self._layout.sensors)]
        rows = [row.split(widths, dim=1) for row in matrix.split(widths)]
        return torch.tensor([[float(block.any()) for block in row] for row in rows], dtype=torch.float64)

    def command_params(self, name: str) -> dict[str, Any]:
        """Return the parameters of the function of a command term."""
        return self._env.config.commands[name].params

    def body_vectors(self, bodies: Sequence[str], anchor: str) -> torch.Tensor:
        """Return the matrix of a vector for each of several bodies, in the frame of another one that is its own image.

        The bodies are regular expressions, which must match the image of each. Shape (3 * number, 3 * number).

        Raises:
            RequestError: An image is missing.
        """
        return torch.kron(self._body_order(match_names(bodies, self._layout.bodies, "body")), self._anchor(anchor))

    def body_axes(self, bodies: Sequence[str], anchor: str) -> torch.Tensor:
        """Return the matrix of the x and y axes of several bodies in the frame of another one; see `body_vectors`.

        Shape (6 * number, 6 * number).

        Raises:
            RequestError: An image is missing, or has other axes.
        """
        names, frame = match_names(bodies, self._layout.bodies, "body"), self._anchor(anchor)
        matrix = torch.zeros(6 * len(names), 6 * len(names), dtype=torch.float64)
        for image, body in self._body_order(names).nonzero().tolist():
            local = torch.from_numpy(self._robot.body_frames[names[body]])
            signs = local.diagonal()
            if (local - signs.diag()).abs().max() > 1e-3:
                raise RequestError(f"the axes of the image of body {names[body]} are others")
            block = torch.kron(signs[:2].sign().diag(), frame)
            matrix[6 * image : 6 * image + 6, 6 * body : 6 * body + 6] = block
        return matrix

    def _anchor(self, body: str) -> torch.Tensor:
        if self._robot.bodies[body] != body:
            raise RequestError(f"body {body} is not its own mirror image")
        return torch.from_numpy(self._robot.body_frames[body]).T.contiguous()

    def _body_order(self, names: Sequence[str]) -> torch.Tensor:
        """Return the matrix of one column for each body, which goes to the body's image. Shape (number, number)."""
        order = torch.zeros(len(names), len(names), dtype=torch.float64)
        for place, body in enumerate(names):
            image = self._robot.bodies[body]
            if image not in names:
                raise RequestError(f"has body {body} and not its mirror image")
            order[names.index(image), place] = 1.0
        return order

    def frame(self, joint: str) -> torch.Tensor:
        """Return the matrix of a velocity or a force in the frame of a free body. Shape (3, 3).

        That of an angular velocity or a torque is its negative.
        """
        if joint not in self._robot.frames:
            raise RequestError(f"joint {joint} is not a free joint, for whose frame a mirror is known")
        return torch.from_numpy(self._robot.frames[joint])

    def command(self, name: str) -> torch.Tensor:
        """Return the matrix of a command, as the function that computes it declares. Shape (size, size)."""
        term = self._env.config.commands[name]
        if term.refine is not None:
            return _declared(term.refine, term.refine_params, self)
        return _declared(term.func, term.params, self)

    def _now(self, term: ObservationTerm, width: int) -> torch.Tensor:
        matrix = _declared(term.func, term.params, self)
        if matrix.shape != (width, width):
            raise RequestError(f"its mirror is of shape {tuple(matrix.shape)}; the term has {width} columns")
        if (matrix @ matrix - torch.eye(width)).abs().max() > 1e-6:
            raise RequestError("mirrored twice it is not what it was")
        if term.clip is not None and term.clip[0] != -term.clip[1] and (matrix < 0).any():
            raise RequestError(f"clip {term.clip[0]:g} {term.clip[1]:g}: a value that mirrors needs equal bounds")
        return matrix

    def _part(self, whole: np.ndarray, places: Columns, names: str | Sequence[str]) -> torch.Tensor:
        found = _names(names, places)
        columns = [column for name in found for column in range(places[name].start, places[name].stop)]
        labels = [name for name in found for _ in range(places.width(name))]
        return self._select(whole, columns, labels, "")

    @staticmethod
    def _select(whole: np.ndarray, columns: list[int], labels: list[str], prefix: str) -> torch.Tensor:
        """Return the rows and columns of some parts, if they hold the image of each."""
        for column, label in zip(columns, labels, strict=True):
            if set(np.flatnonzero(whole[:, column])) - set(columns):
                raise RequestError(f"{prefix}has {label} and not its mirror image")
        return torch.from_numpy(whole[np.ix_(columns, columns)])


def find_mirror_problems(env: "Env", groups: Sequence[str]) -> list[str]:
    """Return a line for each reason why observation groups and actions of an environment have no mirror image."""
    try:
        mirror = Mirror(env)
    except RequestError as error:
        return [str(error)]
    parts = [partial(mirror.term, group, name) for group in groups for name in env.config.observations[group]]
    problems = []
    for part in (*parts, mirror.actions):
        try:
            part()
        except RequestError as error:
            problems.append(str(error))
    return problems


def _declared(function: Callable[..., Any], params: dict[str, Any], mirror: Mirror) -> torch.Tensor:
    by = getattr(function, "mirror", None)
    if by is None:
        name = getattr(function, "__name__", "its function")
        raise RequestError(f"{name}() does not declare how it mirrors; see mjtrain.mdp.mirrors")
    return by(mirror, **params)


def _names(names: str | Sequence[str], places: Columns) -> list[str]:
    """Return the names that one name, or several regular expressions, stand for."""
    return [names] if isinstance(names, str) else places.match(names)

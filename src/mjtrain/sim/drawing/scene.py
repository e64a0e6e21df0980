"""What is visible of a model: plain values for other renderers, poses for MuJoCo's, and a ghost beside the robot."""

import copy
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from mjtrain.sim.robots.start import find_base, find_root, make_start

MAX_TRIANGLES = 40_000
"""Triangles of all meshes of a scene; meshes with more are simplified."""

GHOST_COLOR = (0.2, 0.75, 0.5, 0.3)
"""Red, green, blue and opacity of a translucent second robot, such as the reference that the robot follows."""

_GROUND_MARGIN_M = 4.0
"""Generated ground that is kept on each side of the robot's path, in m."""

_SHOWN_GROUPS = 3
"""Geoms of groups below this one are visible, as in MuJoCo's viewer."""

_NO_COLOR = (0.5, 0.5, 0.5, 1.0)
"""Colour of a geom whose file gives none; MuJoCo then takes the material's."""

_SHAPES = {
    getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}").value: name
    for name in ("plane", "hfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Visible parts of a model."""

    bodies: np.ndarray
    """Bodies with visible geoms that move. Shape (num_moving,)."""

    geoms: list[dict[str, Any]]
    """One per geom: shape, size (m, as in MJCF), pos (m) and quat (w, x, y, z) in the frame of its body or of the
    world, rgba; body, its index into `bodies`, or -1 in the world; for a mesh its index into `meshes`; for a checker
    the second rgb and square_m, the width of a square. Without height fields, see `make_grounds`."""

    meshes: list[tuple[np.ndarray, np.ndarray]]
    """Vertices in m, shape (n, 3), and the triangles between them, shape (m, 3)."""

    follows: int
    """Index into `bodies` of the body that a camera has to follow; -1 if nothing moves freely."""

    center: list[float]
    """Mean position of the geoms that move, in m. Shape (3,)."""


def make_scene(model: mujoco.MjModel, qpos: np.ndarray) -> Scene:
    """Collect what is visible; parts of the world are placed as in a pose, qpos of shape (nq,)."""
    data = _posed(model, qpos)
    visible = list_visible(model)
    shown = [geom for geom in visible if _shape(model, geom) != "hfield"]
    moving = [geom for geom in shown if model.body_weldid[model.geom_bodyid[geom]] != 0]
    holding = model.geom_bodyid[visible]
    bodies = np.unique(holding[model.body_weldid[holding] != 0]).astype(int)
    used = list(dict.fromkeys(int(model.geom_dataid[geom]) for geom in shown if _shape(model, geom) == "mesh"))
    base = find_base(model)
    root = int(model.jnt_bodyid[base]) if base >= 0 else -1
    of_root = np.flatnonzero(model.body_rootid[bodies] == root)
    center = data.geom_xpos[moving].mean(axis=0) if moving else np.zeros(3)
    return Scene(
        bodies=bodies,
        geoms=[
            _describe(data, geom, bodies)
            | _checker(model, geom)
            | ({"mesh": used.index(int(model.geom_dataid[geom]))} if _shape(model, geom) == "mesh" else {})
            for geom in shown
        ],
        meshes=_simplified([_mesh(model, mesh) for mesh in used]),
        follows=int(of_root[0]) if root >= 0 and len(of_root) else -1,
        center=center.tolist(),
    )


def make_grounds(model: mujoco.MjModel, positions: np.ndarray, bodies: np.ndarray) -> list[dict[str, Any]]:
    """Return visible height fields, of a generated ground only the surroundings of the robot's path.

    Args:
        positions: qpos over a clip. Shape (frames, nq).
        bodies: `Scene.bodies`. Shape (num_moving,).

    Returns:
        As `Scene.geoms`, with extent, the half sizes in x and y in m, and grid, heights in m of shape (rows, columns).
    """
    model = crop_ground(model, positions)
    data = _posed(model, positions[0])
    return [
        _describe(data, geom, bodies)
        | _checker(model, geom)
        | {"extent": model.hfield_size[model.geom_dataid[geom], :2].tolist(), "grid": _heights(model, geom)}
        for geom in list_visible(model)
        if _shape(model, geom) == "hfield"
    ]


def body_poses(model: mujoco.MjModel, qpos: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """Return the poses of bodies for finite qpos: position in m and quaternion (w, x, y, z).

    Shape (frames, nq) to (frames, len(bodies), 7).
    """
    data = make_start(model)
    poses = np.empty((len(qpos), len(bodies), 7))
    for frame, row in enumerate(qpos):
        data.qpos[:] = row
        mujoco.mj_kinematics(model, data)
        poses[frame, :, :3], poses[frame, :, 3:] = data.xpos[bodies], data.xquat[bodies]
    return poses


def crop_ground(model: mujoco.MjModel, positions: np.ndarray) -> mujoco.MjModel:
    """Crop a generated ground to the surroundings of the robot: all of it takes seconds per frame without a GPU.

    Models other than one height field, fixed to the world, and a robot on a free joint are returned unchanged.
    Positions are qpos over a clip, shape (frames, nq).
    """
    grounds = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD)
    root = find_root(model)
    if len(grounds) != 1 or model.nhfield != 1 or root < 0 or model.geom_bodyid[grounds[0]] != 0:
        return model
    if abs(model.geom_quat[grounds[0], 0]) < 1 - 1e-9:  # it is turned
        return model
    model, ground = copy.copy(model), grounds[0]
    begin = model.jnt_qposadr[root]
    track = positions[:, begin : begin + 2] - model.geom_pos[ground, :2]
    half_size = model.hfield_size[0, :2].copy()
    shape = np.array([model.hfield_ncol[0], model.hfield_nrow[0]])
    cell = 2 * half_size / (shape - 1)
    low = np.floor((track.min(axis=0) - _GROUND_MARGIN_M + half_size) / cell).clip(0, shape - 2).astype(int)
    high = np.ceil((track.max(axis=0) + _GROUND_MARGIN_M + half_size) / cell).clip(low + 1, shape - 1).astype(int)
    heights = model.hfield_data[: shape.prod()].reshape(shape[1], shape[0])
    kept = heights[low[1] : high[1] + 1, low[0] : high[0] + 1].copy()
    model.hfield_nrow[0], model.hfield_ncol[0] = kept.shape
    model.hfield_data[: kept.size] = kept.ravel()
    model.hfield_size[0, :2] = (high - low) * cell / 2
    model.geom_pos[ground, :2] += (low + high) * cell / 2 - half_size
    model.geom_sameframe[ground] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
    return model


def enlarge_buffer(model: mujoco.MjModel, width: int, height: int) -> None:
    """Make the off-screen buffer of a model at least as large as a picture; a file may set a smaller one."""
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)


def draw_pose(renderer: mujoco.Renderer, data: mujoco.MjData, qpos: np.ndarray) -> None:
    """Put a pose into the scene of a renderer, as the first camera of the model sees it if there is one."""
    data.qpos[:] = qpos
    mujoco.mj_kinematics(data.model, data)
    mujoco.mj_comPos(data.model, data)
    mujoco.mj_camlight(data.model, data)
    renderer.update_scene(data, 0 if data.model.ncam else -1)


def list_ghost_geoms(model: mujoco.MjModel) -> dict[int, list[int]]:
    """Return the visible geoms of the robot by body: what has its free joint, and what hangs from it."""
    root = find_root(model)
    found: dict[int, list[int]] = {}
    for geom in list_visible(model):
        body = int(model.geom_bodyid[geom])
        if root >= 0 and model.body_rootid[body] == model.jnt_bodyid[root]:
            found.setdefault(body, []).append(geom)
    return found


class GhostGeoms:
    """Adds a ghost to scenes of a model. Nothing but these scenes changes."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = copy.copy(model)
        self._model.geom_matid[:] = -1
        self._model.geom_rgba[:] = 0.0  # what is not visible at all is not added
        for geoms in list_ghost_geoms(model).values():
            self._model.geom_rgba[geoms] = GHOST_COLOR
        self._data = make_start(self._model)
        self._option = mujoco.MjvOption()
        self._option.flags[:] = 0
        self._option.sitegroup[:] = 0

    def add(self, scene: mujoco.MjvScene, qpos: np.ndarray) -> None:
        """Add a ghost in a pose, qpos of shape (nq,), to what a scene already shows."""
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        dynamic = int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
        mujoco.mjv_addGeoms(self._model, self._data, self._option, mujoco.MjvPerturb(), dynamic, scene)


def list_visible(model: mujoco.MjModel) -> list[int]:
    """Return the geoms that MuJoCo's viewer shows, of the shapes that are known here."""
    return [
        geom
        for geom in range(model.ngeom)
        if model.geom_group[geom] < _SHOWN_GROUPS
        and int(model.geom_type[geom]) in _SHAPES
        and _color(model, geom)[3] > 0
    ]


def merge_vertices(vertices: np.ndarray, faces: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Simplify a mesh to at most limit triangles: vertices in the same cell of a grid become their mean.

    Triangles without an area go. Shapes (n, 3) and (m, 3).
    """
    if len(faces) <= limit:
        return vertices, faces
    low, extent = vertices.min(axis=0), float(np.ptp(vertices, axis=0).max())
    cells = 2.0 * np.sqrt(limit)
    while True:
        grid = np.floor((vertices - low) / extent * cells).astype(int)
        _, cell, count = np.unique(grid, axis=0, return_inverse=True, return_counts=True)
        cell = cell.reshape(-1)
        merged = cell[faces]
        kept = (merged[:, 0] != merged[:, 1]) & (merged[:, 1] != merged[:, 2]) & (merged[:, 2] != merged[:, 0])
        merged = np.unique(merged[kept], axis=0)
        if len(merged) <= limit:
            means = np.stack([np.bincount(cell, vertices[:, axis]) for axis in range(3)], axis=1) / count[:, None]
            return means, merged
        cells *= 0.9


def _posed(model: mujoco.MjModel, qpos: np.ndarray) -> mujoco.MjData:
    data = make_start(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return data


def _describe(data: mujoco.MjData, geom: int, bodies: np.ndarray) -> dict[str, Any]:
    model = data.model
    body = int(model.geom_bodyid[geom])
    place = int(np.searchsorted(bodies, body)) if model.body_weldid[body] else -1
    pos, quat = model.geom_pos[geom], model.geom_quat[geom].copy()
    if place < 0:
        pos = data.geom_xpos[geom]
        mujoco.mju_mat2Quat(quat, data.geom_xmat[geom])
    return {
        "shape": _shape(model, geom),
        "size": model.geom_size[geom].tolist(),
        "body": place,
        "pos": pos.tolist(),
        "quat": quat.tolist(),
        "rgba": _color(model, geom),
    }


def _shape(model: mujoco.MjModel, geom: int) -> str:
    return _SHAPES[int(model.geom_type[geom])]


def _color(model: mujoco.MjModel, geom: int) -> list[float]:
    """Return the colour in which MuJoCo draws a geom, with the mean of its texture unless that is a checker."""
    rgba, texture = _tint(model, geom), _texture(model, geom)
    if texture is not None:
        squares = _squares(model, geom)
        rgba[:3] *= squares[0] if squares else texture.mean(axis=(0, 1))
    return rgba.tolist()


def _tint(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return the colour by which MuJoCo multiplies the texture of a geom. Shape (4,)."""
    material, own = int(model.geom_matid[geom]), model.geom_rgba[geom]
    return (model.mat_rgba[material] if material >= 0 and np.allclose(own, _NO_COLOR) else own).copy()


def _texture(model: mujoco.MjModel, geom: int) -> np.ndarray | None:
    """Return the picture on a geom, values from 0 to 1. Shape (height, width, 3)."""
    material = int(model.geom_matid[geom])
    row = int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]) if material >= 0 else -1
    if row < 0 or model.tex_nchannel[row] < 3:
        return None
    return model.tex(row).data[..., :3] / 255.0


def _squares(model: mujoco.MjModel, geom: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first and second colour of the texture of ground if that is a checker, without its marks."""
    texture = _texture(model, geom) if _shape(model, geom) in ("plane", "hfield") else None
    if texture is None:
        return None
    height, width = texture.shape[0] // 2, texture.shape[1] // 2
    first, second = texture[height // 2, width // 2], texture[height // 2, width + width // 2]
    if np.allclose(first, second) or not np.allclose(second, texture[height + height // 2, width // 2]):
        return None
    return first, second


def _checker(model: mujoco.MjModel, geom: int) -> dict[str, Any]:
    """Return the second colour and the width of the squares of ground whose texture is a checker; else nothing."""
    squares = _squares(model, geom)
    if squares is None:
        return {}
    material = int(model.geom_matid[geom])
    repeat, extent = float(model.mat_texrepeat[material, 0]), 2 * float(model.geom_size[geom, 0])
    whole_m = 2.0 if model.mat_texuniform[material] or not extent else extent
    return {"checker": (squares[1] * _tint(model, geom)[:3]).tolist(), "square_m": whole_m / max(repeat, 1e-6) / 2}


def _heights(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return heights of a height field above its frame, in m. Shape (rows, columns)."""
    field = int(model.geom_dataid[geom])
    rows, columns, begin = (int(values[field]) for values in (model.hfield_nrow, model.hfield_ncol, model.hfield_adr))
    heights = model.hfield_data[begin : begin + rows * columns].reshape(rows, columns)
    return heights * float(model.hfield_size[field, 2])


def _mesh(model: mujoco.MjModel, mesh: int) -> tuple[np.ndarray, np.ndarray]:
    vertex, face = int(model.mesh_vertadr[mesh]), int(model.mesh_faceadr[mesh])
    return (
        model.mesh_vert[vertex : vertex + int(model.mesh_vertnum[mesh])].astype(float),
        model.mesh_face[face : face + int(model.mesh_facenum[mesh])].astype(int),
    )


def _simplified(meshes: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Simplify the largest meshes so that all of them together have at most MAX_TRIANGLES."""
    sizes = np.array(sorted(len(faces) for _, faces in meshes))
    limit = MAX_TRIANGLES
    while len(sizes) and np.minimum(sizes, limit).sum() > MAX_TRIANGLES:
        limit = int(limit * 0.9)
    return [merge_vertices(*mesh, limit) for mesh in meshes]

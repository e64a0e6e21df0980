"""Where the parts that are seen lie in the fields of the model."""

from collections.abc import Mapping, Sequence
from typing import Literal

import mujoco
import numpy as np
import torch

from mjtrain.sim.cameras.cameras import ResolvedCamera
from mjtrain.sim.robots.layout import match_names

PartKind = Literal["geom", "material", "texture", "light", "camera", "camera with fovy"]
"""What a row may be of."""


class SeenParts:
    """Rows of geoms, materials, textures, lights and cameras, by regular expressions over names, matched whole.

    A camera has its name in the config; one with a focal length has no fovy. A material, texture or light without a
    name is called by its number.
    """

    def __init__(
        self, model: mujoco.MjModel, cameras: Mapping[str, ResolvedCamera], device: torch.device | str
    ) -> None:
        self._device = device
        self._rows: dict[PartKind, dict[str, int]] = {
            "geom": {model.geom(row).name: row for row in range(model.ngeom) if model.geom(row).name},
            "material": {model.mat(row).name or str(row): row for row in range(model.nmat)},
            "texture": {
                model.tex(row).name or str(row): row
                for row in range(model.ntex)
                if model.tex_type[row] == mujoco.mjtTexture.mjTEXTURE_2D
            },
            "light": {model.light(row).name or str(row): row for row in range(model.nlight)},
            "camera": {name: camera.index for name, camera in cameras.items()},
            "camera with fovy": {
                name: camera.index for name, camera in cameras.items() if not model.cam_sensorsize[camera.index, 1]
            },
        }
        self._fovy_deg = {
            name: float(model.cam_fovy[row])
            for name, row in self._rows["camera with fovy"].items()
            if model.cam_projection[row] == mujoco.mjtProjection.mjPROJ_PERSPECTIVE
        }
        self._bodies = {model.body(row).name: row for row in range(model.nbody) if model.body(row).name}
        self._body_of_geom = np.array(model.geom_bodyid)
        self._found: dict[tuple, torch.Tensor] = {}

    def rows(self, kind: PartKind, patterns: Sequence[str]) -> torch.Tensor:
        """Return the rows of parts in the fields of the model; of textures, those that are no cube and no sky."""
        key = (kind, *patterns)
        if key not in self._found:
            named = self._rows[kind]
            rows = sorted({named[name] for name in match_names(patterns, named, kind)})
            self._found[key] = torch.tensor(rows, device=self._device, dtype=torch.long)
        return self._found[key]

    def widest_fovy_deg(self, patterns: Sequence[str]) -> float:
        """Return the largest vertical field of view of cameras, 0 where none has one; does not ask the device."""
        names = match_names(patterns, self._rows["camera with fovy"], "camera with fovy")
        return max((self._fovy_deg.get(name, 0.0) for name in names), default=0.0)

    def geoms(self, geoms: Sequence[str], bodies: Sequence[str]) -> torch.Tensor:
        """Return the rows of geoms, and of all geoms of bodies, whether they have names or not."""
        key = ("geoms", tuple(geoms), tuple(bodies))
        if key not in self._found:
            own = [self._bodies[name] for name in match_names(bodies, self._bodies, "body")]
            of_bodies = np.nonzero(np.isin(self._body_of_geom, own))[0].tolist()
            rows = sorted({*self.rows("geom", geoms).tolist(), *of_bodies})
            self._found[key] = torch.tensor(rows, device=self._device, dtype=torch.long)
        return self._found[key]

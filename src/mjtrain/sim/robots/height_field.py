"""The ground as a generated height field: patches of rising difficulty."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mjtrain.config import TerrainConfig
from mjtrain.config.limits import COUNT_FROM_1
from mjtrain.runtime.errors import RequestError

_PLATFORM_M = 1.5
_BORDER_M = 3.0
_RIM_M = 0.5
"""Width of the flat rim of slopes and stairs. All patches have the same height there: no cliffs between them."""

_MAX_POINTS = 1e8


@dataclass(frozen=True, kw_only=True)
class HeightField:
    """Heights over a grid around the origin. Between grid points the ground consists of triangles, as in MuJoCo.

    Levels rise along x, kinds of ground lie side by side along y. The world's frame: x right, y up the rows, z height.
    """

    heights: np.ndarray
    """Height above z = 0, in m; the lowest is 0. Row i is y = i * cell_m - half_size_m[1]. Shape (rows, columns)."""

    cell_m: float
    """Distance of grid points, in m."""

    spawns: np.ndarray
    """Centre of each patch on the ground, in m. Shape (num_levels, num_kinds, 3)."""

    @property
    def half_size_m(self) -> tuple[float, float]:
        """Half the extent along x and y, in m."""
        rows, columns = self.heights.shape
        return (columns - 1) * self.cell_m / 2, (rows - 1) * self.cell_m / 2


def make_height_field(config: TerrainConfig) -> HeightField:
    """Generate the ground. The last one is kept: a model and the environment that looks up its heights share it."""
    return _generate(replace(config, kinds=tuple(config.kinds)))


def check_height_field(config: TerrainConfig) -> None:
    """Raise a RequestError if the ground cannot be generated."""
    unknown = [kind for kind in config.kinds if kind not in _KINDS]
    if unknown or not config.kinds:
        raise RequestError(f"--env.terrain.kinds {' '.join(unknown)}: choose from {', '.join(_KINDS)}")
    if problem := COUNT_FROM_1.find_problem(config.num_levels):
        raise RequestError(f"--env.terrain.num-levels {problem}")
    if config.patch_m < 2 * _PLATFORM_M:
        raise RequestError(f"--env.terrain.patch-m {config.patch_m}: give at least {2 * _PLATFORM_M}")
    if config.cell_m > _PLATFORM_M / 2:
        raise RequestError(f"--env.terrain.cell-m {config.cell_m:g}: give at most {_PLATFORM_M / 2:g}")
    width, length = (count * config.patch_m + 2 * _BORDER_M for count in (len(config.kinds), config.num_levels))
    points = (width / config.cell_m) * (length / config.cell_m)  # inf where it is too large, not an OverflowError
    if points > _MAX_POINTS:
        raise RequestError(
            f"--env.terrain.cell-m {config.cell_m:g}: makes {points:.2g} points with --env.terrain.num-levels "
            f"{config.num_levels}, more than {_MAX_POINTS:.0e}; give larger cells, or fewer levels or kinds"
        )
    if config.seed < 0:
        raise RequestError(f"--env.terrain.seed {config.seed}: must be at least 0")


@lru_cache(maxsize=1)
def _generate(config: TerrainConfig) -> HeightField:
    check_height_field(config)
    rng = np.random.default_rng(config.seed)
    size = round(config.patch_m / config.cell_m)
    border = round(_BORDER_M / config.cell_m)
    heights = np.zeros((len(config.kinds) * size + 2 * border + 1, config.num_levels * size + 2 * border + 1))
    axis = (np.arange(size) + 0.5 - size / 2) * config.cell_m
    x, y = np.meshgrid(axis, axis)
    for level in range(config.num_levels):
        difficulty = (level + 1) / config.num_levels
        for column, kind in enumerate(config.kinds):
            patch = _KINDS[kind](x, y, difficulty, rng)
            bottom, left = border + column * size, border + level * size
            heights[bottom : bottom + size, left : left + size] = patch
    heights -= heights.min()
    rows, columns = (border + size // 2 + size * np.arange(number) for number in (len(config.kinds), config.num_levels))
    spawns = np.empty((config.num_levels, len(config.kinds), 3))
    spawns[..., 0] = ((columns - (heights.shape[1] - 1) / 2) * config.cell_m)[:, None]
    spawns[..., 1] = (rows - (heights.shape[0] - 1) / 2) * config.cell_m
    spawns[..., 2] = heights[np.ix_(rows, columns)].T
    return HeightField(heights=heights, cell_m=config.cell_m, spawns=spawns)


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance from the platform in the middle of a patch, in m; zero on it, equal along squares around it."""
    return np.maximum(np.maximum(np.abs(x), np.abs(y)) - _PLATFORM_M / 2, 0.0)


def _edge(x: np.ndarray) -> float:
    return float(np.abs(x).max()) - _PLATFORM_M / 2


def _rough(x: np.ndarray, y: np.ndarray, difficulty: float, rng: np.random.Generator) -> np.ndarray:
    """Bumps and dips of up to 6 cm, two cells wide."""
    coarse = rng.uniform(-1.0, 1.0, ((x.shape[0] + 1) // 2, (x.shape[1] + 1) // 2))
    bumps = np.kron(coarse, np.ones((2, 2)))[: x.shape[0], : x.shape[1]]
    return 0.06 * difficulty * bumps * (_distance(x, y) > 0)


def _slope_up(x: np.ndarray, y: np.ndarray, difficulty: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """A pit with walls of a slope of up to 0.4 (22 degrees): every direction leads up."""
    rise = np.minimum(_distance(x, y), _edge(x) - _RIM_M)
    return 0.4 * difficulty * (rise - rise.max())


def _stairs_up(x: np.ndarray, y: np.ndarray, difficulty: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """Steps 40 cm deep and up to 12 cm high: every direction leads up."""
    steps = np.ceil(np.minimum(_distance(x, y), _edge(x) - _RIM_M) / 0.4 - 1e-9)
    return 0.12 * difficulty * (steps - steps.max())


def _obstacles(x: np.ndarray, y: np.ndarray, difficulty: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of 0.4 to 1 m, up to 15 cm high or deep, anywhere except in the middle and at the rim."""
    patch = np.zeros_like(x)
    half = float(np.abs(x).max())
    for _ in range(round(0.6 * (2 * half) ** 2)):
        width, depth = rng.uniform(0.2, 0.5, 2)
        centre_x, centre_y = rng.uniform(-half + 0.5, half - 0.5, 2)
        inside = (np.abs(x - centre_x) < width) & (np.abs(y - centre_y) < depth)
        patch[inside] = 0.15 * difficulty * rng.uniform(-1.0, 1.0)
    return patch * (_distance(x, y) > 0)


_KINDS = {
    "rough": _rough,
    "slope_up": _slope_up,
    "slope_down": lambda *patch: -_slope_up(*patch),  # every direction leads down
    "stairs_up": _stairs_up,
    "stairs_down": lambda *patch: -_stairs_up(*patch),  # every direction leads down
    "obstacles": _obstacles,
}

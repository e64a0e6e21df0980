"""Episodes as a data set of Minari, written by its own package."""

import re
from pathlib import Path
from typing import Any

import minari  # pyright: ignore[reportMissingImports]
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer  # pyright: ignore[reportMissingImports]
from minari.dataset.minari_storage import MinariStorage  # pyright: ignore[reportMissingImports]

from mjtrain.env.env import Env
from mjtrain.evaluation.playing.trajectories import STATE, Trajectory


class MinariFiles:
    """Adds episodes to a data set, one at a time."""

    def __init__(self, folder: Path, env: Env, description: str) -> None:
        """Create the data set in `folder`/data, where `minari.load_dataset` looks below MINARI_DATASETS_PATH."""
        data = folder / "data"
        data.mkdir(parents=True)
        observations: dict[str, spaces.Space[Any]] = {
            group: _unbounded(values) for group, values in env.observe().items()
        }
        self._storage = MinariStorage.new(
            data,
            observation_space=spaces.Dict(observations),
            action_space=spaces.Box(-np.inf, np.inf, (env.num_actions,), np.float32),
            jpeg_encoding=False,
        )
        has_version = re.search(r"-v\d+$", folder.name)
        self._storage.update_metadata(
            {
                "dataset_id": folder.name if has_version else f"{folder.name}-v0",
                "minari_version": minari.__version__,
                "description": description,
            }
        )

    def add(self, number: int, episode: Trajectory) -> dict[str, Any]:
        """Write an episode, and return where it is."""
        arrays = episode.arrays
        truncations = arrays["truncated"].copy()
        truncations[-1] |= not arrays["terminated"][-1]  # also where the recording ended first
        # HDF5 cannot have chunks of columns that do not exist, such as `act` of a robot without activations.
        infos = {name: arrays[name] for name in ("time", "reward_terms", *STATE) if arrays[name].size}
        infos |= {name: values for name, values in arrays.items() if name.startswith("commands/")}
        buffer = EpisodeBuffer(
            id=number,
            observations={
                group: np.concatenate([arrays[f"observations/{group}"], last[None]])
                for group, last in episode.last.items()
            },
            actions=arrays["actions"],
            rewards=arrays["rewards"],
            terminations=arrays["terminated"],
            truncations=truncations,
            infos=infos,
        )
        self._storage.update_episodes([buffer])
        return {"episode": number}


def _unbounded(values: Any) -> spaces.Box:
    """Return the space of an observation group. Shape of `values`: (num_envs, ...)."""
    dtype = values[:0].cpu().numpy().dtype
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    return spaces.Box(low, high, tuple(values.shape[1:]), dtype.type)

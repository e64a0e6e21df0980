"""Write episodes of a policy as a data set: NPZ files with an index, or a data set of Minari."""

import inspect
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mjtrain.config import PlayConfig
from mjtrain.env.cameras import list_channels
from mjtrain.env.catalog import shared_name
from mjtrain.env.env import Env
from mjtrain.evaluation.episodes import resolve_run_size
from mjtrain.evaluation.playing.trajectories import STATE, Trajectory, record_episodes
from mjtrain.mdp.observations import camera
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.files import write_whole
from mjtrain.runtime.machine import is_writable
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.robots.kinematics import Kinematics

if TYPE_CHECKING:
    from mjtrain.evaluation.playing.player import Player

INDEX = "dataset.json"
"""Describes the files; written last, so that a folder with it is complete."""

_MEANING = {
    "actions": "action of the policy, before scale and clip",
    "rewards": "reward of the env step",
    "reward_terms": "parts of the reward, by the names in reward_terms",
    "terminated": "the episode ended by a failure or a success in this env step",
    "truncated": "the episode ended by a limit in this env step",
    "time": "s since the episode began",
    "qpos": "positions of MuJoCo's model before the action, m and rad",
    "qvel": "velocities before the action, m/s and rad/s",
    "act": "activations of actuators before the action",
}


def check_folder(config: PlayConfig) -> None:
    """Raise a RequestError unless the folder is new or empty, and what writes the format is installed."""
    if config.record_format == "minari":
        require("--record-format minari", "minari", "minari", "gymnasium", "h5py")
    out = Path(config.record or "")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"--record {out}: exists and is not an empty folder")
    if out.is_symlink() and not out.exists():
        raise RequestError(f"--record {out}: is a link to nothing")
    if not is_writable(out.absolute()):
        raise RequestError(f"--record {out}: cannot be written")


def record_dataset(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    """Play whole episodes, write each one as soon as it has ended, and return the file that describes the others."""
    from mjtrain.evaluation.playing.player import Player

    assert config.record is not None
    out = Path(config.record).absolute()
    num_envs, per_env = resolve_run_size(config.episodes, config.num_envs)
    player = Player(context, run, num_envs=num_envs, engine=config.engine, policy=config.policy, held=config.held)
    entries: list[dict[str, Any]] = []
    arrays: dict[str, dict[str, Any]] = {}
    with player:
        out.mkdir(parents=True, exist_ok=True)
        add = _make_writer(out, config, player)
        for episode in record_episodes(player, per_env):
            place = add(len(entries), episode)
            arrays = arrays or _describe_arrays(_contents(episode), player.env)
            entries.append(
                {**place, "steps": episode.num_steps, "world": episode.world, "ended_by": list(episode.causes)}
                | {"return": float(episode.arrays["rewards"].sum(dtype=np.float64))}
            )
        index = {
            "format": 1,
            "task": shared_name(run.task),
            "policy": player.policy_name,
            "checkpoint": None if player.checkpoint is None else player.checkpoint.name,
            "iteration": player.iteration,
            "seed": config.seed,
            "step_dt_s": player.env.step_dt,
            **_describe_columns(run, player.env),
            "arrays": arrays,
            "episodes": entries,
        }
    write_whole(out / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    return out / INDEX


def _make_writer(out: Path, config: PlayConfig, player: "Player") -> Callable[[int, Trajectory], dict[str, Any]]:
    """Return what writes an episode, given its number, and says where it is."""
    if config.record_format == "minari":
        return _make_minari_writer(out, player)

    def add(number: int, episode: Trajectory) -> dict[str, Any]:
        name = f"episode_{number:05d}.npz"
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **_contents(episode))  # pyright: ignore[reportArgumentType]
        write_whole(out / name, file.getvalue())
        return {"file": name}

    return add


def _make_minari_writer(out: Path, player: "Player") -> Callable[[int, Trajectory], dict[str, Any]]:
    """Return the same for a data set of Minari in `out`/data, which `minari.load_dataset` finds below its parent."""
    import minari  # pyright: ignore[reportMissingImports]
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer  # pyright: ignore[reportMissingImports]
    from minari.dataset.minari_storage import MinariStorage  # pyright: ignore[reportMissingImports]

    from mjtrain.gymnasium.vector_env import observation_space  # imports gymnasium

    (out / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        out / "data",
        observation_space=observation_space(player.env.observe()),
        action_space=Box(-np.inf, np.inf, (player.env.num_actions,), np.float32),
        jpeg_encoding=False,
    )
    storage.update_metadata(
        {
            "dataset_id": out.name if re.search(r"-v\d+$", out.name) else f"{out.name}-v0",
            "minari_version": minari.__version__,
            "description": f"{shared_name(player.run.task)}, episodes of mjtrain's policy {player.policy_name}",
        }
    )

    def add(number: int, episode: Trajectory) -> dict[str, Any]:
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
        storage.update_episodes([buffer])
        return {"episode": number}

    return add


def _contents(episode: Trajectory) -> dict[str, np.ndarray]:
    return episode.arrays | {f"last_observations/{group}": values for group, values in episode.last.items()}


def _describe_arrays(contents: dict[str, np.ndarray], env: Env) -> dict[str, dict[str, Any]]:
    found = {}
    for name, values in contents.items():
        kind, _, group = name.partition("/")
        shape = list(values.shape) if kind == "last_observations" else ["steps", *values.shape[1:]]
        meaning = _MEANING.get(name)
        if kind == "observations":
            meaning = f"observation group {group} before the action, as the policy gets it"
        elif kind == "last_observations":
            meaning = f"observation group {group} after the last env step"
        elif kind == "commands":
            meaning = f"command {group} before the action: {_first_line(env.config.commands[group].func)}"
        found[name] = {"dtype": str(values.dtype), "shape": shape, "meaning": meaning}
    return found


def _first_line(function: Callable[..., Any]) -> str:
    """Return what a term says of itself, which includes its units."""
    return (inspect.getdoc(function) or getattr(function, "__name__", "")).partition("\n")[0]


def _describe_columns(run: TrainedRun, env: Env) -> dict[str, Any]:
    config = run.own_env
    observations = {}
    for group, terms in config.observations.items():
        widths, parts = env.observation_widths(group), "columns" if env.observe()[group].ndim == 2 else "channels"
        observations[group] = rows = [
            {"term": name, parts: widths[name], "scale": term.scale, "meaning": _first_line(term.func)}
            for name, term in terms.items()
        ]
        for row, term in zip(rows, terms.values(), strict=True):
            if term.func is camera:
                row["frame"] = list_channels(config.cameras[term.params["camera"]], term.params)
    actions = [
        {"actuator": row["actuator"], "scale": row["scale"], "offset": row["offset"]} for row in env.action_table
    ]
    return {
        "observations": observations,
        "actions": actions,
        "reward_terms": list(config.rewards),
        "qpos_joints": Kinematics(config).joint_of_column,
    }

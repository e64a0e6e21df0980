# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = ["lerobot==0.4.4", "numpy<2.3"]
# ///
"""Convert a data set of `mjtrain play --record` to LeRobot's format (v3.0) by LeRobot's own package.

    mjtrain play Quadruped-Velocity-Flat --record walk --episodes 50
    uv run --no-project examples/to_lerobot.py walk walk_lerobot --instruction "walk as commanded"

It runs in a separate environment, without mjtrain: LeRobot up to 0.6 needs torch below 2.12, and mjtrain 2.15.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = {"rewards": "next.reward", "qpos": "observation.qpos", "qvel": "observation.qvel", "actions": "action"}

COLORS = ["red", "green", "blue"]


def make_columns(arrays: dict[str, np.ndarray], index: dict[str, Any], state: str) -> dict[str, np.ndarray]:
    """Return the arrays of an episode under LeRobot's names.

    Args:
        arrays: Of an NPZ file. Shape (steps, ...) each.
        index: Content of dataset.json.
        state: Observation group that becomes `observation.state`.
    """
    columns = {theirs: arrays[ours] for ours, theirs in COLUMNS.items()}
    columns["next.reward"] = columns["next.reward"][:, None]
    columns["next.done"] = (arrays["terminated"] | arrays["truncated"])[:, None]
    for name, values in arrays.items():
        kind, _, group = name.partition("/")
        if kind == "commands":
            columns[f"observation.command.{group}"] = values
        elif kind == "observations" and values.ndim == 4:
            columns |= find_pictures(group, values, index["observations"][group])
        elif kind == "observations":
            name = "observation.state" if group == state else f"observation.{group}"
            is_taken = group != state and (group == "state" or name in COLUMNS.values())
            columns[f"observation.group.{group}" if is_taken else name] = values
    return {
        name: values if values.dtype in (bool, np.uint8) else values.astype(np.float32)
        for name, values in columns.items()
    }


def find_pictures(group: str, values: np.ndarray, terms: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return RGB pictures of bytes, shape (steps, 3, height, width): cameras and frames of the past are side by side.

    Beside depth, colours are value / 255 of a byte. Other channels, such as depth and segmentation, are left out:
    LeRobot 0.4 has no pictures of them.

    Args:
        terms: Of the group, in the order of their channels.
    """
    pictures, begin = [], 0
    for term in terms:
        frame = term.get("frame", ["unknown"])
        red = next((place for place in range(len(frame)) if frame[place : place + 3] == COLORS), None)
        for first in range(begin, begin + term["channels"], len(frame)):
            if red is not None:
                picture = values[:, first + red : first + red + 3]
                if picture.dtype != np.uint8:  # noise may leave the range
                    picture = np.rint(255 / term["scale"] * picture).clip(0, 255).astype(np.uint8)
                pictures.append(picture)
        begin += term["channels"]
    return {f"observation.images.{group}_{number}": picture for number, picture in enumerate(pictures)}


def make_features(columns: dict[str, np.ndarray], index: dict[str, Any], state: str) -> dict[str, Any]:
    """Describe the columns as LeRobot does; pictures as images, not as videos, which would lose detail."""
    terms = index["observations"].get(state, [])
    names = {
        "action": [row["actuator"] for row in index["actions"]],
        "observation.state": [f"{row['term']}.{column}" for row in terms for column in range(row["columns"])],
    }
    features = {}
    for name, values in columns.items():
        shape = tuple(values.shape[1:])
        if name.startswith("observation.images."):
            features[name] = {"dtype": "image", "shape": shape, "names": ["channels", "height", "width"]}
        else:
            features[name] = {"dtype": str(values.dtype), "shape": shape, "names": names.get(name)}
    return features


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder that play --record wrote")
    parser.add_argument("destination", type=Path, help="new folder")
    parser.add_argument("--repo-id", default="mjtrain/recorded", help="name for the Hugging Face Hub")
    parser.add_argument(
        "--state", help="observation group that becomes observation.state; default: actor, or state without that"
    )
    parser.add_argument("--instruction", help="what the robot does, in words; default: the task")
    arguments = parser.parse_args()
    index = json.loads((arguments.source / "dataset.json").read_text())
    flat = [group for group, terms in index["observations"].items() if any("columns" in term for term in terms)]
    state = arguments.state or next((group for group in ("actor", "state") if group in flat), "")
    if state not in flat and arguments.state:
        parser.error(f"--state {state}: is not one of the flat observation groups, {', '.join(flat) or '(none)'}")
    if not all("file" in entry for entry in index["episodes"]):
        parser.error(f"{arguments.source}: has no NPZ files; record it without --record-format")
    rate = 1 / index["step_dt_s"]
    if abs(rate - round(rate)) > 1e-6:
        parser.error(f"{arguments.source}: has {rate:g} env steps per second, and LeRobot needs a whole number")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    dataset = None
    for entry in index["episodes"]:
        with np.load(arguments.source / entry["file"], allow_pickle=False) as file:
            columns = make_columns(dict(file), index, state)
        if dataset is None:
            dataset = LeRobotDataset.create(
                arguments.repo_id,
                round(rate),
                make_features(columns, index, state),
                root=arguments.destination,
                use_videos=False,
            )
        for step in range(entry["steps"]):
            row = {name: values[step] for name, values in columns.items()}
            dataset.add_frame({**row, "task": arguments.instruction or index["task"]})
        dataset.save_episode()
    if dataset is not None:
        dataset.finalize()
        print(f"{arguments.destination}: {dataset.meta.total_episodes} episodes, {dataset.meta.total_frames} frames")


if __name__ == "__main__":
    main()

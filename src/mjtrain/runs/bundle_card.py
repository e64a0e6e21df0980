"""The card of a policy bundle: what it is and how good, for readers and, in its front matter, for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_CONDITIONS = ("num_envs", "episodes", "seed", "engine", "noise", "pushes", "randomization")
_FIGURES = ("reward", "length", "errors", "successes", "terminations")


def write_card(
    folder: Path,
    launch: Mapping[str, Any],
    content: Mapping[str, Any],
    figures: Mapping[str, Any] | None,
    license_name: str | None,
) -> None:
    """Write README.md.

    Args:
        launch: Content of its params/launch.yaml.
        content: Content of its weights.
        figures: What `play` reported; None for no figures.
        license_name: SPDX identifier; None for none.
    """
    task, packages = launch["task"], launch["packages"]
    front: dict[str, Any] = {
        "library_name": "mjtrain",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "robotics", "mujoco", task],
        **({} if license_name is None else {"license": license_name}),
        "task": task,
        "command": f"mjtrain train {task}{_flags(launch)}",
        "trained": {
            "iterations": content.get("iter"),
            "learner": content.get("learner"),
        },
        "versions": {name: packages[name] for name in ("mjtrain", "mujoco", "torch") if name in packages},
    }
    if figures is not None:
        front["judge"] = {"command": f"mjtrain play {task}", **{key: figures[key] for key in _CONDITIONS}}
        front["figures"] = {key: _round(figures[key]) for key in _FIGURES if figures.get(key)}
        front["model-index"] = [_index(task, figures["reward"])]
    header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    (folder / "README.md").write_text(f"---\n{header}---\n\n{_body(task, front)}", encoding="utf-8")


def _flags(launch: Mapping[str, Any]) -> str:
    """Return the flags that say how long and with what a run was trained."""
    given = {**launch["run"], "seed": launch["seed"]}
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value is not None)


def _round(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _round(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _index(task: str, reward: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results in the form in which the Hugging Face Hub lists them."""
    dataset = {"name": task, "type": task}
    metric = {"type": "mean_reward", "value": _round(reward["mean"]), "name": "mean return"}
    kind = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    return {"name": task, "results": [{"task": kind, "dataset": dataset, "metrics": [metric]}]}


def _body(task: str, front: Mapping[str, Any]) -> str:
    lines = [
        f"# {task}",
        "",
        "A policy that mjtrain trained. `SOURCE` is where this folder is: a path, or a URL.",
        "",
        "```sh",
        f"mjtrain play {task} --policy SOURCE",
        "mjtrain deploy SOURCE",
        "```",
        "",
    ]
    if "figures" in front:
        lines += [
            "| figure | value |",
            "|---|---|",
            *_rows(front["figures"]),
            "",
            f"Measured by `{front['judge']['command']}`:",
        ]
        lines += [
            ", ".join(f"{key} {json.dumps(value)}" for key, value in front["judge"].items() if key != "command") + ".",
            "",
        ]
    return "\n".join(lines)


def _rows(figures: Mapping[str, Any], prefix: str = "") -> list[str]:
    rows = []
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            rows.append(f"| {prefix}{name} | {value} |")
        elif "mean" in value:
            unit = f" {value['unit']}" if value.get("unit") else ""
            rows.append(f"| {prefix}{name} | {value['mean']:g} ± {value.get('std', 0):g}{unit} |")
        elif "fraction" in value:
            rows.append(f"| {prefix}{name} | {100 * value['fraction']:g} % of episodes |")
        else:
            rows += _rows(value, f"{prefix}{name}/")
    return rows

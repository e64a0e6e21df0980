"""A run's policy as a bundle: what `export` writes and verifies, weights, robot, settings and a card."""

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mjtrain.config import AgentConfig, EnvConfig, ImitationConfig, to_plain
from mjtrain.env.catalog import task_file
from mjtrain.evaluation.export.export_policy import export_policy
from mjtrain.runs.bundle import METADATA, ONNX, WEIGHTS, BundleError, write_card, write_manifest, write_weights
from mjtrain.runs.bundle_places import PRETRAINED
from mjtrain.runs.checkpoint import Parts, load_checkpoint, recorded_learner
from mjtrain.runs.robot import record_robot
from mjtrain.runs.run_dir import read_recorded, save_params
from mjtrain.runs.sources import move_data, save_data
from mjtrain.runs.teacher import AUTO
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import require
from mjtrain.runtime.rank import RankContext


def check_run(run: TrainedRun) -> None:
    """Raise a RequestError if a run cannot become a bundle, as far as that is known before anything is written."""
    require("push", "share", "safetensors")
    if run.run_dir is None:
        raise BundleError(
            f"push {run.checkpoint}: is a checkpoint outside of a run, which does not say how it was trained"
        )


def write_bundle(
    context: RankContext,
    run: TrainedRun,
    folder: Path,
    observations: int,
    figures: dict[str, Any] | None,
    license_name: str | None,
) -> None:
    """Write a bundle into a new, empty folder; a RuntimeError says that a file gives other actions than the policy.

    Args:
        context: On the CPU.
        observations: On how many the ONNX file is verified.
        figures: What `play` measured of it.
        license_name: SPDX identifier for the card.
    """
    assert run.run_dir is not None
    assert run.checkpoint is not None
    exported = folder / "export"
    export_policy(context, run, exported, observations)
    for name in (ONNX, METADATA):
        (exported / name).rename(folder / name)
    shutil.rmtree(exported)
    content = _write_weights(context, run, folder / WEIGHTS)
    env = run.env
    if isinstance(env, EnvConfig):
        robot, problems = record_robot(folder, env.robot)
        problems += save_data(folder, env)
        if problems:
            raise BundleError(f"push {run.run_dir}: {'; '.join(problems)}")
        env = move_data(folder, replace(env, robot=robot))
    asked = read_recorded(run.run_dir, "run")
    file = task_file(run.task)
    teacher = asked.get("teacher")
    if str(teacher).partition(":")[0] != PRETRAINED:
        teacher = None  # others are places here
    launch = {
        "task": run.task if file is None else f"{file.name}:{run.task.rpartition(':')[2]}",
        "packages": {**read_recorded(run.run_dir, "packages"), "mjtrain": version("mjtrain")},
        "run": {key: asked.get(key) for key in ("num_envs", "num_envs_total", "max_iterations")} | {"teacher": teacher},
        "seed": read_recorded(run.run_dir, "launch").get("seed"),
    }
    agent = _without_place_of_teacher(run.agent, teacher)
    save_params(folder, env=to_plain(env), agent=to_plain(agent), learner=to_plain(run.learner), launch=launch)
    write_card(folder, launch, content, figures, license_name)
    write_manifest(folder, launch["task"])


def _without_place_of_teacher(agent: AgentConfig, teacher: str | None) -> AgentConfig:
    """Replace the path of a teacher's checkpoint, which says something of this machine and nothing to others."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, ImitationConfig):
        return agent
    return replace(agent, algorithm=replace(algorithm, teacher_run=teacher or (AUTO if algorithm.teacher_task else "")))


def _write_weights(context: RankContext, run: TrainedRun, path: Path) -> dict[str, Any]:
    """Write what a policy takes of its checkpoint, which is less than a training needs, and check it."""
    import torch

    from mjtrain.evaluation.playing.player import Player

    assert run.checkpoint is not None
    content = Parts(load_checkpoint(run.checkpoint, "cpu"))
    with Player(context, run) as player:
        assert player.policy is not None
        player.policy.load(content, run.checkpoint)
        kept = {key: content[key] for key in list(content) if key in content.keys_read}
        kept |= {"learner": recorded_learner(content), "infos": {"task": run.task}}
        write_weights(path, kept)
        with Player(context, replace(run, checkpoint=path)) as again:
            if not torch.equal(player.act(), again.act()):
                raise RuntimeError(f"{path.name} gives other actions than {run.checkpoint}")
    return kept

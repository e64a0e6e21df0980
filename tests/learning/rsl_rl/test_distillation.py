"""A student learns what a teacher does, from observations of its own."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.config import (
    AgentConfig,
    DistillationConfig,
    LaunchConfig,
    ModelConfig,
    TrainConfig,
    from_plain,
    to_plain,
)
from mjtrain.env.catalog import load_task
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runs.teacher import resolve_teacher
from mjtrain.runtime.errors import RequestError
from support.resuming import assert_same, check_resuming, make_runner
from support.students import make_student

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)


def student(teacher: Path | str, class_name: str = "MLPModel", **algorithm: Any) -> TrainConfig:
    """A student that sees positions only; its teacher is not looked up yet."""
    agent = AgentConfig(
        num_steps_per_env=16,
        actor=ModelConfig(class_name=class_name, hidden_dims=(16,), rnn_hidden_dim=8),
        algorithm=DistillationConfig(teacher_run=str(teacher), **algorithm),
        obs_groups={"actor": ("student",)},
    )
    return make_student(agent)


def test_a_config_of_a_distillation_is_recorded_and_read_again() -> None:
    agent = student("somewhere").agent
    assert from_plain(AgentConfig, to_plain(agent)) == agent
    assert from_plain(AgentConfig, to_plain(AgentConfig())) == AgentConfig()


def test_the_teacher_comes_from_its_run_and_is_not_changed(teacher_run: Path, tmp_path: Path) -> None:
    """Its training may delete the checkpoint before it is read, as with --keep-checkpoints."""
    teacher_run = Path(shutil.copytree(teacher_run, tmp_path / "teacher"))
    config = resolve_teacher(student(teacher_run, learning_rate=1e-2))
    trained = load_task("Cartpole-Balance").agent
    assert isinstance(config.agent.algorithm, DistillationConfig)
    assert config.agent.algorithm.teacher == trained.actor
    assert config.agent.obs_groups == {"teacher": ("actor",), "actor": ("student",)}
    assert config.agent.algorithm.teacher_run == str(teacher_run / "model_1.pt")
    assert resolve_teacher(student(teacher_run / "model_1.pt", learning_rate=1e-2)) == config
    theirs = load_checkpoint(teacher_run / "model_1.pt", "cpu")["actor_state_dict"]
    (teacher_run / "model_1.pt").unlink()

    def train(context: mjtrain.RankContext) -> tuple[dict[str, torch.Tensor], list[float]]:
        runner = make_runner(context, config)
        losses = [result.metrics["loss/behavior"] for result in runner.iterate(40)]
        return runner.alg.save()["teacher_state_dict"], losses

    ours, losses = mjtrain.launch(train, launch=ALONE)
    assert_same(dict(ours), {name: value.to(ours[name].dtype) for name, value in theirs.items()})  # moments: float64
    assert sum(losses[-5:]) < 0.2 * sum(losses[:5]), losses


@pytest.mark.parametrize("class_name", ["MLPModel", "RNNModel"])
def test_a_resumed_distillation_is_bit_exact(class_name: str, teacher_run: Path, tmp_path: Path) -> None:
    config = resolve_teacher(student(teacher_run, class_name, num_learning_epochs=2))
    _, (learned, _) = check_resuming(config, tmp_path / "model_2.pt")
    assert learned["counters"] == {"num_updates": 4}


def test_two_ranks_teach_the_same_student_and_resume_bit_exactly(teacher_run: Path, tmp_path: Path) -> None:
    config = resolve_teacher(student(teacher_run, "RNNModel"))
    metrics, _ = check_resuming(config, tmp_path / "model_2.pt", num_workers=2)
    assert metrics[-1]["world_size"] == 2


def test_a_recurrent_teacher_goes_on_with_what_it_remembers(tmp_path: Path) -> None:
    """RSL-RL's own would rewind it."""
    small = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": (8,)}
    task = load_task("Cartpole-Balance").agent
    agent = replace(task, actor=replace(task.actor, **small))
    options: dict[str, Any] = {"num_envs": 8, "max_iterations": 1, "log_root": str(tmp_path), "logger": "none"}
    run_dir = mjtrain.train("Cartpole-Balance", agent=agent, launch=ALONE, **options).run_dir
    config = resolve_teacher(student(run_dir))

    def look(context: mjtrain.RankContext) -> tuple[Any, Any]:
        runner = make_runner(context, config)
        before = []
        update = runner.alg.update

        def note_memory() -> dict[str, float]:
            before.append([state.clone() for state in runner.alg.teacher.get_hidden_state()])  # pyright: ignore
            return update()

        runner.alg.update = note_memory
        list(runner.iterate(2))
        return before[-1], list(runner.alg.teacher.get_hidden_state())  # pyright: ignore

    assert_same(*mjtrain.launch(look, launch=ALONE))


def test_a_student_is_played_exported_and_trained_on(teacher_run: Path, tmp_path: Path) -> None:
    config = student(teacher_run)
    options: dict[str, Any] = {"num_envs": 8, "log_root": str(tmp_path), "logger": "none"}
    taught = mjtrain.train(
        "Cartpole-Balance", env=config.env, agent=config.agent, launch=ALONE, max_iterations=2, **options
    )
    policy = mjtrain.load_policy(taught.run_dir)
    assert policy({"student": torch.zeros(3, 4)}).shape == (3, 1)
    files = mjtrain.export(taught.run_dir, out=tmp_path / "exported")
    assert files
    alone = replace(config.agent, algorithm=replace(config.agent.algorithm, teacher_run="gone"))
    more = mjtrain.train(
        "Cartpole-Balance", env=config.env, agent=alone, launch=ALONE, max_iterations=3, resume=str(taught.run_dir),
        **options,
    )  # fmt: skip
    assert more.metrics["iteration"] == 3
    ppo = load_task("Cartpole-Balance").agent
    agent = replace(
        ppo,
        actor=replace(ppo.actor, hidden_dims=(16,), distribution_cfg=None),
        obs_groups={"actor": ("student",), "critic": ("actor",)},
    )
    with pytest.raises(RequestError, match="distribution-cfg None: the actor draws"):
        mjtrain.train("Cartpole-Balance", env=config.env, agent=agent, launch=ALONE, **options)


def test_ppo_goes_on_with_a_student_and_a_critic_of_its_own(teacher_run: Path, tmp_path: Path) -> None:
    config = student(teacher_run)
    ppo = load_task("Cartpole-Balance").agent
    actor = replace(ppo.actor, hidden_dims=(16,))
    config = resolve_teacher(replace(config, agent=replace(config.agent, actor=actor)))
    groups = {"actor": ("student",), "critic": ("actor",)}
    after = replace(config, agent=replace(ppo, actor=actor, obs_groups=groups))

    def train(context: mjtrain.RankContext) -> tuple[Any, Any]:
        teaching = make_runner(context, config)
        list(teaching.iterate(1))
        teaching.save(tmp_path / "model_1.pt", {"task": config.task})
        learning = make_runner(context, after)
        learning.load_weights(tmp_path / "model_1.pt")
        return teaching.alg.get_policy().state_dict(), learning.alg.get_policy().state_dict()

    assert_same(*mjtrain.launch(train, launch=ALONE))


def test_a_teacher_that_does_not_fit_is_named(teacher_run: Path, tmp_path: Path) -> None:
    flag = "--agent.algorithm.teacher-run"
    loose = tmp_path / "model_9.pt"
    loose.write_bytes((teacher_run / "model_1.pt").read_bytes())
    (tmp_path / "empty" / "params").mkdir(parents=True)
    for place, words in {
        "": f"{flag}: give the run directory of a teacher, or a checkpoint in one",
        "nowhere": f"{flag} nowhere: no such run directory or checkpoint",
        str(loose): f"{flag} {loose}: is not in a run directory",
        str(tmp_path): f"{flag} {tmp_path}: is not a run directory",
        str(tmp_path / "empty"): f"{flag} {tmp_path / 'empty'}: no checkpoint found in it",
    }.items():
        with pytest.raises(RequestError) as error:
            resolve_teacher(student(place))
        assert str(error.value).startswith(words)
    config = student(teacher_run)
    groups = {**config.agent.obs_groups, "teacher": ("student",)}
    with pytest.raises(RequestError, match=r"obs-groups.teacher student: has cart, pole, and the teacher was trained"):
        resolve_teacher(replace(config, agent=replace(config.agent, obs_groups=groups)))
    other = load_task("Arm-Reach").env
    with pytest.raises(RequestError, match=r"obs-groups.teacher actor: has .*, and the teacher was trained with cart_"):
        resolve_teacher(replace(config, env=other))
    damaged = tmp_path / "damaged"
    shutil.copytree(teacher_run, damaged)
    record = damaged / "params" / "env.yaml"
    record.write_text(record.read_text().replace("\n  actor:\n", "\n  lost:\n", 1))
    with pytest.raises(RequestError, match=r"its policy reads actor, which its run's params/env\.yaml lacks"):
        resolve_teacher(student(str(damaged)))
    record = damaged / "params" / "agent.yaml"
    record.write_text(record.read_text().replace("obs_groups:\n  actor:", "obs_groups:\n  lost:"))
    with pytest.raises(RequestError, match=rf"^{flag} {damaged}: obs_groups of its agent has no actor; add it$"):
        resolve_teacher(student(str(damaged)))
    agent = student(teacher_run, gradient_length=7).agent
    with pytest.raises(RequestError, match=r"gradient-length 7: must divide 16, the env steps of an update"):
        mjtrain.train("Cartpole-Balance", env=config.env, agent=agent, launch=ALONE, log_root=str(tmp_path / "no"))
    wide = replace(config.agent, algorithm=replace(config.agent.algorithm, teacher=ModelConfig(hidden_dims=(8,))))
    with pytest.raises(RequestError, match=r"does not fit the teacher's network and groups here: mlp"):
        mjtrain.train("Cartpole-Balance", env=config.env, agent=wide, launch=ALONE, log_root=str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("flag", "given", "words"),
    [
        ("actions.push.scale", 0.5, "scale 1.0 of push, and this task has 0.5; give the same, or another teacher"),
        ("actions.push.relative", True, "relative False of push, and this task has True; give the same"),
        ("observations.actor.pole_angle.scale", 3.0, "scale 1.0 of pole_angle, and this task has 3.0"),
        ("observations.actor.pole_angle.history", 2, "history 1 of pole_angle, and this task has 2"),
    ],
)
def test_a_teacher_whose_numbers_mean_something_else_is_refused(
    flag: str, given: Any, words: str, teacher_run: Path, tmp_path: Path
) -> None:
    """A run that has learned from it is resumed all the same."""
    kind, *path, field = flag.split(".")
    config = student(teacher_run)
    terms = {"actions": config.env.actions, "observations": config.env.observations}[kind]
    if kind == "actions":
        changed: Any = {**terms, path[0]: replace(config.env.actions[path[0]], **{field: given})}
    else:
        group = config.env.observations[path[0]]
        changed = {**terms, path[0]: {**group, path[1]: group[path[1]].replace(**{field: given})}}
    config = replace(config, env=replace(config.env, **{kind: changed}))
    with pytest.raises(RequestError, match=re.escape(words)):
        resolve_teacher(config)
    resolve_teacher(replace(config, run=replace(config.run, resume=str(teacher_run))))


def test_a_scale_by_expressions_may_be_that_of_the_teacher(teacher_run: Path) -> None:
    config = student(teacher_run)
    named = {"push": config.env.actions["push"].replace(scale={".*": 1.0})}
    resolve_teacher(replace(config, env=replace(config.env, actions=named)))

"""A student that learns from a buffer of everything that it has seen."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import mjtrain
from mjtrain.api import make_train_config, start_training
from mjtrain.config import AgentConfig, DaggerConfig, LaunchConfig, ModelConfig, TrainConfig, from_plain, to_plain
from mjtrain.env.sampling import shift_images
from mjtrain.learning.rsl_rl.dagger import RolloutBuffer
from mjtrain.runs.bundle import WEIGHTS, read_networks
from mjtrain.runs.bundle_places import open_bundle
from mjtrain.runs.history import summarise_run
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.teacher import find_teacher_to_resume, resolve_teacher
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.request import resolve_training
from support.resuming import assert_same, check_resuming, make_runner
from support.students import make_student

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)
TASK_FILE = """
from dataclasses import replace
from mjtrain.env.catalog import load_task

def make_task():
    return replace(load_task("Cartpole-Balance"), num_envs=8, max_iterations=1)
"""


def student(teacher: Path | str, **algorithm: Any) -> TrainConfig:
    """A student that sees the last two positions."""
    settings = {"buffer_rollouts": 3, "num_mini_batches": 4, "teacher_share_iterations": 4, **algorithm}
    agent = AgentConfig(
        num_steps_per_env=16,
        actor=ModelConfig(hidden_dims=(16,)),
        algorithm=DaggerConfig(teacher_run=str(teacher), **settings),
        obs_groups={"actor": ("student",)},
    )
    return make_student(agent)


def test_the_config_is_recorded_and_read_again() -> None:
    agent = student("somewhere").agent
    assert from_plain(AgentConfig, to_plain(agent)) == agent


def test_a_buffer_keeps_the_newest_rollouts_and_is_restored() -> None:
    buffer = RolloutBuffer(3)
    for number in range(5):
        rollout = torch.full((4, 2, 3), number, dtype=torch.uint8)
        buffer.append({"image": rollout, "flat": torch.full((4, 1), float(number))})
    drawn = buffer.draw(200)
    assert drawn["image"].shape == (200, 2, 3)
    assert drawn["image"].dtype == torch.uint8
    assert set(drawn["flat"].flatten().tolist()) == {2.0, 3.0, 4.0}
    assert torch.equal(drawn["image"][:, 0, 0].float(), drawn["flat"][:, 0]), "fields of a sample stay together"
    again = RolloutBuffer(3)
    again.load_state_dict(buffer.state_dict(), 4, "cpu")
    assert_same(again.state_dict(), buffer.state_dict())
    smaller = RolloutBuffer(2)
    smaller.load_state_dict(buffer.state_dict(), 4, "cpu")
    assert set(smaller.draw(200)["flat"].flatten().tolist()) == {3.0, 4.0}
    other = RolloutBuffer(3)
    other.load_state_dict(buffer.state_dict(), 5, "cpu")
    assert other.state_dict() == {}
    again.append({"other camera": torch.ones(4, 2, 3, dtype=torch.uint8), "flat": torch.ones(4, 1)})
    assert set(again.draw(200)["flat"].flatten().tolist()) == {1.0}, "the student reads another group since a resume"


@pytest.mark.parametrize("appended", range(1, 8))
def test_a_restored_buffer_draws_the_same_samples(appended: int) -> None:
    buffer, again = RolloutBuffer(3), RolloutBuffer(3)
    for number in range(appended):
        buffer.append({"flat": torch.arange(2.0)[:, None] + 2 * number})
    again.load_state_dict(buffer.state_dict(), 2, "cpu")
    for number in range(2):
        drawn = []
        for one in (buffer, again):
            torch.manual_seed(number)
            drawn.append(one.draw(50)["flat"])
            one.append({"flat": torch.full((2, 1), -1.0 - number)})
        assert torch.equal(*drawn)


def test_shifted_images_are_parts_of_what_was_seen() -> None:
    images = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).view(2, 3, 5, 4)
    assert torch.equal(shift_images(images, 0), images)
    padded = torch.nn.functional.pad(images.float(), (2, 2, 2, 2), mode="replicate").to(torch.uint8)
    found = set()
    for _ in range(200):
        for number, shifted in enumerate(shift_images(images, 2)):
            places = [
                (row, column)
                for row in range(5)
                for column in range(5)
                if torch.equal(shifted, padded[number, :, row : row + 5, column : column + 4])
            ]
            assert places, "the channels of an image are shifted alike"
            found.update(places)
    assert len(found) == 25


def test_the_step_size_decays_to_its_end(teacher_run: Path, tmp_path: Path) -> None:
    decaying = {"learning_rate": 1e-3, "final_learning_rate": 1e-4, "learning_rate_iterations": 4}
    config = resolve_teacher(student(teacher_run, **decaying))

    def learn(context: mjtrain.RankContext) -> list[tuple[float, float]]:
        runner = make_runner(context, config)
        algorithm: Any = runner.alg
        return [
            (result.metrics["learning_rate"], algorithm.optimizer.param_groups[0]["lr"]) for result in runner.iterate(6)
        ]

    rates = mjtrain.launch(learn, launch=ALONE)
    expected = [1e-3, 8.682e-4, 5.5e-4, 2.318e-4, 1e-4, 1e-4]
    assert [rate for rate, _ in rates] == pytest.approx(expected, rel=1e-3)
    assert all(reported == used for reported, used in rates)


def test_a_shared_policy_teaches(teacher_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_bundle("pretrained:Cartpole-Balance")
    expected = read_networks(folder / WEIGHTS, "cpu")["actor_state_dict"]
    for given in ("pretrained", "pretrained:Cartpole-Balance", str(folder)):
        config = student(given, teacher_task="Cartpole-Balance")
        found: Any = resolve_teacher(config).agent.algorithm
        assert found.teacher_run == str(folder / WEIGHTS)
    options: dict[str, Any] = {"num_envs": 8, "log_root": str(tmp_path / "logs"), "logger": "none"}

    def learn(**more: Any) -> Any:
        run = {**options, **more}
        return mjtrain.train("Cartpole-Balance", env=config.env, agent=config.agent, launch=ALONE, **run)

    first = learn(max_iterations=1)
    taught = read_networks(first.run_dir / "model_1.pt", "cpu")["teacher_state_dict"]
    assert_same(dict(taught), dict(expected))
    shutil.rmtree(tmp_path / "cache")
    assert learn(max_iterations=2, resume=str(first.run_dir)).metrics["iteration"] == 2
    assert not (tmp_path / "cache").exists(), "the checkpoint has the teacher's weights"
    with pytest.raises(RequestError, match=rf"--teacher {teacher_run}: the resumed run learns from {folder}, whose"):
        learn(max_iterations=3, resume=str(first.run_dir), teacher=str(teacher_run))
    assert learn(max_iterations=3, resume=str(first.run_dir), teacher="pretrained").metrics["iteration"] == 3
    for other in ("pretrained:Cartpole-Swingup", str(tmp_path / "gone")):
        with pytest.raises(RequestError, match=rf"--teacher {other}: the resumed run learns from {folder}, whose"):
            learn(max_iterations=4, resume=str(first.run_dir), teacher=other)


def test_hosts_may_keep_a_shared_teacher_in_different_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = student("pretrained", teacher_task="Cartpole-Balance")
    config = replace(config, run=replace(config.run, log_root=str(tmp_path / "logs")))

    def describe(home: str) -> str:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
        request = resolve_training(config, ALONE)
        assert str(tmp_path / home) in request.params["agent"]["algorithm"]["teacher_run"]
        return mjtrain.api._describe_for_others(request)

    assert describe("one") == describe("other")


def test_the_teacher_acts_in_its_share_and_within_the_bounds(teacher_run: Path) -> None:
    base = resolve_teacher(student(teacher_run, teacher_share=(1.0, 0.0)))
    bounded = {name: replace(term, clip=(-0.01, 0.02)) for name, term in base.env.actions.items()}
    config = replace(base, env=replace(base.env, actions=bounded))

    def look(context: mjtrain.RankContext) -> tuple[list[Any], list[float]]:
        runner = make_runner(context, config)
        algorithm, rows, shares = runner.alg, [], []
        process = algorithm.process_env_step

        def note(*args: Any) -> None:
            shown, done = algorithm.transition.privileged_actions, algorithm.transition.actions
            rows.append((shown.clone(), done.clone()))  # pyright: ignore[reportOptionalMemberAccess]
            process(*args)

        algorithm.process_env_step = note  # pyright: ignore[reportAttributeAccessIssue]
        for _ in runner.iterate(5):
            shares.append(algorithm.teacher_share)  # pyright: ignore[reportAttributeAccessIssue]
        return rows, shares

    rows, shares = mjtrain.launch(look, launch=ALONE)
    assert shares == [0.75, 0.5, 0.25, 0.0, 0.0]
    shown, done = rows[0]
    assert torch.equal(shown, done), "the teacher acts everywhere"
    seen = torch.cat([shown for shown, _ in rows])
    assert seen.min() >= -0.01
    assert seen.max() <= 0.02
    shown, done = rows[-1]
    assert not (shown == done).any(), "the student acts everywhere"


def test_a_resumed_training_is_bit_exact(teacher_run: Path, tmp_path: Path) -> None:
    config = resolve_teacher(student(teacher_run, final_learning_rate=1e-5, learning_rate_iterations=4))
    check_resuming(config, tmp_path / "model_2.pt")


def test_a_buffer_that_is_lost_with_its_environments_is_said(teacher_run: Path, tmp_path: Path) -> None:
    def move(context: RankContext) -> str | None:
        config = resolve_teacher(student(teacher_run))
        learner = make_runner(context, config)
        list(learner.iterate(1))
        learner.save(tmp_path / "model_1.pt", {"task": config.task})
        return make_runner(context, replace(config, run=replace(config.run, num_envs=4))).resume(
            tmp_path / "model_1.pt", config.task
        )

    said = mjtrain.launch(move, launch=ALONE)
    assert said is not None
    assert said.startswith("environments, random numbers and the learner's buffer start again: ")


def test_two_ranks_learn_the_same_and_resume_bit_exactly(teacher_run: Path, tmp_path: Path) -> None:
    config = resolve_teacher(student(teacher_run))
    metrics, _ = check_resuming(config, tmp_path / "model_2.pt", num_workers=2)
    assert metrics[-1]["world_size"] == 2


def test_a_step_of_two_ranks_is_one_with_the_samples_of_both(teacher_run: Path) -> None:
    config = resolve_teacher(student(teacher_run))
    observed, shown = torch.randn(32, 4), torch.randn(32, 1)

    def step(context: mjtrain.RankContext) -> Any:
        algorithm: Any = make_runner(context, config).alg
        for name, weights in algorithm.student.named_parameters():
            weights.data.copy_(torch.linspace(-0.5, 0.5, weights.numel()).view_as(weights) + 0.01 * len(name))
        each = len(observed) // context.world_size
        mine = slice(context.rank * each, (context.rank + 1) * each)
        batch = TensorDict({"student": observed[mine]}, batch_size=[each])  # pyright: ignore[reportArgumentType]
        algorithm._step(batch, shown[mine])
        return {name: weights.detach().clone() for name, weights in algorithm.student.named_parameters()}

    one = mjtrain.launch(step, launch=ALONE)
    two = mjtrain.launch(step, launch=LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=0, atol=1e-6, msg=name)


def test_auto_finds_the_newest_finished_run_or_trains_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "teaching.py"
    file.write_text(TASK_FILE)
    config = student("auto", teacher_task=f"{file}:make_task")
    options: dict[str, Any] = {"num_envs": 8, "log_root": str(tmp_path / "logs"), "logger": "none", "max_iterations": 1}

    def learn(**more: Any) -> Any:
        return mjtrain.train(
            "Cartpole-Balance", env=config.env, agent=config.agent, launch=ALONE, **{**options, **more}
        )

    first = learn()
    assert "which is trained first" in capfd.readouterr().err
    teachers = [
        place for place in (tmp_path / "logs").glob("*/*") if place != first.run_dir and (place / "params").is_dir()
    ]
    assert [summarise_run(place).state for place in teachers] == ["done"]
    second = learn()
    said = capfd.readouterr().err
    assert f"teacher: {teachers[0]}" in said
    assert "by default" not in said
    assert len(list((tmp_path / "logs").glob("*/*/params"))) == 3
    more = learn(resume=str(second.run_dir), max_iterations=2)
    assert more.metrics["iteration"] == 2
    file.write_text(TASK_FILE.replace("max_iterations=1", "max_iterations=5"))
    learn()
    assert f"(iteration 1; {file}:make_task trains for 5 by default)" in capfd.readouterr().err
    shutil.rmtree(teachers[0])
    assert learn(resume=True, max_iterations=3).metrics["iteration"] == 3, "the checkpoint has the teacher's weights"
    assert "trained first" not in capfd.readouterr().err
    sys.modules.pop("teaching", None)


def test_a_teacher_is_trained_although_the_newest_run_of_its_task_is_of_another_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier training of RSL-RL that was interrupted is continued."""
    file = tmp_path / "teaching.py"
    file.write_text(TASK_FILE.replace("max_iterations=1", "max_iterations=2"))
    options: dict[str, Any] = {"num_envs": 8, "log_root": str(tmp_path / "logs"), "logger": "none", "launch": ALONE}
    task, config = f"{file}:make_task", student("auto", teacher_task=f"{file}:make_task")
    begun = mjtrain.train(task, max_iterations=1, **options).run_dir
    asked = begun / "params" / "launch.yaml"
    asked.write_text(asked.read_text().replace("max_iterations: 1\n", "max_iterations: 2\n"))
    (begun / "metrics.jsonl").write_text((begun / "metrics.jsonl").read_text().partition('{"event": "end"')[0])
    other = mjtrain.train(task, max_iterations=1, learner="skrl", **options).run_dir
    learned = mjtrain.train("Cartpole-Balance", env=config.env, agent=config.agent, max_iterations=1, **options).run_dir
    assert load_params(learned, "agent")["algorithm"]["teacher_run"] == str(begun / "model_2.pt")
    assert {path.parent for path in (tmp_path / "logs").glob("*/*/params")} == {begun, other, learned}
    sys.modules.pop("teaching", None)


def test_a_teacher_resumes_what_auto_finds_among_the_runs_of_its_learner(tmp_path: Path) -> None:
    """Neither a run with a name, nor one of another learner; a run with all its iterations is accepted."""
    file, logs = tmp_path / "teaching.py", str(tmp_path / "logs")
    file.write_text(TASK_FILE)
    options: dict[str, Any] = {"num_envs": 8, "log_root": logs, "logger": "none", "launch": ALONE}
    task = f"{file}:make_task"
    mjtrain.train(task, run_name="probe", **options)
    assert find_teacher_to_resume(task, logs) == "auto"
    other = mjtrain.train(task, learner="skrl", **options).run_dir
    assert find_teacher_to_resume(task, logs) is None
    (other / "params" / "learner.yaml").write_text("name: [")
    assert find_teacher_to_resume(task, logs) is None
    (other / "params" / "learner.yaml").write_text("name: skrl\n")
    own = mjtrain.train(task, **options).run_dir
    newest = mjtrain.train(task, learner="skrl", **options).run_dir
    assert find_teacher_to_resume(task, logs) == "auto"
    assert mjtrain.train(task, resume="auto", **options).run_dir == own
    (newest / "params" / "learner.yaml").write_text("name: [")  # of which learner it is, is not known
    assert find_teacher_to_resume(task, logs) is None
    with pytest.raises(RequestError, match=r"learner\.yaml"):
        mjtrain.train(task, resume="auto", **options)
    sys.modules.pop("teaching", None)


def test_a_resumed_run_needs_no_teacher(teacher_run: Path, tmp_path: Path) -> None:
    """That of its flag --teacher, where its task names none."""
    config = student("")
    options: dict[str, Any] = {"env": config.env, "agent": config.agent, "launch": ALONE, "logger": "none"}
    options |= {"num_envs": 8, "log_root": str(tmp_path)}
    run_dir = mjtrain.train("Cartpole-Balance", teacher=str(teacher_run), max_iterations=1, **options).run_dir
    for resume, iterations in ((str(run_dir), 2), ("auto", 3)):
        again = mjtrain.train("Cartpole-Balance", resume=resume, max_iterations=iterations, **options)
        assert (again.run_dir, again.metrics["iteration"]) == (run_dir, iterations)
        assert load_params(run_dir, "agent")["algorithm"]["teacher_run"] == str(teacher_run / "model_1.pt")


def test_what_cannot_work_is_one_line(teacher_run: Path, tmp_path: Path) -> None:
    def refuse(config: TrainConfig, words: str) -> None:
        run = replace(config.run, log_root=str(tmp_path / "no"))
        with pytest.raises(RequestError, match=re.escape(words)):
            resolve_training(replace(config, run=run), ALONE)

    refuse(student("pretrained"), "--agent.algorithm.teacher-run pretrained: the task names no task of its teacher")
    refuse(student(teacher_run, random_shift=2), "--agent.algorithm.random-shift 2: the actor reads no images")
    refuse(student("pretrained:Nothing"), "pretrained: no pretrained policy of Nothing")
    refuse(student("auto"), "--agent.algorithm.teacher-run auto: the task names no task of its teacher")
    config = student(teacher_run)
    recurrent = replace(config.agent, actor=replace(config.agent.actor, class_name="RNNModel"))
    refuse(replace(config, agent=recurrent), "--agent.actor.class-name RNNModel: samples of a buffer have no past")
    refuse(student(teacher_run, num_mini_batches=1000), "--agent.algorithm.num-mini-batches 1000: a rollout of 8 envs")
    refuse(student(teacher_run, teacher_share=(1.5, 0.0)), "--agent.algorithm.teacher-share 1.5 0: each must be")
    refuse(student(teacher_run, buffer_rollouts=10**9), "for the buffer")
    alone = make_train_config("Cartpole-Balance", teacher=str(teacher_run))
    refuse(alone, f"--teacher {teacher_run}: Cartpole-Balance does not learn from a teacher")
    assert not (tmp_path / "no").exists()


def test_a_flag_names_the_teacher(teacher_run: Path) -> None:
    config = student("nowhere")
    found = resolve_teacher(replace(config, run=replace(config.run, teacher=str(teacher_run))))
    assert isinstance(found.agent.algorithm, DaggerConfig)
    assert found.agent.algorithm.teacher_run == str(teacher_run / "model_1.pt")


def test_the_teacher_of_a_resumed_run_is_known_however_the_run_is_named(
    teacher_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = shutil.copytree(teacher_run, tmp_path / "teachers" / teacher_run.name)
    config = student("auto", teacher_task="Cartpole-Balance")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    options: dict[str, Any] = {"max_iterations": 1, "log_root": str(tmp_path / "logs"), "logger": "none"}
    config = replace(config, run=replace(config.run, run_name="slurm-7", **options))
    first = start_training(replace(config, run=replace(config.run, teacher=str(gone), resume="auto")), ALONE)
    shutil.rmtree(gone)
    queued = replace(ALONE, requeue_on_signal=True)
    ways: list[tuple[Any, LaunchConfig]] = [(first.run_dir.name, ALONE), (True, ALONE), ("auto", ALONE), (None, queued)]
    for resume, launch in ways:

        def resolve(teacher: Any, resume: Any = resume, launch: LaunchConfig = launch) -> Any:
            run = replace(config.run, max_iterations=2, resume=resume, teacher=teacher)
            return resolve_training(replace(config, run=run), launch).config.agent.algorithm

        assert resolve(None).teacher_run == str(gone / "model_1.pt")
        assert resolve(str(gone)).teacher_run == str(gone / "model_1.pt")
        with pytest.raises(RequestError, match=rf"--teacher {teacher_run}: the resumed run learns from {gone}"):
            resolve(str(teacher_run))

"""Totals become what one rank does, and a rank has room for it."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from mjtrain.api import make_train_config, train
from mjtrain.cli.parsing import parse
from mjtrain.cli.train import main, read_command
from mjtrain.config import EnvConfig, LaunchConfig, LearnerConfig, PpoConfig, WarmStartConfig
from mjtrain.env.catalog import load_task
from mjtrain.runs.resume import find_resumed_here, resolve_requeue
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import available_memory
from mjtrain.training.preflight.config_check import check_config
from mjtrain.training.preflight.dry_step import TaskSize
from mjtrain.training.preflight.load import resolve_load
from mjtrain.training.preflight.run_size import (
    MemoryNeed,
    check_memory,
    choose_agent,
    default_num_envs,
    find_memory_need,
    find_uneven_batches,
    fit_to_ranks,
    resolve_run_size,
)
from mjtrain.training.request import resolve_training


def resolve(world_size: int, **options: int) -> tuple[int, int]:
    config = resolve_run_size(make_train_config("Cartpole-Balance", **options), world_size)
    return config.num_envs, config.run.max_iterations


@pytest.mark.parametrize(
    ("world_size", "options", "expected"),
    [
        (1, {}, (256, 100)),
        (4, {}, (256, 100)),
        (4, {"num_envs": 32, "max_iterations": 7}, (32, 7)),
        (4, {"num_envs_total": 4096}, (1024, 100)),
        (3, {"num_envs_total": 3}, (1, 100)),
        (1, {"num_envs": 10, "total_env_steps": 2400}, (10, 10)),
        (2, {"num_envs": 10, "total_env_steps": 2400}, (10, 5)),
        (1, {"num_envs": 10, "total_env_steps": 2401}, (10, 11)),
        (1, {"num_envs": 10, "total_env_steps": 1}, (10, 1)),
        (2, {"num_envs_total": 20, "total_env_steps": 2400}, (10, 5)),
    ],
)
def test_totals_become_what_a_rank_does(world_size: int, options: dict[str, int], expected: tuple[int, int]) -> None:
    assert resolve(world_size, **options) == expected


def test_a_task_may_have_another_agent_for_gpus_which_keeps_what_the_user_changed() -> None:
    task = load_task("Cartpole-Balance")
    wide = replace(
        task.agent,
        actor=replace(task.agent.actor, hidden_dims=(256, 256)),
        algorithm=replace(task.agent.algorithm, num_mini_batches=16),
    )
    config = make_train_config(replace(task, agent_gpu=wide))
    assert choose_agent(config, "cpu").agent == task.agent
    assert choose_agent(config, "cuda:0").agent == wide
    asked = replace(task.agent, algorithm=replace(task.agent.algorithm, num_mini_batches=2, learning_rate=1e-4))
    chosen = choose_agent(replace(config, agent=asked), "cuda:0").agent
    assert chosen == replace(wide, algorithm=replace(asked.algorithm))
    own = make_train_config(replace(task, agent_gpu=wide), agent=task.agent)
    assert choose_agent(own, "cuda:0").agent == task.agent


def test_a_flag_counts_on_a_gpu_also_with_the_value_of_the_agent_for_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a trial of a sweep, one of whose choices is that value. Only such a flag has all flags read twice."""
    progs: list[str] = []

    def count(*args: Any, prog: str, **options: Any) -> Any:
        progs.append(prog)
        return parse(*args, prog=prog, **options)

    monkeypatch.setattr("mjtrain.cli.train.parse", count)
    file = tmp_path / "wide_task.py"
    file.write_text(
        "from dataclasses import replace\n"
        "import mjtrain_tasks.cartpole_balance as cartpole\n"
        "from mjtrain import TaskConfig\n"
        "def make_task() -> TaskConfig:\n"
        "    task = cartpole.make_task()\n"
        "    algorithm = replace(task.agent.algorithm, num_mini_batches=16, gamma=0.9)\n"
        "    return replace(task, agent_gpu=replace(task.agent, algorithm=algorithm))\n"
    )
    same = load_task("Cartpole-Balance").agent.algorithm
    assert isinstance(same, PpoConfig)
    for number in (same.num_mini_batches, 2):
        flag = ("--agent.algorithm.num-mini-batches", str(number))
        config, _, _ = read_command([f"{file}:make_task", *flag])
        assert choose_agent(config, "cuda:0").agent.algorithm == replace(same, num_mini_batches=number, gamma=0.9)
    assert len(progs) == 4
    config, _, _ = read_command([f"{file}:make_task", "--seed", "1"])
    assert len(progs) == 5
    assert choose_agent(config, "cuda:0").agent.algorithm == replace(same, num_mini_batches=16, gamma=0.9)


def test_an_element_of_an_array_is_requeued_alone() -> None:
    """The number of the last element is that of the array."""
    config, launch = make_train_config("Cartpole-Balance"), LaunchConfig(requeue_on_signal=True)
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    queued, job = resolve_requeue(config, launch, {"SLURM_JOB_ID": "7", **array})
    assert (queued.run.run_name, job) == ("slurm-7", "7_3")
    assert resolve_requeue(config, launch, {"SLURM_JOB_ID": "7"})[1] == "7"


@pytest.mark.usefixtures("short_trial")
def test_a_requeued_job_loads_weights_also_with_the_agent_for_gpus(tmp_path: Path) -> None:
    """And its file may be gone when the job resumes its own run."""
    options: dict[str, Any] = {"log_root": str(tmp_path / "logs"), "logger": "none", "max_iterations": 1, "num_envs": 2}
    task, alone = load_task("Cartpole-Balance"), LaunchConfig(gpu_ids=None, num_threads=1)
    run_dir = train(task, launch=alone, **options).run_dir
    task, launch = replace(task, agent_gpu=replace(task.agent, save_interval=7)), replace(alone, requeue_on_signal=True)
    config = make_train_config(task, **options, load=str(run_dir))
    queued, _ = resolve_requeue(config, launch, {"SLURM_JOB_ID": "7"})
    check_config(choose_agent(queued, "cuda:0"), launch)
    assert resolve_load(queued).run.load == str(run_dir / "model_1.pt")
    with pytest.raises(RequestError, match="cannot be combined with --resume"):
        check_config(queued, alone)

    gone = replace(queued, run=replace(queued.run, load=str(tmp_path / "gone.pt")))
    with pytest.raises(RequestError, match=r"gone\.pt: no such file"):
        resolve_load(gone)
    own = train(task, launch=alone, run_name="slurm-7", **options)
    assert find_resumed_here(gone) == own.run_dir
    assert resolve_load(gone) == gone

    stored = replace(gone, run=replace(gone.run, checkpoint_url=(tmp_path / "stored").as_uri()))
    with pytest.raises(RequestError, match=r"gone\.pt: no such file"):
        resolve_load(stored)
    train(task, launch=alone, checkpoint_url=stored.run.checkpoint_url, **options)
    assert find_resumed_here(stored) is None
    assert resolve_load(stored) == stored


def test_the_default_number_of_environments_is_that_of_where_they_step() -> None:
    config = make_train_config("Cartpole-Balance")
    assert (default_num_envs(config, "cpu"), default_num_envs(config, "cuda:0")) == (256, 4096)
    assert default_num_envs(make_train_config("Cartpole-Balance", engine="native"), "cuda:0") == 256


@pytest.mark.parametrize(
    ("world_size", "options", "words"),
    [
        (3, {"num_envs_total": 1000}, "--num-envs-total 1000: cannot be split evenly over 3 ranks; 999 or 1,002 can"),
        (4, {"num_envs_total": 3}, "--num-envs-total 3: cannot be split evenly over 4 ranks; 4 can"),
    ],
)
def test_totals_that_cannot_be_split_are_refused(world_size: int, options: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolve(world_size, **options)
    assert str(caught.value) == words


def test_a_gpu_has_a_default_of_its_own() -> None:
    config = make_train_config("Quadruped-Velocity-Flat")
    assert resolve_run_size(config, 1, "cpu").num_envs == 256
    assert resolve_run_size(config, 1, "cuda:0").num_envs == 4096
    chosen = make_train_config("Quadruped-Velocity-Flat", num_envs=512)
    assert resolve_run_size(chosen, 1, "cuda:0").num_envs == 512
    total = make_train_config("Quadruped-Velocity-Flat", num_envs_total=100)
    assert resolve_run_size(total, 2, "cuda:0").num_envs == 50


@pytest.mark.parametrize(
    ("mode", "words"),
    [("reduce-overhead", "keeps CUDA graphs"), ("max-autotune", "keeps CUDA graphs"), ("fast", "give one of default")],
)
def test_modes_of_torch_compile_are_checked(mode: str, words: str) -> None:
    config = make_train_config("Cartpole-Balance")
    config = replace(config, agent=replace(config.agent, torch_compile_mode=mode))
    with pytest.raises(RequestError, match=f"--agent.torch-compile-mode {mode}: {words}"):
        resolve_run_size(config, 1)


def test_a_rollout_has_a_sample_for_every_mini_batch() -> None:
    config = make_train_config("Cartpole-Balance", num_envs=1)
    config = replace(config, agent=replace(config.agent, num_steps_per_env=2))
    with pytest.raises(RequestError, match=r"--agent\.algorithm\.num-mini-batches 4: .*only 2 samples"):
        resolve_run_size(config, 1)


@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_an_advantage_is_normalised_among_others(per_mini_batch: bool) -> None:
    num_envs = 8 if per_mini_batch else 1
    config = make_train_config("Cartpole-Balance", num_envs=num_envs)
    algorithm = replace(
        config.agent.algorithm, num_mini_batches=num_envs, normalize_advantage_per_mini_batch=per_mini_batch
    )
    config = replace(config, agent=replace(config.agent, num_steps_per_env=1, algorithm=algorithm))
    said = r"--agent\.algorithm\.normalize-advantage-per-mini-batch: .* one sample, .* at most 4 mini-batches"
    with pytest.raises(RequestError, match=said if per_mini_batch else r"--agent\.num-steps-per-env 1: .* one sample"):
        resolve_run_size(config, 1)
    assert resolve_run_size(config, 2).num_envs == num_envs  # the samples of all ranks are normalised together
    for name in ("skrl_sac", "skrl"):  # which has no advantages, or checks by itself
        assert resolve_run_size(replace(config, learner=LearnerConfig(name=name)), 1).num_envs == num_envs
    own = replace(config.agent.algorithm, class_name="my_package:Reinforce")
    resolve_run_size(replace(config, agent=replace(config.agent, algorithm=own)), 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs_total": 0}, "--num-envs-total 0: must be at least 1"),
        ({"num_envs": 0}, "--num-envs 0: must be at least 1"),
        ({"max_iterations": 0}, "--max-iterations 0: must be at least 1"),
        ({"total_env_steps": 0}, "--total-env-steps 0: must be at least 1"),
        ({"drift_check_interval": -1}, "--drift-check-interval -1: must be at least 0"),
        ({"keep_checkpoints": 0}, "--keep-checkpoints 0: must be at least 1"),
        ({"checkpoint_flush_s": float("nan")}, "--checkpoint-flush-s nan: must be at least 0 and at most 1e"),
        ({"checkpoint_flush_s": 1e300}, r"--checkpoint-flush-s 1e\+300: must be at least 0 and at most 1e\+09"),
        ({"video_length_s": 1e300}, r"--video-length-s 1e\+300: must be more than 0 and at most 86400"),
        ({"engine": "Native"}, "--engine Native: choose from"),
    ],
)
def test_options_are_within_what_their_fields_declare(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_config(make_train_config("Cartpole-Balance", **options), LaunchConfig())


@pytest.mark.parametrize("name", [field.name for field in fields(LaunchConfig) if field.name.endswith("_s")])
def test_no_timeout_is_longer_than_what_the_system_can_wait_for(name: str) -> None:
    config = make_train_config("Cartpole-Balance")
    check_config(config, replace(LaunchConfig(), **{name: 1e9}))
    with pytest.raises(RequestError, match=rf"--{name.replace('_', '-')} 1e\+300: must be .* and at most 1e\+09"):
        check_config(config, replace(LaunchConfig(), **{name: 1e300}))


def test_numbers_of_the_task_and_the_agent_are_checked_too() -> None:
    config = make_train_config("Cartpole-Balance")
    with pytest.raises(RequestError, match=r"--env\.decimation 0"):
        check_config(replace(config, env=replace(config.env, decimation=0)), LaunchConfig())
    with pytest.raises(RequestError, match=r"--agent\.save-interval 0"):
        check_config(replace(config, agent=replace(config.agent, save_interval=0)), LaunchConfig())


def test_names_of_a_run_that_is_resumed_are_not_refused() -> None:
    config = make_train_config("Cartpole-Balance")
    assert isinstance(config.env, EnvConfig)
    named = replace(config, env=replace(config.env, rewards={"stay up": next(iter(config.env.rewards.values()))}))
    with pytest.raises(RequestError, match=r"--env\.rewards: the name 'stay up' is not valid"):
        check_config(named, LaunchConfig())
    check_config(replace(named, run=replace(config.run, resume="logs/run")), LaunchConfig())


def test_a_job_with_fewer_ranks_has_what_fits() -> None:
    asked = make_train_config("Cartpole-Balance", num_envs_total=64, total_env_steps=64 * 24 * 10)
    config = resolve_run_size(asked, 4)
    same, lines = fit_to_ranks(config, 4)
    assert (same, lines) == (config, [])
    half, lines = fit_to_ranks(config, 2)
    assert (half.run.num_envs, half.run.num_envs_total, half.run.max_iterations, lines) == (32, 64, 10, [])
    three, lines = fit_to_ranks(config, 3)
    assert (three.run.num_envs, three.run.num_envs_total, three.run.max_iterations) == (21, 63, 11)
    assert lines == ["--num-envs-total 64: cannot be split evenly over 3 ranks; continuing with 63"]
    per_rank = resolve_run_size(make_train_config("Cartpole-Balance", num_envs=16, max_iterations=5), 4)
    assert fit_to_ranks(per_rank, 3) == (per_rank, [])


def test_a_job_with_fewer_ranks_learns_from_all_environments_of_recurrent_networks() -> None:
    asked = make_train_config("Cartpole-Balance", num_envs_total=40)
    config = replace(asked, agent=replace(asked.agent, critic=replace(asked.agent.critic, class_name="RNNModel")))
    four, lines = fit_to_ranks(resolve_run_size(config, 5), 4)
    assert (four.run.num_envs, four.run.num_envs_total) == (8, 32)
    assert lines == ["--num-envs-total 40: cannot be split evenly over 4 ranks with 4 mini-batches; continuing with 32"]


def test_a_job_with_fewer_ranks_has_what_its_learner_can_learn_from() -> None:
    """rl_games has mini-batches of one size: with 6 environments, 30 samples are not 4 of them."""
    asked = make_train_config("Cartpole-Balance", num_envs_total=12)
    config = replace(asked, agent=replace(asked.agent, num_steps_per_env=5), learner=LearnerConfig(name="rl_games"))
    three = resolve_run_size(config, 3)
    assert fit_to_ranks(three, 3) == (three, [])
    two, lines = fit_to_ranks(three, 2)
    assert (two.run.num_envs, two.run.num_envs_total) == (4, 8)
    assert lines == ["--num-envs-total 12: cannot be split over 2 ranks with --learner rl_games; continuing with 8"]
    own = LearnerConfig(name="rl_games", settings={"config": {"minibatch_size": 20, "lr_schedule": "constant"}})
    assert fit_to_ranks(replace(three, learner=own), 2)[0].run.num_envs == 4
    large = replace(own, settings={"config": {"minibatch_size": 60}})
    with pytest.raises(RequestError, match=r"--learner-config config\.minibatch_size 60: must divide the 30 samples"):
        fit_to_ranks(replace(three, learner=large), 2)


@pytest.mark.parametrize(
    ("world_size", "options", "words"),
    [
        (1, {"num_envs": 3}, "--num-envs 3: a mini-batch of an RNNModel has whole environments, .*; give 4$"),
        (2, {"num_envs": 6}, "--num-envs 6: .* there are 4 mini-batches .*; give 4 or 8$"),
        (2, {"num_envs_total": 1004}, "--num-envs-total 1004: .*; give 1,000 or 1,008$"),
        (2, {"num_envs_total": 1008}, None),
    ],
)
def test_the_environments_of_a_recurrent_network_are_divided_into_mini_batches(
    world_size: int, options: dict[str, int], words: str | None
) -> None:
    """RSL-RL never learns from those that are left over."""
    config = resolve_run_size(make_train_config("Cartpole-Balance", **options), world_size)
    assert list(find_uneven_batches(config, world_size)) == []
    for network in ("actor", "critic"):
        model = replace(getattr(config.agent, network), class_name="RNNModel")
        recurrent = replace(config, agent=replace(config.agent, **{network: model}))
        found = list(find_uneven_batches(recurrent, world_size))
        assert len(found) == (words is not None)
        assert words is None or re.match(words, found[0])
        own = replace(recurrent.agent.algorithm, class_name="my_package:Ppo")
        assert list(find_uneven_batches(replace(recurrent, agent=replace(recurrent.agent, algorithm=own)), 1)) == []


@pytest.mark.usefixtures("short_trial")
def test_a_recurrent_run_continues_with_the_environments_that_it_has(tmp_path: Path) -> None:
    launch = LaunchConfig(gpu_ids=None)
    config = make_train_config("Cartpole-Balance", num_envs=10, max_iterations=2, log_root=str(tmp_path))
    recurrent = replace(config.agent.critic, class_name="RNNModel")
    config = replace(config, agent=replace(config.agent, critic=recurrent))
    with pytest.raises(RequestError, match=r"--num-envs 10: .* give 8 or 12"):
        resolve_training(config, launch)
    before = train(
        "Cartpole-Balance", num_envs=10, max_iterations=1, log_root=str(tmp_path), logger="none", launch=launch
    )
    for resume in (str(before.run_dir), "auto"):
        resumed = replace(config, run=replace(config.run, resume=resume))
        assert resolve_training(resumed, launch).config.num_envs == 10


GB = 10**9
IMAGES = TaskSize(
    shapes={"image": (9, 64, 64)},
    group_bytes={"image": 9 * 64 * 64},
    image_bytes=7 * 64 * 64,
    history_bytes=9 * 64 * 64,
    num_actions=1,
)
"""Three RGB frames of 64 x 64."""
FLAT = TaskSize(shapes={"actor": (4,)}, group_bytes={"actor": 16}, image_bytes=0, history_bytes=0, num_actions=1)


def find(size: TaskSize, available: int | None, world_size: int = 1, **options: int) -> MemoryNeed:
    config = resolve_run_size(make_train_config("Cartpole-Balance", **options), world_size)
    need = find_memory_need(config, size, available)
    check_memory(need, config, world_size)
    return need


def test_it_is_summed_up() -> None:
    need = find(IMAGES, 10 * GB, num_envs=100)
    assert need.rollout_bytes == 100 * 24 * (9 * 64 * 64 + 21 + 12)
    assert need.image_bytes == 100 * 7 * 64 * 64
    assert need.history_bytes == 100 * 9 * 64 * 64
    assert need.describe() == (
        "95.1 MB per rank (88.6 MB for a rollout, 2.87 MB for images, 3.69 MB for history and delay), of 10 GB that "
        "are free"
    )
    assert need.to_plain()["total_bytes"] == need.rollout_bytes + need.image_bytes + need.history_bytes
    assert find(FLAT, None, num_envs=10).describe() == "11.8 kB per rank (11.8 kB for a rollout)"


def test_the_warm_start_counts() -> None:
    config = make_train_config("Arm-Reach", num_envs=10)
    size = replace(FLAT, num_actions=6)
    need = find_memory_need(config, size, None)
    assert need.imitation_bytes == 2 * 10 * 64 * (16 + 24)
    assert "51.2 kB for the warm start" in need.describe()
    unnamed = replace(config, agent=replace(config.agent, obs_groups={}))
    shapes = {"actor": (4,), "image": (3, 8, 8)}
    seen = replace(size, shapes=shapes, group_bytes={"actor": 16, "image": 192})
    assert find_memory_need(unnamed, seen, None).imitation_bytes == need.imitation_bytes
    algorithm = replace(config.agent.algorithm, warm_start=WarmStartConfig(controller="ik", num_steps=10**6))  # pyright: ignore[reportCallIssue]
    long = replace(config, agent=replace(config.agent, algorithm=algorithm))
    with pytest.raises(RequestError, match=r"; give fewer --agent\.algorithm\.warm-start\.num-steps"):
        check_memory(find_memory_need(long, size, 10**6), long, 1)


@pytest.mark.parametrize(
    ("size", "available", "world_size", "options", "words"),
    [
        (IMAGES, 10 * GB, 1, {"num_envs": 10_000_000}, "--num-envs 10000000: needs 9.51 TB per rank"),
        (IMAGES, 10 * GB, 1, {"num_envs": 10_000_000}, "of 10 GB that are free; give --num-envs 10000, or fewer --ag"),
        (IMAGES, 5 * GB, 1, {"num_envs": 10_000_000}, "give --num-envs 5200,"),
        (IMAGES, 5 * GB, 2, {"num_envs_total": 20_000}, "--num-envs-total 20000: needs 9.51 GB per rank"),
        (IMAGES, 5 * GB, 2, {"num_envs_total": 20_000}, "give --num-envs-total 10400,"),
        (IMAGES, 10**6, 1, {"num_envs": 4}, "give --num-envs 1,"),
        (IMAGES, 10**5, 1, {"num_envs": 4}, "not even one environment fits; give fewer --agent.num-steps-per-env"),
        (FLAT, GB, 1, {"num_envs": 10**9}, "give --num-envs 850000,"),
    ],
)
def test_too_much_is_refused_with_a_number_that_fits(
    size: TaskSize, available: int, world_size: int, options: dict[str, int], words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        find(size, available, world_size, **options)
    assert words in str(caught.value)


def test_what_is_proposed_fits() -> None:
    config = resolve_run_size(make_train_config("Cartpole-Balance", num_envs=10_000_000), 1)
    with pytest.raises(RequestError) as caught:
        check_memory(find_memory_need(config, IMAGES, 3 * GB), config, 1)
    proposed = int(str(caught.value).split("give --num-envs ")[1].split(",")[0])
    for num_envs, fits in ((proposed, True), (round(1.1 * proposed), False)):
        need = find_memory_need(replace(config, run=replace(config.run, num_envs=num_envs)), IMAGES, 3 * GB)
        assert (need.total_bytes <= 3 * GB) == fits


def test_memory_that_is_not_known_refuses_nothing() -> None:
    assert find(IMAGES, None, num_envs=10_000_000).available_bytes is None


@pytest.mark.process  # the dry step loads the ray caster's kernels
def test_images_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    size = "--env.cameras.front.width 64 --env.cameras.front.height 64"
    with pytest.raises(SystemExit) as stop:
        main(f"Cartpole-Balance-Vision --gpu-ids None --dry-run --num-envs 10000000 {size}".split())
    assert stop.value.code == 2
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert re.search(r"--num-envs 10000000: needs [\d.]+ TB per rank \([\d.]+ TB for a rollout, ", line)
    assert re.search(r"GB for images, [\d.]+ GB for history and delay\), of .* free; give --num-envs \d+0, ", line)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--env.cameras.front.width 2000000 --env.cameras.front.height 2000000",
            r"--env\.cameras\.front: 2000000 x 2000000 pixels, with what history and delay keep of them, take "
            r"more than \d+ TB for 2 environments, of .* free; give a smaller width and height, or a shorter history",
        ),
        ("--env.observations.image.front.history 2000000000", "take more than 24.6 TB for 2 environments"),
        ("--env.observations.image.front.delay 0 2000000000", "take more than 24.6 TB for 2 environments"),
    ],
)
def test_images_of_which_two_do_not_fit_are_refused_before_they_are_rendered(
    flags: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(f"Cartpole-Balance-Vision --gpu-ids None --num-envs 1 {flags}".split())
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(words, line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short_trial")
def test_ranks_that_failures_may_leave_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes have room for a total of environments that one alone has not."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29999")):
        monkeypatch.setenv(name, value)
    config = make_train_config("Cartpole-Balance", num_envs_total=3)
    launch = LaunchConfig(gpu_ids=None, num_workers=1, max_restarts=1)
    memory = resolve_training(config, launch).memory
    assert memory is not None
    total = 3 * (available_memory() // (2 * memory.total_bytes))  # each of three nodes has half of what it has room for
    config = make_train_config("Cartpole-Balance", num_envs_total=total)
    resolve_training(config, launch)
    resolve_training(config, replace(launch, min_hosts=2))
    with pytest.raises(RequestError, match=r"when 1 rank is left, which --min-ranks and --min-hosts allow; give --num"):
        resolve_training(config, replace(launch, min_hosts=1))

"""How much memory a rank needs, and what is said when it is more than there is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mjtrain.api import make_train_config
from mjtrain.cli.train import main
from mjtrain.config import LaunchConfig, WarmStartConfig
from mjtrain.runtime import machine
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import available_memory, format_bytes
from mjtrain.training.preflight.dry_step import TaskSize
from mjtrain.training.preflight.run_size import MemoryNeed, check_memory, find_memory_need, resolve_run_size
from mjtrain.training.request import resolve_training

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


def test_bytes_are_words() -> None:
    assert [format_bytes(count) for count in (0, 999, 1000, 12_345_678, 9_994 * GB)] == [
        "0 B", "999 B", "1 kB", "12.3 MB", "9.99 TB",
    ]  # fmt: skip


def test_this_machine_has_free_memory() -> None:
    assert 10**7 < machine.available_memory() < 10**14


def test_a_cgroup_limits_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("250000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 10000000\n")
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "memory.max").write_text("max\n")
    (outer / "memory.current").write_text("1\n")
    monkeypatch.setattr(machine, "find_cgroups", lambda _: iter([tmp_path, outer, tmp_path / "missing"]))
    assert machine.available_memory() == 60_000_000


def test_a_gpu_that_is_not_there_has_no_free_memory() -> None:
    assert machine.free_gpu_memory("99") is None


@pytest.mark.gpu
def test_a_gpu_has_free_memory() -> None:
    free = machine.free_gpu_memory("0")
    assert free is not None
    assert 10**8 < free < 10**13


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

"""A run directory is data: whoever wrote it, opening it runs no code that the user has not named."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import mjtrain
from mjtrain.cli import export as export_command
from mjtrain.cli import play as play_command
from mjtrain.cli import runs as runs_command
from mjtrain.config import to_plain
from mjtrain.env.catalog import load_task
from mjtrain.runs import trust
from mjtrain.runs.run_dir import list_changes
from mjtrain.runs.trained_run import find_replayed_run, read_run
from mjtrain.runtime.errors import RequestError

EVIL = """
import os
from pathlib import Path

Path({marker!r}).write_text("ran")

def f(*args, **kwargs):
    return None

class C:
    pass

def make():
    from mjtrain.env.catalog import load_task
    return load_task("Cartpole-Balance")
"""

OWN = """
import mjtrain
from dataclasses import replace
from mjtrain.env.catalog import load_task

def constant(env, scale: float = 1.0):
    return scale * env.qpos("slider")[:, 0]

def make() -> mjtrain.TaskConfig:
    task = load_task("Cartpole-Balance")
    rewards = {**task.env.rewards, "own": mjtrain.RewardTerm(func=constant, weight=1.0)}
    return replace(task, name="own", env=replace(task.env, rewards=rewards))
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `evil_mod` that Python finds; the file appears when it is imported."""
    marker = tmp_path / "marker"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evil_mod.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_named", set())
    yield marker
    for name in ("evil_mod", "mjtrain_task_evil", "mjtrain_task_own"):
        sys.modules.pop(name, None)


def make_run(folder: Path, launch: dict[str, Any] | None = None, env: Any = None, agent: Any = None) -> Path:
    """Write what a run of Cartpole-Balance records, with changes at some paths."""
    task = load_task("Cartpole-Balance")
    run_dir = folder / "logs" / "cartpole_balance" / "2026-01-01_00-00-00"
    (run_dir / "params").mkdir(parents=True)
    records = {
        "launch": {"task": "Cartpole-Balance", "started": str(folder), **(launch or {})},
        "env": to_plain(task.env),
        "agent": to_plain(task.agent),
    }
    if env is not None and not any("." in path for path in env):
        records["env"] = env
        env = None
    for name, changes in (("env", env), ("agent", agent)):
        for path, value in (changes or {}).items():
            *parts, last = path.split(".")
            place = records[name]
            for part in parts:
                place = place[part]
            place[last] = value
    for name, content in records.items():
        (run_dir / "params" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return run_dir


FUNC = "rewards.upright.func"
BAD = {
    "a function": {"env": {FUNC: "evil_mod:f"}},
    "what a module of mjtrain has imported": {"env": {FUNC: "mjtrain.mdp.rewards:torch.load"}},
    "what a module of a package of tasks has imported": {
        "env": {FUNC: "mjtrain_tasks.cartpole_balance.rewards:torch.load"}
    },
    "a function of mjtrain that is not a term": {"env": {FUNC: "mjtrain.config.plain:import_function"}},
    "a program": {"env": {"robot.spec": "torch.distributed.run:main"}},
    "a command": {"env": {"robot.spec": "mjtrain.cli.main:main"}},
    "a robot": {"env": {"robot.spec": "evil_mod:f"}},
    "a maker of worlds": {"env": {"make": "evil_mod:f", "kwargs": {}}},
    "a maker of worlds in mjtrain": {"env": {"make": "mjtrain.env.catalog:load_task", "kwargs": {"task": "x"}}},
    "a system call": {"env": {"make": "os:system", "kwargs": {}}},
    "an environment": {"env": {"id": "evil_mod:X-v0", "kwargs": {}}},
    "an algorithm": {"agent": {"algorithm.class_name": "evil_mod:C"}},
    "an algorithm by dots": {"agent": {"algorithm.class_name": "evil_mod.C"}},
    "a network": {"agent": {"actor.class_name": "evil_mod:C"}},
    "a network of a library": {"agent": {"actor.class_name": "rsl_rl.utils.os.system"}},
    "a distribution": {"agent": {"actor.distribution_cfg.class_name": "evil_mod:C"}},
    "a task in a module": {"launch": {"task": "evil_mod:make"}, "env": {FUNC: "evil_mod:f"}},
    "a task of Gymnasium": {"launch": {"task": "gymnasium:evil_mod:X-v0"}, "env": {"id": "evil_mod:X-v0"}},
    "a file of the run": {"launch": {"task": "evil.py:make", "task_file": "{run}/evil.py"}},
    "a file of the run by a detour": {"launch": {"task": "evil.py:make", "task_file": "{run}/../{name}/evil.py"}},
    "a file here": {"launch": {"task": "evil.py:make", "task_file": "evil.py"}},
    "a file here without its factory": {"launch": {"task": "evil.py"}},
    "a file elsewhere": {"launch": {"task": "evil.py:make", "task_file": "{folder}/evil.py"}},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_what_a_run_names_does_not_run(
    bad: dict[str, Any],
    tmp_path: Path,
    marker: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line names what would run, and the flag."""
    run_dir = make_run(tmp_path, **bad)
    launch = run_dir / "params" / "launch.yaml"
    text = launch.read_text().replace("{run}", str(run_dir)).replace("{name}", run_dir.name)
    launch.write_text(text.replace("{folder}", str(tmp_path)))
    for folder in (tmp_path, run_dir):
        (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    if "evil.py" in text:
        env = run_dir / "params" / "env.yaml"
        env.write_text(env.read_text().replace("mjtrain_tasks.cartpole_balance.rewards:", "mjtrain_task_evil:"))
        assert "mjtrain_task_evil:" in env.read_text()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=r"would run code that its record names: .*--trust-run") as refused:
        _ = mjtrain.Run(run_dir).config
    names = [name for changes in (bad.get("env", {}), bad.get("agent", {})) for name in changes.values()]
    assert any(str(name) in str(refused.value) for name in names or ["evil"])
    task = load_task("Cartpole-Balance")
    list_changes(run_dir, env=to_plain(task.env), agent=to_plain(task.agent))
    assert not marker.exists()


def test_every_way_to_open_a_run_asks(tmp_path: Path, marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Python and by a command; the list of runs needs no code."""
    run_dir = make_run(tmp_path, **BAD["a function"])
    for call in (mjtrain.load_policy, mjtrain.play, mjtrain.export):
        with pytest.raises(RequestError, match="evil_mod:f; --trust-run"):
            call(run_dir)
    for command in (play_command, export_command):
        with pytest.raises(SystemExit) as end:
            command.main([str(run_dir)])
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "evil_mod:f; --trust-run" in line
    runs_command.main(["--log-root", str(tmp_path / "logs")])
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a function", "a file elsewhere", "a file of the run", "a file here"])
def test_a_run_that_the_user_trusts_may_run_anything(
    name: str, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path, **BAD[name])
    launch = run_dir / "params" / "launch.yaml"
    launch.write_text(launch.read_text().replace("{run}", str(run_dir)).replace("{folder}", str(tmp_path)))
    for folder in (tmp_path, run_dir):
        (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.chdir(tmp_path)
    assert mjtrain.Run(run_dir, trust=True).config.env.rewards
    assert marker.exists()


def test_a_run_that_needs_no_code_is_read_whatever_its_task(tmp_path: Path, marker: Path) -> None:
    (tmp_path / "evil.py").write_text(EVIL.format(marker=str(marker)))
    run_dir = make_run(tmp_path, {"task": "evil.py:make", "task_file": str(tmp_path / "evil.py")})
    assert mjtrain.Run(run_dir).config.env.rewards
    assert not marker.exists()


def test_a_change_of_a_function_is_compared_without_importing_it(tmp_path: Path, marker: Path) -> None:
    run_dir = make_run(tmp_path, env={FUNC: "evil_mod:f"})
    env = to_plain(load_task("Cartpole-Balance").env)
    (line,) = list_changes(run_dir, env=env)
    assert "evil_mod:f -> mjtrain" in line
    assert not marker.exists()


@pytest.fixture
def own(tmp_path: Path, marker: Path) -> tuple[Path, Path]:
    """A task in a file of the user, and a run of it as it would record itself."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    task = load_task(f"{file}:make")
    run_dir = make_run(tmp_path, {"task": "own.py:make", "task_file": str(file)}, to_plain(task.env))
    return file, run_dir


def forget() -> None:
    """Become another process of the same user."""
    trust._named.clear()
    sys.modules.pop("mjtrain_task_own", None)


def test_a_run_is_opened_where_it_was_trained(own: tuple[Path, Path], tmp_path: Path) -> None:
    """By another process too, and after the file was changed; its name is kept once."""
    file, run_dir = own
    with pytest.raises(RequestError, match=rf"own\.func mjtrain_task_own:constant .*{file}.* have not trained"):
        read_run(run_dir)
    task = load_task(f"{file}:make")
    for _ in range(2):
        trust.remember(f"{file}:make", task.env, task.agent)
    forget()
    file.write_text(OWN + "\n# changed\n")
    assert read_run(run_dir).env.rewards["own"].func.__name__ == "constant"
    assert (tmp_path / "state" / "mjtrain" / "trained-from").read_text() == f"{file}:make\n"


def test_a_run_is_opened_by_the_file_that_the_user_names(own: tuple[Path, Path], tmp_path: Path) -> None:
    file, run_dir = own
    moved = tmp_path / "moved" / "own.py"
    moved.parent.mkdir()
    file.rename(moved)
    forget()
    dump = run_dir / "nan" / "dump.npz"  # needs no checkpoint
    assert find_replayed_run(f"{moved}:make", str(dump)).env.rewards["own"].func.__name__ == "constant"
    env = run_dir / "params" / "env.yaml"
    env.write_text(env.read_text().replace("mjtrain_task_own:constant", "evil_mod:f"))
    with pytest.raises(RequestError, match="evil_mod:f"):
        find_replayed_run(f"{moved}:make", str(dump))


def test_functions_of_a_module_are_known_once_the_user_has_trained_with_them(tmp_path: Path, marker: Path) -> None:
    """Those functions, and no others of the module."""
    import evil_mod  # pyright: ignore[reportMissingImports]

    marker.unlink()
    task = load_task("Cartpole-Balance")
    term = mjtrain.RewardTerm(func=evil_mod.f, weight=1.0)
    trust.remember("custom", mjtrain.EnvConfig(**{**vars(task.env), "rewards": {"x": term}}), task.agent)
    forget()
    run_dir = make_run(tmp_path, {"task": "custom"}, {FUNC: "evil_mod:f"})
    assert read_run(run_dir).env.rewards["upright"].func is evil_mod.f
    env = run_dir / "params" / "env.yaml"
    env.write_text(env.read_text().replace("evil_mod:f", "evil_mod:make"))
    with pytest.raises(RequestError, match="evil_mod:make"):
        read_run(run_dir)


def test_a_home_that_cannot_be_written_stops_no_training(own: tuple[Path, Path], tmp_path: Path) -> None:
    """This process can open the run all the same."""
    file, run_dir = own
    (tmp_path / "state").write_text("a file")
    task = load_task(f"{file}:make")
    trust.remember(f"{file}:make", task.env, task.agent)
    assert read_run(run_dir).env.rewards["own"].func.__name__ == "constant"

"""Run directories that something else has written to: no file of one hinders a listing, a plot or a resumption."""

import json
import os
import time
from pathlib import Path

import pytest
import yaml

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli import plot, runs
from mjtrain.config import to_plain
from mjtrain.env.catalog import load_task
from mjtrain.runs.checkpoint import parse_best, read_best
from mjtrain.runs.history import RunSearch, find_runs, list_runs, open_run, summarise_run
from mjtrain.runs.resume import find_or_make_run
from mjtrain.runs.run import read_metrics
from mjtrain.runs.run_dir import MAX_DEPTH, load_params, parse_yaml, read_params, read_recorded, save_params
from mjtrain.runs.sources import find_copies, list_code_changes, list_data_changes, restore_data
from mjtrain.runs.trained_run import read_run
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import MetricLines, append_line, mark_injected, read_lines
from mjtrain.training.open_run import _write_restart
from support.frozen import full_disk

BROKEN = {
    "no UTF-8": b"\xff\xfe\xfa",
    "a number": b"7",
    "no iteration": b'{"a": 1}',
    "an iteration that is not a number": b'{"iteration": "x"}',
    "an iteration that is none": b'{"iteration": null}',
    "half": b"0.5]",
    "an event without a name": b'{"event": 7, "iteration": 1}',
    "deep": b"[" * 100_000,
    "a long number": b'{"iteration": ' + b"1" * 5000 + b"}",
    "an iteration that is text": b'{"iteration": "1", "mean_reward": 1}',
    "zeros": b"\0" * 50,
}
TWO = {"mean_reward": 1.0, "collect_time_s": 1.0, "learn_time_s": 1.0, "wait_time_s": 0.0, "env_steps_total": 8}


def make_run(run_dir: Path, task: str = "Cartpole-Balance", **launch: object) -> Path:
    run_dir.mkdir(parents=True)
    save_params(run_dir, launch={"task": task, **launch, "run": {"max_iterations": 4}})
    rows = [{"iteration": at, **TWO} for at in (1, 2)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_record_of_the_best_checkpoint_is_none(content: bytes) -> None:
    assert parse_best(content) is None


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", '"1"', "null", "[1]", pytest.param("1" * 400, id="huge")]
)
def test_a_best_checkpoint_without_a_number_is_none(value: str) -> None:
    assert parse_best(f'{{"metric": "mean_reward", "value": {value}, "iteration": 1}}'.encode()) is None


@pytest.mark.parametrize("line", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_line_is_skipped_counted_and_said(
    tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path / "logs" / "a" / "2026-01-01_00-00-00")
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    lines = read_lines(run_dir)
    assert [row["iteration"] for row in lines] == [1, 2]
    assert lines.skipped == 1
    said = f"warning: {run_dir}/metrics.jsonl: 1 broken line skipped"
    runs.main(["--log-root", str(tmp_path / "logs")])
    output = capsys.readouterr()
    assert " 2/4 " in output.out
    assert said in output.err
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "restart"}\n{"event": "fault"}\n')  # without what such events have
    assert len(read_metrics(run_dir)[0]) == 2
    assert mark_injected(run_dir)
    _write_restart(run_dir, 2, cause="a test")
    assert [row.get("event") for row in read_lines(run_dir)][-1] == "restart"


def test_a_plot_says_how_many_lines_are_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b"\n".join(BROKEN.values()) + b"\n")
    out = tmp_path / "curve.png"
    plot.main([str(run_dir), "--y", "mean_reward", "--x", "wall-time", "--out", str(out)])
    assert f"warning: {run_dir}/metrics.jsonl: {len(BROKEN)} broken lines skipped" in capsys.readouterr().err
    assert out.is_file()


@pytest.mark.usefixtures("short_trial")
def test_a_resume_says_which_lines_are_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    fixed = {"num_envs": 4, "logger": "none", "log_root": str(tmp_path), "launch": launch}
    run_dir = mjtrain.train("Cartpole-Balance", max_iterations=1, **fixed).run_dir
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b"\n".join(BROKEN.values()) + b"\n" + b'{"iterat')
    mjtrain.train("Cartpole-Balance", max_iterations=2, resume=str(run_dir), **fixed)
    assert f"metrics.jsonl: {len(BROKEN)} broken lines removed" in capfd.readouterr().out.replace("\n", " ")
    lines = read_lines(run_dir)
    assert [row["iteration"] for row in lines if "event" not in row] == [1, 2]
    assert lines.skipped == 0


@pytest.mark.parametrize("wrong", [{"mean_reward": "x", "env_steps_per_second": "y"}, {"loss/value": [1.0]}, None])
def test_a_resume_compares_only_numbers(tmp_path: Path, wrong: dict[str, object] | None) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    fixed = {"num_envs": 4, "logger": "none", "log_root": str(tmp_path), "launch": launch, "best_metric": "loss/value"}
    run_dir = mjtrain.train("Cartpole-Balance", max_iterations=1, **fixed).run_dir
    (row,) = read_metrics(run_dir)[0]
    (run_dir / "metrics.jsonl").write_text(json.dumps({"iteration": 1} if wrong is None else {**row, **wrong}) + "\n")
    ends = {"stop_when": ("mean_reward>=1e9", "loss/value>=1e9"), "eval_interval": 1, "eval_episodes": 1}
    mjtrain.train("Cartpole-Balance", max_iterations=2, resume=str(run_dir), **ends, **fixed)
    assert [row["iteration"] for row in read_metrics(run_dir)[0]] == [1, 2]


def test_a_line_that_the_disk_cuts_short_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("a+b", buffering=0) as file:
        append_line(file, {"iteration": 1})
        with full_disk(4096), pytest.raises(OSError, match="File too large"):
            append_line(file, {"event": "end", "cause": "x" * 5000})
        assert path.read_bytes() == b'{"iteration": 1}\n'
        append_line(file, {"event": "end"})
    assert MetricLines(path.read_bytes().splitlines(keepends=True)).skipped == 0


BOMB = "".join(f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghijk")
ODD_YAML = {
    "aliases of aliases": f"a: &a [x]\n{BOMB}",
    "an alias of itself": "a: &a [*a]\n",
    "merged aliases": f"a: &a {{x: 1}}\n{BOMB.replace('[', '{<<: [').replace(']', ']}')}",
    "deep": "[" * 50_000 + "]" * 50_000,
    "a little deep": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "a date that is none": "2026-13-45",
    "a long number": "1" * 5000,
    "a list as a key": "? [a]\n: 1\n",
    "a class": "!!python/object/apply:os.system [true]",
    "an open quote": '"',
}


@pytest.mark.parametrize("text", ODD_YAML.values(), ids=list(ODD_YAML))
def test_yaml_is_bounded(tmp_path: Path, text: str) -> None:
    begin = time.process_time()
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
    params = tmp_path / "params"
    params.mkdir()
    (params / "launch.yaml").write_text(text)
    assert read_params(tmp_path, "launch") == {}
    with pytest.raises(RequestError, match=r"launch.yaml: is not valid YAML"):
        load_params(tmp_path, "launch")
    assert time.process_time() - begin < 20  # a hang took minutes


def test_aliases_that_stand_for_little_are_read() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\nc: *x\n") == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}
    assert parse_yaml("") is None
    assert parse_yaml(b"\xc3\xa4: 1") == {"ä": 1}


def test_one_odd_directory_does_not_end_a_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    odd = {
        "2026-01-02_00-00-00": "run: 5\ntask: x",
        "2026-01-03_00-00-00": "run: {max_iterations: many}",
        "2026-01-03_01-00-00": "run: {total_env_steps: many}",
        "2026-01-04_00-00-00": "task: [1]",
        "2026-01-05_00-00-00": "host: {}",
        "9999-99-99_99-99-99": "task: x",
        "2026-01-06_00-00-00": ODD_YAML["aliases of aliases"],
        "2026-01-07_00-00-00": "started: [1]\ntask: x",
        "2026-01-07_01-00-00": "[1, 2]",
    }
    for name, text in odd.items():
        make_run(tmp_path / "a" / name)
        (tmp_path / "a" / name / "params" / "launch.yaml").write_text(text)
    pipe = make_run(tmp_path / "a" / "2026-01-08_00-00-00")
    (pipe / "metrics.jsonl").unlink()
    os.mkfifo(pipe / "metrics.jsonl")
    (pipe / "params" / "launch.yaml").unlink()
    os.mkfifo(pipe / "params" / "launch.yaml")
    endless = make_run(tmp_path / "a" / "2026-01-09_00-00-00")
    (endless / "params" / "launch.yaml").unlink()
    (endless / "params" / "launch.yaml").symlink_to("/dev/zero")
    found = {run.run_dir.name: run for run in list_runs(tmp_path)}
    assert len(found) == len(odd) + 3
    assert found[good.name].iterations == 2
    assert found["2026-01-02_00-00-00"].state == "unreadable"
    assert found["2026-01-02_00-00-00"].detail == "ValueError: params/launch.yaml: run is 5"
    detail = "ValueError: params/launch.yaml: run.total_env_steps is 'many'"
    assert found["2026-01-03_01-00-00"].detail == detail
    runs.main(["--log-root", str(tmp_path)])
    assert "unreadable: ValueError: params/launch.yaml: run is 5" in capsys.readouterr().out


def test_numbers_beyond_floats_hinder_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 3, **TWO, "mean_reward": 10**400, "env_steps_total": 10**400}) + "\n")
    runs.main(["--log-root", str(tmp_path)])
    plot.main([str(run_dir), "--y", "mean_reward", "--x", "env-steps", "--out", str(tmp_path / "curve.png")])
    assert list(mjtrain.Run(run_dir).metrics["iteration"]) == [1, 2, 3]


def test_auto_passes_over_odd_runs_of_the_task(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", log_root=str(tmp_path), resume="auto")
    run_dir = make_run(tmp_path / "cartpole_balance" / "2026-01-01_00-00-00")
    (run_dir / "params" / "launch.yaml").write_text("task: Cartpole-Balance\nrun: 5\n")
    assert find_or_make_run(config).resume is None


@pytest.mark.parametrize("entry", [None, "x", {}, {"sha256": "0"}, {"copy": "data/x"}, {"copy": 3, "sha256": "0"}])
def test_a_damaged_record_of_data_is_none(tmp_path: Path, entry: object) -> None:
    env = load_task("Cartpole-Balance").env
    save_params(tmp_path, data={"/gone/walk.npz": entry})
    assert find_copies(tmp_path) == {}
    assert restore_data(tmp_path, env) == (env, [])
    assert list_data_changes(tmp_path, env) == []


@pytest.mark.parametrize("record", ["run: 5", "run: null", "[1]"])
def test_flags_that_cannot_be_read_are_none(tmp_path: Path, record: str) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    (run_dir / "params" / "launch.yaml").write_text(record)
    assert read_recorded(run_dir, "run") == {}


def test_a_pipe_in_the_place_of_a_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name in ("best.json", "code/task.py"):
        os.mkfifo(tmp_path / name)
    assert read_best(tmp_path) is None
    assert list_code_changes(tmp_path, {"task.py": __file__}) == []


def test_a_link_to_nothing_in_the_place_of_a_record_is_replaced(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    (run_dir / "params" / "env.yaml").symlink_to("gone.yaml")
    save_params(run_dir, env={"a": 1}, launch={"task": "x"})
    assert load_params(run_dir, "env") == {"a": 1}
    assert [path.name for path in run_dir.glob("params/previous/*/*")] == ["launch.yaml"]


def test_a_record_without_a_task_is_a_line(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    (run_dir / "params" / "launch.yaml").write_text("a: 1\n")
    with pytest.raises(RequestError, match=r"launch\.yaml: names no task; it is not what a training records$"):
        read_run(run_dir)


def test_settings_by_a_number_are_a_line(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    for name in ("env", "agent"):
        (run_dir / "params" / f"{name}.yaml").write_text("1: 2")
    with pytest.raises(RequestError, match=r"/params: EnvConfig has 1, which this version of mjtrain does not know$"):
        read_run(run_dir)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("actor", {"hidden_dims": 7}, "agent.actor.hidden-dims: is the number 7; give a tuple"),
        ("obs_groups", "x", "agent.obs-groups: is the string 'x'; give a dict by name"),
    ],
)
def test_settings_of_another_type_are_a_line(tmp_path: Path, name: str, value: object, words: str) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    task = load_task("Cartpole-Balance")
    save_params(run_dir, env=to_plain(task.env), agent={**to_plain(task.agent), name: value})
    with pytest.raises(RequestError, match=f"^{run_dir}/params: {words}"):
        read_run(run_dir)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty$"),
        (b"\xff\xfe\xfa", "is not valid YAML"),
        (b"rsl_rl", "holds a str, not settings by their names$"),
        (b"nam: rsl_rl", "LearnerConfig has nam, which this version of mjtrain does not know$"),
    ],
)
def test_a_damaged_record_of_the_learner_is_a_line(tmp_path: Path, content: bytes, words: str) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    task = load_task("Cartpole-Balance")
    save_params(run_dir, env=to_plain(task.env), agent=to_plain(task.agent))
    (run_dir / "params" / "learner.yaml").write_bytes(content)
    with pytest.raises(RequestError, match=f"^{run_dir}/params/learner.yaml: {words}"):
        read_run(run_dir)


def test_no_text_of_a_run_controls_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00_\x1b[31mred")
    end = {"event": "end", "how": "failed", "cause": "\x1b]0;title\x07 \u202edesrever"}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(end) + "\n")
    runs.main(["--log-root", str(tmp_path)])
    text = capsys.readouterr().out
    assert "\\x1b[31mred" in text
    assert "failed: \\x1b]0;title\\x07 \\u202edesrever" in text
    assert text.replace("\n", "").isprintable()
    assert summarise_run(run_dir).detail == end["cause"]


def test_runs_are_sorted_by_when_they_were_started(tmp_path: Path) -> None:
    """The first two in the hour of autumn that comes twice, the third on a host in another time zone."""
    first = make_run(tmp_path / "a" / "2026-10-25_02-50-00", started="2026-10-25T02:50:00+02:00")
    second = make_run(tmp_path / "a" / "2026-10-25_02-10-00", started="2026-10-25T02:10:00+01:00")
    third = make_run(tmp_path / "a" / "2026-10-24_19-00-00", started="2026-10-24T19:00:00-07:00")
    resumed = make_run(tmp_path / "a" / "2026-10-01_00-00-00", started="2026-12-01T00:00:00+01:00")
    (resumed / "params" / "previous" / "x").mkdir(parents=True)
    (resumed / "params" / "previous" / "x" / "launch.yaml").write_text("started: '2026-10-01T00:00:00+02:00'\n")
    assert list(find_runs(RunSearch.for_task("Cartpole-Balance", tmp_path))) == [third, second, first, resumed]
    assert [run.run_dir for run in list_runs(tmp_path)] == [third, second, first, resumed]


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "2026-01-01_00-00-00")
    search = RunSearch.for_task("Cartpole-Balance", tmp_path)
    for name in ("*", "2026-01-01_00-00-0?", "[2]026-01-01_00-00-00"):
        with pytest.raises(RequestError, match="no such run directory"):
            open_run("--run", name, search)

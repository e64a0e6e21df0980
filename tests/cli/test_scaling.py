"""The command scaling, with real trainings."""

import json
import os
import signal
import statistics
from pathlib import Path

import pytest

import mjtrain
from mjtrain.cli.scaling import main
from mjtrain.runs.run import Rows, parse_metrics
from mjtrain.runtime import files
from mjtrain.runtime.processes import list_descendants
from mjtrain.tools.scaling import _summarise
from support.commands import BIN, run, start
from support.machine import patience, read_proc, wait_until
from support.students import write_student_task


def test_a_table_a_file_and_a_picture(tmp_path: Path) -> None:
    command = [
        "Cartpole-Balance",
        "--ranks",
        "1",
        "2",
        "--num-envs",
        "64",
        "--max-iterations",
        "8",
        "--out",
        str(tmp_path),
    ]
    done = run([BIN / "scaling", *command, "--", "--seed", "4"])
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| weak", "| strong"))]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| weak", "1", "64"],
        ["| weak", "2", "64"],
        ["| strong", "1", "64"],
        ["| strong", "2", "32"],
    ]
    assert (tmp_path / "scaling.md").read_text().strip() == done.stdout.strip()
    points = json.loads((tmp_path / "scaling.json").read_text())
    assert [point["num_envs_per_rank"] for point in points] == [64, 64, 64, 32]
    for point in points:
        parts = point["collect_s"] + point["learn_s"] + point["wait_s"]
        assert point["iteration_s"] == pytest.approx(parts)
        assert point["env_steps_per_second"] > 0
        metrics = {"mean_reward", "loss/value", "loss/surrogate", "loss/entropy"}
        assert {name: len(values) for name, values in point["curves"].items()} == dict.fromkeys(
            {*metrics, "wall-time", "env-steps"}, 8
        )
        total = 24 * point["num_ranks"] * point["num_envs_per_rank"]
        assert point["curves"]["env-steps"] == [total * count for count in range(1, 9)]
        assert point["curves"]["wall-time"][0] > 0.0
    assert [point["efficiency"] for point in points[::2]] == [1.0, 1.0]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    seeds = {path.read_text().count("seed: 4\n") for path in tmp_path.rglob("launch.yaml")}
    assert 0 not in seeds


def test_a_full_disk_costs_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trainings are done by then: the table is printed, and the error is one line."""
    files.full.add(tmp_path / "scaling.json")
    sizes = ["--ranks", "1", "--mode", "weak", "--num-envs", "4", "--max-iterations", "2", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", *sizes])
    assert stop.value.code == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("| weak | 1 | 4 |")
    assert said.err == f"scaling: --out {tmp_path}: cannot be written (No space left on device)\n"
    assert (tmp_path / "scaling.md").read_text().splitlines() == said.out.splitlines()[-3:]


def test_a_folder_in_the_place_of_a_result_is_refused_before_the_trainings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scaling.md").mkdir()
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"scaling: --out {tmp_path}: its scaling.md is not a regular file; remove it, or give another folder\n"
    )


def _is_alive(pid: int) -> bool:
    return read_proc(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def test_a_signal_ends_its_trainings(tmp_path: Path) -> None:
    """What a module in the current folder is called does not matter to them."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    sizes = ["--num-envs", "8", "--max-iterations", "1000000", "--out", str(tmp_path / "out")]
    command = [BIN / "scaling", "Cartpole-Balance", "--mode", "apart", "--ranks", "2", *sizes]
    with (tmp_path / "console.txt").open("wb") as console:
        job = start(command, cwd=tmp_path, environ=os.environ, stdout=console, stderr=console)
    try:
        metrics = "out/*/*/*/*/metrics.jsonl"
        wait_until(lambda: len(list(tmp_path.glob(metrics))) == 2 or job.poll() is not None, "both train")
        trainings = list_descendants(job.pid)
        assert len(trainings) >= 2, (tmp_path / "console.txt").read_text()
        job.send_signal(signal.SIGTERM)
        assert job.wait(patience(60)) == 128 + signal.SIGTERM
    finally:
        job.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(_is_alive, trainings)), "the trainings and what they had started are gone")


def test_trainings_apart_add_up(tmp_path: Path) -> None:
    sizes = ["--num-envs", "64", "--max-iterations", "8", "--out", str(tmp_path)]
    done = run([BIN / "scaling", "Cartpole-Balance", "--mode", "apart", *sizes])
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[:3] for line in done.stdout.splitlines() if line.startswith("| apart")]
    assert rows == [["| apart", "1", "64"], ["| apart", "2", "64"]]
    alone, both = json.loads((tmp_path / "scaling.json").read_text())
    speeds = [
        statistics.median(row["env_steps_per_second"] for row in parse_metrics(path.read_text().splitlines())[0][5:])
        for path in tmp_path.glob("2_jobs_of_1_x_64/*/*/*/metrics.jsonl")
    ]
    assert len(speeds) == 2
    assert both["env_steps_per_second"] == pytest.approx(sum(speeds))
    assert both["efficiency"] == pytest.approx(sum(speeds) / (2 * alone["env_steps_per_second"]))
    assert both["wait_s"] == 0.0


def test_the_runs_of_a_student_are_compared_without_that_of_its_teacher(tmp_path: Path) -> None:
    student, teacher = write_student_task(tmp_path)
    sizes = ["--num-envs", "8", "--max-iterations", "2", "--out", "out"]
    command = [BIN / "scaling", student, "--mode", "apart", "--ranks", "1", *sizes]
    done = run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert f"below logs is finished, and scaling does not train it; run `mjtrain train {teacher}` first" in done.stderr
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    mjtrain.train(teacher, launch=launch, logger="none", log_root=str(tmp_path / "logs"))
    done = run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (metrics,) = (tmp_path / "out").glob("*/*/*/*/metrics.jsonl")
    (point,) = json.loads((tmp_path / "out" / "scaling.json").read_text())
    speeds = [row["env_steps_per_second"] for row in parse_metrics(metrics.read_text().splitlines())[0]]
    assert (point["env_steps_per_second"], point["num_envs_per_rank"]) == (speeds[-1], 8)


def test_the_times_of_trainings_apart_are_means_over_them() -> None:
    def rows(time_s: float) -> Rows:
        times = {"collect_time_s": 2 * time_s, "learn_time_s": time_s, "wait_time_s": 0.0}
        sizes = {"env_steps_per_second": 48 / time_s, "num_envs_total": 16}
        return [{"iteration": count, "env_steps_total": 144 * count, **times, **sizes} for count in range(1, 9)]

    for jobs in ([rows(1.0), rows(4.0)], [rows(4.0), rows(1.0)]):
        point = _summarise("apart", 2, jobs, 48.0)
        assert (point.iteration_s, point.collect_s, point.learn_s, point.wait_s) == (7.5, 5.0, 2.5, 0.0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--ranks 1", "the task comes first"),
        ("Cartpole-Balence", "did you mean Cartpole-Balance"),
        ("Cartpole-Balance --ranks 0 1", "--ranks 0 1: give numbers from 1 up"),
        ("Cartpole-Balance --ranks 1 -1 --ranks 2", "--ranks 1 -1 2: give numbers from 1 up"),
        ("Cartpole-Balance --ranks", "--ranks: give numbers from 1 up"),
        ("Cartpole-Balance --mode", "--mode: give some of weak, strong, apart"),
        ("Cartpole-Balance --num-envs -2", "--num-envs -2: must be at least 1"),
        ("Cartpole-Balance --ranks 1 3 --num-envs 64 --mode strong", "cannot split it over 3 ranks"),
        ("Cartpole-Balance --ranks 3 --num-envs 64 --mode strong --mode weak", "cannot split it over 3 ranks"),
        ("Cartpole-Balance -- --num-envs 3", "-- --num-envs: is decided by scaling"),
        ("Cartpole-Balance -- --num-envs=3", "-- --num-envs: is decided by scaling"),
        ("Cartpole-Balance -- --num-envs-total 9", "-- --num-envs-total: is decided by scaling"),
        ("Cartpole-Balance -- --total-env-steps 9", "-- --total-env-steps: is decided by scaling"),
        ("Cartpole-Balance -- --resume auto", "-- --resume: is decided by scaling"),
        ("Cartpole-Balance -- --max_iterations 3", "-- --max-iterations: is decided by scaling"),
        ("Cartpole-Balance --mode sideways", "--mode sideways: choose from weak, strong, apart"),
        ("Cartpole-Balance --ranks 1 --max-iterations 0", "--max-iterations 0: must be at least 1"),
    ],
)
def test_one_line_and_status_2(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("scaling: ")
    assert words in line

"""The command motion."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mjtrain
from mjtrain.cli.main import main
from mjtrain.motion.edit import cut
from mjtrain.motion.files import read_motion, write_motion
from mjtrain_tasks.models import CARTPOLE, HUMANOID, QUADRUPED
from mjtrain_tasks.quadruped_track import CLIPS, make_env, make_task

PAW = str(CLIPS / "paw.npz")
TASK = ("--task", "mjtrain_tasks.quadruped_velocity:make_flat")


def run(*args: str) -> None:
    main(["motion", *args])


def test_convert_and_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.npz")
    run("convert", PAW, out, *TASK, "--mirror", "--end-s", "3", "--blend-s", "0.5", "--cycles", "2", "--to", "mjlab")
    assert "301 frames, 6.00 s" in capsys.readouterr().out
    with np.load(out) as file:
        assert file["body_pos_w"].shape == (301, 17, 3)
    run("info", out, "--robot", str(QUADRUPED), "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["fps"]) == (301, 50)
    assert report["limit_overrun"] == 0
    assert report["lowest_m"] == pytest.approx(0, abs=2e-3)
    run("info", PAW)
    assert "--task" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("bend",), "bend"),
        (("info",), "FILE"),
        (("convert", PAW), "IN OUT"),
        (("info", "none.npz"), "none.npz"),
        (("info", PAW, "--robot", str(CARTPOLE)), "free joint"),
        (("info", PAW, *TASK, "--robot", str(QUADRUPED)), "--robot"),
        (("convert", PAW, "out.csv"), "out.csv"),
        (("convert", PAW, "out.npz", "--to", "mjlab"), "robot"),
        (("convert", PAW, "out.npz", "--to", "isaac"), "--to isaac"),
        (("convert", PAW, "out.npz", "--mirror"), "--task"),
        (
            ("convert", PAW, "out.npz", "--mirror", "--robot", str(QUADRUPED)),
            "motion: --mirror: robot.mirror: the robot is not its own mirror image (plane y): joint FR_hip is not "
            "where the image of joint FR_hip is in the default pose; only a task sets it: give --task",
        ),
        (("convert", PAW, "out.npz", "--retarget"), "--task"),
        (("convert", PAW, "out.npz", "--retarget", "--robot", str(HUMANOID)), "FR_hip"),
        (
            ("convert", PAW, "out.npz", "--start-s", "5"),
            "motion: --start-s, --end-s: from 5 s to 3.7 s: must be",
        ),
        (("convert", PAW, "out.npz", "--fps", "1"), "motion: --fps: 1 frames per second"),
        (("convert", PAW, "out.npz", "--cycles", "0"), "motion: --cycles: 0 cycles"),
        (("convert", PAW, "out.npz", "--blend-s", "9"), "motion: --blend-s: a seam of 9 s"),
        (("convert", PAW, "out.npz", "--lift-m", "nan"), "would not be valid: root_pos is not finite"),
        (("record", "Quadruped-Track", "out.npz", "--values", "1", "0"), "--values 1 0: needs --command"),
        (("record", "Quadruped-Track", "out.csv"), "out.csv: motions are written as NPZ"),
        (
            ("record", "Quadruped-Track", "nowhere/out.npz"),
            "nowhere/out.npz: the folder nowhere does not",
        ),
        (
            ("convert", PAW, "out.npz", "--input-fps", "30"),
            "paw.npz: says its frame rate, so --input-fps 30 has no effect; leave it out",
        ),
        (("play", PAW), "--robot"),
        (
            ("play", PAW, "--robot", str(QUADRUPED), "--viewer", "native", "--viewer-port", "9000"),
            "motion: --viewer-port 9000: needs --viewer web",
        ),
        (("play", PAW, "--viewer", "gl"), "--viewer gl"),
    ],
)
def test_requests_that_cannot_work(
    args: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(*args)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short_trial")
def test_weights_of_clips_are_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """A tuple that is empty by default."""
    flags = ("train", "Quadruped-Track", "--gpu-ids", "None", "--num-envs", "4", "--dry-run")
    weights = ("--motion", str(CLIPS), "--env.commands.motion.params.clip-weights")
    main([*flags, *weights, "1", "0.5", "0", "2"])
    with pytest.raises(SystemExit) as ended:
        main([*flags, *weights, "1", "2"])
    assert ended.value.code == 2
    assert "clip_weights 1 2: must be one for each of the 4 clips" in capsys.readouterr().err


@pytest.mark.usefixtures("short_trial")
def test_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    write_motion(tmp_path / "short.npz", cut(read_motion(CLIPS / "trot.npz"), end_s=0.4))
    task = replace(make_task(), env=make_env(tmp_path / "short.npz"))
    trained = mjtrain.train(task, launch=launch, log_root=str(tmp_path), num_envs=4, max_iterations=1)
    out = tmp_path / "out.npz"
    run("record", str(trained.run_dir), str(out), "--settle-s", "0", "--length-s", "0.2")
    motion = read_motion(out)
    assert (motion.num_frames, motion.fps) == (11, 50)
    assert motion.root_pos[0, :2] == pytest.approx([0, 0])
    capsys.readouterr()
    for args, says in (
        (("--command", "motion"), "--command motion"),
        (("--length-s", "60"), "an episode lasts 10 s"),
        (("--length-s", "0"), "--length-s 0"),
        (("--settle-s", "5"), "the episode ends after 0.40 s, because it has a time limit: shorten --settle-s or"),
    ):
        with pytest.raises(SystemExit):
            run("record", str(trained.run_dir), str(out), *args)
        assert says in capsys.readouterr().err


def test_a_task_does_not_take_a_csv_file_and_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """train has no --input-fps."""
    monkeypatch.chdir(tmp_path)
    Path("walk.csv").write_text("0,0,0.3,0,0,0,1" + ",0" * 12 + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["train", "Quadruped-Track", "--motion", "walk.csv", "--gpu-ids", "None", "--num-envs", "4", "--dry-run"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "--env.commands.motion: walk.csv: a CSV file has no frame rate; give --input-fps" in message
    assert "or to a task the NPZ that `mjtrain motion convert` makes of it" in message

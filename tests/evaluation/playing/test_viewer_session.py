"""A world that broke is described, and can be looked at again."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mjtrain
from mjtrain.cli.play import main
from mjtrain.config import LaunchConfig, RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.evaluation.playing.viewer_session import ReplaySession, load_dump
from mjtrain.evaluation.playing.web_viewer import WebViewer
from mjtrain.runtime.errors import RequestError
from support.machine import patience
from support.scenes import HANGING


def write_dump(folder: Path, **changes: object) -> Path:
    """Write what the NaN guard would: ten env steps of a cart, of which the last is not finite."""
    qpos, qvel = np.zeros((10, 2)), np.zeros((10, 2))
    qpos[:, 1] = np.linspace(0.0, 0.9, 10)
    qvel[:, 1] = 5.0
    qvel[4, 0] = -40.0
    qvel[-1, 1] = np.nan
    content: dict[str, object] = {"qpos": qpos, "qvel": qvel, "act": np.zeros((10, 0)), "ctrl": np.ones((10, 1))}
    content |= {"step_dt": 0.02, "world": 7, "robot": "cartpole.xml"}
    path = folder / "iteration_3_rank_0_world_7.npz"
    np.savez(path, allow_pickle=False, **{**content, **changes})  # pyright: ignore[reportArgumentType]
    return path


def test_a_dump_is_described_without_a_viewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["Cartpole-Balance", "--replay", str(write_dump(tmp_path))])
    text = capsys.readouterr().out
    assert "world 7" in text
    assert "10 env steps of 0.02 s, finite until 0.16 s" in text
    assert "not finite then: qvel of hinge" in text
    assert "fastest before: slider, 40 at 0.08 s" in text


def test_a_dump_plays_its_finite_steps_in_a_circle(tmp_path: Path) -> None:
    session = ReplaySession(load_dump(write_dump(tmp_path)), load_task("Cartpole-Balance").env)
    assert session.num_frames == 9
    angles = []
    for _ in range(10):
        angles.append(session.state("qpos")[0, 1])
        session.tick(0.02001)
    assert angles == pytest.approx([*np.linspace(0.0, 0.8, 9), 0.0])
    session.go_to(4)
    assert not session.tick(1.0)
    assert session.frame == 4
    assert session.state("qvel")[0, 0] == -40.0
    session.reset()
    assert session.frame == 0


def test_a_viewer_that_is_paused_does_not_hang(tmp_path: Path) -> None:
    """Its stack is almost always that of the sleep between two ticks."""
    session = ReplaySession(load_dump(write_dump(tmp_path)), load_task("Cartpole-Balance").env)
    session.toggle()
    limit_s = patience(0.2)

    def view(context: mjtrain.RankContext) -> str:
        end_s = time.monotonic() + 2 * limit_s
        viewer = WebViewer(session, host="127.0.0.1", port=0)
        viewer.run(lambda: time.monotonic() > end_s)
        return "closed"

    assert mjtrain.launch(view, launch=LaunchConfig(gpu_ids=None, heartbeat_timeout_s=limit_s)) == "closed"


def test_a_dump_is_served_to_browsers(tmp_path: Path) -> None:
    session = ReplaySession(load_dump(write_dump(tmp_path)), load_task("Cartpole-Balance").env)
    viewer = WebViewer(session, host="127.0.0.1", port=0)
    deadline = time.monotonic() + patience(30)
    frames = set()

    def seen_all() -> bool:
        assert time.monotonic() < deadline
        frames.add(session.frame)
        return len(frames) == 9

    viewer.run(seen_all)
    assert frames == set(range(9))


def test_the_page_follows_the_robot_and_not_an_object_before_it(tmp_path: Path) -> None:
    bodies = (
        '<body><freejoint/><geom size="0.1"/></body><body name="robot"><freejoint/><geom size="0.1"/>'
        '<body><joint/><geom size="0.1" pos="0.1 0 0"/></body></body>'
    )
    robot = tmp_path / "robot.xml"
    robot.write_text(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    env = replace(load_task("Cartpole-Balance").env, robot=RobotConfig(file=str(robot)))
    states = {"qpos": np.zeros((10, 15)), "qvel": np.zeros((10, 13)), "ctrl": np.zeros((10, 0))}
    session = ReplaySession(load_dump(write_dump(tmp_path, **states)), env)
    viewer = WebViewer(session, host="127.0.0.1", port=0)
    try:
        assert viewer._scene.camera_tracking_enabled
        assert viewer._scene._tracked_body_id == session.kinematics.model.body("robot").id
    finally:
        viewer._server.stop()


def test_the_page_has_mocap_bodies_where_keyframe_home_has_them(tmp_path: Path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_text(HANGING)
    env = replace(load_task("Cartpole-Balance").env, robot=RobotConfig(file=str(robot)))
    states = {"qpos": np.zeros((10, 1)), "qvel": np.zeros((10, 1)), "ctrl": np.zeros((10, 0))}
    viewer = WebViewer(ReplaySession(load_dump(write_dump(tmp_path, **states)), env), host="127.0.0.1", port=0)
    try:
        viewer._draw()
        (crane,) = (group.handle for group in viewer._scene._mesh_groups if group.mocap_ids is not None)
        assert crane.batched_positions[0] == pytest.approx([0.0, 0.0, 2.0])
        assert crane.batched_wxyzs[0] == pytest.approx([0.8, 0.0, 0.0, 0.6])
    finally:
        viewer._server.stop()


def test_what_is_no_dump_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.npz"
    text.write_text("nothing")
    other, short, flat = (tmp_path / name for name in ("other", "short", "flat"))
    for folder in (other, short, flat):
        folder.mkdir()
    whole = write_dump(other).read_bytes()
    half, changed, array = tmp_path / "half.npz", tmp_path / "changed.npz", tmp_path / "array.npy"
    half.write_bytes(whole[: len(whole) // 2])
    at = whole.index(b"NUMPY") + 200  # in the numbers of the first array
    changed.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    np.save(array, np.zeros(3))
    encrypted = bytearray(whole)
    encrypted[6] |= 1  # a flag of the first member, and of its entry in the list at the end
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "encrypted.npz").write_bytes(encrypted)
    for task, file, message in (
        ("Cartpole-Balance", tmp_path / "gone.npz", "no such file"),
        ("Cartpole-Balance", text, "not a NaN dump"),
        ("Cartpole-Balance", half, "not a NaN dump"),
        ("Cartpole-Balance", changed, "not a NaN dump"),
        ("Cartpole-Balance", array, "not a NaN dump"),
        ("Cartpole-Balance", tmp_path / "encrypted.npz", "not a NaN dump"),
        ("Cartpole-Balance", write_dump(short, qvel=np.zeros((9, 2))), "not a NaN dump"),
        ("Cartpole-Balance", write_dump(flat, ctrl=np.zeros(10)), "not a NaN dump"),
        ("Arm-Reach", write_dump(tmp_path), "has 2 positions and the robot 6"),
        ("Cartpole-Balance", write_dump(other, qpos=np.full((10, 2), np.nan)), "has no env step that is finite"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([task, "--replay", str(file)])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    with pytest.raises(RequestError, match="no such file"):
        load_dump(tmp_path / "gone.npz")

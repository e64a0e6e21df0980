"""What a robot should do, beside what it does: seen by people only, started from, and counted by time."""

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.config import CameraConfig, EnvConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.episodes import play_episodes
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.followed import FailuresByBin, find_followed
from mjtrain.evaluation.playing.native_viewer import _ghost_actions
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.evaluation.playing.web_viewer import WebViewer
from mjtrain.evaluation.recorder import make_recorder
from mjtrain.evaluation.summary_table import print_summary
from mjtrain.mdp.reference import reference_of
from mjtrain.motion.edit import cut
from mjtrain.motion.files import read_motion, write_motion
from mjtrain.runs.trained_run import TrainedRun, make_untrained_run
from mjtrain.sim.drawing.backend import drawing_environ
from mjtrain.sim.drawing.renderer import VideoRenderer
from mjtrain.sim.drawing.scene import GHOST_COLOR, GhostGeoms, list_ghost_geoms, list_visible
from mjtrain.sim.drawing.video import Clip
from mjtrain.sim.robots.robot import save_model
from mjtrain_tasks.quadruped_track import CLIPS, make_env, make_task
from support.machine import patience
from support.videos import decode, needs_drawing

FRAMES_PER_BIN = 50
TROT_FRAMES = 201
NUM_BINS = 2
"""Of a clip that is cut after 2 s; the tests that count failures take as long as their clips."""


def write_clip(folder: Path, name: str, end_s: float, clip: str = "trot") -> Path:
    """Write the first seconds of a clip of the task."""
    write_motion(folder / f"{name}.npz", cut(read_motion(CLIPS / f"{clip}.npz"), end_s=end_s))
    return folder / f"{name}.npz"


def make_session(num_envs: int = 3, env: EnvConfig | None = None, policy: str = "random") -> PolicySession:
    run = make_untrained_run("Quadruped-Track")
    run = replace(run, env=to_eval_config(run.own_env) if env is None else env)
    return PolicySession(Player(mjtrain.RankContext(seed=4), run, num_envs=num_envs, policy=policy))


def test_it_is_the_robot_in_the_frame_of_the_world() -> None:
    session = make_session()
    env, ghost, model = session.player.env, session.ghost, session.kinematics.model
    assert ghost is not None
    session.select(1)
    for _ in range(5):
        session.step()
    frame = int(env.command("motion")[1, 0])
    assert ghost.frame(1) == frame == 5
    reference = reference_of(env, "motion")
    qpos = ghost.qpos(1)
    assert qpos is not None
    scene = mujoco.MjvScene(model, 100)
    geoms = GhostGeoms(model)
    geoms.add(scene, reference.qpos[0].numpy())
    scene.ngeom = 1  # as if the viewer had drawn something before
    geoms.add(scene, qpos)
    added = [scene.geoms[index] for index in range(1, scene.ngeom)]
    robot = [geom for geom in list_visible(model) if model.geom_bodyid[geom]]
    assert [geom.objid for geom in added] == robot, "without the ground"
    for geom in added:
        assert geom.rgba == pytest.approx(GHOST_COLOR)
        body = int(model.geom_bodyid[geom.objid])
        where = reference.bodies.positions[frame, reference.row_list.index(body)]
        assert np.linalg.norm(geom.pos - where.numpy()) == pytest.approx(
            np.linalg.norm(model.geom_pos[geom.objid]), abs=1e-5
        ), "as far from the body's place in this frame as in the model"
    assert (env.bodies.positions[1, 1] - reference.bodies.positions[frame, 0]).norm() < 0.2, "where the robot should be"
    assert "reference trot: 0.10 s, frame 5, the last is 200" in session.status()
    ghost.is_shown = False
    assert ghost.qpos(1) is None


def test_other_free_objects_have_no_ghost() -> None:
    model = PolicySession(
        Player(mjtrain.RankContext(), make_untrained_run("Hand-Reorient-Cube"), policy="zero")
    ).kinematics.model
    cube = int(model.joint("cube").bodyid[0])
    assert list(list_ghost_geoms(model)) == [cube], "the hand does not move freely, so the cube is the first"


def test_a_task_that_follows_nothing_has_none() -> None:
    player = Player(mjtrain.RankContext(), make_untrained_run("Cartpole-Balance"), policy="zero")
    session = PolicySession(player)
    assert session.ghost is None
    assert find_followed(player.env) is None
    session.step()
    session.reset()
    assert make_recorder(player.env, 0.1)._ghost is None


def test_nothing_that_the_policy_sees_depends_on_it() -> None:
    camera = CameraConfig(streams=("rgb", "depth", "segmentation"), classes={"robot": ("trunk",)})
    config = replace(to_eval_config(make_env()), cameras={"follow": camera})
    with_ghost, without = make_session(2, config), make_session(2, config)
    assert with_ghost.ghost is not None
    assert without.ghost is not None
    without.ghost.is_shown = False
    geoms = GhostGeoms(with_ghost.kinematics.model)
    scene = mujoco.MjvScene(with_ghost.kinematics.model, 1000)
    recorder = make_recorder(with_ghost.player.env, 0.2)
    recorder.begin(0)
    for step in range(8):
        for session in (with_ghost, without):
            session.step()
        with_ghost.go_to(10 * step)
        qpos = with_ghost.ghost.qpos(0)
        assert qpos is not None
        geoms.add(scene, qpos)
        recorder.after_step()
    assert scene.ngeom == 8 * 21
    assert with_ghost.images().keys() == without.images().keys()
    assert len(with_ghost.images()) == 3
    for stream, image in with_ghost.images().items():
        assert len(np.unique(image)) > 1, "the camera sees the robot"
        assert np.array_equal(image, without.images()[stream])
    ours, theirs = with_ghost.player.env, without.player.env
    for group, seen in ours.observe().items():
        assert torch.equal(seen, theirs.observe()[group])
    states = [env.state_dict() for env in (ours, theirs)]
    assert torch.equal(states[0]["rng"], states[1]["rng"])
    for part in ("buffers", "seen"):
        for name, tensor in states[0][part].items():
            assert torch.equal(tensor, states[1][part][name]), name
    for field in ("qpos", "qvel", "ctrl", "sensordata"):
        assert torch.equal(getattr(ours.state, field), getattr(theirs.state, field)), field


def test_an_episode_of_one_world_starts_in_the_chosen_frame() -> None:
    session = make_session()
    env, ghost = session.player.env, session.ghost
    assert ghost is not None
    for _ in range(4):
        session.step()
    session.select(1)
    session.go_to(70)
    assert session.paused
    assert (ghost.frame(1), int(env.command("motion")[1, 0])) == (70, 4), "only the ghost is there"
    others = [0, 2]
    before = {
        name: tensor[others].clone()
        for name, tensor in env.state_dict()["buffers"].items()
        if tensor.shape[:1] == (3,) and "running" not in name
    }
    state = env.state.qpos[others].clone(), env.state.qvel[others].clone()
    session.paused = False
    session.start_here()
    assert session.paused
    assert env.command("motion")[1].tolist() == [70.0, 1.0]
    assert env.episode_step.tolist() == [4, 0, 4]
    assert env.command_error("motion", "mpkpe")[1] < 0.06, "the robot is in this frame, with the noise of starts"
    for name, tensor in before.items():
        assert torch.equal(tensor, env.state_dict()["buffers"][name][others]), name
    assert torch.equal(env.state.qpos[others], state[0])
    assert torch.equal(env.state.qvel[others], state[1])
    session.step()
    assert (ghost.frame(1), ghost.frame(0)) == (71, 5), "it follows the world again"
    session.reset()
    assert env.command("motion")[:, 0].tolist() == [0.0] * 3, "later episodes start where evaluations do"


def test_keys_of_the_window_choose_the_frame() -> None:
    session = make_session(1)
    ghost, actions = session.ghost, list(_ghost_actions(session).values())
    assert ghost is not None
    back, ahead, switch, start = actions
    ahead()
    ahead()
    assert (ghost.frame(0), session.paused) == (10, True)
    back()
    start()
    assert int(session.player.env.command("motion")[0, 0]) == 5
    for _ in range(40):
        ahead()
    assert ghost.frame(0) == TROT_FRAMES - 1
    for _ in range(40):
        back()
    assert ghost.frame(0) == 0
    switch()
    assert ghost.qpos(0) is None


def test_the_page_shows_it_at_its_place() -> None:
    session = make_session(2)
    env, ghost = session.player.env, session.ghost
    assert ghost is not None
    viewer = WebViewer(session, host="127.0.0.1", port=0)
    try:
        session.go_to(40)
        viewer._draw()
        reference = reference_of(env, "motion")
        assert sorted(viewer._ghost) == sorted(reference.row_list)
        for body, handle in viewer._ghost.items():
            place = reference.bodies.positions[40, reference.row_list.index(body)]
            assert handle.position == pytest.approx(place.numpy(), abs=1e-5)
            assert handle.visible
            assert handle.opacity == GHOST_COLOR[3]
        ghost.is_shown = False
        viewer._draw()
        assert not any(handle.visible for handle in viewer._ghost.values())
    finally:
        viewer._server.stop()


@needs_drawing
def test_videos_show_it(tmp_path: Path) -> None:
    session = make_session(1)
    env = session.player.env
    recorder = make_recorder(env, 0.2)
    recorder.begin(0)
    frames = []
    for _ in range(10):
        session.step()
        recorder.after_step()
        frames.append(int(env.command("motion")[0, 0]))
    clip = recorder.take()
    assert clip.ghost is not None
    assert np.array_equal(clip.ghost, reference_of(env, "motion").qpos[frames[::2]].numpy())
    save_model(env.config, tmp_path / "model.mjb")
    with pytest.raises(OSError, match="No space left"):
        save_model(env.config, Path("/dev/full"))
    renderer = VideoRenderer(tmp_path / "model.mjb", drawing_environ("cpu", {}), hurry=True)
    aside = clip.ghost + np.eye(1, clip.ghost.shape[1], 1, dtype=np.float32)
    try:
        for name, shown in (("without", None), ("with", aside)):
            changed = Clip(qpos=clip.qpos, fps=clip.fps, iteration=0, ghost=shown)
            renderer.submit(changed, tmp_path / f"{name}.mp4", gif=False, size=(160, 120), shadows=False)
        renderer.finish(patience(60))
    finally:
        renderer.close()
    without, shown = decode(tmp_path / "without.mp4"), decode(tmp_path / "with.mp4")
    assert without.shape == shown.shape
    assert ((np.abs(without - shown).max(axis=3) > 25).sum(axis=(1, 2)) > 50).all()


def test_failures_and_errors_are_counted_where_they_happen(tmp_path: Path) -> None:
    config = to_eval_config(make_env(write_clip(tmp_path, "trot", 2.0)))
    command = config.commands["motion"]
    config = replace(config, commands={"motion": command.replace(params={**command.params, "sampling": "uniform"})})
    run = replace(make_untrained_run("Quadruped-Track"), env=config)
    player = make_player(run)
    followed = find_followed(player.env)
    assert followed is not None
    counts = FailuresByBin(player.env, followed)
    episodes = play_episodes(player, 2, by_bin=counts)
    rows = counts.to_plain()

    twin = make_player(run)
    env: Env = twin.env
    env.reset(torch.ones(16, dtype=torch.bool))
    left, entered = [2] * 16, [set() for _ in range(16)]
    visits, failures, errors = [0] * NUM_BINS, [0] * NUM_BINS, [[] for _ in range(NUM_BINS)]
    while any(left):
        bins = [min(int(frame) // FRAMES_PER_BIN, NUM_BINS - 1) for frame in env.command("motion")[:, 0]]
        missed = env.command_error("motion", "mpkpe").tolist()
        for world in range(16):
            if left[world]:
                visits[bins[world]] += bins[world] not in entered[world]
                entered[world].add(bins[world])
                errors[bins[world]] += [missed[world]] if env.episode_step[world] > 0 else []
        _, _, terminated, truncated = env.step(twin.act())
        for world in (terminated | truncated).nonzero()[:, 0].tolist():
            failures[bins[world]] += bool(left[world] and terminated[world])
            left[world] = max(left[world] - 1, 0)
            entered[world].clear()
    assert [(row["clip"], row["begin_s"], row["end_s"]) for row in rows] == [
        ("trot", pytest.approx(begin), pytest.approx(begin + 1)) for begin in range(NUM_BINS)
    ]
    assert [row["episodes"] for row in rows] == visits
    assert [row["failed"] for row in rows] == failures
    assert min(failures) > 0
    for row, values in zip(rows, errors, strict=True):
        assert row["errors"]["mpkpe"] == pytest.approx(np.mean(values), rel=1e-5)
        assert row["errors"].keys() == command.errors.keys()
    assert sum(failures) == sum(episode.causes[0] != "clip_ended" for episode in episodes)


def test_a_clip_that_has_ended_is_not_followed_by_the_next_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_clip(tmp_path, name, 1.0)
    config = to_eval_config(make_env(tmp_path))
    command, time_out = config.commands["motion"], config.terminations["time_out"]
    command = command.replace(params={**command.params, "sampling": "start", "clip_weights": (1.0, 0.0)})
    config = replace(config, episode_length_s=1.2, terminations={"time_out": time_out}, commands={"motion": command})
    player = Player(
        mjtrain.RankContext(), replace(make_untrained_run("Quadruped-Track"), env=config), num_envs=2, policy="zero"
    )
    followed = find_followed(player.env)
    assert followed is not None
    counts = FailuresByBin(player.env, followed)
    assert [episode.length for episode in play_episodes(player, 1, by_bin=counts)] == [60, 60]
    assert [(row["clip"], row["begin_s"], row["episodes"]) for row in counts.to_plain()] == [("a", 0.0, 2)]


def make_player(run: TrainedRun) -> Player:
    return Player(mjtrain.RankContext(seed=8), run, num_envs=16, policy="random")


def test_play_prints_a_row_for_each_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = replace(make_task(), env=make_env(write_clip(tmp_path, "bow", 2.0, "bow")))
    report = mjtrain.play(task, policy="zero", episodes=4)
    (row,) = report["by_time"][:1]
    assert (row["clip"], row["begin_s"], row["episodes"]) == ("bow", 0.0, 4)
    print_summary(report)
    table = capsys.readouterr().out.splitlines()
    assert [line for line in table if "mpkpe, m" in line and "failed" in line]
    assert [line for line in table if "bow 0.00 to 1.00" in line and f"{row['errors']['mpkpe']:.3f}" in line]
    many = [{**row, "begin_s": float(second), "failed": second} for second in range(30)]
    print_summary(report | {"by_time": many})
    table = capsys.readouterr().out
    assert "bow 9.00" not in table, "fewest failures"
    assert table.index("bow 10.00") < table.index("bow 29.00")
    assert "the 20 of 30 parts in which most episodes failed" in " ".join(table.split())
    print_summary(report | {"by_time": [{**row, "clip": "\x1b[31mbow"}]})
    assert r"\x1b[31mbow 0.00 to 1.00" in capsys.readouterr().out

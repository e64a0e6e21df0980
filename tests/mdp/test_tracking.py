"""Following a motion: where episodes start, what they are compared with, how they end, and what worlds share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mjtrain import mdp
from mjtrain.config import ActionTerm, EnvConfig, RobotConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.mdp import objects, observations, rewards, targets, tracking
from mjtrain.mdp.reference import reference_of
from mjtrain.motion.edit import cut
from mjtrain.motion.files import read_motion, write_motion
from mjtrain.motion.motion import make_motion
from mjtrain.motion.skeleton import load_skeleton
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.scene import list_ghost_geoms
from mjtrain.sim.engines import make_engine
from mjtrain_tasks.models import QUADRUPED
from mjtrain_tasks.quadruped_track import CLIPS, MIRROR, make_env

NOISELESS = {"xy", "z", "tilt", "yaw", "linear_velocity", "angular_velocity", "position"}
ERRORS = (tracking.mpkpe, tracking.r_mpkpe, tracking.joint_vel_error)


def exact(file: Path = CLIPS / "trot.npz", **params: Any) -> EnvConfig:
    """The task without noise, pushes and failures."""
    config = to_eval_config(make_env(file))
    start, command = config.events["start"], config.commands["motion"]
    return replace(
        config,
        events={"start": start.replace(params={**start.params, **dict.fromkeys(NOISELESS, (0.0, 0.0))})},
        commands={"motion": command.replace(params={**command.params, **params})},
    )


def make(config: EnvConfig, num_envs: int = 8) -> Env:
    return Env(config, make_engine("native", config, num_envs, "cpu", 1), seed=3)


def test_episodes_start_in_the_drawn_frame_and_end_with_the_clip() -> None:
    config = exact(sampling="uniform")
    kept = {name: config.terminations[name] for name in ("time_out", "clip_ended")}
    env = make(replace(config, terminations=kept), 64)
    frames = env.command("motion")[:, 0].clone()
    last = reference_of(env, "motion").last[0]
    assert frames.unique().numel() > 40
    assert torch.equal(frames, env.drawn_command("motion")[:, 0])
    for error in ERRORS:
        assert error(env, command="motion").abs().max() < 1e-5, error.__name__
    ended = 0
    for _ in range(60):
        _, _, terminated, truncated = env.step(torch.zeros(64, 12))
        now = env.command("motion")[:, 0]
        assert not terminated.any()
        assert torch.equal(truncated, frames + 1 >= last)
        assert torch.equal(now[~truncated], frames[~truncated] + 1)  # never anywhere else within an episode
        assert torch.equal(env.success("completed") | truncated, torch.ones(64, dtype=torch.bool))
        frames, ended = now.clone(), ended + int(truncated.sum())
    assert ended > 5


def test_rewards_compare_with_the_frame_that_should_be_reached() -> None:
    """Of a robot that stands in the frame after the drawn one, all rewards for tracking are one."""
    config = exact(sampling="start")
    env = make(config, 2)
    reference = reference_of(env, "motion")
    everywhere = torch.ones(2, dtype=torch.bool)
    env.engine.reset(everywhere, reference.qpos[1:2].repeat(2, 1), reference.qvel[1:2].repeat(2, 1))
    env._body_states = None
    for name, term in config.rewards.items():
        if "motion" in term.func.__name__:
            assert term.func(env, **term.params) == pytest.approx(1.0, abs=1e-3), name
    assert tracking.mpkpe(env, command="motion").min() > 1e-3


def test_evaluations_start_in_the_first_frame() -> None:
    env = make(to_eval_config(make_env()))
    assert (env.command("motion")[:, 0] == 0).all()
    assert (env.command_error("motion", "mpkpe") > 1e-3).all()  # the noise of starts stays
    assert (env.command_error("motion", "mpkpe") < 0.15).all()


def test_more_episodes_start_where_they_failed(tmp_path: Path) -> None:
    config = make_env(CLIPS / "sit.npz")
    env = make(config, 256)
    reference = reference_of(env, "motion")
    failures = env.shared_sum(reference.failures, 3, keep=0.98)
    assert reference.bin_sizes.tolist() == [50, 50, 80]  # of 3.6 s; what is left over belongs to the last second
    failures.add(torch.tensor([0.0, 50.0, 0.0], dtype=torch.float64))
    assert failures.total.sum() == 0  # not before the end of the iteration
    env.merge_shared(lambda mine: mine.mul_(2), env.new_shared())  # as with another rank that saw the same
    assert failures.total.tolist() == [0, 100, 0]
    env.reset(torch.ones(256, dtype=torch.bool))
    drawn = reference.bins[env.drawn_command("motion")[:, 0].long()]
    assert (drawn == 1).float().mean() > 0.85  # 0.9 and its share of the rest
    for _ in range(30):
        env.step(4 * torch.ones(256, 12))
    assert env.statistics.summarise(env.statistics.pop().tolist())["curriculum/sampling"] < 0.6
    assert failures.pending[1] > 100
    state = env.state_dict()
    other = make(config, 256)
    other.load_state_dict(state)
    again = other.shared_sum(reference.failures, 3, keep=0.98)
    assert torch.equal(again.total, failures.total)
    assert torch.equal(again.pending, failures.pending)
    action = torch.zeros(256, 12)
    for _ in range(3):
        env.step(action)
        other.step(action)
        assert torch.equal(env.observe()["actor"], other.observe()["actor"])


@pytest.mark.parametrize("object_first", [True, False])
def test_the_motion_is_that_of_the_robot_and_not_of_an_object(tmp_path: Path, object_first: bool) -> None:
    cube = '<body><freejoint name="cube"/><geom size="0.1"/></body>'
    robot = """
    <body name="trunk" pos="0 0 1">
      <freejoint name="trunk"/>
      <geom size="0.1"/>
      <body name="leg"><joint name="hip" axis="0 1 0"/><geom size="0.1" pos="0 0 -1"/></body>
    </body>"""
    bodies = cube + robot if object_first else robot + cube
    file = tmp_path / "robot.xml"
    file.write_text(
        f"<mujoco><worldbody>{bodies}</worldbody><actuator><motor name='hip' joint='hip'/></actuator></mujoco>"
    )
    ahead = np.linspace(0, 1, 50)[:, None] * [1.0, 2.0, 3.0]
    motion = make_motion(50, ahead, np.tile([1.0, 0, 0, 0], (50, 1)), np.full((50, 1), 0.2), ("hip",))
    write_motion(tmp_path / "motion.npz", motion)
    command = mdp.command(
        tracking.motion_command, file=str(tmp_path / "motion.npz"), anchor_body="trunk", bodies=("trunk", "leg")
    )
    config = EnvConfig(
        robot=str(file),
        decimation=10,
        episode_length_s=1.0,
        actions={"all": ActionTerm()},
        observations={"actor": {"hip": mdp.observation(observations.joint_pos, joint="hip")}},
        rewards={"alive": mdp.reward(rewards.is_alive, 1.0)},
        terminations={},
        commands={"motion": mdp.refined(command.replace(before_reset=True), tracking.follow_motion)},
        events={
            "place": mdp.reset_event(objects.reset_place, object="cube", x=(5.0, 5.0), y=(6.0, 6.0), z=(7.0, 7.0)),
            "start": mdp.reset_event(tracking.reset_to_motion, command="motion"),
        },
    )
    env = make(config)
    frames = env.command("motion")[:, 0].long()
    assert frames.unique().numel() > 3
    assert torch.allclose(env.qpos("trunk")[:, :3], torch.from_numpy(ahead).float()[frames], atol=1e-6)
    assert torch.allclose(env.qvel("trunk")[:, :3], torch.tensor([50 / 49, 100 / 49, 150 / 49]), atol=1e-3)
    assert (env.qpos("cube")[:, :3] == torch.tensor([5.0, 6.0, 7.0])).all(), "events leave each other's bodies alone"
    assert set(list_ghost_geoms(env.engine.model)) == {env.engine.layout.bodies[name] for name in ("trunk", "leg")}


@pytest.mark.parametrize("other", ["shorter", "another", "in two files"])
def test_worlds_do_not_continue_in_another_motion(tmp_path: Path, other: str) -> None:
    """They begin again, because their frames would mean something else, or not exist."""
    file, paw = tmp_path / "paw.npz", read_motion(CLIPS / "paw.npz")
    trained = make(exact(CLIPS / "paw.npz", sampling="uniform"))
    _count_failures(trained).fill_(3.0)
    state = trained.state_dict()
    again = trained.state_dict()["followed"]["motion"]
    assert again is state["followed"]["motion"], "a long motion is not summed for each checkpoint"
    if other == "in two files":
        file = tmp_path / "clips"
        file.mkdir()
        write_motion(file / "a.npz", cut(paw, 0.0, 1.0))
        write_motion(file / "b.npz", cut(paw, 1.02))
    else:
        write_motion(file, cut(paw, end_s=1.0) if other == "shorter" else paw.replace(joint_pos=paw.joint_pos[::-1]))
    env = make(exact(file, sampling="uniform"))
    frames = env.command("motion").clone()
    with pytest.raises(ValueError, match="command motion followed another motion"):
        env.load_state_dict(state)
    assert torch.equal(env.command("motion"), frames)
    env.load_shared(state)
    assert (_count_failures(env) == 0).all(), "these are of another motion, also if it has the same number of bins"
    (tmp_path / "same.npz").write_bytes((CLIPS / "paw.npz").read_bytes())
    same = make(exact(tmp_path / "same.npz", sampling="uniform"))
    same.load_state_dict(state)
    assert (_count_failures(same) == 3).all()
    write_motion(tmp_path / "saved_again.npz", paw)
    make(exact(tmp_path / "saved_again.npz", sampling="uniform")).load_state_dict(state)


def test_two_motions_of_one_file_name_count_failures_apart(tmp_path: Path) -> None:
    command = exact(sampling="adaptive").commands["motion"]
    commands = {"motion": command}
    for name, clip in (("sit", "sit"), ("bow", "bow"), ("again", "bow")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "clip.npz"
        file.write_bytes((CLIPS / f"{clip}.npz").read_bytes())
        commands[name] = command.replace(params={**command.params, "file": str(file)})
    commands["halves"] = commands["bow"].replace(params={**commands["bow"].params, "bin_s": 0.5})
    env = make(replace(exact(), commands=commands))
    _count_failures(env, "bow").fill_(1.0)
    totals = {name: _count_failures(env, name).sum().item() for name in commands}
    assert totals == {"motion": 0, "sit": 0, "bow": 3, "again": 3, "halves": 0}


def test_adaptive_sampling_reports_the_present_parameters() -> None:
    env = make(exact(sampling="adaptive"))
    _count_failures(env)[0] = 1.0
    entropies = []
    for share in (0.0, 1.0):
        env.config.commands["motion"].params["uniform_share"] = share
        entropies.append(tracking.adaptive_sampling(env, torch.zeros(8), command="motion").mean().item())
    assert entropies[0] < 0.1 < 0.9 < entropies[1]


def _count_failures(env: Env, command: str = "motion") -> torch.Tensor:
    reference = reference_of(env, command)
    return env.shared_sum(reference.failures, len(reference.bin_sizes), keep=0.98).total


def test_the_mirror_image_of_a_motion_is_seen_mirrored(tmp_path: Path) -> None:
    skeleton = load_skeleton(RobotConfig(file=str(QUADRUPED), mirror=MIRROR))
    write_motion(tmp_path / "paw.npz", skeleton.mirror(read_motion(CLIPS / "paw.npz", skeleton)))
    one, other = make(exact(CLIPS / "paw.npz")), make(exact(tmp_path / "paw.npz"))
    mirror = one.make_mirror()
    actions = mirror.actions().float()
    action = torch.rand(8, 12, generator=torch.Generator().manual_seed(1))
    for step in range(20):
        for group in ("actor", "critic"):
            image = one.observe()[group] @ mirror.observations(group).float().T
            apart = (other.observe()[group] - image).abs().amax(dim=1)
            assert apart.max() < 1e-4 or step > 0, group
            # A foot that lands a physics step later takes its world apart; a wrong mirror takes all worlds apart.
            assert apart.median() < 0.05, (group, step)
        one.step(action)
        other.step(action @ actions.T)


def test_several_clips_and_loops(tmp_path: Path) -> None:
    for name in ("sit", "bow"):
        (tmp_path / f"{name}.npz").write_bytes((CLIPS / f"{name}.npz").read_bytes())
    (tmp_path / "._sit.npz").write_bytes(b"\0\5\x16\7")  # as macOS writes beside a file on other disks
    env = make(exact(tmp_path, sampling="start"), 32)
    assert sorted(set(env.command("motion")[:, 0].tolist())) == [0, 161]  # bow has 161 frames
    looped = make(exact(loop_s=7.0))
    reference = reference_of(looped, "motion")
    assert len(reference.last) == 401
    assert reference.qpos[-1, 0] == pytest.approx(2 * float(reference.qpos[200, 0]), rel=0.1)


def test_a_clip_that_has_ended_is_held_and_the_next_one_does_not_begin(tmp_path: Path) -> None:
    for name in ("bow", "sit"):
        write_motion(tmp_path / f"{name}.npz", cut(read_motion(CLIPS / f"{name}.npz"), end_s=1.0))
    config = exact(tmp_path, sampling="start", clip_weights=(1.0, 0.0))
    env = make(replace(config, terminations={}, episode_length_s=10.0), 2)
    seen = []
    while len(seen) < 70:  # each clip has 51 frames
        env.step(torch.zeros(2, 12))
        seen.append(tracking.motion_joint_targets(env, command="motion"))
    assert (env.episode_step == 70).all()
    assert not torch.equal(seen[40], seen[-1])
    assert torch.equal(seen[50], seen[-1])


@pytest.mark.parametrize("sampling", ["start", "uniform", "adaptive"])
def test_clips_are_drawn_by_their_weights(tmp_path: Path, sampling: str) -> None:
    for name in ("bow", "paw", "sit"):
        write_motion(tmp_path / f"{name}.npz", read_motion(CLIPS / f"{name}.npz"))
    env = make(exact(tmp_path, sampling=sampling, clip_weights=(1.0, 3.0, 0.0)), num_envs=600)
    ends = reference_of(env, "motion").last[env.command("motion")[:, 0].long()]
    bow, paw, sit = ((ends == end).double().mean().item() for end in ends.new_tensor([160, 346, 527]))
    assert sit == 0
    assert bow + paw == 1
    assert paw == pytest.approx(0.75, abs=0.07)
    if sampling == "adaptive":  # failures of a clip decide where it starts, not how often
        counts = torch.tensor([0.0, 9, 0, 0, 1, 0, 5, 5, 5])
        env.shared_sum(reference_of(env, "motion").failures, 10, keep=0.98).total[:] = counts
        env.reset(torch.ones(600, dtype=torch.bool))
        frames = env.command("motion")[:, 0]
        assert (frames >= 161).double().mean().item() == pytest.approx(0.75, abs=0.07)
        assert ((frames >= 50) & (frames < 100)).double().mean().item() == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ((1.0, 2.0), "clip_weights 1 2: must be one for each of the 1 clips trot"),
        ((-1.0,), "clip_weights -1: must be numbers of at least 0"),
        ((float("nan"),), "clip_weights nan: must not be NaN"),
        ((0.0,), "clip_weights 0: must be"),
    ],
)
def test_wrong_weights(weights: tuple[float, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make(exact(clip_weights=weights))


def test_without_residual_actions_controls_begin_at_the_default_pose() -> None:
    config = exact()
    legs = config.actions["legs"]
    for share in (0.0, 1.0):
        changed = legs.replace(base_params={**legs.base_params, "share": share})
        env = make(replace(config, actions={"legs": changed}), 2)
        wanted = reference_of(env, "motion").qpos[1, 7:] if share else env.engine.layout.default_ctrl
        env.step(torch.zeros(2, 12))
        assert env.state.ctrl[0] == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"file": "none.npz"}, "no such file"),
        ({"file": "a" * 300}, "cannot be read"),
        ({"anchor_body": "torso"}, "torso"),
        ({"sampling": "adaptiv"}, "sampling"),
        ({"uniform_share": 2.0}, "uniform_share"),
        ({"loop_s": 1e7}, r"/trot\.npz: with loop_s 1e\+07, at one frame per env step: .* cycles of .* frames in all"),
    ],
)
def test_wrong_parameters(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make(exact(**changes))


@pytest.mark.parametrize(("term", "ahead"), [("targets", (1, -1)), ("anchor_position", -1), ("anchor_axes", -1)])
def test_frames_before_the_present_one_are_refused(term: str, ahead: Any) -> None:
    """There are none where an episode starts in the first frame, and in a folder they belong to another clip."""
    config = exact()
    actor = dict(config.observations["actor"])
    actor[term] = actor[term].replace(params={**actor[term].params, "ahead": ahead})
    with pytest.raises(RequestError, match=rf"actor\.{term}\.params\.ahead .*-1: .*must be at least 0"):
        make(replace(config, observations={"actor": actor}), 2)


def test_a_command_that_follows_no_motion_is_named() -> None:
    config = exact()
    commands = {
        **config.commands,
        "place": mdp.command(targets.planar_command, radius=(0.1, 0.2)),
        "still": config.commands["motion"].replace(refine=None, refine_params={}),
    }
    env = make(replace(config, commands=commands), 2)
    for command, says in (
        ("none", "unknown command term none; available: motion, place, still"),
        ("place", "command place does not follow a motion: .* tracking.motion_command"),
        ("still", "command still is not refined by .*; give it refine=tracking.follow_motion"),
    ):
        with pytest.raises(RequestError, match=says):
            tracking.mpkpe(env, command=command)


def test_controls_of_the_motion_are_those_that_hold_its_positions(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    file.write_text("""
    <mujoco>
      <worldbody>
        <body name="trunk" pos="0 0 1">
          <freejoint name="trunk"/>
          <geom size="0.1"/>
          <body><joint name="hip" axis="0 1 0"/><geom size="0.1" pos="0 0 -1"/></body>
          <body><joint name="arm" axis="0 1 0"/><geom size="0.1" pos="0 0 1"/></body>
        </body>
      </worldbody>
      <tendon><fixed name="both"><joint joint="hip" coef="1"/><joint joint="arm" coef="1"/></fixed></tendon>
      <actuator>
        <position name="both" tendon="both" kp="5"/>
        <position name="arm" joint="arm" kp="5"/>
        <position name="hip" joint="hip" kp="5" gear="-2"/>
      </actuator>
    </mujoco>""")
    still = np.tile([1.0, 0, 0, 0], (50, 1))
    poses = np.tile([0.3, 0.4], (50, 1))
    write_motion(tmp_path / "motion.npz", make_motion(50, np.zeros((50, 3)), still, poses, ("hip", "arm")))
    command = mdp.command(
        tracking.motion_command, file=str(tmp_path / "motion.npz"), anchor_body="trunk", bodies=("trunk",)
    )
    config = EnvConfig(
        robot=str(file),
        decimation=10,
        episode_length_s=1.0,
        actions={"all": ActionTerm()},
        observations={"actor": {"hip": mdp.observation(observations.joint_pos, joint="hip")}},
        rewards={"alive": mdp.reward(rewards.is_alive, 1.0)},
        terminations={},
        commands={"motion": mdp.refined(command.replace(before_reset=True), tracking.follow_motion)},
    )
    env = make(config, 2)
    controls = tracking.motion_controls(env, command="motion", actuators=("hip", "arm"))
    assert torch.allclose(controls, torch.tensor([0.4, -0.6]))
    with pytest.raises(RequestError, match="actuator both: does not set the position of a hinge or a slide"):
        tracking.motion_controls(env, command="motion", actuators=(".*",))


def test_parameters_that_a_term_leaves_out_have_their_defaults() -> None:
    """As a term that is made without `mjtrain.mdp.command`, or was recorded before a parameter existed."""
    config = make_env()
    command = config.commands["motion"]
    given = {name: command.params[name] for name in ("file", "anchor_body", "bodies")}
    short = make(replace(config, commands={"motion": command.replace(params=given)}))
    full = make(replace(config, commands={"motion": command.replace(params={**command.params, "uniform_share": 0.1})}))
    for env in (short, full):
        env.step(torch.zeros(8, 12))
    assert torch.equal(short.observe()["critic"], full.observe()["critic"])
    assert torch.equal(short.level("sampling"), full.level("sampling"))

"""What a viewer shows of the worlds, without a viewer."""

import pytest

import mjtrain
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.viewer_session import PolicySession
from mjtrain.runs.trained_run import make_untrained_run


@pytest.mark.parametrize(
    ("task", "command"), [("Arm-Reach", "pose"), ("Arm-Lift-Cube", "place"), ("Hand-Reorient-Cube", "goal")]
)
def test_commanded_places_and_orientations_are_poses(task: str, command: str) -> None:
    session = PolicySession(Player(mjtrain.RankContext(), make_untrained_run(task), num_envs=2, policy="zero"))
    env = session.player.env
    session.select(1)
    session.step()
    poses = session.commanded_poses()
    assert list(poses) == [command]
    commanded = env.command(command)[1].tolist()
    if task == "Arm-Lift-Cube":
        commanded += [1.0, 0.0, 0.0, 0.0]
    elif task == "Hand-Reorient-Cube":
        x, y, z = env.qpos("cube")[1, :3].tolist()
        half_diagonal = 3**0.5 * 0.025
        assert poses[command][2] > z + 1.5 * half_diagonal  # above the cube, which would hide it
        commanded = [x, y, float(poses[command][2]), *commanded]
    assert poses[command].tolist() == pytest.approx(commanded)

import pytest
import torch

from mjtrain.evaluation.recorder import Recorder


def test_it_keeps_one_world_at_25_frames_a_second() -> None:
    qpos = torch.zeros(4, 3)
    recorder = Recorder(qpos, step_dt=0.02, length_s=0.2, world=1)
    recorder.after_step()
    assert not recorder.is_recording
    recorder.begin(7)
    for step in range(30):
        qpos[1] = step
        recorder.after_step()
    assert recorder.fullness == 1.0
    clip = recorder.take()
    assert (clip.iteration, clip.fps) == (7, pytest.approx(25))
    assert clip.qpos[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert not recorder.is_recording


def test_what_is_there_at_the_end_and_long_env_steps() -> None:
    qpos = torch.zeros(1, 2)
    recorder = Recorder(qpos, step_dt=0.1, length_s=1.0)
    recorder.begin(0)
    for step in range(3):
        qpos[0] = step
        recorder.after_step()
    assert recorder.fullness == pytest.approx(0.3)
    clip = recorder.take()
    assert clip.qpos[:, 1].tolist() == [0, 1, 2]
    assert clip.fps == pytest.approx(10)


@pytest.mark.parametrize(("step_dt", "fps"), [(1 / 25, 25), (1 / 50, 25), (0.03, 100 / 6), (0.01, 25), (0.0125, 20)])
def test_frames_are_never_more_than_25_a_second(step_dt: float, fps: float) -> None:
    recorder = Recorder(torch.zeros(1, 2), step_dt=step_dt, length_s=1.0)
    recorder.begin(0)
    assert recorder.take().fps == pytest.approx(fps)

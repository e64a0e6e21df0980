"""Playing a policy that sees."""

from pathlib import Path

import torch

import mjtrain
from mjtrain.playing.eval_config import to_eval_config
from support.envs import make_env
from support.vision import make_vision_env, make_vision_task, see, train_vision

NOISY = {"image": {"rgb": see(noise=40.0, shift=3)}}


def test_evaluation_is_without_noise_and_shift_of_images() -> None:
    seen = {}
    for name, config in (
        ("noisy", make_vision_env(NOISY)),
        ("evaluation", to_eval_config(make_vision_env(NOISY))),
        ("with noise", to_eval_config(make_vision_env(NOISY), noise=True)),
        ("plain", to_eval_config(make_vision_env({"image": {"rgb": see()}}))),
    ):
        env = make_env(config)
        seen[name] = env.observe()["image"]
        env.close()
    assert torch.equal(seen["evaluation"], seen["plain"])
    for name in ("noisy", "with noise"):
        assert not torch.equal(seen[name], seen["plain"])


def test_a_policy_that_sees_is_measured_the_same_each_time(tmp_path: Path) -> None:
    run_dir = train_vision(make_vision_task(make_vision_env(NOISY, size=16)), tmp_path)
    table = mjtrain.play(run_dir, episodes=6, seed=4)
    assert table["episodes"] == 6
    assert table["length"]["mean"] > 1
    assert mjtrain.play(run_dir, episodes=6, seed=4) == table
    assert mjtrain.play(run_dir, episodes=6, seed=4, noise=True) != table

"""Cameras of the environment, and groups of images: when frames are taken, and what terms do with them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mjtrain.config import CameraConfig, EnvConfig, ObservationTerm
from mjtrain.env.env import Env
from mjtrain.mdp import observation
from mjtrain.mdp.observations import camera
from mjtrain.runtime.errors import RequestError
from mjtrain_tasks.cartpole_vision import make_env as make_config
from support.envs import actions_for, make_env

SIZE = {"width": 32, "height": 16}
CLASSES = {"cart": ("cart",), "pole": ("pole",)}


def make_vision_env(
    *terms: ObservationTerm, streams: tuple[Any, ...] = ("rgb",), noise: bool = True, seed: int = 0, **settings: Any
) -> Env:
    """Return Cartpole with a camera called front and the terms 0, 1, ... in the group image."""
    config = CameraConfig(**{**SIZE, **settings}, streams=streams, far_m=4.0, classes=CLASSES)
    group = {str(number): term for number, term in enumerate(terms or (observation(camera, camera="front"),))}
    changed = replace(make_config(), cameras={"front": config}, observations={"image": group}, observation_noise=noise)
    return make_env(changed, seed=seed)


def images_along(env: Env, num_steps: int) -> list[torch.Tensor]:
    """Return copies of the group image at the start and after each step."""
    seen = [env.observe()["image"].clone()]
    for action in actions_for(env, num_steps):
        seen.append(env.step(action)[0]["image"].clone())
    return seen


def test_rgb_is_bytes_and_shows_what_moves() -> None:
    env = make_vision_env()
    first, second = images_along(env, 1)
    assert first.dtype == torch.uint8
    assert first.shape == (env.num_envs, 3, 16, 32)
    assert not torch.equal(first, second)
    assert torch.equal(second, env.cameras.images("front", "rgb"))
    assert len({image.numpy().tobytes() for image in first}) > 1  # worlds start at different places


def test_a_returned_image_stays_as_it_is() -> None:
    env = make_vision_env()
    first = env.observe()["image"]
    before = first.clone()
    env.step(actions_for(env, 1)[0])
    assert torch.equal(first, before)


def test_depth_is_a_fraction_of_the_farthest_and_a_miss_is_far() -> None:
    env = make_vision_env(streams=("depth",))
    image = env.observe()["image"]
    assert image.dtype == torch.float32
    assert image.shape == (env.num_envs, 1, 16, 32)
    metres = env.cameras.images("front", "depth")
    assert torch.allclose(image, metres / 4.0)
    assert metres[:, 0, 0, 0].eq(4.0).all()  # the sky
    assert 1.4 < metres.min() < 1.6  # the cart, whose front is 0.12 m nearer than the rail


def test_segmentation_has_a_channel_for_each_class() -> None:
    env = make_vision_env(streams=("segmentation",))
    image, index = env.observe()["image"], env.cameras.images("front", "segmentation")
    assert image.dtype == torch.uint8
    assert image.shape == (env.num_envs, 2, 16, 32)
    assert torch.equal(image[:, 0] == 255, index[:, 0] == 1)
    assert torch.equal(image[:, 1] == 255, index[:, 0] == 2)
    assert set(index.unique().tolist()) == {0, 1, 2}
    indexed = make_vision_env(observation(camera, camera="front", one_hot=False), streams=("segmentation",))
    assert torch.equal(indexed.observe()["image"], index.float())


def test_streams_of_both_types_are_one_image_of_float() -> None:
    env = make_vision_env(streams=("rgb", "depth", "segmentation"))
    image = env.observe()["image"]
    assert image.shape == (env.num_envs, 6, 16, 32)
    assert torch.equal(image[:, :3], env.cameras.images("front", "rgb") / 255.0)
    apart = make_vision_env(
        *(observation(camera, camera="front", stream=stream) for stream in ("rgb", "depth", "segmentation")),
        streams=("rgb", "depth", "segmentation"),
    )
    assert torch.equal(apart.observe()["image"], image)


def test_history_is_oldest_first_and_begins_with_the_first_frame() -> None:
    plain = images_along(make_vision_env(), 3)
    stacked = images_along(make_vision_env(observation(camera, camera="front").replace(history=3)), 3)
    assert stacked[0].shape[1] == 9
    assert torch.equal(stacked[0], torch.cat([plain[0]] * 3, dim=1))
    assert torch.equal(stacked[1], torch.cat([plain[0], plain[0], plain[1]], dim=1))
    assert torch.equal(stacked[3], torch.cat(plain[1:4], dim=1))


def test_delayed_images_arrive_later() -> None:
    plain = images_along(make_vision_env(), 3)
    late = images_along(make_vision_env(observation(camera, camera="front").replace(delay=(2, 2))), 3)
    assert torch.equal(late[1], plain[0])
    assert torch.equal(late[3], plain[1])


def test_noise_stays_within_its_bounds_and_can_be_turned_off() -> None:
    term = observation(camera, camera="front").replace(noise=10.0)
    clean, noisy = make_vision_env().observe()["image"].int(), make_vision_env(term).observe()["image"].int()
    difference = (noisy - clean).abs()
    assert 2 < difference.float().mean() < 8
    assert difference.max() <= 10
    assert torch.equal(make_vision_env(term, noise=False).observe()["image"].int(), clean)


def test_a_shift_moves_whole_images_and_repeats_their_border() -> None:
    term = observation(camera, camera="front").replace(shift=2, history=2)
    clean = make_vision_env(observation(camera, camera="front").replace(history=2)).observe()["image"]
    shifted = make_vision_env(term).observe()["image"]
    padded = torch.nn.functional.pad(clean.float(), (2, 2, 2, 2), mode="replicate").to(torch.uint8)
    found = set()
    for world, image in enumerate(shifted):
        places = [
            (row, column)
            for row in range(5)
            for column in range(5)
            if torch.equal(padded[world, :, row : row + 16, column : column + 32], image)
        ]
        assert places
        found.add(places[0])
    assert len(found) > 1
    assert torch.equal(make_vision_env(term, noise=False).observe()["image"], clean)


def test_frames_are_taken_at_the_interval_and_where_an_episode_begins() -> None:
    plain = images_along(make_vision_env(), 6)
    env = make_vision_env(interval=3)
    seen = [env.observe()["image"].clone()]
    begun = torch.zeros(env.num_envs, dtype=torch.bool)
    for number, action in enumerate(actions_for(env, 6), start=1):
        if number == 5:  # by hand, in the first world
            env.episode_step[0] = env.max_episode_steps
        observations, _, terminated, truncated = env.step(action)
        begun = terminated | truncated
        seen.append(observations["image"].clone())
        if number == 5:
            break
    assert torch.equal(seen[0], plain[0])
    assert torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], seen[0])
    assert torch.equal(seen[3], plain[3])
    assert begun[0]
    assert not begun[1:].any()
    assert torch.equal(seen[5][1:], seen[3][1:])
    assert not torch.equal(seen[5][0], seen[3][0])


@pytest.mark.parametrize("interval", [1, 3])
def test_a_restored_environment_sees_the_same(interval: int) -> None:
    term = observation(camera, camera="front").replace(history=2, delay=(0, 2), noise=5.0, shift=1)
    env, other = (make_vision_env(term, interval=interval, seed=seed) for seed in (0, 1))
    actions = actions_for(env, 8)
    for action in actions[:4]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.observe()["image"], env.observe()["image"])
    assert torch.equal(other.cameras.images("front", "rgb"), env.cameras.images("front", "rgb"))
    for action in actions[4:]:
        assert torch.equal(other.step(action)[0]["image"], env.step(action)[0]["image"])


@pytest.mark.parametrize("other", [{}, {"clock": 0, "looks": {"geom_rgba": torch.zeros(2, 3, 4)}}])
def test_a_state_of_other_cameras_changes_nothing(other: dict[str, Any]) -> None:
    env = make_vision_env()
    state = env.state_dict()
    env.step(actions_for(env, 1)[0])
    qpos, rng = env.state.qpos.clone(), env.rng.get_state()
    with pytest.raises(ValueError, match="cameras"):
        env.load_state_dict({**state, "cameras": other})
    assert torch.equal(env.state.qpos, qpos)
    assert torch.equal(env.rng.get_state(), rng)
    assert not torch.equal(qpos, state["buffers"]["start_qpos"])


def test_a_reset_by_hand_renders_the_new_episode() -> None:
    env = make_vision_env(interval=4)
    before = env.observe()["image"].clone()
    mask = torch.arange(env.num_envs) == 1
    env.reset(mask)
    after = env.observe()["image"]
    assert torch.equal(after[~mask], before[~mask])
    assert not torch.equal(after[mask], before[mask])


@pytest.mark.parametrize(
    ("term", "settings", "message"),
    [
        (observation(camera, camera="left"), {}, "EnvConfig.cameras has no camera left; available: front"),
        (
            observation(camera, camera="front", stream="depth"),
            {},
            "the camera front does not deliver depth; --env.cameras.front.streams has rgb",
        ),
        (
            observation(camera, camera="front").replace(scale=0.1),
            {},
            "--env.observations.image.0: is an image of uint8, which takes no scale and no clip",
        ),
        (
            observation(camera, camera="front").replace(shift=16),
            {},
            "--env.observations.image.0.shift 16: give 0 to 15 pixels",
        ),
        (
            observation(camera, camera="front").replace(noise=float("nan")),
            {},
            "--env.observations.image.0.noise nan: must be at least 0 and finite",
        ),
        (
            observation(camera, camera="front").replace(noise=-5.0),
            {},
            "--env.observations.image.0.noise -5: must be at least 0",
        ),
        (
            observation(camera, camera="front").replace(scale=float("inf")),
            {"streams": ("depth",)},
            "--env.observations.image.0.scale inf: must be other than 0 and finite",
        ),
        (
            observation(camera, camera="front").replace(clip=(1.0, 0.0)),
            {"streams": ("depth",)},
            "--env.observations.image.0.clip 1 0: the first is more than the second; give the lower bound first",
        ),
        (
            observation(camera, camera="front").replace(clip=(float("nan"), 0.0)),
            {"streams": ("depth",)},
            "--env.observations.image.0.clip nan 0: give two numbers, the lower bound first",
        ),
        (
            observation(camera, camera="front"),
            {"width": 10**6, "height": 10**6},
            "--env.cameras.front: images of 1000000 x 1000000 pixels take ",
        ),
    ],
)
def test_what_does_not_fit_is_said(term: ObservationTerm, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace(".", r"\.")):
        make_vision_env(term, **settings)


def test_images_and_columns_do_not_share_a_group() -> None:
    config = make_config()
    mixed = {"image": config.observations["image"] | config.observations["state"]}
    message = "observations.image.front: returns images and observations.image.cart_position does not"
    with pytest.raises(RequestError, match=message):
        make_env(replace(config, observations=mixed))


def test_a_shift_is_for_images() -> None:
    config = make_config()
    state = {name: term.replace(shift=1) for name, term in config.observations["state"].items()}
    with pytest.raises(RequestError, match=r"state\.cart_position\.shift 1: is for images only"):
        make_env(replace(config, observations={"state": state}))


def test_an_environment_without_cameras_says_so() -> None:
    config: EnvConfig = make_config()
    with pytest.raises(RequestError, match=r"EnvConfig\.cameras has no camera front; available: none; give"):
        make_env(replace(config, cameras={}))

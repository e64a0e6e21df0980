"""A term that writes into what the environment gives it is named; sums over ranks continue after a resume."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjtrain.config import CommandTerm, CurriculumTerm, EnvConfig, EventTerm, ObservationTerm, RewardTerm, SuccessTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.core import SharedSums
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import observations, reward, root, velocity
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, NUM_ENVS, make_env
from support.vision import make_vision_env

BASE = replace(
    load_task("Cartpole-Balance").env,
    commands={"aim": CommandTerm(func=lambda env: torch.ones(env.num_envs, 2))},
    curriculum={"level": CurriculumTerm(func=lambda env, level: level + 0.1)},
    successes={"done": SuccessTerm(func=lambda env: env.qpos("hinge")[:, 0] > 9)},
)
Write = Callable[[Env], Any]
WRITES: dict[str, tuple[Write, str]] = {
    "qpos": (lambda env: env.qpos("slider").sub_(0.1), "env.state.qpos"),
    "qpos_of_no_world": (lambda env: env.qpos("slider").masked_fill_(env.episode_step[:, None] > 99, 0), "env.state.q"),
    "qvel": (lambda env: env.qvel(("slider", "hinge")).mul_(0.5), "env.state.qvel"),
    "state": (lambda env: env.state.qpos[:, 1].zero_(), "env.state.qpos"),
    "sensor": (lambda env: env.sensor((".*",)).clamp_(0, 1), "env.state.sensordata"),
    "command": (lambda env: env.command("aim").mul_(0.5), "env.command('aim')"),
    "drawn": (lambda env: env.drawn_command("aim").mul_(0.5), "commands.aim"),
    "action": (lambda env: env.action.clamp_(-1, 1), "env.action"),
    "last_action": (lambda env: env.last_action.add_(1), "env.last_action"),
    "level": (lambda env: env.level("level").add_(1), "env.level('level')"),
    "episode_step": (lambda env: env.episode_step.add_(1), "env.episode_step"),
    "count": (lambda env: env.success_count("done").add_(1), "success terms"),
    "bodies": (lambda env: env.bodies.positions.sub_(1), "env.bodies.positions"),
    "bodies_read_before": (lambda env: (env.bodies, env.bodies.quaternions[:, 1].zero_()), "env.bodies.quaternions"),
    "reward_terms": (lambda env: env.reward_terms.add_(1), "env.reward_terms"),
    "home": (lambda env: env.engine.layout.default_qpos.add_(1), "default_qpos"),
}


def rewarding(write: Write) -> EnvConfig:
    def bad(env: Env) -> torch.Tensor:
        write(env)
        return torch.zeros(env.num_envs)

    return replace(BASE, rewards={**BASE.rewards, "bad": RewardTerm(func=bad, weight=1e-6)})


@pytest.mark.parametrize("name", WRITES)
def test_a_reward_that_writes_is_named_before_the_training_and_in_it(name: str) -> None:
    write, what = WRITES[name]
    config = rewarding(write)
    with pytest.raises(RequestError, match=r"^--env.rewards.bad: bad\(\) wrote into ") as caught:
        check_task(config)
    assert what in str(caught.value)
    env = make_env(config)
    with pytest.raises(RequestError, match=r"^--env.rewards.bad: wrote into .*compute a new tensor") as caught:
        env.step(torch.zeros(NUM_ENVS, 1))
    assert what in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_both_engines_notice_it_also_in_a_rollout(engine: str) -> None:
    calls = []

    def late(env: Env) -> None:
        calls.append(1)
        if len(calls) > 2:
            env.qpos("slider").sub_(0.1)

    env = make_env(rewarding(late), engine=engine)
    with torch.inference_mode():
        for _ in range(2):
            env.step(torch.zeros(NUM_ENVS, 1))
        with pytest.raises(RequestError, match=r"--env\.rewards\.bad: wrote into env\.state\.qpos"):
            env.step(torch.zeros(NUM_ENVS, 1))


def heavier(env: Env, worlds: Worlds) -> None:
    env.engine.expand("body_mass").mul_(1.01)
    env.engine.refresh_model(torch.ones(env.num_envs, dtype=torch.bool))


@pytest.mark.parametrize("engine", ENGINES)
def test_worlds_that_began_in_a_rollout_continue_outside(engine: str) -> None:
    """What their first step makes must take writes from everywhere."""
    task = load_task("Cartpole-Balance").env
    drift = EventTerm(func=heavier, mode="interval", interval_s=(0.01, 0.01))
    env = make_env(replace(task, events={**task.events, "drift": drift}), engine=engine)
    with torch.inference_mode():
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
    begun = env.engine.expand("body_mass").clone()
    env.step(torch.zeros(NUM_ENVS, env.num_actions))
    torch.testing.assert_close(env.engine.expand("body_mass"), 1.01 * begun)
    env.load_state_dict(env.state_dict())


def test_writes_that_torch_does_not_count_are_found_before_the_training() -> None:
    with pytest.raises(RequestError, match=r"--env.rewards.bad: bad\(\) wrote into env.state.qpos"):
        check_task(rewarding(lambda env: env.qpos("slider").numpy().__isub__(0.1)))


def refine(env: Env, drawn: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    drawn[:, 1] = 0.5
    return drawn.clone()


def harder(env: Env, level: torch.Tensor) -> torch.Tensor:
    level += 0.1
    return level


def start(env: Env, worlds: Worlds) -> None:
    env.state.qpos[:, 0] += 0.3


def centred(env: Env) -> torch.Tensor:
    q = env.qpos("hinge")
    q -= q.mean()
    return q


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("commands.aim.refine", {"commands": {"aim": BASE.commands["aim"].replace(refine=refine)}}),
        ("curriculum.level", {"curriculum": {"level": CurriculumTerm(func=harder)}}),
        ("events.start", {"events": {"start": EventTerm(func=start)}}),
        ("events.push", {"events": {"push": EventTerm(func=start, mode="interval", interval_s=(0.0, 0.0))}}),
        ("observations.actor.q", {"observations": {"actor": {"q": ObservationTerm(func=centred)}}}),
    ],
)
def test_every_kind_of_term_is_watched(place: str, changes: dict[str, Any]) -> None:
    config = replace(BASE, **changes)
    with pytest.raises(RequestError, match=rf"^--env.{place}: .* wrote into "):
        check_task(config)
    with pytest.raises(RequestError, match=rf"^--env.{place}: wrote into "):
        make_env(config).step(torch.zeros(NUM_ENVS, 1))


@pytest.mark.parametrize("interval", [1, 2])
def test_a_term_that_writes_into_an_image_is_named(interval: int) -> None:
    def masked(env: Env) -> torch.Tensor:
        image = observations.camera(env, camera="side", stream="rgb")
        image[..., :4] = 0
        return image

    config = make_vision_env({"image": {"masked": ObservationTerm(func=masked)}}, interval=interval)
    with pytest.raises(RequestError, match=r"masked\(\) wrote into the camera image side\.rgb in place"):
        check_task(config)
    with pytest.raises(RequestError, match=r"^--env.observations.image.masked: wrote into the camera image side\.rgb"):
        make_env(config)


PLACES = torch.arange(2.0 * NUM_ENVS).view(NUM_ENVS, 2)


def test_a_command_that_is_a_view_or_a_kept_tensor_is_copied() -> None:
    """The next draws are written into the copy, and not into the state or the tensor of the task."""
    before = PLACES.clone()
    drawn = {"here": CommandTerm(func=lambda env: env.state.qpos[:, :2]), "kept": CommandTerm(func=lambda env: PLACES)}
    env = make_env(replace(BASE, commands=drawn))
    env._commands.drawn["here"].fill_(7.0)
    env._commands.drawn["kept"].fill_(7.0)
    assert (env.state.qpos != 7.0).all()
    assert torch.equal(PLACES, before)


def test_a_reward_of_weight_zero_is_not_computed() -> None:
    def fails(env: Env) -> torch.Tensor:
        raise AssertionError

    off = {"off": RewardTerm(func=fails, weight=0.0), **BASE.rewards, "also": RewardTerm(func=fails, weight=-0.0)}
    config = replace(BASE, rewards=off)
    check_task(config)
    envs = make_env(config), make_env(BASE)
    rewards = [env.step(torch.zeros(NUM_ENVS, 1))[1] for env in envs]
    assert torch.equal(*rewards)
    assert (envs[0].reward_terms[:, [0, -1]] == 0).all()
    assert torch.equal(envs[0].reward_terms[:, 1:-1], envs[1].reward_terms)
    none = make_env(replace(BASE, rewards={"off": off["off"]}))
    assert none.step(torch.zeros(NUM_ENVS, 1))[1].tolist() == [0.0] * NUM_ENVS


def test_a_reward_of_weight_zero_may_name_what_the_robot_lacks() -> None:
    far = RewardTerm(func=lambda env, *, joint: env.qpos(joint)[:, 0], weight=0.0, params={"joint": "elbow"})
    make_env(replace(BASE, rewards={**BASE.rewards, "far": far}))
    with pytest.raises(RequestError, match="joint elbow"):
        make_env(replace(BASE, rewards={"far": far.replace(weight=1.0)}))
    ahead = reward(root.forward_velocity, 0.0, joint="elbow")
    flat = reward(velocity.flat_orientation, 0.0, sensor="up")
    check_task(replace(BASE, rewards={**BASE.rewards, "ahead": ahead, "flat": flat}))


def test_a_network_in_a_term_leaves_no_graph() -> None:
    """A program that steps without `torch.no_grad` would need more memory in each step."""
    factor = torch.ones(1, requires_grad=True)
    config = replace(
        BASE,
        observations={"actor": {"q": ObservationTerm(func=lambda env: factor * env.qpos("hinge"))}},
        rewards={"up": RewardTerm(func=lambda env: factor * env.qpos("hinge")[:, 0], weight=1.0)},
    )
    env = make_env(config)
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    seen, rewards, _, _ = env.step(torch.zeros(NUM_ENVS, 1))
    assert not any(tensor.requires_grad for tensor in (seen["actor"], rewards, env.reward_terms))


def test_a_shared_sum_of_a_state_fades_although_no_term_has_asked_for_it_yet() -> None:
    before, resumed = SharedSums(torch.device("cpu")), SharedSums(torch.device("cpu"))
    before.get("rare", 2, 0.5).add(torch.tensor([4.0, 2.0]))
    before.merge(lambda mine: mine, before.new())
    resumed.load_state_dict(before.state_dict())
    for sums in (before, resumed):
        sums.merge(lambda mine: mine, sums.new())
    assert resumed.get("rare", 2, 0.5).total.tolist() == before.get("rare", 2, 0.5).total.tolist() == [2.0, 1.0]
    assert resumed.new() == []
    assert resumed.get("rare", 2, 0.9).keep == 0.5, "as for a sum that two terms ask for"
    other = SharedSums(torch.device("cpu"))
    other.load_state_dict(before.state_dict())
    assert other.get("rare", 3, 0.9).total.tolist() == [0.0, 0.0, 0.0]
    assert other.state_dict()["rare"]["keep"] == 0.9


@pytest.mark.parametrize(("size", "keep"), [(2, 0.9), (2, 0.1), (3, 0.9)])
def test_after_a_resume_the_first_term_that_asks_for_a_shared_sum_decides_for_all_ranks(size: int, keep: float) -> None:
    before = SharedSums(torch.device("cpu"))
    before.get("rare", 2, 0.5).add(torch.tensor([4.0, 2.0]))
    before.merge(lambda mine: mine, before.new())
    ranks = [SharedSums(torch.device("cpu")) for _ in range(2)]
    for sums in ranks:
        sums.load_state_dict(before.state_dict())
    for asks_now in (False, True, True):  # at first no rank asks, then only the first
        if asks_now:
            ranks[0].get("rare", size, keep)
        new = sorted({text for sums in ranks for text in sums.new()})
        for sums in ranks:
            sums.merge(lambda mine: mine, new)
        assert ranks[0].totals()["rare"].tolist() == ranks[1].totals()["rare"].tolist()
    assert [sums.get("rare", size, 0.7).keep for sums in ranks] == [keep, keep]
    assert [sums.new() for sums in ranks] == [[], []]


def test_a_term_that_asks_at_once_after_a_resume_decides_for_all_ranks() -> None:
    ranks = [SharedSums(torch.device("cpu")) for _ in range(2)]
    for sums in ranks:
        sums.load_state_dict({"rare": {"total": torch.ones(2), "pending": torch.zeros(2), "keep": 0.5}})
    ranks[0].get("rare", 2, 0.9)
    new = sorted({text for sums in ranks for text in sums.new()})
    for sums in ranks:
        sums.merge(lambda mine: mine, new)
    assert [sums.totals()["rare"].tolist() for sums in ranks] == [[0.9, 0.9]] * 2
    assert [sums.new() for sums in ranks] == [[], []]

"""One set of invariants for every task on every engine, and what is particular to the environment."""

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import EnvConfig, ObservationTerm, RewardTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp.observations import last_action
from mjtrain.mdp.rewards import action_energy, action_rate, is_alive
from mjtrain.runtime.errors import RequestError
from support.envs import ENGINES, NUM_ENVS, TASKS, actions_for, make_env


@cache
def variants() -> list[tuple[str, bool]]:
    """Every task as it is, and without domain randomisation and pushes where it has them."""
    has_some = [name for name in TASKS if any(term.mode != "reset" for term in load_task(name).env.events.values())]
    return [(name, True) for name in TASKS] + [(name, False) for name in has_some]


def _is_quick(name: str, randomized: bool) -> bool:
    """Whether the quick loop tests it: each task without pictures as it is, and one that draws."""
    return randomized and (not name.endswith("-Vision") or name == "Cartpole-Balance-Vision")


@pytest.fixture(
    params=[
        pytest.param(
            variant,
            id=variant[0] + ("" if variant[1] else "-plain"),
            marks=() if _is_quick(*variant) else pytest.mark.process,
        )
        for variant in variants()
    ]
)
def config(request: pytest.FixtureRequest) -> EnvConfig:
    task, randomized = request.param
    config = load_task(task).env
    return replace(
        config, events={name: term for name, term in config.events.items() if randomized or term.mode == "reset"}
    )


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def trajectory(env: Env, num_steps: int = 12) -> list[torch.Tensor]:
    def side_by_side(observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([value.flatten(1).float() for value in observations.values()], dim=1)

    out = [side_by_side(env.observe())]
    for action in actions_for(env, num_steps):
        observations, rewards, _, _ = env.step(action)
        out += [side_by_side(observations), rewards]
    return out


@pytest.mark.supports("invariants", task="{config[0]}", engine="{engine}")
def test_shapes_types_and_finite_values(config: EnvConfig, engine: str) -> None:
    env = make_env(config, engine=engine)
    sizes = {name: value.shape for name, value in env.observe().items()}
    assert set(sizes) == set(config.observations)
    for action in actions_for(env, 15):
        observations, rewards, terminated, truncated = env.step(action)
        assert {name: value.shape for name, value in observations.items()} == sizes
        assert all(shape[0] == NUM_ENVS for shape in sizes.values())
        for value in observations.values():
            assert value.dtype == torch.float32 or (value.dtype == torch.uint8 and value.ndim == 4)
            assert value.isfinite().all()
        assert rewards.shape == (NUM_ENVS,)
        assert rewards.isfinite().all()
        assert terminated.shape == truncated.shape == (NUM_ENVS,)
        assert terminated.dtype == truncated.dtype == torch.bool
        assert not (terminated & truncated).any()


@pytest.mark.supports("invariants", task="{config[0]}", engine="{engine}")
def test_the_same_seed_gives_the_same_trajectory(config: EnvConfig, engine: str) -> None:
    """Another seed gives another start, and no two worlds start alike."""
    one, again, other = (make_env(config, engine=engine, seed=seed) for seed in (7, 7, 8))
    assert not torch.equal(one.state.qpos, other.state.qpos)
    assert one.state.qpos.unique(dim=0).shape[0] == NUM_ENVS
    first, second = trajectory(one), trajectory(again)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))


@pytest.mark.supports("invariants", task="{config[0]}", engine="{engine}")
def test_every_episode_ends_in_time(config: EnvConfig, engine: str) -> None:
    """Commands are those of evaluations: a motion begins in its first frame, near the pose that actions of 0 hold."""
    commands = {
        name: term.replace(params=term.params | term.evaluated_params) for name, term in config.commands.items()
    }
    env = make_env(replace(config, commands=commands, episode_length_s=0.2), engine=engine)
    assert env.max_episode_steps == round(0.2 / env.step_dt)
    for step, action in enumerate(actions_for(env, env.max_episode_steps) * 0, start=1):
        _, _, terminated, truncated = env.step(action)
        assert not terminated.any()
        assert truncated.all() == (step == env.max_episode_steps)
    assert (env.episode_step == 0).all()


def test_a_terminated_world_starts_anew_within_the_step(engine: str) -> None:
    config = load_task("Cartpole-Balance").env
    env = make_env(config, engine=engine)
    for step in range(1, 200):
        before = env.state.qpos[:, 1].clone()
        observations, _, terminated, truncated = env.step(torch.ones(NUM_ENVS, 1))
        assert not truncated.any()
        if terminated.any():
            assert step > 3
            assert (before[terminated].abs() > 0.3).all()
            assert (env.state.qpos[terminated, 1].abs() <= 0.1 + 1e-6).all()
            assert (env.episode_step[terminated] == 0).all()
            assert (env.episode_step[~terminated] == step).all()
            assert torch.allclose(observations["actor"][:, 1], env.state.qpos[:, 1])
            assert (env.last_action[terminated] == 0).all()
            return
    pytest.fail("no pole fell")


def test_an_environment_may_lack_every_kind_of_term() -> None:
    """A training may not: see `find_empty_parts`."""
    lacking: Any = {name: {} for name in ("actions", "observations", "rewards", "terminations", "events")}
    env = make_env(replace(load_task("Cartpole-Balance").env, **lacking))
    _, rewards, _, _ = env.step(torch.zeros(NUM_ENVS, 0))
    assert not rewards.any()


@pytest.mark.supports("invariants", task="{config[0]}", engine="{engine}")
def test_a_masked_reset_leaves_the_other_worlds_untouched(config: EnvConfig, engine: str) -> None:
    env = make_env(config, engine=engine)
    for action in actions_for(env, 3):
        env.step(action)
    before = {name: tensor.clone() for name, tensor in vars(env.state).items()}
    mask = torch.tensor([True, False, True, False, False, False])
    env.reset(mask)
    for name, tensor in vars(env.state).items():
        assert torch.equal(tensor[~mask], before[name][~mask]), name
    assert not torch.equal(env.state.qpos[mask], before["qpos"][mask])
    assert (env.episode_step == torch.where(mask, 0, 3)).all()


@pytest.mark.supports("invariants", task="{config[0]}", engine="{engine}")
def test_a_state_taken_and_given_back_continues_the_same(config: EnvConfig, engine: str, tmp_path: Path) -> None:
    first = make_env(replace(config, episode_length_s=0.5), engine=engine, seed=5)
    first.stagger()
    actions = actions_for(first, 24)
    for action in actions[:12]:
        first.step(action)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    straight = [first.step(action) for action in actions[12:]]
    again = make_env(replace(config, episode_length_s=0.5), engine=engine, seed=6)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for action, expected in zip(actions[12:], straight, strict=True):
        got = again.step(action)
        assert all(torch.equal(got[0][name], expected[0][name]) for name in got[0])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(got[1:], expected[1:], strict=True))
    assert torch.equal(first.statistics.pop(), again.statistics.pop())


def test_a_state_of_another_environment_is_refused(config: EnvConfig) -> None:
    state = make_env(config).state_dict()
    with pytest.raises(ValueError, match=r"^the checkpoint has 6 environments per rank, and this run has 3$"):
        make_env(config, num_envs=3).load_state_dict(state)


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, item in value.items() for path, leaf in _flatten(item, f"{name}.{key}").items()}


def _with(state: dict[str, Any], path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    key, _, rest = path.partition("/")
    return {**state, key: _with(state[key], rest, change) if rest else change(state[key])}


UNFIT = [
    ("rng", lambda rng: rng[:16], "random generator is not one of a cpu device"),  # 16 bytes: that of a GPU
    ("rng", lambda rng: rng.float(), "random generator is not one of a cpu device"),
    ("engine/engine", lambda kind: "warp" if kind == "native" else "native", "the state is of engine"),
    ("engine/rows/qvel", lambda rows: rows[:, 1:], "qvel has shape"),
    ("engine/rows/qacc_warmstart", lambda rows: rows[1:], "qacc_warmstart has shape"),
    ("engine/model/body_mass", lambda values: values[:, 1:], "body_mass has shape"),
    ("engine/model", lambda model: {**model, "unknown": torch.zeros(1)}, "unknown has shape"),
    ("buffers/episode_step", lambda steps: steps[1:], "has 2 environments per rank, and this run has 3"),
    ("seen/actor", lambda seen: seen[:, 1:], "another environment: actor differ"),
    ("seen", lambda seen: {}, "another environment: actor"),
]
"""Parts of a state, how to make them those of another environment, and what is said about it."""


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_a_state_that_does_not_fit_changes_nothing(engine: str) -> None:
    config = load_task("Quadruped-Velocity-Flat").env
    other, env = (make_env(config, engine=engine, seed=seed, num_envs=3) for seed in (1, 2))
    for action in actions_for(env, 2):
        other.step(action)
        env.step(action)
    before = _flatten(env.state_dict())
    for path, change, message in UNFIT:
        with pytest.raises(ValueError, match=message):
            env.load_state_dict(_with(other.state_dict(), path, change))
        after = _flatten(env.state_dict())
        assert before.keys() == after.keys()
        for name, value in before.items():
            same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
            assert same, f"{name}, after a state with another {path}"


# Where single precision lets contacts come and go, trajectories part; other tests compare the engines there.
PARTING = ("Hand-Reorient-Cube", "Hand-Reorient-Cube-Vision", "Humanoid-Velocity-Rough", "Quadruped-Velocity-Rough")


@pytest.mark.supports("parity", task="{variant[0]}", engine="warp")
@pytest.mark.process
@pytest.mark.parametrize("variant", [variant for variant in variants() if variant[0] not in PARTING])
def test_both_engines_see_the_same_task(variant: tuple[str, bool]) -> None:
    """100 env steps with the same actions, through contacts; the bounds are those of single precision."""
    task, randomized = variant
    config = load_task(task).env
    if not randomized:
        config = replace(config, events={name: term for name, term in config.events.items() if term.mode == "reset"})
    native, warp = (make_env(config, engine=engine, seed=3) for engine in ("native", "warp"))
    agreeing: dict[str, float] = {}
    bounds = bound_sensors(native.engine.model)
    for action in actions_for(native, 100):
        theirs, ours = native.step(action), warp.step(action)
        assert torch.allclose(warp.state.qpos, native.state.qpos, atol=1e-4)
        assert torch.allclose(warp.state.qvel, native.state.qvel, atol=5e-3)
        apart = (warp.state.sensordata - native.state.sensordata).abs()
        assert (apart <= bounds + 1e-3 * native.state.sensordata.abs()).all()
        for name, value in theirs[0].items():
            if value.ndim == 4:
                agreeing[name] = agreeing.get(name, 0.0) + share_of_equal_pixels(ours[0][name], value) / 100
            else:
                assert torch.allclose(ours[0][name], value, atol=2e-3)
        assert torch.allclose(ours[1], theirs[1], atol=1e-4)
        assert torch.equal(ours[2], theirs[2])
        assert torch.equal(ours[3], theirs[3])
    assert all(share > 0.999 for share in agreeing.values())


def bound_sensors(model: mujoco.MjModel) -> torch.Tensor:
    """Bounds of what may differ in each column of sensordata: 1e-3; for forces of contacts, 1e-5 of the weight if more.

    The forces of all contacts carry the weight, and single precision knows none of them better than that.
    """
    bounds = torch.full((model.nsensordata,), 1e-3)
    touch = torch.from_numpy(model.sensor_adr[model.sensor_type == mujoco.mjtSensor.mjSENS_TOUCH]).long()
    bounds[touch] = max(1e-3, 1e-5 * 9.81 * float(model.body_subtreemass[0]))
    return bounds


def share_of_equal_pixels(image: torch.Tensor, other: torch.Tensor) -> float:
    """Share of values within 2 of 255; states that differ by rounding may differ in single pixels on edges."""
    limit = 2 if image.dtype == torch.uint8 else 2 / 255
    return ((image.float() - other.float()).abs() <= limit).float().mean().item()


@pytest.mark.supports("parity", task="Quadruped-Velocity-Rough", engine="warp")
@pytest.mark.process
def test_both_engines_see_the_same_rough_ground() -> None:
    """Trajectories part at the first touch; what robots feel does not.

    Contacts agree in place, depth and direction, but where a foot overlaps several triangles of the height field,
    mujoco-warp 4.0 leaves some of the contacts with them out, and MuJoCo keeps them all.
    """
    config = load_task("Quadruped-Velocity-Rough").env
    config = replace(config, events={name: term for name, term in config.events.items() if name != "push"})
    native, warp = (make_env(config, engine=engine, seed=3, num_envs=48) for engine in ("native", "warp"))
    rewards, torques, touches, heights, failures = ([] for _ in range(5))
    for count, action in enumerate(actions_for(native, 60)):
        results = native.step(action), warp.step(action)
        if count < 2:  # in the air
            assert torch.allclose(warp.state.qpos, native.state.qpos, atol=1e-4)
        rewards.append([result[1].mean().item() for result in results])
        failures.append([result[2].sum().item() for result in results])
        torques.append([env.sensor((".*_torque",)).abs().mean().item() for env in (native, warp)])
        touches.append([(env.sensor((".*_foot_contact",)) > 1).float().mean().item() for env in (native, warp)])
        heights.append(
            [
                (env.qpos("base")[:, 2] - env.ground.height(env.qpos("base")[:, :2])).mean().item()
                for env in (native, warp)
            ]
        )
    native_reward, warp_reward = torch.tensor(rewards).sum(dim=0)
    assert abs(native_reward - warp_reward) < 0.05 * native_reward.abs()
    native_torque, warp_torque = torch.tensor(torques).mean(dim=0)
    assert abs(native_torque - warp_torque) < 0.02 * native_torque
    native_touches, warp_touches = torch.tensor(touches).mean(dim=0)
    assert abs(native_touches - warp_touches) < 0.02
    native_height, warp_height = torch.tensor(heights)[20:].mean(dim=0)
    assert abs(native_height - warp_height) < 0.003
    native_failures, warp_failures = torch.tensor(failures).sum(dim=0)
    assert abs(native_failures - warp_failures) <= 2


def test_reward_is_the_weighted_sum_per_second() -> None:
    config = load_task("Cartpole-Balance").env
    term = replace(config.rewards["upright"], weight=3.0)
    env = make_env(replace(config, rewards={"upright": term}))
    _, rewards, _, _ = env.step(torch.zeros(NUM_ENVS, 1))
    # sensors describe the state one physics step before qpos, hence the tolerance
    assert torch.allclose(rewards, 3.0 * env.state.qpos[:, 1].cos() * 0.02, atol=1e-4)


def test_the_pole_sensor_points_up() -> None:
    env = make_env(load_task("Cartpole-Balance").env)
    axis = env.sensor("pole_axis")
    angle = env.qpos("hinge")[:, 0]
    assert torch.allclose(axis, torch.stack([angle.sin(), angle * 0, angle.cos()], dim=1), atol=1e-6)


def test_actions_are_clipped_scaled_and_remembered() -> None:
    config = load_task("Cartpole-Balance").env
    push = replace(config.actions["push"], scale=0.5, offset=0.1, clip=(-1.0, 1.0))
    env = make_env(replace(config, actions={"push": push}))
    env.step(torch.full((NUM_ENVS, 1), 0.4))
    assert torch.allclose(env.state.ctrl, torch.full((NUM_ENVS, 1), 0.1 + 0.5 * 0.4))
    env.step(torch.full((NUM_ENVS, 1), -7.0))
    assert torch.allclose(env.state.ctrl, torch.full((NUM_ENVS, 1), 0.1 - 0.5))
    assert (env.action == -7.0).all()
    assert torch.allclose(env.last_action, torch.full((NUM_ENVS, 1), 0.4))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(1, 1), r"the actions have the shape \(1, 1\); give \(5, 1\)"),
        (torch.zeros(()), r"the actions have the shape \(\); give \(5, 1\)"),
        (np.zeros((NUM_ENVS, 1)), r"the actions are of type ndarray; give a tensor of shape \(5, 1\)"),
        (torch.zeros(NUM_ENVS, 1, dtype=torch.complex64), "the actions are of torch.complex64; give real numbers"),
    ],
)
def test_what_is_no_action_of_all_worlds_is_refused_before_the_step(action: Any, message: str) -> None:
    env = make_env(load_task("Cartpole-Balance").env)
    before = env.state.qpos.clone()
    with pytest.raises(RequestError, match=f"^step: {message.replace('5', str(NUM_ENVS))}$"):
        env.step(action)
    assert torch.equal(env.state.qpos, before)


def test_actions_of_a_network_that_learns_leave_no_gradients_behind() -> None:
    env = make_env(load_task("Cartpole-Balance").env)
    action = torch.zeros(NUM_ENVS, 1, requires_grad=True)
    env.step(action)
    observations, rewards, _, _ = env.step(action)
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    assert not any(tensor.requires_grad for tensor in (env.action, env.last_action, rewards, *observations.values()))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.zeros(NUM_ENVS), "has the shape .* of torch.float32; give booleans of shape"),
        (torch.zeros(NUM_ENVS + 1, dtype=torch.bool), "has the shape .* of torch.bool; give booleans of shape"),
        ([True] * NUM_ENVS, "is of type list; give a boolean tensor of shape"),
    ],
)
def test_what_is_no_mask_of_all_worlds_is_refused(mask: Any, message: str) -> None:
    env = make_env(load_task("Cartpole-Balance").env)
    with pytest.raises(RequestError, match=f"^reset: mask {message}"):
        env.reset(mask)


def test_terms_about_the_action() -> None:
    config = load_task("Cartpole-Balance").env
    rewards = {
        "alive": RewardTerm(func=is_alive, weight=50.0),
        "rate": RewardTerm(func=action_rate, weight=50.0),
        "energy": RewardTerm(func=action_energy, weight=50.0),
    }
    observations = {"actor": {"action": ObservationTerm(func=last_action)}}
    env = make_env(replace(config, rewards=rewards, observations=observations))
    assert (env.observe()["actor"] == 0).all()
    env.step(torch.full((NUM_ENVS, 1), 0.5))
    seen, reward, _, _ = env.step(torch.full((NUM_ENVS, 1), -0.2))
    assert torch.allclose(seen["actor"], torch.full((NUM_ENVS, 1), -0.2))
    assert torch.allclose(reward, torch.full((NUM_ENVS,), 1.0 + 0.7**2 + 0.2**2))


def test_observations_are_scaled_then_clipped() -> None:
    config = load_task("Cartpole-Balance").env
    term = replace(config.observations["actor"]["cart_position"], scale=10.0, clip=(-1.0, 2.0))
    env = make_env(replace(config, observations={"actor": {"cart_position": term}}))
    assert torch.equal(env.observe()["actor"], (env.qpos("slider") * 10.0).clamp(-1.0, 2.0))


def test_an_environment_is_not_pickled_or_copied() -> None:
    env = make_env(load_task("Cartpole-Balance").env, num_envs=1)
    for use in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"^an Env cannot be pickled or copied; make another one with"):
            use(env)


def test_a_closed_environment_says_so_and_may_be_closed_again() -> None:
    env = make_env(load_task("Cartpole-Balance").env, num_envs=1)
    env.close()
    env.close()
    for use in (lambda: env.step(torch.zeros(1, 1)), lambda: env.reset(torch.ones(1, dtype=torch.bool))):
        with pytest.raises(RequestError, match=r"^the environment is closed; make another one$"):
            use()


def test_unknown_names_are_the_users_error() -> None:
    config = load_task("Cartpole-Balance").env
    push = replace(config.actions["push"], actuators=("pull",))
    with pytest.raises(RequestError, match=r"actuator pull \(for actions.push\); it has push"):
        make_env(replace(config, actions={"push": push}))
    with pytest.raises(RequestError, match="same actuator"):
        make_env(replace(config, actions={"one": config.actions["push"], "two": config.actions["push"]}))
    event = replace(config.events["start_pole"], params={"joint": "knee", "position": (0.0, 0.0)})
    with pytest.raises(RequestError, match=r"joint knee \(for events.start\); it has slider, hinge"):
        make_env(replace(config, events={"start": event}))


def test_statistics_count_whole_episodes_only() -> None:
    config = replace(load_task("Cartpole-Swingup").env, episode_length_s=0.1)
    env = make_env(config)
    returns = torch.zeros(NUM_ENVS)
    for _ in range(5):
        _, rewards, _, _ = env.step(torch.zeros(NUM_ENVS, 1))
        returns += rewards
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert math.isclose(summary["mean_reward"], returns.mean().item(), rel_tol=1e-5)
    assert summary["mean_episode_length"] == 5
    assert summary["termination/time_out"] == 1
    assert math.isclose(sum(summary[f"reward/{name}"] for name in config.rewards), summary["mean_reward"])
    assert env.statistics.summarise(env.statistics.pop().tolist()) == {"nan_resets": 0}

    env.stagger()
    assert 0 <= env.episode_step.min() <= env.episode_step.max() < 5
    lengths = []
    for _ in range(10):
        env.step(torch.zeros(NUM_ENVS, 1))
        lengths.append(env.statistics.summarise(env.statistics.pop().tolist()).get("mean_episode_length"))
    assert set(lengths) <= {None, 5.0}
    assert 5.0 in lengths


def test_totals_of_two_ranks_add_up_to_the_true_mean() -> None:
    config = replace(load_task("Cartpole-Swingup").env, episode_length_s=0.1)
    small, large = make_env(config, num_envs=2), make_env(config, num_envs=9, seed=1)
    means, totals = [], torch.zeros(0)
    for env in (small, large):
        for _ in range(5):
            env.step(torch.zeros(env.num_envs, 1))
        part = env.statistics.pop()
        means.append(env.statistics.summarise(part.tolist())["mean_reward"])
        totals = part if totals.numel() == 0 else totals + part
    together = small.statistics.summarise(totals.tolist())["mean_reward"]
    assert math.isclose(together, (2 * means[0] + 9 * means[1]) / 11, rel_tol=1e-6)


def test_a_reset_forgets_the_episode_that_ran() -> None:
    env = make_env(load_task("Cartpole-Balance").env, num_envs=2)
    for _ in range(5):
        env.step(torch.zeros(2, 1))
    assert env.statistics.episode_steps().tolist() == [5, 5]
    env.reset(torch.tensor([True, False]))
    assert env.statistics.episode_steps().tolist() == env.episode_step.tolist() == [0, 5]
    assert env.statistics.episode_return(next(iter(env.config.rewards)))[0] == 0


def test_an_unknown_name_of_a_draw_or_a_group_is_named() -> None:
    env = make_env(load_task("Arm-Reach").env, num_envs=2)
    with pytest.raises(RequestError, match=r"^unknown command term aim; available: pose$"):
        env.reset(torch.tensor([True, False]), draws={"aim": torch.zeros(2, 7)})
    with pytest.raises(RequestError, match=r"^unknown observation group see; available: actor"):
        env.observation_widths("see")

"""Nothing on the way of a step waits for the device or depends on the values in a tensor."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp import (
    command,
    events,
    gait,
    observation,
    observations,
    reset_event,
    reward,
    rewards,
    root,
    targets,
    termination,
    terminations,
)
from mjtrain.sim.engines import make_engine
from support.envs import TASKS, actions_for, make_env

WAITS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.nonzero,
    torch.Tensor.masked_select,
    torch.Tensor.unique,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.nonzero,
    torch.argwhere,
    torch.masked_select,
    torch.unique,
    torch.tensor,  # from the host to the device
}


class NoWaiting(TorchFunctionMode):
    """Raises at whatever would make a GPU and its host wait for each other, and at boolean indices."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        assert func not in WAITS, f"{name} on the step path"
        assert not (func is torch.where and len(args) == 1), "torch.where with one argument is nonzero"
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            for part in index:
                boolean = isinstance(part, torch.Tensor) and part.dtype == torch.bool
                assert not boolean, f"{name} with a boolean index on the step path"
        return func(*args, **(kwargs or {}))


def exempt(function: Any) -> Any:
    """Leave the inside of the engine and the renderer out."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("task", TASKS)
def test_no_step_waits_for_the_device(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env(load_task(task).env)
    actions = actions_for(env, 5)
    env.step(actions[0])
    for name in ("step", "reset", "set_qvel", "refresh_model"):
        monkeypatch.setattr(env.engine, name, exempt(getattr(env.engine, name)))
    if env.config.cameras:
        monkeypatch.setattr(env.cameras.renderer, "render", exempt(env.cameras.renderer.render))
    with NoWaiting():
        for action in actions.unbind():
            env.step(action)


def test_terms_that_no_task_uses_do_not_wait_either(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_task("Quadruped-Velocity-Flat").env
    feet = ("FR_foot_contact", "FL_foot_contact", "RR_foot_contact", "RL_foot_contact")
    legs = (".*_(hip|thigh|calf)",)
    root_terms = (root.base_lin_vel, root.base_ang_vel, root.projected_gravity, root.base_height)
    config = replace(
        config,
        observations={
            **config.observations,
            "actor": {
                **{func.__name__: observation(func, joint="base") for func in root_terms},
                "limits": observation(observations.joint_pos_limit_normalized, joints=legs),
                "aim": observation(targets.joint_error, command="pose", joints=legs),
            },
        },
        commands={**config.commands, "pose": command(targets.joint_command, joints=legs)},
        rewards={
            "acc": reward(rewards.action_acc, 1.0),
            "air": reward(gait.feet_air_time, 1.0, contact_sensors=feet, threshold_s=0.1, command="velocity"),
            "soft": reward(rewards.joint_pos_limits, 1.0, joints=legs),
            "power": reward(rewards.mechanical_power, 1.0, joints=legs, torque_sensors=(".*_torque",)),
            "high": reward(root.height_in_range, 1.0, joint="base", low=0.1),
        },
        terminations={
            "low": termination(root.height_out_of_range, joint="base", low=0.1, high=0.2),
            "tilted": termination(root.bad_orientation, joint="base", limit=0.5),
            "far": termination(terminations.joint_pos_out_of_limit, joints=legs),
        },
        events={
            "noise": reset_event(events.reset_with_noise, position=0.1, velocity=0.1),
            "spread": reset_event(events.reset_joints_within_limits, joints=legs),
        },
    )
    env = make_env(config)
    actions = actions_for(env, 5)
    env.step(actions[0])  # fills the caches
    for name in ("step", "reset"):
        monkeypatch.setattr(env.engine, name, exempt(getattr(env.engine, name)))
    with NoWaiting():
        for action in actions.unbind():
            env.step(action)


@pytest.mark.supports("invariants", task="{task}", engine="warp")
@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_no_step_waits_for_a_gpu(task: str) -> None:
    config = load_task(task).env
    env = Env(config, make_engine("warp", config, 64, "cuda:0", num_threads=1), seed=0)
    actions = actions_for(env, 5).to("cuda:0")
    env.step(actions[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in actions.unbind():
            env.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.isfinite().all() for value in env.observe().values())


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.__setitem__(tensor > 0, 0.0),
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.where(tensor > 0),
        lambda tensor: bool(tensor.any()),
        lambda tensor: tensor.cpu(),
    ],
)
def test_the_check_itself_finds_what_waits(wait: Any) -> None:
    tensor = torch.ones(3)
    with pytest.raises(AssertionError), NoWaiting():
        wait(tensor)

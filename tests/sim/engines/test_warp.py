"""The warp engine replays captured graphs: what a plain call of MuJoCo Warp computes, and nothing else."""

from collections.abc import Callable

import mujoco
import mujoco_warp as mjw
import pytest
import torch
import warp as wp

from mjtrain.sim.engines.warp import WarpEngine
from support.models import ALL

NUM_ENVS = 4
CTRL = torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.3, 0.0], [0.2, 0.2]])


def make_engine(device: str = "cpu", *, deterministic: bool = False) -> WarpEngine:
    model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
    return WarpEngine(model, NUM_ENVS, device=device, deterministic=deterministic)


def act(engine: WarpEngine, num_steps: int) -> torch.Tensor:
    """Step, with a reset in between."""
    for step in range(num_steps):
        engine.step(CTRL.to(engine.device), 4)
        if step == num_steps // 2:
            qpos = engine.layout.default_qpos.repeat(NUM_ENVS, 1)
            mask = torch.tensor([True, False, False, True], device=engine.device)
            engine.reset(mask, qpos, torch.zeros(NUM_ENVS, 8, device=engine.device))
    return torch.cat([engine.state.qpos, engine.state.qvel, engine.state.sensordata], dim=1).cpu()


def test_a_replayed_step_is_the_plain_call_bit_for_bit() -> None:
    engine = make_engine()
    model = engine.model
    worlds, data = mjw.put_model(model), mjw.make_data(model, nworld=NUM_ENVS)
    wp.to_torch(data.qpos).copy_(engine.state.qpos)
    mjw.forward(worlds, data)  # as the engine did when it began
    for _ in range(30):
        engine.step(CTRL, 4)
        wp.to_torch(data.ctrl).copy_(CTRL)
        for _ in range(4):
            mjw.step(worlds, data)
    assert torch.equal(engine.state.qpos, wp.to_torch(data.qpos))
    assert torch.equal(engine.state.sensordata, wp.to_torch(data.sensordata))


def test_a_cpu_records_one_physics_step_for_calls_of_any_length() -> None:
    engine = make_engine()
    engine.step(CTRL, 4)
    recorded = len(engine._calls._graphs)
    engine.step(CTRL, 200)
    assert len(engine._calls._graphs) == recorded


@pytest.mark.parametrize("call", [lambda engine: engine.step(CTRL, 3), lambda engine: engine.refresh_model(None)])
def test_recording_a_call_does_it_once(call: Callable[[WarpEngine], None]) -> None:
    """The call before the recording, which compiles the kernels, leaves no trace."""
    fresh, used = make_engine(), make_engine()
    act(used, 4)
    fresh.load_state_dict(used.state_dict())
    for engine in (fresh, used):
        engine.step(CTRL, 4)
        call(engine)
        engine.step(CTRL, 4)
    for name, tensor in vars(fresh.state).items():
        assert torch.equal(tensor, vars(used.state)[name]), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_masses_that_change_after_the_recording_count(device: str) -> None:
    engine = make_engine(device)
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool, device=device)
    masses = engine.expand("body_mass")
    engine.refresh_model(everywhere)
    for factors in ([1.0, 2.0, 0.5, 1.5], [0.7, 1.0, 3.0, 1.1]):
        masses.copy_(torch.tensor(engine.model.body_mass) * torch.tensor(factors)[:, None])
        engine.refresh_model(everywhere)
        for world, factor in enumerate(factors):
            model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
            model.body_mass *= factor
            mujoco.mj_setConst(model, mujoco.MjData(model))
            for constant in ("body_subtreemass", "dof_invweight0", "body_invweight0"):
                found = engine._expanded[constant][world].cpu().reshape(-1)  # what the physics reads
                assert torch.allclose(found, torch.tensor(getattr(model, constant)).float().reshape(-1), rtol=1e-4)


def test_a_deterministic_engine_gives_the_same_worlds_again() -> None:
    first, again = (act(make_engine(deterministic=True), 20) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.allclose(first, act(make_engine(), 20), atol=1e-4, rtol=1e-3)


@pytest.mark.supports("parity", engine="warp")
@pytest.mark.gpu
def test_a_deterministic_engine_gives_the_same_worlds_again_on_a_gpu() -> None:
    first, *others = (act(make_engine("cuda:0", deterministic=True), 50) for _ in range(5))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.supports("parity", engine="warp")
@pytest.mark.gpu
def test_a_stream_of_torch_and_the_physics_wait_for_each_other() -> None:
    """What is queued before a step on another stream than torch's default one is seen, and its results after it."""
    expected, engine = act(make_engine("cuda:0"), 20), make_engine("cuda:0")
    with torch.cuda.stream(torch.cuda.Stream()):
        busy = torch.randn(4096, 4096, device="cuda")
        for step in range(20):
            for _ in range(10):  # milliseconds of work, in front of the controls
                busy = busy @ busy / 4096
            engine.step(CTRL.cuda() + 0 * busy[:NUM_ENVS, :2].nan_to_num(), 4)
            if step == 10:
                qpos = engine.layout.default_qpos.repeat(NUM_ENVS, 1)
                mask = torch.tensor([True, False, False, True], device="cuda")
                engine.reset(mask, qpos, torch.zeros(NUM_ENVS, 8, device="cuda"))
        found = torch.cat([engine.state.qpos, engine.state.qvel, engine.state.sensordata], dim=1).cpu()
    assert torch.allclose(found, expected, atol=1e-3, rtol=1e-2)

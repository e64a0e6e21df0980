"""Physics: two engines behind one protocol. Importing this package imports neither of them."""

from typing import TYPE_CHECKING, Literal

from mjtrain.runtime.deferred_imports import defer_import
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.config import EngineName, EnvConfig
    from mjtrain.sim.engines.base import Engine

defer_import("glfw")  # for windows; `import mujoco` imports it, which starts a process that looks for its library


def resolve_engine(name: "EngineName", device: str) -> Literal["native", "warp"]:
    """Decide which engine runs on a device; both can, and the native engine copies where that is not the CPU."""
    if name not in ("auto", "native", "warp"):  # in Python it may be any string
        raise RequestError(f"--engine {name}: give auto, native or warp")
    if name == "auto":
        return "native" if device == "cpu" else "warp"
    return name


def make_engine(name: "EngineName", config: "EnvConfig", num_envs: int, device: str, num_threads: int) -> "Engine":
    """Compile the model of the robot and create an engine for it.

    Args:
        name: Which engine, see `resolve_engine`.
        device: Torch device of the state that the environment sees; the native engine steps on the CPU.
        num_threads: CPU threads of the native engine, and of the cameras of both.
    """
    from mjtrain.sim.robots.model import check_flags, load_model, write_no_log

    name = resolve_engine(name, device)
    model = load_model(config)
    robot = f"--env.robot {config.robot.label}"
    check_flags(model, robot)
    write_no_log()
    if name == "native":
        if device == "cpu":
            from mjtrain.sim.engines.native import NativeEngine

            engine = NativeEngine(model, num_envs, num_threads=num_threads)
        else:
            from mjtrain.sim.engines.native_on_device import NativeOnDevice

            engine = NativeOnDevice(model, num_envs, device=device, num_threads=num_threads)
        if engine.failures:
            raise RequestError(f"{robot}: MuJoCo cannot compute its default pose: {engine.failures[-1]}")
        return engine
    from mjtrain.sim.engines.warp import WarpEngine

    return WarpEngine(
        model,
        num_envs,
        device=device,
        num_threads=num_threads,
        nconmax=config.warp.nconmax,
        njmax=config.warp.njmax,
        deterministic=config.warp.deterministic,
    )

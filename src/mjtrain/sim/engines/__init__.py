"""Physics: two engines behind one protocol. Importing this package imports neither of them."""

from typing import TYPE_CHECKING, Literal

from mjtrain.runtime.deferred_imports import defer_import

if TYPE_CHECKING:
    from mjtrain.config import EngineName, EnvConfig
    from mjtrain.sim.engines.base import Engine

defer_import("glfw")  # for windows; `import mujoco` imports it, which starts a process that looks for its library


def resolve_engine(name: "EngineName", device: str) -> Literal["native", "warp"]:
    """Decide which engine runs on a device.

    Args:
        name: The engine of the request.
        device: Torch device of the rank.

    Returns:
        Both engines serve both kinds of devices: the native engine steps on the CPU, and copies where the device is
        another.
    """
    if name == "auto":
        return "native" if device == "cpu" else "warp"
    return name


def make_engine(
    name: Literal["native", "warp"], config: "EnvConfig", num_envs: int, device: str, num_threads: int
) -> "Engine":
    """Compile the model of the robot and create an engine for it.

    Args:
        name: Which engine.
        config: Holds the path of the MJCF file, the ground, and the settings of the warp engine.
        num_envs: Number of worlds.
        device: Torch device of the state that the environment sees; the native engine steps on the CPU.
        num_threads: CPU threads of the native engine, and of the cameras of both.

    Raises:
        RequestError: The MJCF file is missing or is not a valid model.
    """
    from mjtrain.sim.robots.model import load_model

    model, height_field = load_model(config)
    if name == "native" and device != "cpu":
        from mjtrain.sim.engines.native_on_device import NativeOnDevice

        return NativeOnDevice(model, num_envs, device=device, num_threads=num_threads, height_field=height_field)
    if name == "native":
        from mjtrain.sim.engines.native import NativeEngine

        return NativeEngine(model, num_envs, num_threads=num_threads, height_field=height_field)
    from mjtrain.sim.engines.warp import WarpEngine

    return WarpEngine(
        model,
        num_envs,
        device=device,
        num_threads=num_threads,
        nconmax=config.warp.nconmax,
        njmax=config.warp.njmax,
        deterministic=config.warp.deterministic,
        height_field=height_field,
    )

"""Physics: two engines behind one protocol. Importing this package imports neither of them."""

from typing import TYPE_CHECKING, Literal

from mjtrain.deferred_imports import defer_import
from mjtrain.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.config import EngineName, EnvConfig
    from mjtrain.engines.base import Engine

defer_import("glfw")  # for windows; `import mujoco` imports it, which starts a process that looks for its library


def resolve_engine(name: "EngineName", device: str) -> Literal["native", "warp"]:
    """Decide which engine runs on a device.

    Args:
        name: The engine of the request.
        device: Torch device of the rank.

    Raises:
        RequestError: That engine cannot run on that device.
    """
    if name == "auto":
        return "native" if device == "cpu" else "warp"
    if name == "native" and device != "cpu":
        raise RequestError(
            f"--engine native: runs on the CPU only, not on {device}; use --engine warp or --gpu-ids None"
        )
    return name


def make_engine(
    name: Literal["native", "warp"], config: "EnvConfig", num_envs: int, device: str, num_threads: int
) -> "Engine":
    """Compile the model of the robot and create an engine for it.

    Args:
        name: Which engine.
        config: Holds the path of the MJCF file, the ground, and the settings of the warp engine.
        num_envs: Number of worlds.
        device: Torch device of the worlds; the native engine is on the CPU only.
        num_threads: CPU threads of the native engine, and of the cameras of both.

    Raises:
        RequestError: The MJCF file is missing or is not a valid model.
    """
    from mjtrain.engines.model import load_model

    model, height_field = load_model(config)
    if name == "native":
        from mjtrain.engines.native import NativeEngine

        return NativeEngine(model, num_envs, num_threads=num_threads, height_field=height_field)
    from mjtrain.engines.warp import WarpEngine

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

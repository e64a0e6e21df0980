"""What the cameras of all worlds see, rendered when a frame is due."""

from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import CameraConfig
from mjtrain.env.core import EnvCore
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.sim.cameras.renderer import CameraRenderer


class Cameras:
    """Frames of the cameras of `EnvConfig.cameras`.

    A camera with an interval of K env steps takes a frame in every world at every K-th step of the run. A world whose
    episode begins in between gets its first frame at once. With K > 1 a GPU is waited for in each step, to know whether
    an episode has begun.
    """

    def __init__(self, configs: dict[str, CameraConfig], core: EnvCore) -> None:
        self._configs = configs
        self._core = core
        self._renderer = None
        self.clock = 0
        """Env steps of the run so far, by which frames are due."""
        self._kept: dict[str, dict[str, torch.Tensor]] = {}
        if not configs:
            return
        from mjtrain.sim.cameras.renderer import CameraRenderer  # seconds of imports

        self._renderer = CameraRenderer(
            core.engine.model, core.num_envs, configs, device=str(core.device), num_threads=core.engine.num_threads
        )
        self._kept = {
            name: {stream: torch.zeros_like(image) for stream, image in self._renderer.images[name].items()}
            for name, config in configs.items()
            if config.interval > 1
        }

    @property
    def renderer(self) -> "CameraRenderer":
        """Renders the cameras, and holds the looks of each world."""
        if self._renderer is None:
            raise RequestError("the environment has no cameras; give EnvConfig(cameras={name: CameraConfig(...)})")
        return self._renderer

    def config(self, camera: str) -> CameraConfig:
        """Return the config of a camera."""
        if camera not in self._configs:
            known = ", ".join(self._configs) or "none; give EnvConfig(cameras={name: CameraConfig(...)})"
            raise RequestError(f"EnvConfig.cameras has no camera {camera}; available: {known}")
        return self._configs[camera]

    def images(self, camera: str, stream: str) -> torch.Tensor:
        """Return the last frame of a camera in every world, as `CameraRenderer.images`; the next one overwrites it."""
        streams = self.config(camera).streams
        if stream not in streams:
            flag = f"--env.cameras.{camera}.streams"
            raise RequestError(f"the camera {camera} does not deliver {stream}; {flag} has {', '.join(streams)}")
        return self._kept.get(camera, self.renderer.images[camera])[stream]

    def update(self, begun: torch.Tensor, advance: bool = True) -> None:
        """Take the frames that are due.

        Args:
            begun: Worlds whose episode has just begun. Boolean, shape (num_envs,).
            advance: Whether an env step has passed for the other worlds.
        """
        if self._renderer is None:
            return
        if advance:
            self.clock += 1
        due = {name: advance and self.clock % config.interval == 0 for name, config in self._configs.items()}
        partly = not all(due.values()) and bool(begun.any())
        rendered = [name for name in due if due[name] or partly]
        if rendered:
            self._renderer.render(self._core.state.qpos, rendered)
        for name in rendered:
            for stream, kept in self._kept.get(name, {}).items():
                image = self._renderer.images[name][stream]
                kept.copy_(image if due[name] else torch.where(begun[:, None, None, None], image, kept))

    def frames(self) -> list[torch.Tensor]:
        """Return the last frames of all cameras, live; see `images`."""
        return [self.images(name, stream) for name, config in self._configs.items() for stream in config.streams]

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {f"{name}.{stream}": image for name, kept in self._kept.items() for stream, image in kept.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what else the frames to come depend on: the clock, and copies of the looks of each world."""
        return {} if self._renderer is None else {"clock": self.clock, "looks": self._renderer.state_dict()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise a ValueError if a state is of other cameras, another model or num_envs."""
        if bool(state) != (self._renderer is not None):
            raise ValueError("the state is of an environment " + ("with" if state else "without") + " cameras")
        if self._renderer is not None:
            self._renderer.check_state(state["looks"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checked state, when the state of the worlds and the buffers are restored already."""
        if self._renderer is None:
            return
        self.clock = state["clock"]
        self._renderer.load_state_dict(state["looks"])
        if rendered_each_step := [name for name in self._configs if name not in self._kept]:
            self._renderer.render(self._core.state.qpos, rendered_each_step)

    def close(self) -> None:
        """Give the renderer's threads and buffers back."""
        if self._renderer is not None:
            self._renderer.close()


def list_channels(camera: CameraConfig, params: dict[str, Any]) -> list[str]:
    """Name the channels of one frame of a camera, given the parameters of `mdp.observations.camera`."""
    channels = {
        "rgb": ["red", "green", "blue"],
        "depth": ["depth"],
        "segmentation": list(camera.classes) if params.get("one_hot", True) else ["class"],
    }
    return [channel for stream in list_streams(camera, params) for channel in channels[stream]]


def list_streams(camera: CameraConfig, params: dict[str, Any]) -> list[str]:
    """Name the streams of a camera that a term shows, given the parameters of `mdp.observations.camera`."""
    stream = params.get("stream")
    return list(camera.streams) if stream is None else [stream]

"""A task whose policy sees: the cart-pole from its camera."""

from dataclasses import replace

from mjtrain.catalog import load_task
from mjtrain.config import CameraConfig, EnvConfig, ObservationTerm, StreamName
from mjtrain.mdp import observations
from mjtrain.mdp.terms import observation

CARTPOLE = load_task("Cartpole-Balance").env
CLASSES = {"cart": ("cart",), "pole": ("pole",)}


def see(stream: StreamName = "rgb", **options: object) -> ObservationTerm:
    """A term that shows a stream of the camera on the side."""
    return observation(observations.camera, camera="side", stream=stream).replace(**options)


def make_vision_env(
    images: dict[str, dict[str, ObservationTerm]] | None = None, *, size: int = 32, interval: int = 1
) -> EnvConfig:
    """The cart-pole with groups of images beside its own; by default `image`, three RGB frames."""
    camera = CameraConfig(
        width=size, height=size, streams=("rgb", "depth", "segmentation"), classes=CLASSES, interval=interval
    )
    groups = {"image": {"rgb": see(history=3)}} if images is None else images
    return replace(CARTPOLE, cameras={"side": camera}, observations={**CARTPOLE.observations, **groups})

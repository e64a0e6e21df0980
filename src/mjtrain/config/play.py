"""How a policy is looked at."""

from dataclasses import dataclass
from typing import Literal

from mjtrain.config.launch import GpuIds
from mjtrain.config.train import EngineName

PolicyName = Literal["trained", "zero", "random"]

ViewerName = Literal["none", "web", "native"]


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """What to look at, and how."""

    run: str | None = None
    """Run directory, or its name below the task's folder. Default: the newest run of the task that has a valid
    checkpoint."""

    checkpoint: str | None = None
    """Checkpoint file. Default: the newest valid one of the run."""

    policy: PolicyName = "trained"
    """trained: the network of the checkpoint, without exploration noise; zero: actions of zero; random: uniform
    actions in [-1, 1]. The last two need no run."""

    viewer: ViewerName = "none"
    """none: measure episodes and print a table; web: a page for the browser, on this machine or through a tunnel (needs
    mjtrain[viewer]); native: MuJoCo's window, where there is a display."""

    viewer_host: str = "127.0.0.1"
    """Address that --viewer web listens on. The default lets nobody in from other machines; 0.0.0.0 lets everybody in,
    without a password."""

    viewer_port: int = 8080
    """Port of --viewer web; the next free one if it is taken."""

    follow: bool = False
    """In a viewer, take up each new checkpoint of the run: watch a training that goes on."""

    replay: str | None = None
    """Show the last seconds of a world that broke, from a file of {run}/nan: in the viewer, or in words without one."""

    num_envs: int | None = None
    """Environments. Default: one in a viewer; else one per episode, at most 256."""

    episodes: int = 100
    """Episodes to measure. Every environment plays equally many, so that short episodes do not crowd out long ones;
    where the number does not divide evenly, a few more."""

    seed: int = 0
    """Seed of everything random in the environments and of random actions."""

    json: bool = False
    """Print JSON to standard output and no table."""

    video: str | None = None
    """Film one environment into this MP4 file, and measure nothing."""

    video_length_s: float = 10.0
    """Length of the video, in seconds of simulated time."""

    noise: bool = False
    """Keep the noise of observations."""

    pushes: bool = False
    """Keep events of mode interval: pushes, say."""

    randomization: bool = False
    """Keep events of mode startup: friction, masses and gains that differ between environments."""

    engine: EngineName = "auto"
    """Physics engine. auto: native on the CPU, warp on a GPU."""

    gpu_ids: GpuIds = None
    """One GPU, by its index into the visible ones, or None for the CPU."""

    num_threads: int | None = None
    """CPU threads. Default: the usable cores."""

    log_root: str = "logs"
    """Folder below which runs live."""

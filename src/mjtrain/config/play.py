"""What play shows of a policy, and how."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mjtrain.config.launch import GpuIds
from mjtrain.config.limits import AT_LEAST_1, COUNT_FROM_1, ClipLength, Duration
from mjtrain.config.train import EngineName

PolicyName = Literal["trained", "zero", "random"]

UNTRAINED = ("zero", "random")
"""What `PlayConfig.policy` may be that needs no run."""

SimulatorName = Literal["native", "warp", "plain"]

RecordFormat = Literal["npz", "minari"]

ViewerName = Literal["none", "web", "native"]


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Options of play."""

    run: str | None = None
    """Run directory, or its name. Default: the newest run of the task that has a valid
    checkpoint."""

    checkpoint: str | None = None
    """Checkpoint file; its name, if a run is given; or best, for the best one of the run by its
    --best-metric. Default: the newest valid one of the run."""

    trust_run: bool = False
    """Run any code that the run names. Default: only that of mjtrain, of packages that register tasks, and of tasks
    from which you have trained on this machine. Give it only for a run whose maker you trust."""

    policy: PolicyName | str = "trained"
    """trained: the network of the checkpoint, without exploration noise; zero: actions of zero; random: uniform
    actions in [-1, 1]; pretrained: that of mjtrain-policies; or a policy bundle: its folder or .zip file, hf://user/repo,
    s3://bucket/prefix or https://host/folder. Only the first needs a run."""

    viewer: ViewerName = "none"
    """none: measure episodes and print a table; web: a page for the browser, on this machine or through a tunnel (needs
    mjtrain[viewer]); native: MuJoCo's window, where there is a display."""

    viewer_host: str = "127.0.0.1"
    """Address that --viewer web listens on. The default accepts connections from this machine only; 0.0.0.0 accepts
    them from everywhere, without a password."""

    viewer_port: int = 8080
    """Port of --viewer web; the next free one if it is taken, and any that is free for 0."""

    follow: bool = False
    """In a viewer, load each new checkpoint of the run, to watch a training in progress."""

    replay: str | None = None
    """NaN dump to replay, a file of {run}/nan: the last seconds of a world whose state stopped being finite. Without a
    viewer, it is described in words."""

    num_envs: Annotated[int | None, COUNT_FROM_1] = None
    """Environments. Default: one in a viewer; else one per episode, at most 256."""

    episodes: Annotated[int, AT_LEAST_1] = 100
    """Episodes to measure. Every environment plays the same number, so that short episodes do not crowd out long
    ones; the number is rounded up to a multiple of --num-envs."""

    seed: int = 0
    """Seed of the environments and of random actions."""

    json: bool = False
    """Print JSON instead of a table."""

    video: str | None = None
    """Record one environment to this MP4 file instead of measuring."""

    video_length_s: ClipLength = 10.0
    """Length of the video, in seconds of simulated time."""

    html: str | None = None
    """Write a page with some episodes in 3D to this file instead of measuring: one HTML file that any browser shows
    without a network."""

    html_episodes: Annotated[int, COUNT_FROM_1] = 3
    """Episodes of the page."""

    html_length_s: Duration = 20.0
    """Longest episode of the page, in seconds of simulated time."""

    record: str | None = None
    """Write the episodes to this folder instead of measuring: observations, actions, rewards, states and ends, and
    dataset.json with their shapes and units. --episodes says how many."""

    record_format: RecordFormat = "npz"
    """npz: one NPZ file per episode; minari: a data set of Minari (needs mjtrain[minari])."""

    command: str = ""
    """Command term to hold at the --values of its controls, such as velocity. Default: commands are drawn."""

    values: tuple[float, ...] = ()
    """Values of the controls of --command, such as a velocity ahead, one to the left, and a turning rate."""

    noise: bool = False
    """Keep the noise of observations and actions."""

    pushes: bool = False
    """Keep events of mode interval, such as pushes."""

    randomization: bool = False
    """Keep events of mode startup, which vary friction, masses and gains between environments."""

    sim_to_sim: tuple[SimulatorName, ...] | None = None
    """Play the same episodes in several simulators, undisturbed, with each disturbance of the task (noise, and each
    event of mode startup or interval), and with all of them; and print where the policy breaks. native and warp are the
    engines; plain is MuJoCo as deploy has it, with the exported policy (needs mjtrain[export]). Without names: all
    three."""

    engine: EngineName = "auto"
    """Physics engine. auto: native on the CPU, warp on a GPU."""

    gpu_ids: GpuIds = None
    """One GPU, by its index into the visible ones, or None for the CPU."""

    num_threads: int | None = None
    """CPU threads. Default: the usable cores."""

    log_root: str = "logs"
    """Folder below which runs live."""

    @property
    def held(self) -> tuple[str, tuple[float, ...]] | None:
        """The command to hold, and the values of its controls."""
        return (self.command, self.values) if self.command else None

"""What is trained, for how long, and where the results go; also external environments, learners and tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from mjtrain.config.agent import AgentConfig, DistributionConfig, ModelConfig, PpoConfig
from mjtrain.config.env import EnvConfig, NanGuardConfig
from mjtrain.config.launch import RARE
from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1, ClipLength, Time

DEFAULT_LEARNER = "rsl_rl"
"""Learner of a run that names none."""

EngineName = Literal["auto", "native", "warp"]
LoggerName = Literal["tensorboard", "wandb", "trackio", "none"]
WandbMode = Literal["auto", "online", "offline"]

RunToResume = str | Literal[True] | None
"""A run directory, the URL of a stored run, the newest of the task (True), "auto", or none."""


@dataclass(frozen=True, kw_only=True)
class ForeignEnvConfig:
    """An environment that is not made of terms: its parts are unknown, except for how an episode ends."""

    robot: ClassVar[None] = None
    """External environments have no mjtrain robot."""

    rewards: ClassVar[tuple[str, ...]] = ("reward",)
    terminations: ClassVar[tuple[str, ...]] = ("terminated", "truncated")
    commands: ClassVar[dict[str, Any]] = {}
    successes: ClassVar[dict[str, Any]] = {}
    curriculum: ClassVar[dict[str, Any]] = {}
    controllers: ClassVar[dict[str, Any]] = {}
    observations: ClassVar[dict[str, Any]] = {}
    cameras: ClassVar[dict[str, Any]] = {}
    nan_guard: ClassVar[NanGuardConfig] = NanGuardConfig()


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig(ForeignEnvConfig):
    """Environments of Gymnasium by their id."""

    id: str
    """Id in Gymnasium's registry, such as HalfCheetah-v5; module:id imports the module that registers it."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as of `gymnasium.make_vec`."""

    vectorization: Literal["sync", "async"] = "sync"
    """sync: one after another in the rank's process; async: a process for each."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"gymnasium:{self.id}"


@dataclass(frozen=True, kw_only=True)
class VecEnvConfig(ForeignEnvConfig):
    """Environments that a function makes, all at once."""

    make: Callable[..., Any]
    """make(num_envs=..., device=..., seed=..., **kwargs) -> a `gymnasium.vector.VectorEnv`, or an object with RSL-RL's
    `VecEnv` contract. Each rank calls it once."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the function."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.make.__module__}:{self.make.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class MjlabConfig(ForeignEnvConfig):
    """Environments of a task in mjlab's registry."""

    task: str
    """Id in the registry, such as Mjlab-Velocity-Flat-Unitree-Go1."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Fields of the task's `ManagerBasedRlEnvCfg` that are changed, by their path, such as episode_length_s or
    commands.motion.motion_file."""

    clip_actions: float | None = None
    """Actions are clipped to plus and minus this. Default: the task's; None of a task of your own: not clipped."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"mjlab:{self.task}"


ForeignConfig = GymnasiumConfig | VecEnvConfig | MjlabConfig
AnyEnvConfig = EnvConfig | GymnasiumConfig | VecEnvConfig | MjlabConfig
"""The environment of a task: terms on mjtrain's worlds, or an external environment."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner of a run, as it is recorded with the run."""

    name: str = DEFAULT_LEARNER
    """Name under which the learner is registered."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Content of --learner-config: settings of the library by its own names, merged over what follows from the agent's
    config."""


def merge_settings(translated: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a library with others put over them; nested mappings are merged, other values replaced."""
    merged = dict(translated)
    for name, value in settings.items():
        below = merged.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[name] = merge_settings(below, value) if both else value  # pyright: ignore[reportArgumentType]
    return merged


EnvT = TypeVar("EnvT", bound=AnyEnvConfig, covariant=True)
"""Kind of an environment: `EnvConfig`, or one of another package."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Generic[EnvT]):
    """What a task factory returns: the MDP, an agent that learns it, and the default size of a run."""

    env: EnvT
    """The MDP; or someone else's environment, a `GymnasiumConfig`, a `VecEnvConfig` or an `MjlabConfig`."""

    agent: AgentConfig
    """Networks, algorithm and rollout."""

    num_envs: int
    """Environments per rank on the CPU, unless the user chooses."""

    max_iterations: int
    """Iterations of a run, unless the user chooses."""

    num_envs_gpu: int | None = None
    """Environments per rank on a GPU, unless the user chooses. None: num_envs."""

    agent_gpu: AgentConfig | None = None
    """Agent of ranks on a GPU: larger networks, other mini-batches. What the user chooses stays. None: agent."""

    name: str | None = None
    """Name of the folder of its runs below the log root, and of a task that is made in Python. Default: the name that
    the task is registered by; for a task given by a path, that of its file or module and its factory."""


def gymnasium_task(environment: str) -> TaskConfig:
    """Return the task `gymnasium:ID`, with an agent for any environment of Gymnasium whose actions are numbers."""
    agent = AgentConfig(
        num_steps_per_env=64,
        actor=ModelConfig(hidden_dims=(64, 64), activation="tanh", distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64), activation="tanh"),
        algorithm=PpoConfig(
            learning_rate=3e-4,
            num_learning_epochs=8,
            num_mini_batches=8,
            entropy_coef=0.0,
            use_clipped_value_loss=False,  # clip_param would be a bound in the unit of the returns, which is not known
        ),
        obs_groups={"actor": ("observation",), "critic": ("observation",)},
    )
    return TaskConfig(env=GymnasiumConfig(id=environment), agent=agent, num_envs=32, max_iterations=500)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How much is trained, on which engine, and where the results go."""

    num_envs: Annotated[int | None, AT_LEAST_1] = None
    """Environments per rank. Default: the task's, which may be another one on a GPU."""

    max_iterations: Annotated[int, AT_LEAST_1] = 300
    """Stop when the run has this many iterations. Each task has its own default."""

    num_envs_total: Annotated[int | None, AT_LEAST_1] = None
    """Environments of the whole job, split evenly over the ranks; takes the place of num_envs."""

    total_env_steps: Annotated[int | None, AT_LEAST_1] = None
    """Stop when the run has done this many env steps, summed over ranks, so more ranks finish sooner; takes the place
    of max_iterations. Rounded up to whole iterations."""

    learner: str | None = None
    """Learning library: rsl_rl, or another one that is installed, such as skrl (pip install "mjtrain-learners[skrl]").
    Default: rsl_rl, or that of the run that --resume names, if it is on this machine."""

    learner_config: str | None = field(default=None, metadata=RARE)
    """YAML file with settings of the learning library by its own names, which are put over those that follow from
    --agent. Left out: none."""

    engine: EngineName = "auto"
    """Physics engine. auto: native on the CPU, warp on a GPU. native with a GPU: the worlds step on the threads of the
    CPU, and the policy acts and learns on the GPU."""

    log_root: str = "logs"
    """Folder below which runs live, as {log_root}/{experiment}/{date}_{time}[_{run_name}]."""

    run_name: str = ""
    """Appended to the name of the run directory."""

    resume: RunToResume = None
    """Resume a run from its last valid checkpoint. A run directory: that run, in that directory. No value: the newest
    run of this task that has a checkpoint, in any folder below the log root, or only in that of
    --agent.experiment-name if it is given. The URL of a stored run: that run, in a new directory. "auto": the run
    that the same command started before, here or at --checkpoint-url, or else a new run. The settings of this command
    are used; differences from the run's are printed."""

    load: str | None = None
    """Start with the weights of a checkpoint, a run, {run}/best or a shared policy (pretrained:TASK, folder, URL).
    Default: new ones."""

    load_critic: str | None = field(default=None, metadata=RARE)
    """Beside --load: take the critic of another run, or of a checkpoint in one, such as that of the teacher of the
    student that --load names, which has no critic. Default: that of --load, or a new one."""

    teacher: str | None = field(default=None, metadata=RARE)
    """For a task that learns from a teacher: the run directory of a teacher, a checkpoint in one, a shared policy
    (pretrained, pretrained:TASK, folder, URL), or auto: the newest finished run of the teacher's task, which is trained
    first if it has none. Default: what the task says."""

    motion: str | None = field(default=None, metadata=RARE)
    """For a task that imitates a motion: a file, folder, URL, or artifact of W&B. Default: what the task says."""

    without: tuple[str, ...] = field(default=(), metadata=RARE)
    """Terms of the task to leave out, such as observations.actor.base_velocity or rewards.slip."""

    keep_checkpoints: Annotated[int | None, AT_LEAST_1] = None
    """Keep only the newest N checkpoints, here and at --checkpoint-url, and the best one. Default: all."""

    checkpoint_url: str | None = None
    """Upload every checkpoint to this URL while training continues: s3://, gs://, az:// or file://, bucket and prefix.
    Each run needs its own prefix. Credentials come from the environment or the machine."""

    checkpoint_flush_s: Time = field(default=30.0, metadata=RARE)
    """Seconds that the end of a run waits for its last checkpoint to be uploaded."""

    drift_check_interval: Annotated[int, AT_LEAST_0] = field(default=50, metadata=RARE)
    """Iterations between bit-for-bit comparisons of parameters, normalisers and optimiser state over ranks. They are
    also compared before each save. 0: never."""

    logger: LoggerName | str = "tensorboard"
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, trackio (needs mjtrain[trackio]), none, or
    package.module:Class, a LogWriter of RSL-RL."""

    eval_interval: Annotated[int, AT_LEAST_0] = 0
    """Iterations between evaluations of the policy without exploration noise, in separate worlds, and as `play`
    has the task: without noise and pushes. The last iteration is evaluated too. 0: never."""

    eval_episodes: Annotated[int, AT_LEAST_1] = 32
    """Whole episodes of an evaluation, split over the ranks."""

    stop_when: tuple[str, ...] = ()
    """Conditions, such as "eval/return>=14": the run ends, saved, as soon as one of them is true. A metric of
    metrics.jsonl, one of >= > <= <, and a number."""

    best_metric: str | None = None
    """Metric of metrics.jsonl by which the best checkpoint is kept, for `--checkpoint best` of `play` and `export`.
    Larger is better, except for losses, errors and estimates; prefix with - or + to override (--best-metric=-NAME).
    Default: eval/return with --eval-interval, else none."""

    video: bool = False
    """Record videos of one environment of rank 0, into {run}/videos, TensorBoard and W&B."""

    video_interval: Annotated[int, AT_LEAST_1] = field(default=50, metadata=RARE)
    """Iterations between videos, with --video."""

    video_length_s: ClipLength = field(default=4.0, metadata=RARE)
    """Length of a video, in seconds of simulated time."""

    profile: Annotated[int | None, AT_LEAST_1] = field(default=None, metadata=RARE)
    """Show where the time of an iteration goes on rank 0. After the first iteration, N iterations are timed for a
    table, and the next N are traced by torch.profiler. Both are in {run}/profile. Left out: no profile."""

    wandb_project: str | None = None
    """W&B project. Default: WANDB_PROJECT, or mjtrain."""

    wandb_entity: str | None = field(default=None, metadata=RARE)
    """W&B user or team. Default: that of the API key."""

    wandb_group: str | None = field(default=None, metadata=RARE)
    """W&B group, for runs that belong together."""

    wandb_tags: tuple[str, ...] = field(default=(), metadata=RARE)
    """W&B tags."""

    wandb_name: str | None = field(default=None, metadata=RARE)
    """Name of the W&B run. Default: that of the run directory."""

    wandb_mode: WandbMode = "auto"
    """offline records in the run directory, for `wandb sync` later. auto: WANDB_MODE, or online where there is an API
    key, which is never asked for."""

    wandb_upload_checkpoints: bool = field(default=False, metadata=RARE)
    """Upload every checkpoint to W&B as an artifact."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Generic[EnvT]):
    """One training run, complete. The processes it runs in are not part of it; LaunchConfig holds those."""

    task: str
    """Name of the task as the catalogue spells it, or the path of its factory."""

    env: EnvT
    """The MDP."""

    agent: AgentConfig
    """Networks, algorithm and rollout."""

    run: RunConfig
    """How much, on which engine, and where the results go."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """Which library learns, as the request has resolved `RunConfig.learner` and `learner_config`."""

    task_name: str | None = None
    """Name that the task gives itself, see `TaskConfig.name`."""

    default_num_envs: int = 1024
    """The task's `num_envs`, for a run that leaves it out."""

    default_num_envs_gpu: int | None = None
    """The task's `num_envs_gpu`."""

    default_agents: tuple[AgentConfig, AgentConfig] | None = None
    """The task's agents for a CPU and for a GPU, with the flags of a command; None where only one exists."""

    @property
    def num_envs(self) -> int:
        """Environments per rank; the task's default for the CPU, until `run_size` has resolved the run."""
        return self.default_num_envs if self.run.num_envs is None else self.run.num_envs

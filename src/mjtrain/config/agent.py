"""The learning algorithm and its networks, under RSL-RL's own names."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1, FRACTION, MORE_THAN_0, Range

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""RSL-RL's names of activation functions; other libraries have some of them."""


@dataclass(frozen=True, kw_only=True)
class DistributionConfig:
    """Action distribution of the actor."""

    class_name: str = "GaussianDistribution"
    """RSL-RL class, or package.module:Class. BetaDistribution uses no other setting."""

    init_std: Annotated[float, MORE_THAN_0] = 1.0
    """Standard deviation of the actions at the start, in units of the normalised action."""

    std_type: Literal["scalar", "log"] = "scalar"
    """Space in which the standard deviation is learned."""


@dataclass(frozen=True, kw_only=True)
class CnnConfig:
    """Convolutions that encode images: the same for each image group, with separate weights for each.

    What says "per layer" is one value for all layers, or one for each of output_channels.
    """

    input_norm: Literal["none", "instance"] = "none"
    """What is done to an image first. instance: each channel of each image is shifted and scaled to mean 0 and standard
    deviation 1, which leaves contrasts and no absolute values (Ulyanov et al. 2016, arXiv:1607.08022)."""

    output_channels: tuple[int, ...] = (16, 32, 32)
    """Output channels of each layer; one value per layer."""

    kernel_size: int | tuple[int, ...] = 3
    """Width of the kernels in pixels, per layer."""

    stride: int | tuple[int, ...] = 2
    """Step of the kernels in pixels, per layer."""

    dilation: int | tuple[int, ...] = 1
    """Distance between the taps of the kernels in pixels, per layer."""

    padding: Literal["none", "zeros", "reflect", "replicate", "circular"] = "zeros"
    """What lies around an image. With any but none, a layer of stride 2 halves the image whatever its kernel."""

    norm: Literal["none", "layer"] = "none"
    """Normalisation after each convolution. Batch normalisation is not available: ranks would not stay the same."""

    activation: Activation = "elu"
    """Activation function after each layer."""

    max_pool: bool | tuple[bool, ...] = False
    """Halve the image with a maximum over 3 x 3 pixels, per layer."""

    global_pool: Literal["none", "max", "avg", "spatial_softmax"] = "none"
    """Pooling over all pixels at the end. max and avg leave one number per channel. spatial_softmax leaves the mean
    place of a channel's activation in the image, x and y from -1 to 1, weighted by its softmax (Levine et al. 2016,
    arXiv:1504.00702). none: every pixel counts."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One network: an MLP, behind convolutions (CNNModel) or a memory (RNNModel) where its class has them."""

    class_name: str = "MLPModel"
    """MLPModel, CNNModel (reads image groups too), RNNModel (has a memory), or package.module:Class."""

    hidden_dims: Annotated[tuple[int, ...], AT_LEAST_1] = (256, 128)
    """Width of each hidden layer."""

    activation: Activation = "elu"
    """Activation function between layers."""

    obs_normalization: bool = True
    """Normalise observations by their running mean and standard deviation; images are never normalised."""

    distribution_cfg: DistributionConfig | None = None
    """Output distribution; None for a deterministic output, as the critic has."""

    cnn_cfg: CnnConfig = field(default_factory=CnnConfig)
    """Convolutions of a CNNModel."""

    rnn_type: Literal["lstm", "gru"] = "lstm"
    """Memory of an RNNModel."""

    rnn_hidden_dim: Annotated[int, AT_LEAST_1] = 256
    """Width of each layer of the memory of an RNNModel."""

    rnn_num_layers: Annotated[int, AT_LEAST_1] = 1
    """Layers of the memory of an RNNModel."""


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig:
    """Supervision of the actor's convolutions: they learn to tell an observation group from the images."""

    group: str = ""
    """Flat observation group to predict, such as the state of what the images show. Left out: none."""

    coef: Annotated[float, AT_LEAST_0] = 1.0
    """Weight of its loss, the mean squared error of the normalised group."""

    hidden_dims: tuple[int, ...] = (64,)
    """Width of each hidden layer of the head that predicts."""

    detach_encoder: bool = False
    """Whether the convolutions learn from this loss only: the gradient of the other losses then ends before them."""


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig:
    """Use of the robot's mirror symmetry (Mittal et al. 2024, arXiv:2403.04359), see `RobotConfig.mirror`."""

    use_data_augmentation: bool = False
    """Learn from every sample and from its mirror image, which doubles the mini-batches."""

    use_mirror_loss: bool = False
    """Add the squared difference between the mean action for a mirrored observation and the mirrored mean action."""

    mirror_loss_coeff: Annotated[float, AT_LEAST_0] = 1.0
    """Weight of that loss."""

    use_equivariant_networks: bool = False
    """Tie the weights of actor and critic so that their answer to a mirror image is the mirror image of their answer
    (Su et al. 2024, arXiv:2403.17320). The widths of hidden layers must be even."""

    @property
    def mirrors_samples(self) -> bool:
        """Whether the update mirrors what was collected."""
        return self.use_data_augmentation or self.use_mirror_loss

    @property
    def is_used(self) -> bool:
        """Whether the mirror image of the robot is asked for."""
        return self.mirrors_samples or self.use_equivariant_networks


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """What the actor imitates before the first iteration: behaviour cloning of a controller of the task.

    The worlds are stepped by the controller, the actor's mean is fitted to its actions, and then the worlds are put
    back to where they were. A run that continues from a checkpoint, or begins with other weights, does without.
    """

    controller: str = ""
    """Name of the controller in env.controllers. Left out: the actor begins with random weights."""

    num_steps: Annotated[int, AT_LEAST_1] = 64
    """Env steps of every world from which the actor learns."""

    num_batches: Annotated[int, AT_LEAST_1] = 120
    """Mini-batches, of 1,024 samples on each rank."""

    learning_rate: Annotated[float, Range(least=0, below=1)] = 3e-3
    """Step size of the optimiser."""

    noise: Annotated[float, AT_LEAST_0] = 0.3
    """Standard deviation of the noise on the controller's actions, so that the actor also sees how to return."""


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

    class_name: str = "mjtrain.learning.rsl_rl.ppo:Ppo"
    """RSL-RL algorithm class, or package.module:Class."""

    num_learning_epochs: Annotated[int, AT_LEAST_1] = 5
    """Passes over each rollout."""

    num_mini_batches: Annotated[int, AT_LEAST_1] = 4
    """Mini-batches per pass."""

    learning_rate: Annotated[float, Range(least=0, below=1)] = 1e-3
    """Step size of the optimiser at the start."""

    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: follow desired_kl; fixed: keep learning_rate."""

    desired_kl: Annotated[float, MORE_THAN_0] = 0.01
    """KL divergence per update that the adaptive schedule aims at, in nats."""

    gamma: Annotated[float, FRACTION] = 0.99
    """Discount per env step."""

    lam: Annotated[float, FRACTION] = 0.95
    """Lambda of generalised advantage estimation."""

    clip_param: Annotated[float, MORE_THAN_0] = 0.2
    """Clipping range of the probability ratio, and of the value function."""

    use_clipped_value_loss: bool = True
    """Clip the change of the value function per update."""

    value_loss_coef: Annotated[float, AT_LEAST_0] = 1.0
    """Weight of the value loss."""

    entropy_coef: Annotated[float, AT_LEAST_0] = 0.005
    """Weight of the entropy bonus."""

    max_grad_norm: Annotated[float, MORE_THAN_0] = 1.0
    """Gradient norm above which gradients are scaled down."""

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser."""

    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages per mini-batch instead of per rollout."""

    use_mixed_precision: bool = False
    """Compute the losses in bfloat16."""

    share_cnn_encoders: bool = False
    """Have the critic use the convolutions of the actor. Both must be CNNModels that read the same image groups."""

    auxiliary_cfg: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    """A group that the actor's convolutions learn to predict."""

    symmetry_cfg: SymmetryConfig = field(default_factory=SymmetryConfig)
    """Mirror symmetry of the robot. Left out: not used."""

    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    """A controller that the actor imitates before the first iteration. Left out: none."""

    critic_iterations: Annotated[int, Range(least=0)] = 0
    """Iterations at the start of a run in which only the critic learns. For a run that starts with an actor that can do
    the task (--load): the advantages of a critic that does not know it yet would make it worse."""


@dataclass(frozen=True, kw_only=True)
class ImitationConfig:
    """What every way to learn from a trained teacher has; use `DistillationConfig` or `DaggerConfig`.

    The actor is the student, and it learns on the states that it visits itself, as in DAgger (Ross et al. 2011,
    arXiv:1011.0686), without a critic. The teacher may read other observation groups, such as the state of the worlds
    where the actor sees images.
    """

    class_name: str = ""
    """RSL-RL algorithm class, or package.module:Class."""

    teacher_run: str = ""
    """Run directory of the teacher, a checkpoint in one, or a shared policy (pretrained: that of teacher_task). auto:
    the newest finished run of teacher_task, which is trained first if it has none. --teacher takes precedence."""

    teacher_task: str = ""
    """Task whose runs can teach, for teacher_run auto and pretrained."""

    teacher: ModelConfig | None = None
    """Network of the teacher. Default: what its run recorded."""

    num_learning_epochs: Annotated[int, AT_LEAST_1] = 1
    """Passes over each rollout."""

    learning_rate: Annotated[float, Range(least=0, below=1)] = 1e-3
    """Step size of the optimiser."""

    max_grad_norm: Annotated[float, MORE_THAN_0] = 1.0
    """Gradient norm above which gradients are scaled down."""

    loss_type: Literal["mse", "huber"] = "mse"
    """Loss of the difference between the actions of actor and teacher."""

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser."""

    use_mixed_precision: bool = False
    """Compute the loss in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(ImitationConfig):
    """RSL-RL's distillation: each rollout is learned from once and then forgotten. The actor may be recurrent."""

    class_name: str = "mjtrain.learning.rsl_rl.distillation:Distillation"
    """RSL-RL algorithm class, or package.module:Class."""

    gradient_length: Annotated[int, AT_LEAST_1] = 8
    """Env steps per step of the optimiser. It is also how far back a recurrent actor is differentiated."""


@dataclass(frozen=True, kw_only=True)
class DaggerConfig(ImitationConfig):
    """Distillation that keeps its rollouts in a buffer and learns from all of them in each iteration.

    It needs far fewer env steps than `DistillationConfig`, which counts where an observation is an image and has to be
    rendered. The actor must not be recurrent.
    """

    class_name: str = "mjtrain.learning.rsl_rl.dagger:Dagger"
    """RSL-RL algorithm class, or package.module:Class."""

    num_learning_epochs: Annotated[int, AT_LEAST_1] = 4
    """Samples that an iteration draws from the buffer, in rollouts."""

    num_mini_batches: Annotated[int, AT_LEAST_1] = 8
    """Steps of the optimiser per epoch."""

    learning_rate: Annotated[float, Range(least=0, below=1)] = 3e-4
    """Step size of the optimiser."""

    final_learning_rate: Annotated[float | None, Range(least=0, below=1)] = None
    """Step size after `learning_rate_iterations`, along half a cosine. None: the step size does not change."""

    learning_rate_iterations: Annotated[int, AT_LEAST_1] = 400
    """Iterations until the step size is `final_learning_rate`."""

    random_shift: Annotated[int, Range(least=0)] = 0
    """Pixels by which the images of a sample are shifted at random when the student learns from them, along both axes;
    the pixels at the edge are repeated. The policy acts on images that are not shifted."""

    buffer_rollouts: Annotated[int, AT_LEAST_1] = 30
    """Rollouts that are kept, the newest ones. They are part of checkpoints, compressed."""

    teacher_share: Annotated[tuple[float, float], Range(least=0, most=1)] = (0.5, 0.0)
    """Fraction of the environments in which the teacher acts, at the start and at the end of its decay. They are drawn
    for each rollout; the teacher's actions are learned in all of them."""

    teacher_share_iterations: Annotated[int, AT_LEAST_1] = 100
    """Iterations until the teacher's share is that of the end, in equal steps."""

    clip_teacher: bool = True
    """Whether the teacher's actions are limited to what the action terms and the controls of the actuators let through.
    A teacher often asks for more, and the student would have to learn numbers that change nothing."""

    auxiliary_cfg: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    """Supervision of the actor's convolutions by an observation group."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Networks, algorithm and rollout."""

    num_steps_per_env: Annotated[int, AT_LEAST_1] = 24
    """Env steps per environment in one rollout."""

    save_interval: Annotated[int, AT_LEAST_1] = 50
    """Iterations between checkpoints; the last iteration is always saved."""

    experiment_name: str = ""
    """Folder of the runs below the log root. Default: the task's name."""

    actor: ModelConfig = field(default_factory=lambda: ModelConfig(distribution_cfg=DistributionConfig()))
    """The policy."""

    critic: ModelConfig = field(default_factory=ModelConfig)
    """The value function; a student has none."""

    algorithm: PpoConfig | DistillationConfig | DaggerConfig = field(default_factory=PpoConfig)
    """The update."""

    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"actor": ("actor",), "critic": ("critic",)})
    """Observation groups of the environment that actor and critic read, and the teacher of a student."""

    torch_compile_mode: str | None = None
    """Mode of torch.compile for the networks: default, lite or max-autotune-no-cudagraphs. None: not compiled."""

    @property
    def supervised_group(self) -> str:
        """Observation group that the actor's convolutions learn to predict; empty for none."""
        algorithm = self.algorithm
        return algorithm.auxiliary_cfg.group if isinstance(algorithm, PpoConfig | DaggerConfig) else ""

"""The networks, under RSL-RL's own names."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_1, MORE_THAN_0

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

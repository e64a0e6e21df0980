"""Everything that touches RSL-RL. Its modules take seconds to import; this package itself only torch."""

import mjtrain.learning  # noqa: F401  # it defers what RSL-RL would import in vain
from mjtrain.deferred_imports import hidden

with hidden("botocore"):  # where boto3 is installed, TensorBoard imports it to write to S3, where no run directory is
    import torch.utils.tensorboard  # noqa: F401  # as RSL-RL does

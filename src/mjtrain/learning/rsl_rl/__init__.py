"""Everything that touches RSL-RL. Its modules take seconds to import; this package itself only torch."""

from mjtrain.learning.library import defer_imports
from mjtrain.runtime.deferred_imports import hidden

defer_imports()

with hidden("botocore"):  # where boto3 is installed, TensorBoard imports it to write to S3, where no run directory is
    import torch.utils.tensorboard  # noqa: F401  # as RSL-RL does

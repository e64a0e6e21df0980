"""An action distribution whose noise depends on the world and not on how the worlds are spread over ranks."""

import torch
from rsl_rl.modules.distribution import GaussianDistribution


class SharedNoise(GaussianDistribution):
    """Draws the noise of all worlds and takes this rank's part of it."""

    first = 0
    num_envs = 0
    num_envs_total = 0
    generator = torch.Generator()

    def sample(self) -> torch.Tensor:
        mean = self.mean
        if mean.shape[0] != self.num_envs:  # a mini-batch, whose sample nobody uses
            return mean
        shape = (self.num_envs_total, mean.shape[1])
        noise = torch.randn(shape, generator=self.generator, dtype=mean.dtype)
        return mean + self.std * noise[self.first : self.first + self.num_envs]

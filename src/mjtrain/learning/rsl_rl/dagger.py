"""DAgger with a buffer: a student learns from everything that it has seen, not only from the last rollout."""

import math
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from mjtrain.env.sampling import shift_images
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.mini_batches import make_fast
from mjtrain.learning.rsl_rl.networks import list_groups

_COMPRESSION_LEVEL = 1
"""Rendered images shrink to about a quarter. Level 6 takes twice as long for 30 % less."""


class Dagger(Distillation):
    """Distillation that keeps its rollouts, so that an image which had to be rendered is learned from many times.

    RSL-RL's distillation forgets a rollout after one update. Here the newest rollouts stay in a buffer of bounded size,
    and each iteration draws its mini-batches from all of it (Ross et al. 2011, arXiv:1011.0686). At the beginning the
    teacher acts in some environments, so that the student sees states from which the task can be done.

    Ranks have separate buffers and average their gradients. The buffer is part of a checkpoint, compressed. To render
    its images again would need the states and the looks of all worlds at all these steps, and the same renderer.
    """

    def __init__(
        self,
        *args: Any,
        num_mini_batches: int,
        buffer_rollouts: int,
        teacher_share: Iterable[float],
        teacher_share_iterations: int,
        final_learning_rate: float | None = None,
        learning_rate_iterations: int = 1,
        random_shift: int = 0,
        auxiliary_coef: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Take all that RSL-RL's distillation takes, settings of `DaggerConfig`, and the weight of the head's loss."""
        storage = args[2]
        steps = storage.num_transitions_per_env
        super().__init__(*args, gradient_length=steps, **kwargs)  # which this update does not use
        self.optimizer = make_fast(self.optimizer, self._raw_student)
        self.buffer = RolloutBuffer(buffer_rollouts)
        self._groups = list_groups(self._raw_student)
        self._head = getattr(self._raw_student, "auxiliary_head", None)
        if self._head is not None:
            self._groups.append(self._head.group)
        self._auxiliary_coef = auxiliary_coef
        self._num_mini_batches = num_mini_batches
        self._mini_batch_size = storage.num_envs * steps // num_mini_batches
        self._share = tuple(teacher_share)
        self._share_iterations = teacher_share_iterations
        first = float(self.learning_rate)
        self._rates = (first, first if final_learning_rate is None else final_learning_rate)
        self._rate_iterations = learning_rate_iterations
        self._random_shift = random_shift
        self._images = tuple(getattr(self._raw_student, "obs_groups_2d", ()))
        self._bounds: tuple[torch.Tensor, torch.Tensor] | None = None
        self._is_taught = torch.zeros(storage.num_envs, 1, dtype=torch.bool, device=self.device)

    def clip_teacher(self, low: torch.Tensor, high: torch.Tensor) -> None:
        """Limit the teacher's actions from now on. Shape (num_actions,) each."""
        self._bounds = (low.to(self.device), high.to(self.device))

    @property
    def teacher_share(self) -> float:
        """Fraction of the environments in which the teacher acts in this iteration."""
        first, last = self._share
        return first + (last - first) * min(1.0, self.num_updates / self._share_iterations)

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Return the actions of the student, or of the teacher in its environments; note what the teacher would do."""
        if self.storage.step == 0:
            self._is_taught = torch.rand(self._is_taught.shape, device=self.device) < self.teacher_share
        own = super().act(obs)
        shown: torch.Tensor = self.transition.privileged_actions  # pyright: ignore[reportAssignmentType]
        if self._bounds is not None:
            shown = shown.clamp(*self._bounds)
            self.transition.privileged_actions = shown
        self.transition.actions = torch.where(self._is_taught, shown, own)
        return self.transition.actions

    def update(self) -> dict[str, float]:
        """Put the rollout into the buffer and learn from mini-batches of all of it; returns the mean losses."""
        self.num_updates += 1
        self._decay_learning_rate()
        storage = self.storage
        self._raw_student.update_normalization(storage.observations.flatten(0, 1))  # pyright: ignore[reportArgumentType]
        assert storage.privileged_actions is not None
        kept = {group: storage.observations[group] for group in self._groups} | {"": storage.privileged_actions}
        # By environment: images that follow each other differ little, which makes a checkpoint 14 % smaller.
        self.buffer.append({name: values.transpose(0, 1).flatten(0, 1) for name, values in kept.items()})
        num_steps = self.num_learning_epochs * self._num_mini_batches
        totals = torch.zeros(2, device=self.device)
        for _ in range(num_steps):
            batch = self.buffer.draw(self._mini_batch_size)
            target = batch.pop("")
            if self._random_shift:
                batch |= {name: shift_images(batch[name], self._random_shift) for name in self._images}
            totals += self._step(TensorDict(batch, batch_size=[len(target)], device=self.device), target)  # pyright: ignore[reportArgumentType]
        storage.clear()
        behavior, auxiliary = (totals / num_steps).tolist()
        return {"behavior": behavior} | ({} if self._head is None else {"auxiliary": auxiliary})

    def _decay_learning_rate(self) -> None:
        first, last = self._rates
        done = min(1.0, (self.num_updates - 1) / self._rate_iterations)
        self.learning_rate = last + (first - last) * (1 + math.cos(math.pi * done)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _step(self, observations: TensorDict, target: torch.Tensor) -> torch.Tensor:
        """Make one step of the optimiser. Returns the losses, shape (2,): of the actions and of the auxiliary head."""
        kind = torch.device(self.device).type
        with torch.amp.autocast(device_type=kind, enabled=self.use_mixed_precision, dtype=torch.bfloat16):  # pyright: ignore[reportPrivateImportUsage]
            behavior = self.loss_fn(self.student(observations), target)
            auxiliary = torch.zeros_like(behavior)
            if self._head is not None:
                auxiliary = self._head.loss(self._raw_student.image_latent, observations)
            loss = behavior + self._auxiliary_coef * auxiliary
        self.optimizer.zero_grad()
        loss.backward()
        if self.is_multi_gpu:
            self.reduce_parameters()
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return torch.stack((behavior.detach().float(), auxiliary.detach().float()))


class RolloutBuffer:
    """The newest rollouts of one rank: fields by name, shape (num_rollouts, num_samples, ...) each."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._fields: dict[str, torch.Tensor] = {}
        self._next = 0
        self._filled = 0

    @property
    def _oldest(self) -> int:
        return self._next if self._filled == self._capacity else 0

    def append(self, rollout: Mapping[str, torch.Tensor]) -> None:
        """Take in a rollout in place of the oldest one. Shape (num_samples, ...) of each field."""
        if self._fields.keys() != rollout.keys():  # the first one, here or since the student reads other groups
            self._fields = {name: values.new_empty(self._capacity, *values.shape) for name, values in rollout.items()}
            self._next = self._filled = 0
        for name, values in rollout.items():
            self._fields[name][self._next].copy_(values)
        self._next = (self._next + 1) % self._capacity
        self._filled = min(self._filled + 1, self._capacity)

    def draw(self, num_samples: int) -> dict[str, torch.Tensor]:
        """Return samples of all rollouts, drawn with replacement. Shape (num_samples, ...) of each field."""
        first = next(iter(self._fields.values()))
        size, total = first.shape[1], self._filled * first.shape[1]
        picked = torch.randint(total, (num_samples,), device=first.device)
        picked = (picked + self._oldest * size) % total  # by age, because a restored buffer has other slots
        return {name: values.flatten(0, 1).index_select(0, picked) for name, values in self._fields.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all rollouts, the oldest first, compressed; see `load_state_dict`."""
        order = [(self._oldest + number) % self._capacity for number in range(self._filled)]
        with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
            return {
                name: {
                    "like": values[0, :0].cpu().clone(),
                    "rollouts": list(pool.map(_compress, (values[slot] for slot in order))),
                }
                for name, values in self._fields.items()
            }

    def load_state_dict(self, state: Mapping[str, Any], num_samples: int, device: str) -> None:
        """Restore what `state_dict` returned; of more rollouts than fit, the newest.

        If they have another number of samples, the buffer begins empty.
        """
        self._fields, self._next, self._filled = {}, 0, 0
        kept = {name: field["rollouts"][-self._capacity :] for name, field in state.items()}
        for parts in zip(*kept.values(), strict=True):
            rollout = {name: _restore(part, state[name]["like"]) for name, part in zip(kept, parts, strict=True)}
            if any(len(values) != num_samples for values in rollout.values()):
                return
            self.append({name: values.to(device) for name, values in rollout.items()})


def _compress(values: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, compressed. Shape (num_bytes,), uint8."""
    packed = zlib.compress(values.cpu().contiguous().numpy().data, _COMPRESSION_LEVEL)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _restore(packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return what `_compress` was given, with the type of like and its shape, except for the first axis."""
    values = torch.frombuffer(bytearray(zlib.decompress(packed.numpy().data)), dtype=like.dtype)
    return values.view(-1, *like.shape[1:])

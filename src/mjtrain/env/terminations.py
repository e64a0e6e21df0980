"""The evaluators of terminations, rewards and curricula."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CurriculumTerm, RewardTerm, TerminationTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import uniform
from mjtrain.env.term_result import call_term, check_results, stack_terms

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Terminations:
    """Evaluates the termination terms."""

    def __init__(self, terms: dict[str, TerminationTerm], core: EnvCore) -> None:
        self._core = core
        self._terms = [(f"terminations.{name}", term.func, term.params) for name, term in terms.items()]
        self._truncates = [term.truncates for term in terms.values()]

    def compute(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Evaluate every term.

        Returns:
            terminated, boolean, shape (num_envs,); truncated, likewise, false where terminated; causes, boolean, shape
            (num_envs, num_terms): the result of each term.
        """
        never = torch.zeros(self._core.num_envs, dtype=torch.bool, device=self._core.device)
        causes = stack_terms("termination", self._terms, env, self._core) if self._terms else never[:, None][:, :0]
        terminated = truncated = never
        for result, truncates in zip(causes.unbind(dim=1), self._truncates, strict=True):
            if truncates:
                truncated = truncated | result
            else:
                terminated = terminated | result
        return terminated, truncated & ~terminated, causes


class Curriculum:
    """Keeps a level per world and term."""

    def __init__(self, terms: dict[str, CurriculumTerm], core: EnvCore) -> None:
        self._terms = terms
        self._core = core
        self.levels = {name: uniform(core, term.initial) for name, term in terms.items()}
        """Level of every world by term, within the term's bounds. Shape (num_envs,)."""

    def update(self, env: "Env", done: torch.Tensor) -> None:
        """Change the levels of worlds whose episode is done. Boolean, shape (num_envs,)."""
        for name, term in self._terms.items():
            level = self.levels[name]
            following = call_term(f"curriculum.{name}", term.func, env, term.params, self._core, level)
            if following.shape != level.shape:
                check_results("curriculum", [f"curriculum.{name}"], [following], self._core)
            level.copy_(torch.where(done, following.clamp(*term.bounds), level))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return self.levels


class Rewards:
    """Evaluates the reward terms."""

    def __init__(self, terms: dict[str, RewardTerm], core: EnvCore) -> None:
        self._core = core
        on = {name: term for name, term in terms.items() if term.weight}
        self._terms = [(f"rewards.{name}", term.func, term.params) for name, term in on.items()]
        self._weights = torch.tensor([term.weight * core.step_dt for term in on.values()], device=core.device)
        self._num_terms = len(terms)
        self._columns = torch.tensor([column for column, name in enumerate(terms) if name in on], device=core.device)

    def compute(self, env: "Env") -> torch.Tensor:
        """Return weight * func * step_dt of every term, in order. Shape (num_envs, num_terms).

        A term of weight 0 is zero, and its function is not called.
        """
        if not self._terms:
            return torch.zeros(self._core.num_envs, self._num_terms, device=self._core.device)
        rewards = stack_terms("reward", self._terms, env, self._core) * self._weights
        if len(self._terms) == self._num_terms:
            return rewards
        return rewards.new_zeros(len(rewards), self._num_terms).index_copy_(1, self._columns, rewards)

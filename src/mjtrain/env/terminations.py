"""The evaluators of terminations, rewards, curricula and successes."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CurriculumTerm, RewardTerm, SuccessTerm, TerminationTerm
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
        truncates = [term.truncates for term in terms.values()]
        self._truncates = torch.tensor(truncates, dtype=torch.bool, device=core.device)

    def compute(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Evaluate every term.

        Returns:
            terminated, boolean, shape (num_envs,); truncated, likewise, false where terminated; causes, boolean, shape
            (num_envs, num_terms): the result of each term.
        """
        causes = torch.zeros(self._core.num_envs, 0, dtype=torch.bool, device=self._core.device)
        if self._terms:
            causes = stack_terms("termination", self._terms, env, self._core)
        terminated = (causes & ~self._truncates).any(dim=1)
        return terminated, (causes & self._truncates).any(dim=1) & ~terminated, causes


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


class Successes:
    """Evaluates the success terms, and remembers since when and how often they were true in the running episode."""

    def __init__(self, terms: dict[str, SuccessTerm], core: EnvCore) -> None:
        self._core = core
        self._terms = [(f"successes.{name}", term.func, term.params) for name, term in terms.items()]
        self._measures = [term.measure for term in terms.values()]
        self._hold_steps = torch.tensor(
            [max(1, round(term.hold_s / core.step_dt)) for term in terms.values()], dtype=torch.long, device=core.device
        )
        self._restarts = torch.tensor([measure == "count" for measure in self._measures], device=core.device)
        shape = (core.num_envs, len(terms))
        # Env steps for which each function has been true without interruption.
        self._held = torch.zeros(shape, dtype=torch.long, device=core.device)
        self.now = torch.zeros(shape, dtype=torch.bool, device=core.device)
        """Whether each term is true in this env step. Boolean, shape (num_envs, num_terms)."""
        self.counts = torch.zeros(shape, device=core.device)
        """In how many env steps of the running episode each term was true. Shape (num_envs, num_terms)."""
        self.steps_since = core.memory.tensor("successes.since", len(terms)) if terms else self.counts
        """Env steps since each term was last true in the episode, or since that began. Shape (num_envs, num_terms)."""

    def update(self, env: "Env", broken: torch.Tensor) -> torch.Tensor:
        """Evaluate every term.

        Args:
            broken: Worlds that are not finite: there no term is true. Boolean, shape (num_envs,).

        Returns:
            What each term measures of the episode up to this step, see `SuccessTerm.measure`. Shape (num_envs,
            num_terms).
        """
        if not self._terms:
            return self.counts
        fulfilled = stack_terms("success", self._terms, env, self._core) & ~broken[:, None]
        self._held.add_(1).masked_fill_(~fulfilled, 0)
        self.now.copy_(self._held >= self._hold_steps)
        self._held.masked_fill_(self.now & self._restarts, 0)
        self.counts.add_(self.now)
        self.steps_since.add_(1).masked_fill_(self.now, 0)
        measured = {"end": self.now.to(self.counts.dtype), "ever": (self.counts > 0).to(self.counts.dtype)}
        columns = [measured.get(measure, self.counts)[:, column] for column, measure in enumerate(self._measures)]
        return torch.stack(columns, dim=1)

    def reset(self, mask: torch.Tensor) -> None:
        """Begin new episodes in the masked worlds. Boolean, shape (num_envs,)."""
        for tensor in (self._held, self.now, self.counts):
            tensor.masked_fill_(mask[:, None], 0)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {"held": self._held, "now": self.now, "count": self.counts} if self._terms else {}

"""What happens to worlds apart from the policy: randomisation, resets, pushes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mjtrain.config import EventTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import draw_steps
from mjtrain.env.term_result import call_term

if TYPE_CHECKING:
    from mjtrain.env.env import Env


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The worlds that an event changes. Event terms change qpos and qvel of whole batches in place.

    Only the masked worlds are read afterwards. In mode reset, qpos and qvel are the state in which the episode will
    start. In mode interval they are the present state, of which only qvel may change.
    """

    mask: torch.Tensor
    """Which worlds. Boolean, shape (num_envs,)."""

    qpos: torch.Tensor
    """Shape (num_envs, nq)."""

    qvel: torch.Tensor
    """Shape (num_envs, nv)."""


class Events:
    """Evaluates the event terms."""

    def __init__(self, terms: dict[str, EventTerm], core: EnvCore) -> None:
        self._core = core
        self._by_mode = {
            mode: {name: term for name, term in terms.items() if term.mode == mode}
            for mode in ("startup", "reset", "interval")
        }
        self._left = {name: draw_steps(core, term.interval_s) for name, term in self._by_mode["interval"].items()}

    def start(self, env: "Env") -> None:
        """Apply the events of mode startup to every world."""
        if self._by_mode["startup"]:
            everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
            worlds = Worlds(mask=everywhere, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
            for name, term in self._by_mode["startup"].items():
                self._apply(name, term, env, worlds)

    def sample_start(self, env: "Env", mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw an initial state for every world, from the robot's default pose and the reset events.

        Args:
            mask: Worlds that will start there. Boolean, shape (num_envs,).

        Returns:
            qpos, shape (num_envs, nq), and qvel, shape (num_envs, nv).
        """
        layout = env.engine.layout
        worlds = Worlds(
            mask=mask,
            qpos=layout.default_qpos.repeat(env.num_envs, 1),
            qvel=layout.default_qvel.repeat(env.num_envs, 1),
        )
        for name, term in self._by_mode["reset"].items():
            self._apply(name, term, env, worlds)
        return worlds.qpos, worlds.qvel

    def apply_interval(self, env: "Env") -> None:
        """Advance by an env step, and apply the events of mode interval to the worlds where they are due."""
        for name, term in self._by_mode["interval"].items():
            left = self._left[name]
            due = left <= 1
            left.copy_(torch.where(due, draw_steps(self._core, term.interval_s), left - 1))
            worlds = Worlds(mask=due, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
            self._apply(name, term, env, worlds)
            env.engine.set_qvel(due, worlds.qvel)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {f"{name}.left": left for name, left in self._left.items()}

    def _apply(self, name: str, term: EventTerm, env: "Env", worlds: Worlds) -> None:
        self._core.read_only.mark()
        call_term(f"events.{name}", term.func, env, term.params, self._core, worlds)

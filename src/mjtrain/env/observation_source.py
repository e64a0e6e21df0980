"""Functions of observation terms, called once per env step however many groups share them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.term_result import call_term

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class ObservationSource:
    """A function with its parameters."""

    def __init__(self, name: str, term: ObservationTerm, core: EnvCore) -> None:
        self._core = core
        self.name = name
        self._func: Callable[..., torch.Tensor] = term.func
        self._params = term.params
        self._key = (term.func, repr(sorted(term.params.items())))

    def read(self, env: "Env", cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Call the function, unless the cache has its result."""
        if self._key not in cache:
            cache[self._key] = call_term(self.name, self._func, env, self._params, self._core)
        return cache[self._key]

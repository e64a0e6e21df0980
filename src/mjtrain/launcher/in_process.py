"""One rank, in the calling process."""

from collections.abc import Callable
from typing import Any

from mjtrain.launcher.plan import LaunchPlan


def run_in_process(plan: LaunchPlan, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call fn(context, *args) here, as the plan's only rank, and return what it returns."""
    from mjtrain.worker import rank_scope  # torch and warp, which a launcher can do without

    (context,) = plan.ranks
    with rank_scope(context, plan.backend):
        return fn(context, *args)

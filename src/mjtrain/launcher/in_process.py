"""One rank, in the calling process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtrain.errors import RequestError
from mjtrain.launcher.failure import write_traceback
from mjtrain.launcher.plan import LaunchPlan


def run_in_process(plan: LaunchPlan, fn: Callable[..., Any], args: tuple[Any, ...], crash_dir: Path | None) -> Any:
    """Call fn(context, *args) here, as the plan's only rank, and return what it returns.

    An exception leaves its traceback in crash_dir, if there is one, unless the request was wrong.
    """
    from mjtrain.worker import rank_scope  # torch and warp, which a launcher can do without

    (context,) = plan.ranks
    try:
        with rank_scope(context, plan.backend):
            return fn(context, *args)
    except RequestError:
        raise
    except Exception as error:
        if crash_dir is not None:
            write_traceback(crash_dir, context.rank, error)
        raise

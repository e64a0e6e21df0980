"""What a rank does differently in a job that torchrun or srun has started."""

import os
import traceback

from mjtrain.launcher.network import choose_gloo_interface
from mjtrain.launcher.plan import LaunchPlan
from mjtrain.launcher.processes import die_with_parent
from mjtrain.launcher.world import RankWorld


def prepare_to_join(plan: LaunchPlan, master_address: str) -> None:
    """Set up this process for its rank, before torch opens a connection.

    Args:
        plan: What to join.
        master_address: Where other hosts see the master.
    """
    assert isinstance(plan.world, RankWorld)
    if plan.world.elastic:
        # An agent that is killed leaves its ranks behind; no other agent would know of them.
        die_with_parent(os.getppid())
    os.environ.update(plan.environ)
    choose_gloo_interface(master_address)


def is_complaint(error: BaseException) -> bool:
    """Whether an exception only says that other ranks do not answer: it came up inside of torch.distributed."""
    return any("/torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-3:])


def tell_torchrun(error: BaseException) -> None:
    """Write the cause where torchrun looks for it, for the summary that it prints; elsewhere there is no such place."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)  # pyright: ignore[reportArgumentType]

"""What a rank does differently in a job that torchrun or srun has started."""

import os
import traceback

from mjtrain.launcher.network import find_interface
from mjtrain.launcher.plan import LaunchPlan
from mjtrain.launcher.processes import die_with_parent


def prepare_to_join(plan: LaunchPlan, master_address: str) -> None:
    """Set up this process for its rank, before torch opens a connection.

    Args:
        plan: What to join.
        master_address: Where other hosts see the master.
    """
    assert plan.world is not None
    if plan.world.elastic:
        # An agent that is killed leaves its ranks behind; no other agent would know of them.
        die_with_parent(os.getppid())
    os.environ.update(plan.environ)
    choose_gloo_interface(master_address)


def choose_gloo_interface(peer: str) -> None:
    """Have gloo use the interface on the way to a host, unless the user has said which.

    Its own choice is whatever this host's name resolves to, which is a loopback address on many machines.
    """
    interface = find_interface(peer)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def is_complaint(error: BaseException) -> bool:
    """Whether an exception only says that other ranks do not answer: it came up inside of torch.distributed."""
    return any("/torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-3:])


def tell_torchrun(error: BaseException) -> None:
    """Write the cause where torchrun looks for it, for the summary that it prints; elsewhere there is no such place."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)  # pyright: ignore[reportArgumentType]

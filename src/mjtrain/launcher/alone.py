"""A job that this process starts by itself, however many hosts it then uses."""

from typing import Any

from mjtrain.launcher.base import Choice, Choose, LaunchRequest
from mjtrain.launcher.rank.in_process import run_in_process


class Alone:
    """The rendezvous of a process that nothing else has started others beside."""

    leads = True

    def agree(self, choose: Choose) -> Choice:
        """Return what is chosen here."""
        return choose(None)

    def run(self, request: LaunchRequest) -> Any:
        """Run the whole job."""
        if request.plan.mode == "in_process":
            return run_in_process(request)
        from mjtrain.launcher.spawn import run_spawned

        if not request.plan.hosts:
            return run_spawned(request)
        from mjtrain.launcher.multinode.run import run_on_hosts

        return run_on_hosts(request)

    def close(self) -> None:
        """Do nothing: there are no others."""

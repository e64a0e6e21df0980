"""What a rank says that waits for others in vain, and what is not a complaint about them."""

import socket
import struct
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from mjtrain.launcher.ipc.network import connect_to
from mjtrain.launcher.rank import rank_rendezvous
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import rank_scope


def test_ranks_that_do_not_come() -> None:
    """The error names host and port, and the command that finds out why."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=1))
    words = rf"not all 2 ranks came to 127\.0\.0\.1:{server.port} on the host of rank 0.*`mjtrain doctor`"
    with (
        pytest.raises(dist.DistStoreError, match=words),
        rank_scope(RankContext(world_size=2), "gloo", PrefixStore("session", server), 1.0),
    ):
        pass
    assert not dist.is_initialized()


def test_a_host_that_hangs_up_at_once_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # else it would be set, and stay for tests with several hosts
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connect(*args: Any, **options: Any) -> socket.socket:
            probe = connect_to(*args, **options)
            with server.accept()[0] as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
            with pytest.raises(ConnectionResetError):
                probe.recv(1)
            return probe

        monkeypatch.setattr(rank_rendezvous, "connect_to", connect)
        address = server.getsockname()
        with pytest.raises(ConnectionError, match=rf"rank 0 at 127\.0\.0\.1:{address[1]} has closed the connection"):
            rank_rendezvous.open_job_store(RankContext(rank=1, world_size=2), address, 5.0)


def test_a_rank_that_has_left_the_group_does_not_complain_about_others() -> None:
    with pytest.raises(ValueError, match="Default process group has not been initialized") as error:
        dist.barrier()
    assert not rank_rendezvous.is_complaint(error.value)

"""What a rank says that waits for others in vain."""

from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

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

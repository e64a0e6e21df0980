"""What ranks send to each other while they learn."""

from pathlib import Path

import mjtrain
from mjtrain.runtime.rank import RankContext


def test_rank_0_gathers_what_every_rank_has(tmp_path: Path) -> None:
    """Of different lengths, in the order of the ranks; the others get nothing, and need no memory for it."""

    def gather(context: RankContext) -> list[bytes]:
        from mjtrain.learning.collectives import Collectives

        gathered = Collectives("cpu").gather_bytes(bytes([context.rank]) * (context.rank + 1), context)
        (tmp_path / f"{context.rank}").write_text(str(len(gathered)))
        return gathered

    gathered = mjtrain.launch(gather, launch=mjtrain.LaunchConfig(gpu_ids=None, num_workers=3))
    assert gathered == [b"\0", b"\1\1", b"\2\2\2"]
    assert [(tmp_path / f"{rank}").read_text() for rank in range(3)] == ["3", "0", "0"]

from collections.abc import Iterator

import pytest

from support.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes for each worker of pytest-xdist; skips with the reason where the machine allows none."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, for jobs that lose some of them; skips with the reason where the machine allows none."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), ("zeta", "mike", "alpha"))
    yield cluster
    cluster.stop()

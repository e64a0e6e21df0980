import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _operators_are_read_once() -> Iterator[None]:
    """Have torch read the sources of its 500 operators at the first export of this process only.

    It does so at each, which is a fifth of an export, and finds the same each time.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # torch has no public name for it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield

import pickle
import traceback
from collections.abc import Callable

import cloudpickle
import pytest

from mjtrain.launcher.ipc import pickling


def make_function() -> Callable[[], Callable[[], None]]:
    def outer() -> Callable[[], None]:
        def fall() -> None:
            raise ValueError("the arm fell off")

        return fall

    return outer


def test_code_that_travels_keeps_its_file() -> None:
    """Nested code too; cloudpickle 3.1.3 by itself forgets it."""
    travelled = pickle.loads(pickling.dumps(make_function()))
    with pytest.raises(ValueError, match="the arm fell off") as caught:
        travelled()()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.name) == (__file__, "fall")
    assert frame.line == 'raise ValueError("the arm fell off")'


def test_all_else_travels_as_by_cloudpickle() -> None:
    value = {"array": (1.0, 2), "function": len, "class": type("Local", (), {"size": 3})}
    ours, theirs = pickle.loads(pickling.dumps(value)), pickle.loads(cloudpickle.dumps(value))
    assert ours["array"] == theirs["array"] == (1.0, 2)
    assert ours["function"] is theirs["function"] is len
    assert ours["class"].size == theirs["class"].size == 3

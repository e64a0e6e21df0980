import pickle
import sys
import traceback
from collections.abc import Callable
from types import ModuleType

import cloudpickle
import pytest

from mjtrain.launcher.rank import spawned


def make_function() -> Callable[[], Callable[[], None]]:
    def outer() -> Callable[[], None]:
        def fall() -> None:
            raise ValueError("the arm fell off")

        return fall

    return outer


def test_code_that_travels_keeps_its_file() -> None:
    """Nested code too; cloudpickle 3.1.3 by itself forgets it."""
    travelled = pickle.loads(spawned.pickle_with_code(make_function()))
    with pytest.raises(ValueError, match="the arm fell off") as caught:
        travelled()()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.name) == (__file__, "fall")
    assert frame.line == 'raise ValueError("the arm fell off")'


def test_all_else_travels_as_by_cloudpickle() -> None:
    value = {"array": (1.0, 2), "function": len, "class": type("Local", (), {"size": 3})}
    ours, theirs = pickle.loads(spawned.pickle_with_code(value)), pickle.loads(cloudpickle.dumps(value))
    assert ours["array"] == theirs["array"] == (1.0, 2)
    assert ours["function"] is theirs["function"] is len
    assert ours["class"].size == theirs["class"].size == 3


def test_functions_of_a_script_travel_from_a_process_of_multiprocessings_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the script is the module __mp_main__, which its ranks do not have."""
    script = ModuleType("__mp_main__")
    exec("LEGS = 4\nclass Robot:\n    legs = LEGS\ndef count(): return Robot().legs + LEGS", script.__dict__)
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    data = spawned.pickle_with_code(script.count)
    monkeypatch.setitem(sys.modules, "__mp_main__", spawned)
    assert pickle.loads(data)() == 8

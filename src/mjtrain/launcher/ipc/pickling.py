"""Functions and values as bytes for other processes, so that tracebacks there name the file of each line."""

import io
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

_SPAWNED_MAIN = "__mp_main__"
"""The module to which the functions of a script belong in a process of multiprocessing's spawn or forkserver. Like
__main__, no other process can import it."""


def dumps(value: Any) -> bytes:
    """Pickle a value with cloudpickle; functions that other processes cannot import go along with their code.

    Since version 3.1.3 cloudpickle gives such code `<dynamic-code>` as its file, so that equal functions have equal
    bytes wherever they stand. A traceback of a rank would then tell neither the file nor the line's text. Here code
    keeps the file that it was compiled from.
    """
    buffer = io.BytesIO()
    main = sys.modules.get(_SPAWNED_MAIN)
    if main is not None and main.__name__ == _SPAWNED_MAIN:
        cloudpickle.register_pickle_by_value(main)
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Reduce code to what cloudpickle makes of it and the file that it was compiled from; leave the rest to it."""
        if isinstance(obj, CodeType):
            make, arguments = self.dispatch_table[CodeType](obj)[:2]
            return _make_code, (obj.co_filename, make, arguments)
        return super().reducer_override(obj)


def _make_code(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)

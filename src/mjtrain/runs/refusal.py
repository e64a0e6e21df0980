"""A refused request leaves nothing behind."""

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mjtrain.errors import RequestError
from mjtrain.runs.run_dir import read_params


@contextmanager
def leaving_no_trace(
    run_dir: Path, made: tuple[Path, ...], started: str, errors: tuple[type[Exception], ...] = (RequestError,)
) -> Iterator[None]:
    """Remove what a with block has put into a run directory, if the request is refused before training begins.

    Args:
        run_dir: Where the run lives; no other process may write there.
        made: Directories that this command has made, the deepest first; with run_dir first for a new run. Those that
            are empty in the end are removed too.
        started: `started` in params/launch.yaml once a rank has accepted the request.
        errors: What counts as a refusal.
    """
    before = set() if run_dir in made else set(run_dir.rglob("*"))
    try:
        yield
    except errors:
        if read_params(run_dir, "launch").get("started") != started:
            _remove(run_dir, before, made)
        raise


def _remove(run_dir: Path, before: set[Path], made: tuple[Path, ...]) -> None:
    if run_dir in made:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        for path in sorted(set(run_dir.rglob("*")) - before, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in made:
        with contextlib.suppress(OSError):  # another run is there
            folder.rmdir()

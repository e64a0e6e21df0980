"""How a spawned rank tells the launcher what went wrong: one file per failed rank."""

import pickle
import socket
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import cloudpickle

REPORT_SUFFIX = ".report"


class RankFailedError(RuntimeError):
    """A rank ended without an exception that could be handed over, for instance because it was killed."""


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What a rank wrote down before it ended."""

    rank: int
    host: str
    time_ns: int
    traceback: str
    pickled_error: bytes | None


def write_traceback(folder: Path, rank: int, error: BaseException) -> str:
    """Write {folder}/rank_{rank}.txt, for people, and return what it says."""
    text = "".join(traceback.format_exception(error))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank_{rank}.txt").write_text(text)
    return text


def write_report(folder: Path, rank: int, error: BaseException) -> None:
    """Leave word of an exception, for people and for the launcher."""
    text = write_traceback(folder, rank, error)
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # many exceptions can be pickled but not restored
    except Exception:
        pickled = None
    report = FailureReport(
        rank=rank, host=socket.gethostname(), time_ns=time.time_ns(), traceback=text, pickled_error=pickled
    )
    partial = folder / f"rank_{rank}.partial"
    partial.write_bytes(cloudpickle.dumps(report))
    partial.rename(folder / f"rank_{rank}{REPORT_SUFFIX}")


def read_first_failure(folder: Path) -> BaseException | None:
    """Return the exception of the rank that failed first, with rank, host and traceback as a note on it.

    Args:
        folder: Where the ranks wrote their reports. Only this user's processes can write there.

    Returns:
        None where no rank left word. The reports are removed; the text files stay.
    """
    files = sorted(folder.glob(f"*{REPORT_SUFFIX}"))
    reports: list[FailureReport] = [pickle.loads(file.read_bytes()) for file in files]
    for file in files:
        file.unlink()
    if not reports:
        return None
    first = min(reports, key=lambda report: report.time_ns)
    where = f"on rank {first.rank} ({first.host})"
    if first.pickled_error is None:
        return RankFailedError(f"{where}: {first.traceback.strip().splitlines()[-1]}\n{first.traceback}")
    error: BaseException = pickle.loads(first.pickled_error)
    error.add_note(f"raised {where}:\n{first.traceback}")
    return error

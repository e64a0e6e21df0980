"""Write metrics, videos and checkpoints to Weights & Biases; W&B can neither end a run nor delay it for long."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtrain.config import RunConfig
from mjtrain.runs.checkpoint import WANDB_ID_FILE
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.wandb_artifact import call_within, has_credentials, kill_process
from mjtrain.runtime.files import read_regular, write_whole
from mjtrain.runtime.machine import is_writable
from mjtrain.sim.drawing.video import Video
from mjtrain.training.reporting.writer import Writer, WriterError, guard, scalars

_NOT_IN_IDS = ":;,#?/'"
"""Characters that W&B refuses in an id."""

INIT_TIMEOUT_S = 30.0
"""Longest wait for W&B's server at the start of a run; without an answer the run is recorded offline."""

CALL_TIMEOUT_S = 30.0
"""Longest wait for W&B's process, which passes on what it gets."""

ARTIFACT_TIMEOUT_S = 600.0
"""Longest time in which a checkpoint is read and copied for W&B."""

FINISH_TIMEOUT_S = 60.0
"""Longest wait for the last uploads when a run ends well."""

FAILED_FINISH_TIMEOUT_S = 5.0
"""The same if a run fails: the user waits for the cause."""


class WandbWriter(Writer):
    """A Weights & Biases run; its id is in the run directory, so that a resumed run continues the same W&B run."""

    def __init__(self, run_dir: Path, config: RunConfig, warn: Callable[[str], None]) -> None:
        """Start or resume the W&B run; raises a WriterError if W&B cannot even record on this machine."""
        self._failed = False
        self._step = 0
        self._uploads_checkpoints = config.wandb_upload_checkpoints
        _choose_cache(run_dir)
        mode = resolve_mode(config.wandb_mode, os.environ, has_credentials)
        if config.wandb_mode == "online" and mode == "offline":
            warn("--wandb-mode online: no W&B API key found (WANDB_API_KEY or wandb login); recording offline")
        import wandb

        # The caller's program may have a run in the same process of W&B. That of a sweep, which compares the metrics of
        # the training, is joined, and any other is left alone.
        current = wandb.run
        self._joins = current is not None and current.sweep_id is not None
        self._owns_process = current is None
        apart = current is not None and not self._joins
        self._hangs = False
        try:
            self._run = _begin(run_dir, config, mode, apart=apart)
        except WriterError as error:
            if mode == "offline":
                raise
            warn(f"W&B cannot be reached ({error}); recording offline, for wandb sync later")
            self._run = _begin(run_dir, config, "offline", apart=apart)
        try:
            write_whole(run_dir / WANDB_ID_FILE, self._run.id)
        except OSError as error:
            warn(f"{WANDB_ID_FILE} cannot be written ({error.strerror}); a resumed run begins another W&B run")

    def write(self, metrics: dict[str, Any]) -> None:
        """Log the scalars."""
        self._step = metrics["iteration"]
        self._call(lambda: self._run.log(scalars(metrics), step=metrics["iteration"]))

    def add_video(self, video: Video) -> None:
        """Upload the video at the current step, because W&B's steps never go back."""
        import wandb

        def log() -> None:
            clip = wandb.Video(str(video.path), caption=f"iteration {video.iteration}", format="mp4")
            self._run.log({"video": clip}, step=self._step)

        self._call(log)

    def add_checkpoint(self, path: Path) -> None:
        """Upload a checkpoint as an artifact, if that was asked for."""
        if self._uploads_checkpoints:
            self._call(lambda: self._log_artifact(path), ARTIFACT_TIMEOUT_S)

    def _log_artifact(self, path: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", type="model")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact, aliases=["latest", path.stem])

    def fail(self) -> None:
        """Mark the run as failed."""
        self._failed = True

    def close(self) -> None:
        """Finish the run, unless it is one of a sweep that the caller's program has begun."""
        if self._joins:
            return
        timeout_s = FAILED_FINISH_TIMEOUT_S if self._failed else FINISH_TIMEOUT_S
        try:
            self._call(lambda: self._run.finish(exit_code=int(self._failed)), timeout_s)
        except WriterError:
            if self._owns_process:
                kill_process()
            raise

    def _call(self, action: Callable[[], Any], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Call W&B; after a call that did not return in time no other is made."""
        if self._hangs:
            raise WriterError("W&B hangs")
        try:
            guard(lambda: call_within(timeout_s, action))
        except WriterError as error:
            self._hangs = isinstance(error.__cause__, TimeoutError)
            raise


def resolve_mode(asked: str, environ: Any, has_credentials: Callable[[], bool]) -> str:
    """Decide between online, offline and disabled; pure.

    Args:
        environ: Environment variables; WANDB_MODE counts where the flag is auto.
        has_credentials: Whether W&B knows its user without asking; only called where it matters. Without a key
            it would ask, and a job without a terminal would wait forever.
    """
    mode = environ.get("WANDB_MODE", "online") if asked == "auto" else asked
    if mode in ("disabled", "offline", "dryrun"):
        return "offline" if mode == "dryrun" else mode
    return "online" if has_credentials() else "offline"


def _choose_cache(run_dir: Path) -> None:
    """Have W&B's process log below the run directory where the user has no cache; else it logs to the console."""
    home, cache = os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME")
    usual = cache or (home and f"{home}/.cache")
    if "WANDB_CACHE_DIR" not in os.environ and not (usual and is_writable(Path(usual))):
        os.environ["WANDB_CACHE_DIR"] = str(run_dir.absolute() / "wandb" / "cache")


def _read_id(run_dir: Path) -> str | None:
    """Return the W&B run that a run has begun; None if it has not, or its file is damaged."""
    try:
        run_id = read_regular(run_dir / WANDB_ID_FILE).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return run_id if run_id and run_id.isprintable() and not set(run_id) & set(_NOT_IN_IDS) else None


def _begin(run_dir: Path, config: RunConfig, mode: str, *, apart: bool) -> Any:
    """Start W&B's own process, and the run in it, if need be apart from a run of the caller's program."""
    import wandb

    run_id = _read_id(run_dir)
    if not apart:
        run_id = os.environ.get("WANDB_RUN_ID") or run_id
    elif run_id is None:  # not that of the caller's run, where WANDB_RUN_ID is set
        run_id = secrets.token_hex(4)
    settings = wandb.Settings(
        console="off",  # the launcher owns the output streams
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
    )
    return guard(
        lambda: wandb.init(
            project=config.wandb_project or os.environ.get("WANDB_PROJECT") or "mjtrain",
            entity=config.wandb_entity,
            group=config.wandb_group,
            tags=list(config.wandb_tags) or None,
            name=config.wandb_name or run_dir.name,
            dir=run_dir,
            config={name: load_params(run_dir, name) for name in ("env", "agent", "learner", "launch")},
            allow_val_change=True,  # a resumed run may have other settings
            mode=mode,  # pyright: ignore[reportArgumentType]
            id=run_id,
            resume="allow",
            reinit="create_new" if apart else None,
            settings=settings,
        )
    )

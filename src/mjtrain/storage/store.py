"""Objects below a URL, by name; the only module that uses obstore."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from mjtrain import heartbeat
from mjtrain.storage.credentials import s3_options, scrub
from mjtrain.storage.errors import ConflictError, StorageError

PIECE_SIZE = 5 << 20
"""Bytes of one request; larger objects go and come in several, each with time-outs and retries of its own."""

_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=120)}
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
}

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Version:
    """Which of the contents that an object has had was read."""

    e_tag: str | None
    version: str | None


class Storage:
    """What is stored below a URL. Every method raises StorageError where the storage fails."""

    def __init__(self, url: str) -> None:
        """Prepare the client. Nothing is sent.

        Args:
            url: As `check_url` returns it.
        """
        from obstore import store

        self.url = url
        self._options: dict[str, str] = {}
        self._folder: Path | None = None
        settings: dict[str, Any] = {}
        scheme = urlsplit(url).scheme
        if scheme == "file":
            self._folder = Path(unquote(urlsplit(url).path))
        elif scheme == "s3":
            self._options = s3_options(os.environ, Path.home())
            plain_http = self._options.get("endpoint", "").startswith("http://")  # only if the user asks for it
            settings = {"config": self._options, "client_options": {**_CLIENT, "allow_http": plain_http}}
        else:
            settings = {"client_options": _CLIENT}
        if scheme != "file":
            settings["retry_config"] = _RETRIES

        def make() -> Any:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                return store.LocalStore(self._folder)
            return store.from_url(url, **settings)

        self._store = self._attempt(make)

    def read(self, name: str) -> tuple[bytes, Version] | None:
        """Return a small object's content and version; None if there is no such object."""
        import obstore

        def get() -> tuple[bytes, Version]:
            found = obstore.get(self._store, name)
            return bytes(found.bytes()), Version(found.meta["e_tag"], found.meta["version"])

        try:
            return self._attempt(get)
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes, version: Version | None) -> None:
        """Write a small object if it is still the version that was read.

        Args:
            name: Which object.
            content: Its new content.
            version: The version that `read` returned; None if there was no such object.

        Raises:
            ConflictError: It is another version.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create"
        if version is not None:
            mode = {key: value for key, value in asdict(version).items() if value is not None}

        def put() -> None:
            with self._lock():
                if self._folder is not None and version is not None:  # a file system has no conditional writes
                    now = self.read(name)
                    if now is None or now[1] != version:
                        raise ConflictError(f"{self.url}/{name} was changed by another writer")
                    obstore.put(self._store, name, content)
                else:
                    obstore.put(self._store, name, content, mode=mode)

        try:
            self._attempt(put)
        except (AlreadyExistsError, PreconditionError):
            raise ConflictError(f"{self.url}/{name} was changed by another writer") from None
        except FileNotFoundError as error:
            raise StorageError(str(error)) from None

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Be the only writer, on a file system."""
        if self._folder is None:
            yield
            return
        with (self._folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def upload(self, name: str, file: IO[bytes]) -> None:
        """Store a file's content; the object becomes visible when it is complete."""
        import obstore

        file.seek(0)
        try:
            self._attempt(lambda: obstore.put(self._store, name, file, chunk_size=PIECE_SIZE, max_concurrency=2))
        except FileNotFoundError as error:
            raise StorageError(str(error)) from None

    def download(self, name: str, size: int, path: Path) -> str:
        """Write an object's content to a file and return its SHA-256 in hexadecimal.

        Args:
            name: Which object.
            size: Its size in bytes.
            path: Where to.

        Raises:
            FileNotFoundError: There is no such object.
        """
        import obstore

        digest = hashlib.sha256()
        with path.open("wb") as file:
            for begin in range(0, size, PIECE_SIZE):
                end = min(begin + PIECE_SIZE, size)
                piece = self._attempt(
                    lambda start=begin, end=end: obstore.get_range(self._store, name, start=start, end=end)
                )
                heartbeat.beat()
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if there is no such object."""
        import obstore

        try:
            return self._attempt(lambda: obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def list_objects(self) -> dict[str, int]:
        """Return the names of all objects below the URL, with their sizes in bytes."""
        import obstore

        def collect() -> dict[str, int]:
            return {meta["path"]: meta["size"] for page in obstore.list(self._store) for meta in page}

        try:
            return self._attempt(collect)
        except FileNotFoundError:
            return {}

    def delete(self, names: list[str]) -> None:
        """Delete objects; missing ones are no error."""
        import obstore

        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._attempt(lambda name=name: obstore.delete(self._store, name))

    def _attempt(self, action: Callable[[], ValueT]) -> ValueT:
        """Call an action, and turn its errors into a StorageError of one line without secrets."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            return action()
        except (AlreadyExistsError, PreconditionError, StorageError):
            raise
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise StorageError(f"{self.url}: the bucket does not exist") from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(scrub(str(error), self._options)) from None
            raise StorageError(scrub(str(error), self._options)) from None

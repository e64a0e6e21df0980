"""Errors of object storage."""


class StorageError(RuntimeError):
    """The storage cannot be reached or reports an error. The message is one line without secrets."""


class ConflictError(StorageError):
    """Another writer changed the object after it was read."""

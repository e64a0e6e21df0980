"""What can go wrong between here and the storage."""


class StorageError(RuntimeError):
    """The storage cannot be reached, or answers with an error; one line, without any secret."""


class ConflictError(StorageError):
    """Another writer was faster: the object is not what it was when it was read."""

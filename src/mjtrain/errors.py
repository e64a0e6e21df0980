"""The one kind of error that the user can fix."""


class RequestError(ValueError):
    """What was asked for cannot be done; the message names the flag or field, the value, and what would be right.

    Commands print the message as one line and end with status 2. Every other exception is a failure and keeps its
    traceback.
    """

"""The one kind of error that the user can fix."""

from collections.abc import Sequence

INJECTED = "after injected fault "
"""In the cause of a failure that followed upon --inject-fault, what comes before the fault."""


class RequestError(ValueError):
    """What was asked for cannot be done; the message names the flag or field, the value, and what would be right.

    Commands print the message as one line, and each of its notes as one more, and end with status 2. Every other
    exception is a failure and keeps its traceback.
    """

    @classmethod
    def of(cls, problems: Sequence[str]) -> "RequestError":
        """Make an error of several problems: the first is its message, and the others are its notes."""
        error = cls(problems[0])
        for problem in problems[1:]:
            error.add_note(problem)
        return error

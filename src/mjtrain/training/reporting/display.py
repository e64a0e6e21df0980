"""Lines and a live status on the terminal."""

import contextlib
from typing import Self

from rich.console import Console, ConsoleRenderable
from rich.live import Live
from rich.text import Text


class _PlainConsole(Console):
    """Shows text as it is, in notebooks too, and does not end the process if its reader is gone."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, force_jupyter=False)

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Display:
    """Lines on the console, and below them, on a terminal, a status that lives. Use as a context manager.

    A console that takes nothing more, as a pipe without a reader or a full disk, does not end the work.
    """

    def __init__(self, status: ConsoleRenderable) -> None:
        self._console = _PlainConsole()
        # FORCE_COLOR, which notebooks set, makes rich take everything for a terminal.
        is_live = self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal
        self._live = Live(status, console=self._console, auto_refresh=False) if is_live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.start()
                self._console.show_cursor(True)  # a process that is killed cannot bring a hidden one back
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.stop()

    def refresh(self) -> bool:
        """Render the status again; return whether there is a terminal for it."""
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.refresh()
        return self._live is not None

    def tell(self, line: str | Text) -> None:
        """Print a line above the status."""
        text, encoding = str(line), self._console.encoding
        escaped = text.encode(encoding, "backslashreplace").decode(encoding)
        with contextlib.suppress(OSError):
            self._console.print(line if escaped == text else escaped, soft_wrap=True)

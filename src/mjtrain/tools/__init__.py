"""What is not training: doctor, sweep, plotting, scaling, robots, simulators; names of the flags that are passed on."""

from collections.abc import Sequence


def name_flags(words: Sequence[str]) -> set[str]:
    """Return the names of the flags among the words of a command, as `normalise_flag` writes them."""
    return {normalise_flag(word.partition("=")[0]) for word in words if word.startswith("--")}


def normalise_flag(word: str) -> str:
    """Return the name of a flag without dashes before it and with dashes inside it."""
    return word.strip().lstrip("-").replace("_", "-")

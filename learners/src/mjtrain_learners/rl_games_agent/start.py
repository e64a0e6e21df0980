"""The import of rl_games."""

import torch


def import_rl_games() -> None:
    """Import rl_games' agent without PyTorch's compiler.

    A network for rl_games' own tests, which comes along, is compiled as it is defined. It stays as it is here: nobody
    uses it, and the compiler takes longer to import than all else.
    """
    compile_ = torch.compile
    torch.compile = lambda model: model  # pyright: ignore[reportAttributeAccessIssue]
    try:
        import rl_games.algos_torch.a2c_continuous  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        torch.compile = compile_

"""The ranks of one host: their processes are started, watched and ended here."""

"""Messages, sockets, processes and signals: what the other rooms of the launcher are built on."""

"""A robot over UDP, as its controller sees it."""

import contextlib
import socket

from mjtrain.deployment.packets import MAX_BYTES, PacketError, decode_readings, encode_targets
from mjtrain.deployment.robot import Readings, Targets
from mjtrain.runtime.errors import RequestError


class UdpRobot:
    """Sends targets to one address and takes readings from it only. Nothing authenticates them."""

    def __init__(self, host: str, port: int) -> None:
        """Open a socket.

        Raises:
            RequestError: The host has no address.
        """
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.connect((host, port))
        except OSError as error:
            raise RequestError(f"--address {host}:{port}: {error.strerror or error}") from error
        self._socket.setblocking(False)
        self._sent = 0
        self._newest: Readings | None = None
        self.received = 0
        """Readings that arrived."""
        self.lost = 0
        """Readings that did not arrive, or too late, by the gaps in their numbers."""
        self.invalid = 0
        """Datagrams that are not valid packets."""

    def read(self) -> Readings | None:
        """Return the newest readings that have arrived."""
        while True:
            try:
                data = self._socket.recv(MAX_BYTES)
            except (BlockingIOError, ConnectionRefusedError):  # nothing more, or the robot has no socket yet
                return self._newest
            try:
                readings = decode_readings(data)
            except PacketError:
                self.invalid += 1
                continue
            self.received += 1
            if self._newest is None:
                self._newest = readings
            elif readings.sequence > self._newest.sequence:
                self.lost += readings.sequence - self._newest.sequence - 1
                self._newest = readings
            else:
                self.lost = max(0, self.lost - 1)  # it was counted when a newer one overtook it

    def write(self, targets: Targets) -> None:
        """Send targets."""
        self._sent += 1
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):  # as if it was lost
            self._socket.send(encode_targets(targets, self._sent))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

"""A robot over UDP: one JSON object in each datagram. docs/deploy-a-policy.md describes the packets."""

import contextlib
import json
import socket
import sys
from dataclasses import asdict
from typing import Any, TypeGuard

import numpy as np

from mjtrain.deployment.robot import Drive, Named, Readings, Targets
from mjtrain.runtime.errors import RequestError

VERSION = 1
MAX_BYTES = 65_507
"""Largest payload of a datagram over IPv4."""

STATES = ("damped", "standing", "policy", "stop")

WIDTHS = {"positions": (1, 3, 4, 7), "velocities": (1, 3, 6)}
"""Numbers of a joint: of a hinge or slide, a ball joint and a free joint, of which three may be the position alone."""


class PacketError(ValueError):
    """A datagram that is not a valid packet; it is ignored."""


def encode_targets(targets: Targets, sequence: int) -> bytes:
    """Write what the controller sends."""
    return _encode({"seq": sequence, "state": targets.state, "drives": _plain_drives(targets.drives)})


def decode_targets(data: bytes) -> tuple[Targets, int]:
    """Read what the controller sent, and its sequence number; raises a PacketError if it is not valid."""
    packet = _decode(data)
    state, drives = packet.get("state"), packet.get("drives")
    if state not in STATES or not isinstance(drives, dict):
        raise PacketError("state or drives are missing")
    return Targets(state=state, drives={str(name): _drive(row) for name, row in drives.items()}), packet["seq"]


def encode_readings(readings: Readings) -> bytes:
    """Write what the robot sends."""
    packet = {"seq": readings.sequence, "time": readings.time_s, "damped_by": readings.damped_by, **_measured(readings)}
    if readings.truth is not None:
        packet["truth"] = _measured(readings.truth)
    return _encode(packet)


def decode_readings(data: bytes) -> Readings:
    """Read what the robot sent; raises a PacketError if it is not valid."""
    packet = _decode(data)
    clock, damped_by, truth = packet.get("time"), packet.get("damped_by", ""), packet.get("truth")
    if not _is_number(clock) or not isinstance(damped_by, str):
        raise PacketError("time or damped_by are not valid")
    measured: dict[str, Any] = {"sequence": packet["seq"], "time_s": float(clock)}
    return Readings(
        **measured,
        damped_by=damped_by,
        **_names(packet),
        truth=None if truth is None else Readings(**measured, **_names(truth)),
    )


def _encode(packet: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **packet}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        packet = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PacketError("it is not JSON") from error
    if not isinstance(packet, dict) or packet.get("v") != VERSION or type(packet.get("seq")) is not int:
        raise PacketError(f"it is not a packet of version {VERSION}")
    return packet


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # whole numbers in JSON have no bound


def _plain_drives(drives: dict[str, Drive]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in asdict(drive).items() if key != "controls"}
        if drive.controls is None
        else list(drive.controls)
        for name, drive in drives.items()
    }


def _drive(row: Any) -> Drive:
    if isinstance(row, list) and all(map(_is_number, row)):
        return Drive(kp=0.0, kd=0.0, controls=tuple(map(float, row)))
    keys = ("kp", "kd", "position", "torque")
    if not isinstance(row, dict) or not all(_is_number(row.get(key)) for key in keys):
        raise PacketError("a drive has neither controls nor kp, kd, position and torque")
    limit = row.get("max_torque")
    if limit is not None and not _is_number(limit):
        raise PacketError("max_torque is not a number")
    kp, kd, position, torque = (float(row[key]) for key in keys)
    return Drive(kp=kp, kd=kd, position=position, torque=torque, max_torque=limit)


def _measured(readings: Readings) -> dict[str, Any]:
    return {
        key: {name: np.asarray(value).tolist() for name, value in getattr(readings, key).items()}
        for key in ("positions", "velocities", "sensors", "values")
    }


def _names(packet: Any) -> dict[str, Any]:
    if not isinstance(packet, dict):
        raise PacketError("truth is not an object")
    found: dict[str, Named] = {}
    for key in ("positions", "velocities", "sensors", "values"):
        named = packet.get(key, {})
        if not isinstance(named, dict):
            raise PacketError(f"{key} is not an object")
        for name, row in named.items():
            if not isinstance(row, list) or not all(map(_is_number, row)):
                raise PacketError(f"{key} of {name} are not finite numbers")
            if key in WIDTHS and len(row) not in WIDTHS[key]:
                raise PacketError(f"{key} of {name} are {len(row)} numbers, which no joint has")
        found[key] = {name: np.array(row, dtype=float) for name, row in named.items()}
    return found


class UdpRobot:
    """Sends targets to one address and takes readings from it only. Nothing authenticates them."""

    def __init__(self, host: str, port: int) -> None:
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
            except OSError:  # nothing more, the robot has no socket yet, or the network is down: readings become stale
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
        with contextlib.suppress(OSError):  # as if it was lost
            self._socket.send(encode_targets(targets, self._sent))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

"""Why ranks could not be started or could not talk, as findings; pure."""

from mjtrain.doctor.finding import Finding, failure
from mjtrain.launcher.failure import final_message, summarise

_ADVICE = (
    ("Unable to find address for", "give --interface one that this host has, or unset GLOO_SOCKET_IFNAME"),
    ("no such interface", "give --interface one that the host has"),
    ("Address already in use", "set MASTER_PORT to a free port on every host"),
    ("cannot be reached", "open the port between the hosts in the firewall, and look whether MASTER_ADDR is right"),
    ("did not connect", "look at what doctor says on the hosts that are missing, and at the firewall between them"),
    ("ncclUnhandledCudaError", "set NCCL_DEBUG=WARN and try again: the driver and NCCL do not fit"),
    ("ncclSystemError", "set NCCL_DEBUG=WARN and try again: the interface (--interface) or /dev/shm"),
    ("NCCL", "set NCCL_DEBUG=WARN and try again; --backend gloo works without NCCL"),
    ("SIGKILL", "the kernel may have ended it for memory: look at dmesg and at the limit of the container"),
    ("no progress", "ranks started, and then hung: look at the network between the hosts, and at dmesg for the GPUs"),
    ("wait timeout", "ranks started, and could not reach each other: open all ports between the hosts in the firewall"),
    ("imed out", "ranks started, and could not reach each other: open all ports between the hosts in the firewall"),
    ("onnect", "open all ports between the hosts in the firewall, or give another --interface"),
    ("has no visible GPU", "use hosts of one kind, or --gpu-ids None"),
    ("asks for", "give every node the same command"),
    ("start as many on every node", "start as many ranks on every node"),
)
"""Part of what a message says, and what helps; the first that fits."""


def explain(error: BaseException) -> Finding:
    """Turn what starting the ranks raised into a finding."""
    message = final_message(error)
    blocks = [line.removeprefix("FAILED: ") for line in message.splitlines() if line.startswith("FAILED: ")]
    figure = blocks[0] if blocks else summarise(error)  # a block says which rank, and on which host
    advice = next((advice for part, advice in _ADVICE if part in f"{figure}\n{message}"), "")
    return failure("ranks", figure[:300], advice or "docs/reliability.md says what the message means")

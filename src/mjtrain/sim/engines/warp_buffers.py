"""What MuJoCo Warp's buffers of a fixed size would have had to hold."""

# Warp compiles the kernel; pyright cannot follow its arrays and tid().
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Mapping

import mujoco_warp as mjw
import torch
import warp as wp

from mjtrain.sim.engines.base import Buffer

wp.set_module_options({"enable_backward": False})

_CONTACTS = int(mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD)
"""Bits of `Data.overflow` that say that contacts were left out, for want of `nconmax`."""

_CONSTRAINTS = int(mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ)
"""Those that say that constraint rows were, for want of `njmax`."""

UNPRINTED = _CONTACTS | _CONSTRAINTS | int(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
"""What MuJoCo Warp prints no line about per world and step: what `WarpBuffers` counts, and that a solver made all the
iterations that the model allows it, which a model that is stepped fast allows few of."""


@wp.kernel
def _note(
    overflow: wp.array[int],
    nefc: wp.array[int],
    nacon: wp.array[int],
    ncollision: wp.array[int],
    contacts_missed: wp.array[int],
    constraints_missed: wp.array[int],
    most_contacts: wp.array[int],
    most_constraints: wp.array[int],
):
    world = wp.tid()
    bits = overflow[world]
    if bits & wp.static(_CONTACTS):
        contacts_missed[world] = 1
    if bits & wp.static(_CONSTRAINTS):
        constraints_missed[world] = 1
    overflow[world] = 0
    most_constraints[world] = wp.max(most_constraints[world], nefc[world])
    if world == 0:
        most_contacts[0] = wp.max(most_contacts[0], wp.max(nacon[0], ncollision[0]))


@wp.kernel
def _note_readings(readings: wp.array2d[float], step: int, history: wp.array3d[float]):
    world, column = wp.tid()
    history[world, step, column] = readings[world, column]


def note_readings(readings: wp.array, step: int, history: wp.array) -> None:
    """Write sensors into a physics step of a history of shape (num_envs, num_substeps, nsensordata), by one kernel."""
    wp.launch(_note_readings, dim=readings.shape, inputs=[readings, step], outputs=[history])


class WarpBuffers:
    """Contacts and constraint rows: how many there were, and in which worlds some were left out."""

    def __init__(self, data: mjw.Data, num_envs: int, device: torch.device) -> None:

        def counts(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.by_name: Mapping[str, Buffer] = {
            # All worlds share one buffer of contacts; each has its own rows.
            "contacts": Buffer("--env.warp.nconmax", data.naconmax // num_envs, counts(num_envs), counts(1), num_envs),
            "constraints": Buffer("--env.warp.njmax", data.njmax, counts(num_envs), counts(num_envs), 1),
        }
        """The buffers by what they hold."""
        self._data = data
        self._num_envs = num_envs
        contacts, constraints = self.by_name.values()
        noted = (contacts.missed, constraints.missed, contacts.most, constraints.most)
        self._noted = [wp.from_torch(tensor) for tensor in noted]
        self.tensors = (*noted, wp.to_torch(data.overflow))
        """What `note` changes."""

    def note(self) -> None:
        """Take in a physics step that was just done: launches one kernel."""
        data = self._data
        wp.launch(
            _note,
            dim=self._num_envs,
            inputs=[data.overflow, data.nefc, data.nacon, data.ncollision],
            outputs=self._noted,
        )

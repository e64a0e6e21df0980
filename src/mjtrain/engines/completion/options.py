"""Options of the simulation."""

from typing import Any

import mujoco

from mjtrain.config import OptionConfig
from mjtrain.engines.completion.lookup import refuse

_WORDS = {
    "integrator": {
        "Euler": mujoco.mjtIntegrator.mjINT_EULER,
        "RK4": mujoco.mjtIntegrator.mjINT_RK4,
        "implicit": mujoco.mjtIntegrator.mjINT_IMPLICIT,
        "implicitfast": mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
    },
    "solver": {
        "PGS": mujoco.mjtSolver.mjSOL_PGS,
        "CG": mujoco.mjtSolver.mjSOL_CG,
        "Newton": mujoco.mjtSolver.mjSOL_NEWTON,
    },
    "cone": {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC},
    "jacobian": {
        "dense": mujoco.mjtJacobian.mjJAC_DENSE,
        "sparse": mujoco.mjtJacobian.mjJAC_SPARSE,
        "auto": mujoco.mjtJacobian.mjJAC_AUTO,
    },
}
_DISABLE = {
    name.removeprefix("mjDSBL_").lower(): value
    for name, value in mujoco.mjtDisableBit.__members__.items()
    if name.startswith("mjDSBL_")
}
_ENABLE = {
    name.removeprefix("mjENBL_").lower(): value
    for name, value in mujoco.mjtEnableBit.__members__.items()
    if name.startswith("mjENBL_")
}


def set_options(spec: Any, config: OptionConfig) -> None:
    """Set the options that are given.

    Raises:
        RequestError: A word is none of MJCF's.
    """
    for name in OptionConfig.__dataclass_fields__:
        value = getattr(config, name)
        if value is None or name in ("enable", "disable"):
            continue
        words = _WORDS.get(name)
        if words is not None and value not in words:
            raise refuse(f"options.{name}", str(value), "is none of MuJoCo's", words)
        setattr(spec.option, name, value if words is None else words[value])
    for name in config.disable:
        _switch(spec.option, "disable", name, on=False)
    for name in config.enable:
        _switch(spec.option, "enable", name, on=True)


def _switch(option: Any, field: str, name: str, *, on: bool) -> None:
    if name not in _DISABLE and name not in _ENABLE:
        raise refuse(f"options.{field}", name, "is no flag of MuJoCo", (*_DISABLE, *_ENABLE))
    flags, bit = ("disableflags", _DISABLE[name]) if name in _DISABLE else ("enableflags", _ENABLE[name])
    sets = on == (name in _ENABLE)
    before = int(getattr(option, flags))
    setattr(option, flags, before | int(bit) if sets else before & ~int(bit))

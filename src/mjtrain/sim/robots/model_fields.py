"""Which fields of the model may differ between worlds."""

MODEL_FIELDS = {
    "body_mass": True,
    "body_inertia": True,
    "body_ipos": True,
    "body_iquat": True,
    "dof_armature": True,
    "dof_damping": False,
    "dof_frictionloss": False,
    "geom_friction": False,
    "actuator_gainprm": False,
    "actuator_biasprm": False,
    "actuator_forcerange": False,
    "gravity": False,
}
"""Fields of the model that may differ between worlds, and whether constants are derived from them (`refresh_model`)."""

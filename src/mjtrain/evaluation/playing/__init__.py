"""Play a trained policy: measure episodes, watch it in a viewer, record a video."""

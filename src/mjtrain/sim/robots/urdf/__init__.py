"""From a URDF to MJCF that can be trained."""

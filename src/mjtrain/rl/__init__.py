"""Everything that touches RSL-RL. Its modules take seconds to import; this package does not."""

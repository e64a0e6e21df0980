"""Everything that touches RSL-RL. Its modules take seconds to import; this package itself only torch."""

from mjtrain.rl.deferred_imports import defer_imports

defer_imports()

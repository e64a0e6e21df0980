"""Everything that touches RSL-RL. Its modules take seconds to import; this package itself only torch."""

import mjtrain.learning  # noqa: F401  # it defers what RSL-RL would import in vain

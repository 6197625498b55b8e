"""softbench: compare softmax strategies on the GPU - checked, isolated, interleaved, in GB/s.

What a plugin needs stands here: `Case`, `Direction` and the `Backend` protocol.
"""

from softbench.core.case import Case, Direction
from softbench.plugins.backend import Backend

__version__ = "0.1.0"
__all__ = ["Backend", "Case", "Direction", "__version__"]

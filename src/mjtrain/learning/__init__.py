"""The training loop of all learning libraries; it knows none of them.

Its modules are imported before a library is, which this package itself makes cheaper; it takes torch alone.
"""

from mjtrain.learning.deferred_imports import defer_imports

defer_imports()

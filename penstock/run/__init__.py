"""One run from start to end; plans, validation and retries. Called, `penstock.run("customers")` runs a pipeline.

The package and the function have one name, and an import of the one would hide the other: so the
package itself can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from penstock.run.calls import run

        return run(*args, **options)


sys.modules[__name__].__class__ = _Callable

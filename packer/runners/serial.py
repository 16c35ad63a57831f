"""One task at a time, in this process."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SerialRunner"]


class SerialRunner(Executor):
    """Runs each task as it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task now; the future is done when this returns. Interrupts pass through."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - an executor hands every failure to the future
            future.set_exception(error)
        return future

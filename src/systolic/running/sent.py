"""Send a jitted call to a worker process, which traces it as on a TPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from systolic.running.replacing import Replacement, replaced

# Classes that this process has registered for its jobs. They live as long as the process.
_REGISTERED: list[type] = []


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Registration:
    """A call of `jax.tree_util`, such as `register_dataclass`, for a class that is sent by value."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def repeat(self) -> None:
        """Register the class here, once."""
        import jax

        kind = self.args[0]
        if not any(kind is registered for registered in _REGISTERED):
            _REGISTERED.append(kind)
            with contextlib.suppress(ValueError):  # the worker has imported its module, which registered it
                getattr(jax.tree_util, self.function)(*self.args, **self.kwargs)


class SentCall:
    """The function of a call, with its static arguments bound.

    Args:
      function: the jitted function; a worker gets the original in place of a `StandIn`.
      positional: for each positional argument, a tuple with its value if it is static, else None.
      keywords: the same for keyword arguments.
      registrations: pytree classes that the worker must know before it sees the arguments.
    """

    def __init__(
        self,
        function: Any,
        positional: Sequence[tuple[Any] | None],
        keywords: Mapping[str, tuple[Any] | None],
        registrations: Sequence[Registration],
    ) -> None:
        self.function = function
        self.positional = tuple(positional)
        self.keywords = dict(keywords)
        self.registrations = tuple(registrations)
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *dynamic: Any) -> Any:
        values = iter(dynamic)
        args = [next(values) if static is None else static[0] for static in self.positional]
        kwargs = {name: next(values) if static is None else static[0] for name, static in self.keywords.items()}
        with replaced(compiled_for_a_tpu()):
            return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        # Registrations come first: unpickling repeats them before it reaches an argument of such a class.
        return _arrived, (self.registrations, self.function, self.positional, self.keywords)


def _arrived(
    registrations: Sequence[Registration],
    function: Any,
    positional: Sequence[tuple[Any] | None],
    keywords: Mapping[str, tuple[Any] | None],
) -> SentCall:
    for registration in registrations:
        registration.repeat()
    return SentCall(function, positional, keywords, registrations)


def compiled_for_a_tpu() -> Iterator[Replacement]:
    """Yield replacements of public names that tell the backend, or make Pallas not compile its kernels."""
    import jax
    from jax.experimental import pallas as pl

    yield Replacement(jax, "default_backend", lambda: "tpu")
    for name in ("pallas_call", "kernel"):
        launch = getattr(pl, name)

        def compiled(*args: Any, _launch: Any = launch, interpret: Any = False, **kwargs: Any) -> Any:
            del interpret  # scripts set it if they see no TPU
            return _launch(*args, **kwargs)

        yield Replacement(pl, name, compiled)

"""Registries of named implementations: one per axis along which the tool grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from autosplit.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Map from a name on the command line to an implementation.

    Parameters
    ----------
    kind
        What is registered, for messages ("solver", "schedule").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files its target under ``name``.

        Raises
        ------
        ValueError
            If the name is taken: two implementations of one name are a bug.
        """

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UsageError(
                f"unknown {self.kind} {name!r}",
                hint=f"choose one of: {', '.join(self.names())}",
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Return all registered names, sorted."""
        return tuple(sorted(self._entries))

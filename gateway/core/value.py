"""Frozen values of the data path: plain classes that mypyc compiles to unboxed fields.

A `Final` field of a compiled class cannot be set, and compiled code reads it without a lookup; a field of a
msgspec struct costs it a hundred instructions, and a construction five times as much.
"""

from typing import Any, ClassVar, TypeVar

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True, allow_interpreted_subclasses=True)
class Value:
    """Base of a value with the fields of `__match_args__`, which its `__init__` takes in this order: equal to
    another one of its class with equal fields, and printed by them."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or type(other) is not type(self):
            return NotImplemented
        return astuple(self) == astuple(other)

    def __hash__(self) -> int:
        return hash(astuple(self))

    def __repr__(self) -> str:
        fields = ", ".join([f"{field}={getattr(self, field)!r}" for field in self.__match_args__])
        return f"{type(self).__name__}({fields})"


V = TypeVar("V", bound=Value)


def astuple(value: Value) -> tuple[Any, ...]:
    """Return the fields of a value, in their order."""
    return tuple([getattr(value, field) for field in value.__match_args__])


def replace(value: V, **changes: Any) -> V:
    """Return a copy of a value with these fields changed. Raises TypeError for a field that it has not."""
    fields = {field: getattr(value, field) for field in value.__match_args__}
    return type(value)(**fields | changes)

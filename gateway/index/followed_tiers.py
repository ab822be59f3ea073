"""Media and groups of one worker that an index follows: the first that its events name.

Each costs memory, and a look in each removal: an engine has a few, and a name costs its sender nothing.
"""

from typing import Any, Final

MAX_MEDIA: Final = 8
MAX_GROUPS: Final = 32


class FollowedTiers:
    """Media and groups that are followed, at most MAX_MEDIA and MAX_GROUPS of them."""

    def __init__(self) -> None:
        self._media: set[str] = set()
        self._groups: set[int] = set()

    def __repr__(self) -> str:
        return f"FollowedTiers({len(self._media)} media, {len(self._groups)} groups)"

    def follow(self, medium: str, group: int) -> bool:
        """Return True if events of this medium and group are followed, from now on at least."""
        return (medium in self._media or _is_added(self._media, medium, MAX_MEDIA)) and (
            group in self._groups or _is_added(self._groups, group, MAX_GROUPS)
        )


def _is_added(known: set[Any], name: object, most: int) -> bool:
    if len(known) < most:
        known.add(name)
        return True
    return False

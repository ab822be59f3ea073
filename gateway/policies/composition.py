"""What the configuration says of a policy that is put together of parts."""

import msgspec


class Composition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parts by their names, scorers with their weights. Either scorers (and a picker, else "max"), or a
    policy that chooses among what the filters keep."""

    filters: list[str] = []
    scorers: dict[str, float] = {}
    picker: str = ""
    policy: str = ""

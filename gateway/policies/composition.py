"""The configuration of a policy that is composed of parts."""

import msgspec


class Composition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parts by name, scorers with their weights: either scorers (and a picker, by default "max"), or a policy
    that chooses among the candidates that the filters keep."""

    filters: list[str] = []
    scorers: dict[str, float] = {}
    picker: str = ""
    policy: str = ""

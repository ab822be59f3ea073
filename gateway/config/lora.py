"""The options of adapters that the admin API loads; all are fields of `Config`."""

from typing import Annotated

from gateway.config.options import option
from gateway.config.reverse_proxy import Behind


class Adapters(Behind, frozen=True, kw_only=True, forbid_unknown_fields=True):
    load_adapters: Annotated[
        bool,
        option(
            "Take POST and DELETE of /admin/adapters: load an adapter (LoRA) on workers, and unload it. They "
            "make workers read whatever path they name, so where there are keys they want one with admin "
            "scope, whatever --admin-key says."
        ),
    ] = False
    adapter_timeout_s: Annotated[
        float,
        option(
            "For a worker to load or unload one; weights may have to come from a hub first.",
            "seconds",
            gt=0,
        ),
    ] = 120.0

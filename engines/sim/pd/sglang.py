"""SGLang (0.5): the same body to both at once; a room of the gateway's ties them."""

from typing import Any

from engines.sim.params import FlatError
from engines.sim.pd.leg import Leg, Source

BOOTSTRAP_PORT = 8998


def read(body: dict[str, Any], role: str) -> Leg:
    """Parse a leg. Raises FlatError for a request without a room: such workers take no other."""
    room = body.get("bootstrap_room")
    if not isinstance(room, int):
        message = "Invalid request: Disaggregated request received without bootstrap room id."
        raise FlatError(message, kind="BadRequest")
    if role == "prefill":
        return Leg(pins=True, key=str(room), only_first_token=True, answers_when_fetched=True, room=room)
    host, port = body.get("bootstrap_host"), body.get("bootstrap_port")
    source = Source(str(host), int(port or BOOTSTRAP_PORT), str(room), may_wait=True)
    return Leg(fetches=True, source=source, reports_own_hit=True)


def failed(role: str, room: str) -> FlatError:
    """Error response to the client when the data did not come, or was not fetched."""
    which = "Decode" if role == "decode" else "Prefill"
    message = f"{which} transfer failed for request rank=0 bootstrap_room={room}"
    return FlatError(message, status=500, kind="InternalServerError")

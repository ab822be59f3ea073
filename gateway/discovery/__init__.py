"""Where workers come from: what an endpoint tells of itself, whether it is up, who is in the fleet."""

"""What each worker holds: from its events (`memory.py`) and from our own decisions (`assumed.py`)."""

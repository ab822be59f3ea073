"""Commands of `kvgate` beside the server; `gateway/cli.py` names them all."""

"""What `kvgate` can do beside serving; `gateway/cli.py` names them all."""

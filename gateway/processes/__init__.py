"""Several processes behind one port: a supervisor that accepts, and child processes that serve."""

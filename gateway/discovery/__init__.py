"""Discovery of workers: declared by the operator, probed, and joined to the fleet; their lifecycle."""

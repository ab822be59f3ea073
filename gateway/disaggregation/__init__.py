"""A request in two halves: one worker computes the prompt, another answers."""

"""How policies do: those in use side by side (`--ab`), and what others would have done (`--shadow`).

score.py       what came of the decisions of one policy
comparison.py  what another one would have chosen, and what it promised
trials.py      both, off the way of requests
metrics.py     /metrics and /admin/policies
"""

"""Several processes behind one port: a supervisor that accepts, and child processes that serve.

supervisor   accepts, starts and replaces children      child, child_handle   a child; its handle above
messages     between both                               reload                all processes, or none
admin        one admin API for all                      json_merge, metrics_merge   answers and pages, merged
metric_reference   every metric: the page of the reference
"""

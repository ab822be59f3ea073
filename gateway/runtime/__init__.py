"""The process: tasks, timers, ids, garbage collection, event-loop lag, file descriptors, TLS contexts.

tasks            background tasks              deadline_timer   deadlines that each read postpones
loop_lag         lag of the event loop         gc_policy        no long pauses
process_limits   open files, memory, threads   descriptors      shares of open files
tls              contexts, reloaded            self_signed      certificates without an authority
ids              unguessable ids               paced_reads      one peer's bytes in turns with others
work_slices      long work in slices           rate_limited_log the first line of a kind, then a number
file_replacement a file replaced at once       terminal         the output of commands
build            version, compiled or not      runnables        what starts and stops in one order
"""

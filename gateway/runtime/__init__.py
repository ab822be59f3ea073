"""The process: tasks, timers, ids, garbage collection, event-loop lag, file descriptors, TLS contexts."""

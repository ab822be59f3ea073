"""What is sent. Each workload is made here from text that every Python has, so a clone alone is enough."""

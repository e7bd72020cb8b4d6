"""What runs beside the calls: threads, wakeups, pauses, the leader's loops."""

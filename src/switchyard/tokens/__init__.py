"""Token pools: what all kinds of them do, and those that bound nothing."""

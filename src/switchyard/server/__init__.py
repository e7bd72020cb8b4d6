"""The edge: HTTP and gRPC doors, long polls, loops, settings, and the one place that wires everything."""

"""The door of Rainbow: its services over gRPC, its jobspecs, and the selection `constraint`."""

"""The services that every use case needs: the committer, the snapshots, rights, time and ids."""

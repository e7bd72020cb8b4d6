"""The match engine `fluxion`: asks a real Fluxion, the scheduler of Flux, whether a job fits a cluster."""

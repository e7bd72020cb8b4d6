"""The variables of its own environment that an agent hands to its backend."""

from __future__ import annotations

# What the client of a container runtime takes from the agent's environment: its configuration, its daemon, its logins.
CONTAINER_VARIABLES = (
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "APPTAINER_CACHEDIR",
    "APPTAINER_TMPDIR",
)

# What backends get of the agent's environment; each passes less of it to jobs. No secrets, such as a join token.
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "FLUX_URI",
    "SSH_AUTH_SOCK",
    *CONTAINER_VARIABLES,
)

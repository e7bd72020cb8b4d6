"""Tasks, workflows and launch plans of Flyte's: register, read, list, activate. Needs the package flyteidl."""

"""The site file: what the operator says of this cluster, its accounts, images and nodes."""

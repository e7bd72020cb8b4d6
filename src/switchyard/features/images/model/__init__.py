"""Values about images in registries: their names, their manifests."""

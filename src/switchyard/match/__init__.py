"""Does it fit? Pure: a demand and a graph in, a match or a misfit with its reason out."""

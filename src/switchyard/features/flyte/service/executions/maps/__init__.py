"""Maps: their elements, their progress, their results."""

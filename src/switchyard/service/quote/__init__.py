"""When, and for how much: clusters are asked, their answers kept, and the jobs that waited for them decided."""

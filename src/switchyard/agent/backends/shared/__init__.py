"""What several backends need: folders of jobs, containers, programs on nodes."""

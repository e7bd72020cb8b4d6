"""Files of jobs: trees, frames of uploads, views."""

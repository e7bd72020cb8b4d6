"""Files of jobs at the agent: fetched before the start, collected after the end. It knows no job system."""

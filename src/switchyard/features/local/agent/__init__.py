"""The backend that starts processes on this machine, and the program that stays beside each job."""

"""Where does it go, and why? Pure: a snapshot of the world and a job in, a plan with every verdict out."""

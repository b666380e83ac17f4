"""How a plan is carried out: as a description, on this machine, on Ray, or simulated."""

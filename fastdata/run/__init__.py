"""Running unchanged programs with torch's DataLoader replaced by fastdata's: `fastdata run`."""
